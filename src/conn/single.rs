//! A server with its links: three that every client uses, and one that only some clients need. A set of servers of one
//! kind, each made on first use.
//!
//! Invariant: one address has one [`SingleServer`], however often its role changes. Otherwise a new connection could
//! not have the earlier connection killed. The server is forgotten when no command of an earlier connection can still
//! arrive.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join;
use parking_lot::Mutex;
use redis::{ConnectionInfo, Value};

use super::address::Address;
use super::error_reply::{code, is_unknown_command};
use super::link::{Link, Reachability, SharedProcess};
use super::setup::Setup;
use super::transport::{Fault, LATE_ARRIVAL_MAX, Lane, command};
use crate::engine::clock::Tick;

/// The number of the next server.
static MADE: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
pub(crate) struct SingleServer {
    /// Different for each server of this process.
    pub(super) number: u64,
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
            number: MADE.fetch_add(1, Ordering::Relaxed),
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
    /// The servers, each with the time when it was last seen in use.
    known: Mutex<BTreeMap<Address, (Arc<SingleServer>, Tick)>>,
}

/// A server that is not used for this long is forgotten.
const UNUSED_MAX: Duration = LATE_ARRIVAL_MAX.saturating_mul(60);

impl Nodes {
    pub(crate) fn new(model: ConnectionInfo, setup: Setup) -> Self {
        Self {
            model,
            setup,
            known: Mutex::default(),
        }
    }

    /// Returns the server at this address, made if necessary. Nothing is sent to it yet.
    pub(crate) fn at(&self, address: &Address) -> Arc<SingleServer> {
        let (now, mut known) = (self.setup.clock.now(), self.known.lock());
        let new = || SingleServer::new(self.info(address), &self.setup);
        let entry = known.entry(address.clone());
        let (server, used) = entry.or_insert_with(|| (Arc::new(new()), now));
        *used = now;
        Arc::clone(server)
    }

    /// Calls `action` for each server that was used lately. It must not block.
    pub(super) fn at_each(&self, action: impl Fn(&SingleServer)) {
        let known = self.known.lock();
        known.values().for_each(|(server, _)| action(server));
    }

    /// Returns all servers that were used lately.
    pub(crate) fn known(&self) -> BTreeMap<Address, Arc<SingleServer>> {
        let (now, mut known) = (self.setup.clock.now(), self.known.lock());
        known.retain(|_, (server, used)| {
            if Arc::strong_count(server) > 1 || server.links.iter().any(|link| link.is_open()) {
                *used = now;
            }
            used.until(now) < UNUSED_MAX
        });
        let servers = known.iter();
        let servers = servers.map(|(address, (server, _))| (address.clone(), Arc::clone(server)));
        servers.collect()
    }

    /// Returns the connection settings for this address.
    pub(crate) fn info(&self, address: &Address) -> ConnectionInfo {
        address.with_settings_of(&self.model)
    }
}
