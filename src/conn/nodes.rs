//! A set of servers of one kind, each with its own connections, made on first use.
//!
//! Invariant: one address has one [`SingleServer`] for as long as the client lives, however often its role changes.
//! Otherwise a new connection could not have the connection before it killed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::ConnectionInfo;

use super::address::Address;
use super::setup::Setup;
use super::single::SingleServer;

#[derive(Debug)]
pub(crate) struct Nodes {
    /// The settings that all servers share: user, password, TLS. Of its address, only the kind matters.
    model: ConnectionInfo,
    setup: Setup,
    known: Mutex<BTreeMap<Address, Arc<SingleServer>>>,
}

impl Nodes {
    pub(crate) fn new(model: ConnectionInfo, setup: Setup) -> Self {
        Self {
            model,
            setup,
            known: Mutex::default(),
        }
    }

    /// The server at this address. Nothing is sent to it yet.
    pub(crate) fn at(&self, address: &Address) -> Arc<SingleServer> {
        let mut known = self.known.lock();
        let server = known
            .entry(address.clone())
            .or_insert_with(|| Arc::new(SingleServer::new(self.info(address), &self.setup)));
        Arc::clone(server)
    }

    /// All servers that were asked for so far.
    pub(crate) fn known(&self) -> Vec<(Address, Arc<SingleServer>)> {
        let known = self.known.lock();
        let each = known.iter();
        each.map(|(address, server)| (address.clone(), Arc::clone(server)))
            .collect()
    }

    /// Translates an address that a server announced, of itself or of another server.
    pub(super) fn resolve(&self, announced: Address) -> Address {
        self.setup.address_map.resolve(announced)
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The connection settings for this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        let there = address.connect_like(self.model.addr());
        self.model.clone().set_addr(there)
    }
}
