//! Forms a cluster from separate servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::view::View;
use super::{Cluster, SLOTS};
use crate::proxy::Proxy;
use crate::replication::AT_ONCE;
use crate::server::{Server, ServerBuilder};
use crate::wait::reached;

/// How long forming a cluster may take. It takes at least two seconds, during which a new primary
/// serves no clients.
const FORM_BOUND: Duration = Duration::from_secs(30);

/// How long nodes have for getting to know each other before they are introduced again.
const INTRODUCTION_BOUND: Duration = Duration::from_secs(2);

/// The addresses of the proxies: the ports of the nodes, on another loopback address.
const PROXIES: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Options for a [`Cluster`], from [`Cluster::builder`].
#[derive(Clone, Debug)]
pub struct ClusterBuilder {
    server: ServerBuilder,
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
    proxied: bool,
}

impl ClusterBuilder {
    pub(super) fn new() -> Self {
        Self {
            server: Server::builder(),
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_secs(1),
            proxied: false,
        }
    }

    /// The number of primaries, which share the slots. The default is 3, as an election needs.
    #[must_use]
    pub fn primaries(mut self, count: usize) -> Self {
        self.primaries = count;
        self
    }

    /// The number of replicas per primary. The default is 1.
    #[must_use]
    pub fn replicas(mut self, count: usize) -> Self {
        self.replicas = count;
        self
    }

    /// How long a node may be silent before the others consider it failed. The default is 1 s. A
    /// replica is elected 0.5 to 1 s later.
    #[must_use]
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Puts a [`Proxy`] in front of each node: see [`Cluster::proxy`]. Needs Redis 7 or Valkey, and
    /// a system where all of 127.0.0.0/8 is local, like Linux.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Like [`ServerBuilder::tls`], for all nodes, with the same certificates. The nodes also use
    /// TLS among themselves, and redirect clients to the TLS ports.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.server = self.server.tls();
        self
    }

    /// Like [`ServerBuilder::valkey`], for all nodes.
    #[must_use]
    pub fn valkey(mut self) -> Self {
        self.server = self.server.valkey();
        self
    }

    /// Like [`ServerBuilder::binary`], for all nodes.
    #[must_use]
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.server = self.server.binary(path);
        self
    }

    /// Like [`ServerBuilder::args`], for all nodes. A `--requirepass` also sets `--masterauth`.
    #[must_use]
    pub fn args<I>(mut self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.server = self.server.args(args);
        self
    }

    /// Starts the servers and forms the cluster. Returns once every node reports that it is
    /// healthy, all know each other, and each replica follows its primary.
    ///
    /// # Panics
    ///
    /// Lists what is missing after 30 s.
    pub async fn start(self) -> Cluster {
        match self.try_start().await {
            Ok(cluster) => cluster,
            Err(reason) => panic!("no test cluster: {reason}"),
        }
    }

    /// Like [`start`](Self::start), but returns the reason as an error.
    pub async fn try_start(self) -> Result<Cluster, String> {
        let count = self.primaries * (1 + self.replicas);
        let nodes = ServerBuilder::start_all(vec![self.node(); count])?;
        let proxies = if self.proxied {
            nodes.iter().map(proxy).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let ids = try_join_all(nodes.iter().map(id)).await?;
        let cluster = Cluster {
            proxies,
            nodes,
            ids,
        };
        self.share_slots(&cluster.nodes).await?;
        cluster.acquaint().await?;
        self.follow(&cluster).await?;
        reached(FORM_BOUND, async || {
            let views = View::of_all(&cluster.nodes).await;
            cluster.well(&views)?;
            self.as_planned(&views)
        })
        .await?;
        Ok(cluster)
    }

    fn node(&self) -> ServerBuilder {
        let timeout = self.node_timeout.as_millis().to_string();
        let mut server = self.server.clone().bus().args([
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            &timeout,
            // A replica may be elected however old its data, because tests examine lost data.
            "--cluster-replica-validity-factor",
            "0",
            // Replicas do not move to other primaries on their own.
            "--cluster-migration-barrier",
            "100",
        ]);
        server = server.args(AT_ONCE);
        if let Some(password) = server.password() {
            server = server.args(["--masterauth".to_owned(), password]);
        }
        if server.has_tls() {
            server = server.args(["--tls-cluster", "yes", "--tls-replication", "yes"]);
        }
        if self.proxied {
            let host = PROXIES.to_string();
            server = server.args(["--cluster-announce-hostname", &host]);
            server = server.args(["--cluster-preferred-endpoint-type", "hostname"]);
        }
        server
    }

    /// Assigns slots to each primary and a distinct epoch to each node, so that no two nodes have
    /// to resolve a conflict.
    async fn share_slots(&self, nodes: &[Server]) -> Result<(), String> {
        let sharing = nodes.iter().enumerate().map(async |(index, node)| {
            let epoch = (index + 1).to_string();
            tell(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await?;
            if index >= self.primaries {
                return Ok(());
            }
            let end = |index: usize| usize::from(SLOTS) * index / self.primaries;
            // Redis 6.2 has no ranges.
            let slots: Vec<String> = (end(index)..end(index + 1))
                .map(|slot| slot.to_string())
                .collect();
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            tell(node, &command).await
        });
        try_join_all(sharing).await.map(drop)
    }

    /// Makes every node after the primaries a replica.
    async fn follow(&self, cluster: &Cluster) -> Result<(), String> {
        let replicas = cluster.nodes.iter().enumerate().skip(self.primaries);
        let following = replicas.map(async |(index, node)| {
            let primary = &cluster.ids[index % self.primaries];
            reached(FORM_BOUND, async || {
                tell(node, &["CLUSTER", "REPLICATE", primary]).await
            })
            .await
        });
        try_join_all(following).await.map(drop)
    }

    /// Whether all nodes know the roles and the client addresses of all others.
    fn as_planned(&self, views: &[Option<View>]) -> Result<(), String> {
        let replicas = self.primaries * self.replicas;
        for view in views.iter().flatten() {
            let known = view.nodes.values().filter(|node| node.primary.is_some());
            if known.count() != replicas {
                return Err(format!("{} does not know all replicas", view.myself));
            }
            let host = format!(",{PROXIES}");
            if self.proxied && !view.nodes.values().all(|node| node.addr.ends_with(&host)) {
                return Err(format!("{} does not know all host names", view.myself));
            }
        }
        Ok(())
    }
}

fn proxy(node: &Server) -> Result<Proxy, String> {
    let target = node.peer_addr();
    let addr = SocketAddr::from((PROXIES, target.port()));
    TcpListener::bind(addr)
        .and_then(|listener| Proxy::try_start(listener, target))
        .map_err(|error| format!("no proxy on {addr}: {error}"))
}

async fn id(node: &Server) -> Result<String, String> {
    let answer: Result<(String,), _> = node.try_ask(&[&["CLUSTER", "MYID"]]).await;
    answer
        .map(|(id,)| id)
        .map_err(|error| format!("CLUSTER MYID at {}: {error}", node.addr()))
}

impl Cluster {
    /// Introduces every pair of nodes until all know each other. Introducing all to one node would
    /// work too, but the others would learn of each other by gossip, some seconds later.
    ///
    /// A node forgets an introduction that the other does not answer within the node timeout, as
    /// on a busy machine. So pairs that are still strangers are introduced again.
    async fn acquaint(&self) -> Result<(), String> {
        let deadline = Instant::now() + FORM_BOUND;
        loop {
            self.introduce(&View::of_all(&self.nodes).await).await?;
            let look = async || match self.strangers(&View::of_all(&self.nodes).await).first() {
                None => Ok(()),
                Some((one, other)) => Err(format!(
                    "{} and {} do not know each other",
                    one.addr(),
                    other.addr()
                )),
            };
            match reached(INTRODUCTION_BOUND, look).await {
                Err(reason) if Instant::now() >= deadline => return Err(reason),
                Err(_) => {}
                Ok(()) => return Ok(()),
            }
        }
    }

    async fn introduce(&self, views: &[Option<View>]) -> Result<(), String> {
        let meetings = self.strangers(views).into_iter();
        let meetings = meetings.map(async |(node, other)| {
            let port = other.peer_addr().port().to_string();
            tell(node, &["CLUSTER", "MEET", "127.0.0.1", &port]).await
        });
        try_join_all(meetings).await.map(drop)
    }

    /// The pairs of nodes of which at least one does not know the other.
    fn strangers(&self, views: &[Option<View>]) -> Vec<(&Server, &Server)> {
        let knows = |index: usize, other: usize| {
            let view = views[index].as_ref();
            let other = view.and_then(|view| view.nodes.get(&self.ids[other]));
            other.is_some_and(|node| !node.has_flag("handshake"))
        };
        let count = self.nodes.len();
        let pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)));
        pairs
            .filter(|&(one, other)| !knows(one, other) || !knows(other, one))
            .map(|(one, other)| (&self.nodes[one], &self.nodes[other]))
            .collect()
    }
}

