//! The servers that keep the locks, and the faults caused in them.
//!
//! `TOPOLOGY` chooses `cluster`, `sentinel` or `redlock`, with private processes on loopback. The
//! default is one server.

use std::time::Duration;

use lockset_testkit::{Cluster, Sentinels, Server};

use super::lock::QUORUM_LEASE;
use super::server::LockServer;
use super::{Result, say};

pub(crate) enum Topology {
    /// One server without faults, because it may be the user's.
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
                let servers = servers.collect::<Result<_, _>>()?;
                say("Five servers were started; they have a vote when they are up for a lease.\n");
                tokio::time::sleep(QUORUM_LEASE + Duration::from_secs(1)).await;
                Self::Redlock(servers)
            }
            _ => return Err("TOPOLOGY is cluster, sentinel or redlock, or nothing".into()),
        })
    }

    /// The URL that a box office connects to. Several URLs are the servers of a quorum.
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

    /// Kills the server that has the lock, as far as the topology should tolerate it. Describes
    /// what happened and its effect, if anything did.
    pub(crate) async fn befall(&self, lock: &str) -> Option<&'static str> {
        match self {
            Self::Server(_) => None,
            Self::Cluster(cluster) => {
                cluster.kill_primary_of(lock).await;
                Some(
                    "the primary with the lock was killed, and its replica took over.
A grant that the replica had not heard of would be forgotten, and given twice",
                )
            }
            Self::Sentinel(sentinels) => {
                sentinels.kill_primary().await;
                Some(
                    "the primary was killed, and a replica took over.
A grant that the replica had not heard of would be forgotten, and given twice",
                )
            }
            Self::Redlock(servers) => {
                for server in &servers[..(QUORUM_OF - 1) / 2] {
                    server.kill();
                }
                Some(
                    "2 of the 5 servers were killed.
Every grant is known to a majority, so none can be forgotten",
                )
            }
        }
    }

    /// Removes the lock's keys from a server that outlives the demo.
    pub(crate) async fn clear(&self, lock: &str) -> Result<()> {
        match self {
            Self::Server(server) => server.clear(&[lock.to_owned()]).await,
            _ => Ok(()),
        }
    }
}
