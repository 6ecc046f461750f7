//! Faults of servers, connections and workers.
//!
//! Invariant: after [`Fault::cause`] everything that was stopped goes on and every rule of the proxy is gone; what
//! the servers have lost is lost.

use std::fmt;
use std::time::Duration;

use lockset_testkit::{FailOver, Server};
use tokio::time::sleep;

use crate::checker::Hit;
use crate::topology::{Servers, Topology};
use crate::workers::Workers;

/// One kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "their names say it; `Display` has the words")]
pub enum Fault {
    WorkerStopped,
    WorkerKilled,
    ServerStopped,
    ServerKilled,
    ServerRestarted,
    ConnectionsKilled,
    ClientsPaused,
    ScriptsFlushed,
    OutOfMemory,
    ServerBusy,
    RepliesDelayed,
    RepliesLost,
    RequestsLost,
    RepliesHeld,
    BlackHole,
    ConnectionsCut,
    ConnectionsRefused,
    SentinelStopped,
    SentinelKilled,
    SlotMoved,
    GracefulFailover,
    Failover,
    PrimaryKilled,
    KeysDeleted,
    RestartedEmpty,
}

use Fault::*;

/// At workers and at any server.
const ANYWHERE: [Fault; 6] = [
    WorkerStopped,
    WorkerKilled,
    ServerStopped,
    ConnectionsKilled,
    ScriptsFlushed,
    ServerBusy,
];

impl Fault {
    /// The faults of a topology; faults that lose data come only if they are requested.
    #[must_use]
    pub fn of(topology: Topology, loses_data: bool) -> Vec<Self> {
        let (harmless, harmful): (&[Self], &[Self]) = match topology {
            Topology::Server => (
                &[
                    ServerRestarted,
                    ClientsPaused,
                    OutOfMemory,
                    RepliesDelayed,
                    RepliesLost,
                    RequestsLost,
                    RepliesHeld,
                    BlackHole,
                    ConnectionsCut,
                    ConnectionsRefused,
                ],
                &[KeysDeleted, RestartedEmpty],
            ),
            Topology::Sentinel => (
                &[ClientsPaused, SentinelStopped, SentinelKilled],
                &[Failover, PrimaryKilled],
            ),
            Topology::Cluster => (&[GracefulFailover, SlotMoved], &[PrimaryKilled]),
            // It may lose a minority, with its data.
            Topology::Redlock => (&[ServerKilled, RestartedEmpty, OutOfMemory], &[]),
        };
        let mut faults = [&ANYWHERE, harmless].concat();
        if topology == Topology::Sentinel || topology == Topology::Cluster {
            // A primary that is silent for long is replaced, and what it has not passed on is lost.
            faults.retain(|fault| {
                loses_data || !matches!(fault, ServerStopped | ServerBusy | ClientsPaused)
            });
        }
        if loses_data {
            faults.extend(harmful);
        }
        faults
    }

    /// Does it and undoes it. Returns which worker it hit.
    ///
    /// # Panics
    ///
    /// If a server or a worker does not come back.
    pub async fn cause(
        self,
        servers: &Servers,
        workers: &mut Workers,
        random: &mut fastrand::Rng,
        lease: Duration,
    ) -> Hit {
        // Sometimes shorter than a lease, sometimes longer.
        let time = lease.mul_f64(0.1 + 1.4 * random.f64());
        let worker = random.usize(..workers.count());
        let all = servers.all();
        let server = all[random.usize(..all.len())];
        match self {
            WorkerStopped => {
                workers.stop(worker);
                sleep(time).await;
                workers.cont(worker);
                return Hit::Stopped(workers.number(worker));
            }
            WorkerKilled => {
                return Hit::Killed(workers.replace(worker).expect("another one starts"));
            }
            ServerStopped => {
                server.stop();
                sleep(time).await;
                server.cont();
            }
            ServerKilled => {
                server.kill();
                sleep(time).await;
                restart(server);
            }
            ServerRestarted | RestartedEmpty => {
                if self == RestartedEmpty {
                    ask(server, "FLUSHALL").await;
                }
                restart(server);
            }
            ConnectionsKilled => {
                ask(server, "CLIENT KILL TYPE normal SKIPME yes").await;
                ask(server, "CLIENT KILL TYPE pubsub SKIPME yes").await;
            }
            ClientsPaused => {
                let mode = if random.bool() { "ALL" } else { "WRITE" };
                ask(server, &format!("CLIENT PAUSE {} {mode}", time.as_millis())).await;
                sleep(time).await;
            }
            ScriptsFlushed => ask(server, "SCRIPT FLUSH").await,
            OutOfMemory => {
                ask(server, "CONFIG SET maxmemory 1").await;
                sleep(time).await;
                ask(server, "CONFIG SET maxmemory 0").await;
            }
            ServerBusy => {
                ask_long(server, &format!("DEBUG SLEEP {}", time.as_secs_f64()), time).await
            }
            KeysDeleted => {
                let locks = server
                    .keys()
                    .await
                    .into_iter()
                    .filter(|key| !key.starts_with("redisson_"));
                for key in locks {
                    ask(server, &format!("DEL {key}")).await;
                }
            }
            _ => self.of_topology(servers, random, time).await,
        }
        Hit::Nobody
    }

