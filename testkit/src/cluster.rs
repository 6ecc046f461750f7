//! A private Redis Cluster for one test.
//!
//! Invariant: the owner of a slot is always queried from the nodes and never cached, because the
//! cluster also changes on its own.

mod failover;
mod form;
mod migrate;
mod view;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::OnceCell;

use crate::proxy::Proxy;
use crate::rights;
use crate::server::Server;
use crate::wait::reached;
use view::{View, owner};

pub use failover::FailOver;
pub use form::ClusterBuilder;

/// How many slots every cluster has.
const SLOTS: u16 = 16_384;

/// How long a cluster may take to be healthy again.
const WELL_BOUND: Duration = Duration::from_secs(30);

/// A private cluster on 127.0.0.1, by default 3 primaries with a replica each.
///
/// Dropping the value kills all its processes. They do not outlive the test process either.
#[derive(Debug)]
pub struct Cluster {
    // Dropped before the nodes, because a proxy whose server is gone would notify clients.
    proxies: Vec<Proxy>,
    nodes: Vec<Server>,
    /// The node ids, in the same order.
    ids: Vec<String>,
}

/// Methods that query the cluster panic when no node answers.
impl Cluster {
    /// Starts a cluster of 3 primaries and 3 replicas.
    ///
    /// # Panics
    ///
    /// Like [`ClusterBuilder::start`].
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Sets options before [`ClusterBuilder::start`].
    #[must_use]
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::new()
    }

    /// The cluster shared by all tests of this process that do no damage: no failover, no
    /// migration, no `FLUSHALL`, and only names of their own. Its node timeout is 15 s.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Cluster> = OnceCell::const_new();
        let patience = Duration::from_secs(15);
        SHARED
            .get_or_init(|| Self::builder().node_timeout(patience).start())
            .await
    }

    /// `redis+cluster://HOST:PORT,HOST:PORT,..` of all nodes as clients see them, without a password;
    /// `rediss+cluster://..` after [`ClusterBuilder::tls`].
    #[must_use]
    pub fn url(&self) -> String {
        let addrs: Vec<String> = self.addrs().iter().map(SocketAddr::to_string).collect();
        let scheme = self.nodes[0].scheme();
        let login = rights::login();
        format!("{scheme}+cluster://{login}{}", addrs.join(","))
    }

    /// The addresses at which clients find the nodes, in the order of [`nodes`](Self::nodes): the
    /// proxies' addresses, if there are proxies.
    #[must_use]
    pub fn addrs(&self) -> Vec<SocketAddr> {
        if self.proxies.is_empty() {
            self.nodes.iter().map(Server::peer_addr).collect()
        } else {
            self.proxies.iter().map(Proxy::addr).collect()
        }
    }

    /// All nodes: first the original primaries, then the original replicas, in the order of their
    /// primaries.
    #[must_use]
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// The node at this index of [`nodes`](Self::nodes).
    ///
    /// # Panics
    ///
    /// If there are fewer nodes.
    #[must_use]
    #[track_caller]
    pub fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The proxy between this node and its clients. Other nodes bypass it, so a fault only affects
    /// clients of this node.
    ///
    /// # Panics
    ///
    /// If the cluster was started without [`ClusterBuilder::proxied`], or the node belongs to
    /// another cluster.
    #[must_use]
    #[track_caller]
    pub fn proxy(&self, node: &Server) -> &Proxy {
        assert!(
            !self.proxies.is_empty(),
            "the cluster was started without `.proxied()`"
        );
        &self.proxies[self.index_of(node)]
    }

    /// The key's slot, computed by the cluster.
    pub async fn slot(&self, key: &str) -> u16 {
        let asking = async || {
            for node in &self.nodes {
                let command: &[&[&str]] = &[&["CLUSTER", "KEYSLOT", key]];
                // A frozen node does not answer, and is skipped after a timeout.
                let answer = tokio::time::timeout(view::LOOK_BOUND, node.try_ask(command));
                if let Ok(Ok((slot,))) = answer.await {
                    return Ok(slot);
                }
            }
            Err("no node answers".to_owned())
        };
        match reached(WELL_BOUND, asking).await {
            Ok(slot) => slot,
            Err(reason) => panic!("no slot of {key}: {reason}"),
        }
    }

    /// The primary of the key's slot, by the newest view of all nodes.
    pub async fn primary_of(&self, key: &str) -> &Server {
        self.owner_of(self.slot(key).await).await
    }

    /// The primary of this slot, by the newest view of all nodes.
    pub async fn owner_of(&self, slot: u16) -> &Server {
        let look = async || {
            let views = View::of_all(&self.nodes).await;
            owner(&views, slot)
                .and_then(|id| self.by_id(id))
                .ok_or_else(|| "no node knows".to_owned())
        };
        match reached(WELL_BOUND, look).await {
            Ok(server) => server,
            Err(reason) => panic!("who owns slot {slot}? {reason}"),
        }
    }

    /// The first replica, in the order of [`nodes`](Self::nodes), that follows the primary of the
    /// key's slot and is connected to it.
    ///
    /// # Panics
    ///
    /// If there is no such replica within 30 s.
    pub async fn replica_of(&self, key: &str) -> &Server {
        self.follower_of(self.slot(key).await, true).await
    }

    /// The first replica of the slot's primary, connected to it if `linked`.
    async fn follower_of(&self, slot: u16, linked: bool) -> &Server {
        let look = async || {
            let views = View::of_all(&self.nodes).await;
            let owner = owner(&views, slot).ok_or("no node knows the primary")?;
            let follows = |view: &View| {
                let own = &view.nodes[&view.myself];
                own.primary.as_deref() == Some(owner) && (view.linked || !linked)
            };
            let mut nodes = self.nodes.iter().zip(&views);
            nodes
                .find(|(_, view)| view.as_ref().is_some_and(follows))
                .map(|(node, _)| node)
                .ok_or_else(|| "no replica follows the primary".to_owned())
        };
        match reached(WELL_BOUND, look).await {
            Ok(server) => server,
            Err(reason) => panic!("no replica of slot {slot}: {reason}"),
        }
    }

    /// All servers that currently report that they are primaries, in the order of
    /// [`nodes`](Self::nodes).
    pub async fn primaries(&self) -> Vec<&Server> {
        let views = View::of_all(&self.nodes).await;
        let is_primary = |view: &View| view.nodes[&view.myself].has_flag("master");
        let nodes = self.nodes.iter().zip(&views);
        nodes
            .filter(|(_, view)| view.as_ref().is_some_and(is_primary))
            .map(|(node, _)| node)
            .collect()
    }

    /// All keys of all primaries that match the pattern, sorted.
    pub async fn keys(&self, pattern: &str) -> Vec<String> {
        let primaries = self.primaries().await;
        let command = ["KEYS", pattern];
        let asking = primaries
            .into_iter()
            .map(|node| node.ask::<Vec<Vec<u8>>>(&command));
        let mut keys: Vec<String> = join_all(asking)
            .await
            .iter()
            .flatten()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        keys.sort();
        keys
    }

    /// Waits until every node answers, reports a healthy cluster and knows all others, each replica
    /// follows its primary, and all agree on the owners of slots.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn is_well(&self) {
        let look = async || self.well(&View::of_all(&self.nodes).await);
        if let Err(reason) = reached(WELL_BOUND, look).await {
            panic!("the cluster is not well: {reason}");
        }
    }

    /// Finds what is wrong with the cluster according to the views of all nodes.
    fn well(&self, views: &[Option<View>]) -> Result<(), String> {
        let mut first: Option<&View> = None;
        for (node, view) in self.nodes.iter().zip(views) {
            let addr = node.addr();
            let view = view.as_ref().ok_or(format!("{addr} does not answer"))?;
            if !view.ok {
                return Err(format!("{addr} says that the cluster is down"));
            }
            if view.nodes.len() != self.ids.len() {
                return Err(format!("{addr} knows {} nodes", view.nodes.len()));
            }
            for id in &self.ids {
                let known = view.nodes.get(id).ok_or(format!("{addr} lacks {id}"))?;
                let failing = ["fail", "fail?", "handshake", "noaddr"];
                if !known.connected || failing.iter().any(|flag| known.has_flag(flag)) {
                    return Err(format!("{addr} does not reach {}", known.addr));
                }
                if let Some(first) = first
                    && first.nodes[id].slots != known.slots
                {
                    return Err(format!("{addr} disagrees on the slots of {}", known.addr));
                }
            }
            if view.nodes[&view.myself].primary.is_some() && !view.linked {
                return Err(format!("{addr} does not reach its primary"));
            }
            first = first.or(Some(view));
        }
        Ok(())
    }

    fn by_id(&self, id: &str) -> Option<&Server> {
        let index = self.ids.iter().position(|own| own == id)?;
        Some(&self.nodes[index])
    }

    fn id_of(&self, node: &Server) -> &str {
        &self.ids[self.index_of(node)]
    }

    #[track_caller]
    fn index_of(&self, node: &Server) -> usize {
        self.nodes
            .iter()
            .position(|own| own.addr() == node.addr())
            .unwrap_or_else(|| panic!("{} is not a node of this cluster", node.addr()))
    }
}
