//! Where locks live, and what befalls them there.
//!
//! `TOPOLOGY` chooses: one server if it says nothing, else `cluster`, `sentinel` or `redlock`, of
//! private processes on loopback.

use std::time::Instant;

use lockset_testkit::{Cluster, Sentinels, Server};

use super::server::LockServer;
use super::{Result, millis};

pub(crate) enum Topology {
    /// One server, which nothing befalls: it may be the user's.
    Server(Box<LockServer>),
    Cluster(Cluster),
    Sentinel(Sentinels),
    /// Independent servers.
    Redlock(Vec<Server>),
}

const QUORUM_OF: usize = 5;

impl Topology {
    pub(crate) async fn find() -> Result<Self> {
        let topology = std::env::var("TOPOLOGY").unwrap_or_default();
        let is_yours = std::env::var("REDIS_URL").is_ok_and(|url| !url.is_empty());
        if is_yours && !topology.is_empty() {
            return Err("TOPOLOGY starts servers to kill them: leave out REDIS_URL".into());
        }
        Ok(match &*topology {
            "" => Self::Server(Box::new(LockServer::find().await?)),
            "cluster" => Self::Cluster(Cluster::builder().try_start().await?),
            "sentinel" => Self::Sentinel(Sentinels::builder().hurried().try_start().await?),
            "redlock" => {
                let servers = (0..QUORUM_OF).map(|_| Server::builder().try_start());
                Self::Redlock(servers.collect::<Result<_, _>>()?)
            }
            _ => return Err("TOPOLOGY is cluster, sentinel or redlock, or nothing".into()),
        })
    }

    /// What a box office connects to; several URLs are the servers of a quorum.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url.clone(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Sentinel(sentinels) => sentinels.url(),
            Self::Redlock(servers) => {
                let urls: Vec<String> = servers.iter().map(Server::url).collect();
                urls.join(" ")
            }
        }
    }

    pub(crate) fn description(&self) -> String {
        match self {
            Self::Server(server) => server.description.clone(),
            Self::Cluster(_) => "a private cluster, 3 primaries with a replica each".to_owned(),
            Self::Sentinel(_) => "a private primary, 2 replicas, 3 sentinels".to_owned(),
            Self::Redlock(_) => format!("{QUORUM_OF} private servers, a quorum of them"),
        }
    }

    /// Kills what has the lock, as far as the topology should bear it. Says what happened, if
    /// anything.
    pub(crate) async fn befall(&self, lock: &str) -> Option<String> {
        let start = Instant::now();
        let after = |time: Instant| millis(time.elapsed());
        Some(match self {
            Self::Server(_) => return None,
            Self::Cluster(cluster) => {
                cluster.kill_primary_of(lock).await;
                format!(
                    "the primary that had the lock was killed; its replica took over after {}",
                    after(start)
                )
            }
            Self::Sentinel(sentinels) => {
                sentinels.kill_primary().await;
                format!(
                    "the primary was killed; a replica took over after {}",
                    after(start)
                )
            }
            Self::Redlock(servers) => {
                let minority = (QUORUM_OF - 1) / 2;
                for server in &servers[..minority] {
                    server.kill();
                }
                format!("{minority} of the {QUORUM_OF} servers were killed")
            }
        })
    }

    /// What the lock leaves at a server that goes on after the demo.
    pub(crate) async fn clear(&self, lock: &str) -> Result<()> {
        match self {
            Self::Server(server) => server.clear(&[lock.to_owned()]).await,
            _ => Ok(()),
        }
    }
}
