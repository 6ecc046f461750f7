//! The servers of a campaign.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use lockset_testkit::{Cluster, Proxy, Sentinels, Server};

/// Which kind of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server, that keeps its data, behind a proxy.
    Server,
    /// A primary, its replicas and sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
    /// Five independent servers for a Redlock, without persistence.
    Redlock,
}

/// All of them.
pub const TOPOLOGIES: [Topology; 4] = [
    Topology::Server,
    Topology::Sentinel,
    Topology::Cluster,
    Topology::Redlock,
];

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Redlock => "redlock",
        })
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = TOPOLOGIES.into_iter().find(|each| each.to_string() == name);
        found.ok_or_else(|| format!("{name}: it is server, sentinel, cluster or redlock"))
    }
}

/// Those that run.
#[derive(Debug)]
pub enum Servers {
    /// With the proxy that all clients go through.
    One(Box<Server>, Proxy),
    /// Behind sentinels.
    Sentinels(Sentinels),
    /// A cluster.
    Cluster(Cluster),
    /// Each on its own.
    Independent(Vec<Server>),
}

const QUORUM_OF: usize = 5;

impl Servers {
    /// Starts them.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub async fn start(topology: Topology) -> Result<Self, String> {
        Ok(match topology {
            Topology::Server => {
                let durable = ["--appendonly", "yes", "--appendfsync", "always"];
                let server = Server::builder().args(durable).try_start()?;
                let proxy = Proxy::start(server.addr()).await;
                Self::One(Box::new(server), proxy)
            }
            Topology::Sentinel => {
                Self::Sentinels(Sentinels::builder().hurried().try_start().await?)
            }
            Topology::Cluster => Self::Cluster(Cluster::builder().try_start().await?),
            Topology::Redlock => {
                let servers = (0..QUORUM_OF).map(|_| Server::builder().try_start());
                Self::Independent(servers.collect::<Result<_, _>>()?)
            }
        })
    }

    /// The URLs for the workers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        match self {
            Self::One(_, proxy) => vec![proxy.url()],
            Self::Sentinels(sentinels) => vec![sentinels.url()],
            Self::Cluster(cluster) => vec![cluster.url()],
            Self::Independent(servers) => servers.iter().map(Server::url).collect(),
        }
    }

    /// Every server that has data.
    #[must_use]
    pub fn all(&self) -> Vec<&Server> {
        match self {
            Self::One(server, _) => vec![server],
            Self::Sentinels(sentinels) => sentinels.servers().iter().collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Independent(servers) => servers.iter().collect(),
        }
    }

    /// Delays replies by `distance` from now, where there is a proxy: for clients this equals half of it in each
    /// direction.
    pub fn are_away(&self, distance: Duration) {
        if let Self::One(_, proxy) = self {
            proxy.delay_replies(distance);
        }
    }

    /// Waits until all of them work together again.
    pub async fn are_well(&self) {
        match self {
            Self::One(_, proxy) => proxy.pass(),
            Self::Sentinels(sentinels) => sentinels.is_well().await,
            Self::Cluster(cluster) => cluster.is_well().await,
            Self::Independent(_) => {}
        }
    }

    /// The keys that remain of locks `within` this time, without the keys that stay by design: the counters of tokens
    /// and, if a process was killed, its client's announcement.
    pub async fn left(&self, within: Duration, was_killed: bool) -> Vec<String> {
        let is_kept = |key: &String| {
            key.starts_with("redisson_lock_token:")
                || key.starts_with("permits:")
                || (key.starts_with("{permits:") && key.ends_with("}:timeout"))
                || (was_killed && key.starts_with("lockset_client"))
        };
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let mut left = Vec::new();
            for server in self.all() {
                let keys = server.keys().await;
                left.extend(keys.into_iter().filter(|key| !is_kept(key)));
            }
            if left.is_empty() || tokio::time::Instant::now() >= deadline {
                left.sort();
                left.dedup();
                return left;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