/// Sends a command and expects OK.
pub(super) async fn tell(node: &Server, command: &[&str]) -> Result<(), String> {
    let answer: Result<((),), _> = node.try_ask(&[command]).await;
    answer.map(drop).map_err(|error| {
        let words = &command[..command.len().min(3)];
        format!("{} at {}: {error}", words.join(" "), node.addr())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    #[tokio::test]
    async fn introduces_nodes_again_that_forgot_the_introduction() {
        let form = ClusterBuilder::new();
        let nodes = ServerBuilder::start_all(vec![form.node(); 2]).unwrap();
        let ids = try_join_all(nodes.iter().map(id)).await.unwrap();
        let cluster = Cluster {
            proxies: Vec::new(),
            nodes,
            ids,
        };
        let [first, second] = &cluster.nodes[..] else {
            unreachable!("there are two nodes")
        };
        let knows = async |count: usize| {
            eventually(FORM_BOUND, "the first node knows as many", async || {
                View::of(first)
                    .await
                    .is_some_and(|view| view.nodes.len() == count)
            })
            .await;
        };

        second.stop();
        let forgotten = async {
            knows(2).await;
            knows(1).await;
            second.cont();
        };
        let (acquainted, ()) = tokio::join!(cluster.acquaint(), forgotten);
        acquainted.unwrap();
        let views = View::of_all(&cluster.nodes).await;
        assert!(cluster.strangers(&views).is_empty(), "{views:?}");
    }
}
