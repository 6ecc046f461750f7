//! Servers that belong together, for tests of code that uses lockset: behind sentinels, and in a cluster.
//!
//! Each call leaves them settled: everybody has learnt of it. Worlds cover the time before that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, ClientBuilder, Result};

use crate::clients::Clients;
use crate::deployment::{Deployment, Layout};
use crate::net::{Direction, Net};

/// The parts of both kinds.
#[derive(Clone)]
struct Servers {
    deployment: Arc<Deployment>,
    clients: Arc<Clients>,
}

impl Servers {
    fn new(layout: Layout) -> Self {
        let net = Net::of_a_test(layout.servers());
        Self {
            deployment: Arc::new(Deployment::new(&net, layout)),
            clients: Arc::default(),
        }
    }

    async fn client(
        &self,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client> {
        let url = self.deployment.urls().remove(0);
        self.clients.add(self.net(), &url, settings).await
    }

    fn net(&self) -> &Arc<Net> {
        &self.deployment.net
    }

    fn set_lag(&self, span: Duration) {
        self.net().with(|state| state.lag = span..=span);
    }

    fn kill_primary(&self, shard: usize) {
        self.net().kill(self.deployment.primary(shard));
    }

    fn fail_over(&self, shard: usize) {
        let promoted = self.deployment.promote(shard);
        assert!(promoted.is_some(), "no replica is up: restart() it first");
        self.deployment.finish();
    }

    fn restart(&self) {
        let net = self.net();
        let down = |server: &usize| !net.with(|state| state.slots[*server].is_up);
        let servers = 0..self.deployment.layout.servers();
        servers
            .filter(down)
            .for_each(|server| net.restart(server, true));
        self.deployment.finish();
    }

    fn partition(&self, client: &Client) {
        let (number, _) = self.clients.find(client);
        for server in 0..self.deployment.layout.servers() {
            for direction in [Direction::ToServer, Direction::ToClient] {
                self.net().cut_off(number, server, direction);
            }
        }
    }

    fn crash(&self, client: &Client) {
        let (number, process) = self.clients.find(client);
        process.end();
        self.net().forget(number);
    }

    /// Of all primaries, in order.
    fn keys(&self) -> Vec<String> {
        let shards = 0..self.deployment.layout.shards();
        let primaries = shards.map(|shard| self.deployment.primary(shard));
        let keys =
            primaries.flat_map(|server| self.net().with(|state| state.node(server).store.keys()));
        let names = keys.map(|key| String::from_utf8_lossy(&key).into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }
}

/// The methods of both kinds.
macro_rules! common {
    ($kind:ident, $prose:literal) => {
        impl Default for $kind {
            fn default() -> Self {
                Self::new()
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($kind))
                    .field("keys", &self.keys())
                    .finish_non_exhaustive()
            }
        }

        impl $kind {
            /// A client with the default settings, connected. Each call makes another client, as another process would
            /// have it.
            pub async fn client(&self) -> Client {
                let client = self.client_with(|settings| settings).await;
                client.expect("the default settings work")
            }

            /// A client with other settings. Settings for addresses and certificates change nothing.
            ///
            /// # Errors
            /// [`is_invalid`](lockset::Error::is_invalid): a setting cannot work. [`is_io`](lockset::Error::is_io):
            #[doc = $prose]
            /// is down.
            pub async fn client_with(
                &self,
                settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
            ) -> Result<Client> {
                self.0.client(settings).await
            }

            /// Lets time pass, as [`Server::advance`](crate::Server::advance).
            pub async fn advance(&self, span: Duration) {
                tokio::time::sleep(span).await;
            }

            /// Every message and reply between a client and a server takes this long on its way from now on. Default:
            /// no time.
            pub fn delay(&self, span: Duration) {
                self.0.net().with(|state| state.delay = span..=span);
            }

            /// A replica receives what its primary has done this much later from now on. Default: no time. A failover
            /// forgets what the replica had not received.
            pub fn lag(&self, span: Duration) {
                self.0.set_lag(span);
            }

            /// Starts all servers again that were killed, with the keys they had; one whose replica has taken over is
            /// its replica.
            pub fn restart(&self) {
                self.0.restart();
            }

            /// Separates a client from all servers, until [`heal`](Self::heal): nothing arrives, and neither side
            /// notices.
            ///
            /// # Panics
            /// If it is no client of these servers.
            pub fn partition(&self, client: &Client) {
                self.0.partition(client);
            }

            /// Ends all partitions; what was held back by them arrives now.
            pub fn heal(&self) {
                self.0.net().heal();
            }

            /// The client ends as in a process that is killed: what it held stays at the servers until its lease ends.
            ///
            /// # Panics
            /// If it is no client of these servers.
            pub fn crash(&self, client: &Client) {
                self.0.crash(client);
            }

            /// The keys that the primaries have, in order.
            #[must_use]
            pub fn keys(&self) -> Vec<String> {
                self.0.keys()
            }
        }
    };
}

/// A primary with a replica and three sentinels, for tests of code that uses lockset.
///
/// As [`Server`](crate::Server) otherwise; its clients follow the sentinels as they do in production. Clones are the same
/// servers.
///
/// ```
/// use std::time::Duration;
///
/// use lockset::LostReason;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> lockset::Result<()> {
/// let servers = lockset_sim::Sentinel::new();
/// let client = servers.client().await;
///
/// // The replica takes over before it has received the grant: it is lost, and its guard says so.
/// servers.lag(Duration::from_secs(1));
/// let guard = client.lock("order:7").lock().await?;
/// servers.fail_over();
/// assert_eq!(guard.lost().await, LostReason::Revoked);
///
/// // Whatever the replica has is kept. The old primary has to catch up first, as a replica.
/// let guard = client.lock("order:8").lock().await?;
/// servers.advance(Duration::from_secs(5)).await;
/// servers.fail_over();
/// servers.advance(Duration::from_secs(60)).await;
/// assert!(!guard.is_lost());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sentinel(Servers);

common!(Sentinel, "the primary");

impl Sentinel {
    /// Empty servers.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self(Servers::new(Layout::Sentinel {
            replicas: 1,
            sentinels: 3,
        }))
    }

    /// Ends the primary: until [`fail_over`](Self::fail_over) or [`restart`](Self::restart) there is none.
    pub fn kill_primary(&self) {
        self.0.kill_primary(0);
    }

    /// The replica takes over, the sentinels say so, and the old primary follows it, if it is up.
    ///
    /// # Panics
    /// If no replica is up.
    pub fn fail_over(&self) {
        self.0.fail_over(0);
    }
}