    async fn of_topology(self, servers: &Servers, random: &mut fastrand::Rng, time: Duration) {
        match servers {
            Servers::One(_, proxy) => {
                match self {
                    RepliesDelayed => proxy.delay_replies(Duration::from_millis(random.u64(1..50))),
                    RepliesLost => proxy.drop_replies(),
                    RequestsLost => proxy.drop_requests(),
                    RepliesHeld => proxy.hold_replies(),
                    BlackHole => proxy.blackhole_existing(),
                    ConnectionsCut => return proxy.cut(),
                    ConnectionsRefused => {
                        proxy.refuse(true);
                        proxy.cut();
                    }
                    other => unreachable!("{other} of a server"),
                }
                sleep(time).await;
                proxy.pass();
            }
            Servers::Sentinels(sentinels) => match self {
                SentinelStopped => {
                    let all = sentinels.sentinels();
                    let one = &all[random.usize(..all.len())];
                    one.stop();
                    sleep(time).await;
                    one.cont();
                }
                SentinelKilled => {
                    let all = sentinels.sentinels();
                    let one = &all[random.usize(..all.len())];
                    one.kill();
                    sleep(time).await;
                    restart(one);
                }
                Failover => drop(sentinels.fail_over().await),
                PrimaryKilled => {
                    let old = sentinels.primary().await;
                    sentinels.kill_primary().await;
                    restart(old);
                }
                other => unreachable!("{other} behind sentinels"),
            },
            Servers::Cluster(cluster) => {
                // Of a lock that is used.
                let key = ["plain:0", "plain:1", "fair:0", "fair:1"][random.usize(..4)];
                match self {
                    GracefulFailover => drop(cluster.fail_over(key, FailOver::Graceful).await),
                    SlotMoved => {
                        let slot = cluster.slot(key).await;
                        let from = cluster.owner_of(slot).await.port();
                        let primaries = cluster.primaries().await;
                        let to = primaries.iter().find(|to| to.port() != from);
                        cluster.migrate(slot, to.expect("there are three")).await;
                    }
                    PrimaryKilled => {
                        let old = cluster.primary_of(key).await;
                        cluster.kill_primary_of(key).await;
                        restart(old);
                    }
                    other => unreachable!("{other} of a cluster"),
                }
            }
            Servers::Independent(_) => unreachable!("{self} of a quorum"),
        }
    }
}

/// It waits for the server on its thread.
fn restart(server: &Server) {
    tokio::task::block_in_place(|| server.restart());
}

/// The server's answer does not matter: the server may have been stopped just before.
async fn ask(server: &Server, words: &str) {
    ask_long(server, words, Duration::ZERO).await;
}

async fn ask_long(server: &Server, words: &str, time: Duration) {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    command.arg(words.collect::<Vec<_>>());
    let asked = async {
        let mut admin = server.admin().await;
        let _: redis::RedisResult<redis::Value> = command.query_async(&mut admin).await;
    };
    let _ = tokio::time::timeout(time + Duration::from_secs(3), asked).await;
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WorkerStopped => "a worker stopped",
            WorkerKilled => "a worker killed",
            ServerStopped => "a server stopped",
            ServerKilled => "a server killed, back later without data",
            ServerRestarted => "restarted with data",
            ConnectionsKilled => "CLIENT KILL",
            ClientsPaused => "CLIENT PAUSE",
            ScriptsFlushed => "SCRIPT FLUSH",
            OutOfMemory => "maxmemory",
            ServerBusy => "DEBUG SLEEP",
            RepliesDelayed => "replies delayed",
            RepliesLost => "replies lost",
            RequestsLost => "requests lost",
            RepliesHeld => "replies held back",
            BlackHole => "black hole",
            ConnectionsCut => "connections cut",
            ConnectionsRefused => "connections refused",
            SentinelStopped => "a sentinel stopped",
            SentinelKilled => "a sentinel killed",
            SlotMoved => "a slot moved",
            GracefulFailover => "failover without loss",
            Failover => "failover",
            PrimaryKilled => "a primary killed",
            KeysDeleted => "keys deleted",
            RestartedEmpty => "restarted without data",
        })
    }
}
