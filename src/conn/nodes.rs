//! Many servers of one kind, each with its connections, made when it is first asked for.
//!
//! Invariant: one address has one [`SingleServer`] for as long as the client lives, however often its
//! role changes: only so a connection that replaces another can make an end of that.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};

use super::Setup;
use super::single::SingleServer;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As a URL has it: colons of its own would run into that of the port.
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where servers are to be reached that tell an address which does not lead to them from here.
#[derive(Clone, Default)]
pub(crate) struct AddressMap(Option<Arc<Mapping>>);

type Mapping = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

impl AddressMap {
    pub(crate) fn of(
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(map)))
    }

    /// Where the server is that told this address of itself or of another.
    pub(super) fn lead(&self, told: Address) -> Address {
        let mapped = self.0.as_ref().and_then(|map| map(&told.host, told.port));
        match mapped {
            Some((host, port)) => Address {
                host: host.into(),
                port,
            },
            None => told,
        }
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressMap")
            .field(&self.0.is_some())
            .finish()
    }
}

#[derive(Debug)]
pub(crate) struct Nodes {
    /// What all have in common: user, password, TLS; of its address only the kind counts.
    model: ConnectionInfo,
    setup: Setup,
    known: Mutex<HashMap<Address, Arc<SingleServer>>>,
}

impl Nodes {
    pub(crate) fn new(model: ConnectionInfo, setup: Setup) -> Self {
        Self {
            model,
            setup,
            known: Mutex::default(),
        }
    }

    /// The server at this address; nothing is sent to it yet.
    pub(crate) fn at(&self, address: &Address) -> Arc<SingleServer> {
        let mut known = self.known.lock();
        let server = known
            .entry(address.clone())
            .or_insert_with(|| Arc::new(SingleServer::new(self.info(address), &self.setup)));
        Arc::clone(server)
    }

    /// All that were asked for so far.
    pub(crate) fn known(&self) -> Vec<(Address, Arc<SingleServer>)> {
        let known = self.known.lock();
        let each = known.iter();
        each.map(|(address, server)| (address.clone(), Arc::clone(server)))
            .collect()
    }

    /// Where the server is that told this address of itself or of another.
    pub(super) fn lead(&self, told: Address) -> Address {
        self.setup.address_map.lead(told)
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.setup
    }

    /// How to connect to this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        let there = connect_to(&self.model, address);
        self.model.clone().set_addr(there)
    }
}

/// Where this address is, in the way of the model: with or without TLS.
pub(super) fn connect_to(model: &ConnectionInfo, address: &Address) -> ConnectionAddr {
    let (host, port) = (address.host.to_string(), address.port);
    match model.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}
