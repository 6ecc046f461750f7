//! A server with its links: three that every client uses, and two that only some clients need. A set of servers of one
//! kind, each made on first use.
//!
//! Invariant: one address has one [`SingleServer`] for as long as the client lives, however often its role changes.
//! Otherwise a new connection could not have the connection before it killed.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::{ConnectionInfo, ProtocolVersion, Value};

use super::address::Address;
use super::error_reply::{code, is_unknown_command};
use super::link::{Link, Purpose, Reachability, SharedProcess};
use super::setup::{Network, Setup, tcp_settings};
use super::transport::{
    Commands, Fault, Lane, LinkState, Recipient, Replies, Submitted, Transport,
};

/// The role that a server reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Primary,
    Replica,
}

#[derive(Debug)]
pub(crate) struct SingleServer {
    address: String,
    network: Network,
    reachability: Arc<Reachability>,
    process: Arc<SharedProcess>,
    command: Link,
    renewal: Link,
    push: Link,
    /// Opened for the first wait for replicas.
    confirm: Link,
    /// Carries commands that must follow a subscription, where the push link takes subscriptions only; see
    /// [`PushState`](super::push::PushState).
    behind_push: Link,
}

impl SingleServer {
    pub(crate) fn new(info: ConnectionInfo, setup: &Setup) -> Self {
        let info = info.set_tcp_settings(tcp_settings());
        let address = format!("{}/{}", info.addr(), info.redis_settings().db());
        // Only RESP3 delivers messages on the connection that subscribed.
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let push_info = info.clone().set_redis_settings(settings);
        let reachability = Arc::default();
        let process = Arc::default();
        let link = |lane: &str, info, purpose| {
            let label = format!("lockset-{lane}-{}", setup.client_id);
            Link::new(info, label, setup, &reachability, &process, purpose)
        };
        Self {
            address,
            network: setup.network.clone(),
            command: link("command", info.clone(), Purpose::Calls),
            renewal: link("renewal", info.clone(), Purpose::Renewals),
            confirm: link("confirm", info.clone(), Purpose::Calls),
            behind_push: link("behind-push", info, Purpose::BehindPush),
            push: link("push", push_info, Purpose::Push),
            reachability,
            process,
        }
    }

    /// Opens the connections that every client needs. The push connection is made on first use.
    pub(crate) async fn open(&self) -> Result<(), Fault> {
        let (command, renewal) =
            futures_util::future::join(self.command.open(), self.renewal.open()).await;
        command.and(renewal)
    }

    /// Asks the server for its role. If the user lacks the right to ask, the server counts as a primary.
    pub(crate) async fn role(&self, limit: Duration) -> Result<Role, Fault> {
        match self.command.send(&redis::cmd("ROLE"), limit).await {
            Ok(Value::Array(role))
                if role.first() == Some(&Value::BulkString(b"master".into())) =>
            {
                Ok(Role::Primary)
            }
            Ok(_) => Ok(Role::Replica),
            Err(Fault::Answered(no)) if code(&no) == Some("NOPERM") || is_unknown_command(&no) => {
                Ok(Role::Primary)
            }
            Err(fault) => Err(fault),
        }
    }

    pub(crate) fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Command => &self.command,
            Lane::Renewal => &self.renewal,
            Lane::Push => &self.push,
            Lane::Confirm => &self.confirm,
        }
    }

    pub(crate) fn behind_push(&self) -> &Link {
        &self.behind_push
    }

    /// Sets the ids of the nodes that are accepted at its address.
    pub(super) fn expect_node(&self, ids: Vec<String>) {
        self.process.expect_node(ids);
    }

    pub(super) fn reachability(&self) -> &Arc<Reachability> {
        &self.reachability
    }

    fn links(&self) -> [&Link; 5] {
        let [command, renewal, push] = [&self.command, &self.renewal, &self.push];
        [command, renewal, push, &self.confirm, &self.behind_push]
    }

    /// Closes its connections once the commands in flight have ended. The next command makes new ones.
    pub(crate) fn close(&self) {
        self.links().into_iter().for_each(|link| link.close());
    }

    /// Closes all connections. None is made and nothing is sent until [`Self::reinstate`].
    pub(super) fn retire(&self) {
        self.links().into_iter().for_each(|link| link.retire());
    }

    /// Ends a retirement.
    pub(super) fn reinstate(&self) {
        self.links().into_iter().for_each(|link| link.reinstate());
    }
}

impl Transport for SingleServer {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        _route: &'a str,
        commands: Commands<'a>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>> {
        self.link(lane).exchange(commands, limit).boxed()
    }

    fn submit(
        &self,
        lane: Lane,
        _route: &str,
        commands: Commands<'_>,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        self.link(lane).submit(commands, limit, to)
    }

    fn submitted(&self, lane: Lane, commands: Commands<'_>, limit: Duration) -> Option<Submitted> {
        Submitted::by(|to| self.link(lane).submit(commands, limit, to))
    }

    fn link_state(&self, lane: Lane, _route: &str) -> Option<LinkState> {
        Some(self.link(lane).state())
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.network.spawn(task);
    }

    fn is_single_server(&self) -> bool {
        true
    }
}

/// A set of servers of one kind, each with its own connections.
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