/// Three shards, each a primary with a replica, for tests of code that uses lockset.
///
/// As [`Server`](crate::Server) otherwise; its clients find out by themselves which node serves a lock, as they do in
/// production. Clones are the same servers.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> lockset::Result<()> {
/// let servers = lockset_sim::Cluster::new();
/// let client = servers.client().await;
/// let guard = client.lock("order:7").lock().await?;
///
/// // Its slot moves to another node, and that one ends when its replica has the lock, too.
/// servers.move_slot("order:7");
/// servers.advance(Duration::from_secs(1)).await;
/// servers.kill_primary("order:7");
/// servers.fail_over("order:7");
/// servers.advance(Duration::from_secs(60)).await;
/// assert!(!guard.is_lost());
/// guard.release().await
/// # }
/// ```
#[derive(Clone)]
pub struct Cluster(Servers);

common!(Cluster, "a primary");

impl Cluster {
    /// Empty servers.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self(Servers::new(Layout::Cluster { shards: 3 }))
    }

    fn shard(&self, key: &str) -> usize {
        self.0.deployment.shard_of(key)
    }

    /// Ends the primary that serves this key: until [`fail_over`](Self::fail_over) or [`restart`](Self::restart) its
    /// locks cannot be had. A key is the name of a lock, with the prefix of the client if it has one.
    pub fn kill_primary(&self, key: &str) {
        self.0.kill_primary(self.shard(key));
    }

    /// The replica of the primary that serves this key takes over, all nodes learn of it, and the old primary follows
    /// it, if it is up.
    ///
    /// # Panics
    /// If that replica is not up.
    pub fn fail_over(&self, key: &str) {
        self.0.fail_over(self.shard(key));
    }

    /// The slot of this key moves to the next shard, with all its keys; nodes learn of it, and clients find out.
    pub fn move_slot(&self, key: &str) {
        let deployment = &self.0.deployment;
        deployment.begin_move(key);
        deployment.finish();
    }
}
