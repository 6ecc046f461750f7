//! The servers, and the faults caused in them.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use lockset_testkit::{Cluster, FailOver, Sentinels, Server};
use redis::RedisResult;

use crate::support::Result;

/// The number of independent servers of a quorum.
const QUORUM_OF: usize = 3;

/// Longer than any reply timeout.
const FROZEN: Duration = Duration::from_secs(2);

pub(crate) enum Servers {
    One(Server),
    Sentinels(Sentinels),
    Cluster(Cluster),
    Independent(Vec<Server>),
}

impl Servers {
    pub(crate) async fn start(topology: &str) -> Result<Self> {
        Ok(match topology {
            "server" => Self::One(Server::builder().try_start()?),
            "sentinel" => Self::Sentinels(Sentinels::builder().hurried().try_start().await?),
            "cluster" => Self::Cluster(Cluster::builder().try_start().await?),
            _ => {
                let servers = (0..QUORUM_OF).map(|_| Server::builder().try_start());
                Self::Independent(servers.collect::<Result<_, _>>()?)
            }
        })
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        match self {
            Self::One(server) => vec![server.url()],
            Self::Sentinels(sentinels) => vec![sentinels.url()],
            Self::Cluster(cluster) => vec![cluster.url()],
            Self::Independent(servers) => servers.iter().map(Server::url).collect(),
        }
    }

    fn all(&self) -> Vec<&Server> {
        match self {
            Self::One(server) => vec![server],
            Self::Sentinels(sentinels) => sentinels.servers().iter().collect(),
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Independent(servers) => servers.iter().collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all().len()
    }

    /// The number of lockset connections to the servers that answer.
    pub(crate) async fn connections(&self) -> usize {
        let of_one = |server: &Server| {
            let (addr, limit) = (server.addr(), Duration::from_millis(300));
            async move {
                let clients = tokio::time::timeout(limit, named_connections(addr));
                clients.await.map_or(0, |count| count.unwrap_or(0))
            }
        };
        join_all(self.all().into_iter().map(of_one))
            .await
            .iter()
            .sum()
    }

    /// Causes the next fault: cut connections, a frozen server, a failover or a restart.
    pub(crate) async fn fault(&self, turn: usize) {
        // A different server each round, among those in use.
        let victim = match self {
            Self::One(server) => server,
            Self::Sentinels(sentinels) => sentinels.primary().await,
            Self::Cluster(cluster) => cluster.primaries().await[turn / 3 % 3],
            Self::Independent(servers) => &servers[turn / 3 % QUORUM_OF],
        };
        match turn % 3 {
            0 => cut(victim).await,
            1 => {
                victim.stop();
                tokio::time::sleep(FROZEN).await;
                victim.cont();
            }
            _ => self.fail(victim, turn).await,
        }
        self.is_well().await;
    }

    async fn fail(&self, victim: &Server, turn: usize) {
        match self {
            // The restart blocks the thread.
            Self::One(_) | Self::Independent(_) => tokio::task::block_in_place(|| victim.restart()),
            Self::Sentinels(sentinels) => {
                sentinels.fail_over().await;
            }
            Self::Cluster(cluster) => {
                cluster
                    .fail_over(&format!("soak:{turn}"), FailOver::Graceful)
                    .await;
            }
        }
    }

    async fn is_well(&self) {
        match self {
            Self::Sentinels(sentinels) => sentinels.is_well().await,
            Self::Cluster(cluster) => cluster.is_well().await,
            Self::One(_) | Self::Independent(_) => {}
        }
    }
}

async fn named_connections(addr: SocketAddr) -> RedisResult<usize> {
    let client = redis::Client::open(format!("redis://{addr}"))?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let list: String = redis::cmd("CLIENT")
        .arg("LIST")
        .query_async(&mut connection)
        .await?;
    Ok(list
        .lines()
        .filter(|line| line.contains(" name=lockset-") && !line.contains("observer"))
        .count())
}

/// Closes all connections to a server.
async fn cut(server: &Server) {
    let mut admin = server.admin().await;
    for kind in ["normal", "pubsub"] {
        let killed: RedisResult<u64> = redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
            .query_async(&mut admin)
            .await;
        killed.expect("the server is up");
    }
}
