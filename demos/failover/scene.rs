//! The kinds of faults.

use std::time::Duration;

use lockset::ClientBuilder;
use lockset_testkit::{Cluster, FailOver, Sentinels, Server};

use crate::support::Result;
use crate::watch::LEASE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    ServerRestarts,
    SentinelFailsOver,
    SentinelFailsOverReplicated,
    PrimaryKilled,
    PrimaryFrozen,
    ClusterFailsOver,
    ClusterTakesOver,
    NodeKilled,
    MinorityKilled,
    MinorityRestarts,
}

/// The servers of a scene.
pub(crate) enum Stage {
    Server(Server),
    Sentinels(Sentinels),
    Cluster(Cluster),
    /// Independent servers for a quorum.
    Servers(Vec<Server>),
}

/// Longer than a sentinel takes to consider a server down.
const FROZEN_FOR: Duration = Duration::from_secs(4);

/// A grant counts only if a replica has it within this time.
const REPLICATED_WITHIN: Duration = Duration::from_millis(200);

impl Scene {
    pub(crate) const ALL: [Self; 10] = [
        Self::ServerRestarts,
        Self::SentinelFailsOver,
        Self::SentinelFailsOverReplicated,
        Self::PrimaryKilled,
        Self::PrimaryFrozen,
        Self::ClusterFailsOver,
        Self::ClusterTakesOver,
        Self::NodeKilled,
        Self::MinorityKilled,
        Self::MinorityRestarts,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ServerRestarts => "server: killed, restarted empty",
            Self::SentinelFailsOver => "sentinel: SENTINEL FAILOVER",
            Self::SentinelFailsOverReplicated => "sentinel: the same, grants on 1 replica of 2",
            Self::PrimaryKilled => "sentinel: primary killed",
            Self::PrimaryFrozen => "sentinel: primary frozen for 4 s",
            Self::ClusterFailsOver => "cluster: CLUSTER FAILOVER",
            Self::ClusterTakesOver => "cluster: CLUSTER FAILOVER TAKEOVER",
            Self::NodeKilled => "cluster: primary killed",
            Self::MinorityKilled => "redlock: 2 of 5 killed",
            Self::MinorityRestarts => "redlock: 2 of 5 killed, restarted empty",
        }
    }

    /// The client settings for this fault.
    pub(crate) fn settings(self, builder: ClientBuilder) -> ClientBuilder {
        let builder = builder.lease(LEASE);
        match self {
            Self::SentinelFailsOverReplicated => builder.replicated(1, REPLICATED_WITHIN),
            _ => builder,
        }
    }

    pub(crate) async fn stage(self) -> Result<Stage> {
        Ok(match self {
            Self::ServerRestarts => Stage::Server(Server::builder().try_start()?),
            Self::SentinelFailsOver
            | Self::SentinelFailsOverReplicated
            | Self::PrimaryKilled
            | Self::PrimaryFrozen => Stage::Sentinels(Sentinels::builder().try_start().await?),
            Self::ClusterFailsOver | Self::ClusterTakesOver | Self::NodeKilled => {
                Stage::Cluster(Cluster::builder().try_start().await?)
            }
            Self::MinorityKilled | Self::MinorityRestarts => {
                let servers = (0..5).map(|_| Server::builder().try_start());
                let servers = servers.collect::<Result<_, _>>()?;
                // Until the servers have a vote.
                tokio::time::sleep(LEASE + Duration::from_secs(1)).await;
                Stage::Servers(servers)
            }
        })
    }

    /// Causes the fault. Returns when it is over at the servers.
    pub(crate) async fn befall(self, stage: &Stage, lock: &str) {
        match (self, stage) {
            (Self::ServerRestarts, Stage::Server(server)) => server.restart(),
            (
                Self::SentinelFailsOver | Self::SentinelFailsOverReplicated,
                Stage::Sentinels(sentinels),
            ) => {
                sentinels.fail_over().await;
            }
            (Self::PrimaryFrozen, Stage::Sentinels(sentinels)) => {
                let old = sentinels.primary().await;
                old.stop();
                tokio::time::sleep(FROZEN_FOR).await;
                old.cont();
                sentinels.promoted(old).await;
            }
            (_, Stage::Sentinels(sentinels)) => {
                sentinels.kill_primary().await;
            }
            (Self::ClusterFailsOver, Stage::Cluster(cluster)) => {
                cluster.fail_over(lock, FailOver::Graceful).await;
            }
            (Self::ClusterTakesOver, Stage::Cluster(cluster)) => {
                cluster.fail_over(lock, FailOver::Takeover).await;
            }
            (_, Stage::Cluster(cluster)) => {
                cluster.kill_primary_of(lock).await;
            }
            (_, Stage::Server(server)) => server.restart(),
            (Self::MinorityRestarts, Stage::Servers(servers)) => {
                servers[..2].iter().for_each(Server::restart);
            }
            (_, Stage::Servers(servers)) => servers[..2].iter().for_each(Server::kill),
        }
        // Renewals every third of a lease detect the loss within this time.
        tokio::time::sleep(LEASE / 2).await;
    }
}

impl Stage {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Server(server) => server.url(),
            Self::Sentinels(sentinels) => sentinels.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Servers(servers) => {
                let urls: Vec<String> = servers.iter().map(Server::url).collect();
                urls.join(" ")
            }
        }
    }
}
