//! A server with its links: three that every client uses, and one that only some clients need. A set of servers of one
//! kind, each made on first use.
//!
//! Invariant: one address has one [`SingleServer`] for as long as the client lives, however often its role changes.
//! Otherwise a new connection could not have the connection before it killed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};

use super::address::Address;
use super::error_reply::{code, is_unknown_command};
use super::link::{Link, Reachability, SharedProcess};
use super::setup::Setup;
use super::transport::{Fault, Lane, command};

#[derive(Debug)]
pub(crate) struct SingleServer {
    pub(super) reachability: Arc<Reachability>,
    pub(super) process: Arc<SharedProcess>,
    /// One for each lane.
    links: [Arc<Link>; 4],
}

impl SingleServer {
    pub(crate) fn new(info: ConnectionInfo, setup: &Setup) -> Self {
        let reachability = Arc::default();
        let process = Arc::default();
        // In the order of the lanes.
        let lanes = [Lane::Command, Lane::Renewal, Lane::Push, Lane::Confirm].map(Some);
        Self {
            links: lanes.map(|lane| Link::new(info.clone(), lane, setup, &reachability, &process)),
            reachability,
            process,
        }
    }

    /// Opens the connections that every client needs. The push connection is made on first use.
    pub(crate) async fn open(&self) -> Result<(), Fault> {
        let [command, renewal] = [Lane::Command, Lane::Renewal].map(|lane| self.link(lane).open());
        let (command, renewal) = join(command, renewal).await;
        command.and(renewal)
    }

    /// Asks the server whether it is a primary. If the user lacks the right to ask, it counts as one.
    pub(crate) async fn is_primary(&self, limit: Duration) -> Result<bool, Fault> {
        let ask = command(&["ROLE"]);
        match self.link(Lane::Command).send(&ask, limit).await {
            Ok(Value::Array(role)) => {
                Ok(role.first() == Some(&Value::BulkString(b"master".into())))
            }
            Ok(_) => Ok(false),
            Err(Fault::Answered(no)) if code(&no) == Some("NOPERM") || is_unknown_command(&no) => {
                Ok(true)
            }
            Err(fault) => Err(fault),
        }
    }

    pub(crate) fn link(&self, lane: Lane) -> &Arc<Link> {
        &self.links[lane as usize]
    }

    /// Closes its connections once the commands in flight have ended. The next command makes new ones.
    pub(crate) fn close(&self) {
        self.links.iter().for_each(|link| link.close());
    }

    /// Closes all connections. None is made and nothing is sent until [`Self::reinstate`].
    pub(super) fn retire(&self) {
        self.reachability.retire();
        self.close();
    }

    /// Ends a retirement.
    pub(super) fn reinstate(&self) {
        self.reachability.reinstate();
    }
}

/// A set of servers of one kind, each with its own connections.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// The settings that all servers share: user, password, TLS. Of its address, only the kind matters.
    model: ConnectionInfo,
    pub(super) setup: Setup,
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
    pub(crate) fn known(&self) -> BTreeMap<Address, Arc<SingleServer>> {
        self.known.lock().clone()
    }

    /// The connection settings for this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        address.with_settings_of(&self.model)
    }
}
