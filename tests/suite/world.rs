//! Where the conformance suite runs: what a client connects to, and what a test sees there.
//!
//! A world may be shared by many tests, so all looks are at what belongs to one name.

use lockset::{Client, ClientBuilder};
use lockset_testkit::{ClientKind, Cluster, Sentinels, Server, eventually, unique_name};

use crate::support::{LEASE, SOON};

/// A server, or several that a client sees as one.
pub(crate) trait World: Sized + Send + Sync {
    /// Whether one script cannot name any two keys.
    const HAS_SLOTS: bool = false;

    /// Its own, or one that this process shares.
    async fn start() -> Self;

    /// The settings of a client that is at home here.
    fn builder(&self) -> ClientBuilder;

    /// All servers that keys are written to.
    async fn primaries(&self) -> Vec<&Server>;

    /// The server that has a key.
    async fn server_of(&self, key: &str) -> &Server;

    /// A name that is not used elsewhere.
    fn name(&self) -> String {
        unique_name("lock")
    }

    /// A client with a short lease.
    async fn client(&self) -> Client {
        let builder = self.builder().lease(LEASE);
        builder.build().await.expect("a client of this world")
    }

    /// A client that never renews or polls within the time of a test.
    async fn patient_client(&self) -> Client {
        let client = self.builder().build().await;
        client.expect("a client of this world")
    }

    /// All keys that belong to locks whose names begin with `name`, sorted.
    async fn keys(&self, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.primaries().await {
            let keys = server.keys().await.into_iter();
            all.extend(keys.filter(|key| key.contains(name)));
        }
        all.sort();
        all
    }

    /// The keys of the locks themselves.
    async fn lock_keys(&self, name: &str) -> Vec<String> {
        let mut keys = self.keys(name).await;
        keys.retain(|key| key.starts_with(name) && !key.contains(":rwlock_timeout:"));
        keys
    }

    /// Whether anybody listens to a channel of such a lock.
    async fn is_listened_to(&self, name: &str) -> bool {
        for server in self.primaries().await {
            let channels = all_channels(server).await;
            if channels.iter().any(|channel| channel.contains(name)) {
                return true;
            }
        }
        false
    }

    /// The id of the client that holds a lock, by the holder's.
    async fn client_id(&self, name: &str) -> String {
        let mut admin = self.server_of(name).await.admin().await;
        let fields = redis::cmd("HKEYS").arg(name).query_async(&mut admin).await;
        let fields: Vec<String> = fields.unwrap();
        let id = fields.iter().find_map(|field| field.split_once(':'));
        id.expect("a holder").0.to_owned()
    }

    /// How many connections a client has.
    async fn connections(&self, client_id: &str) -> usize {
        let mut all = 0;
        for server in self.primaries().await {
            let clients = server.clients(ClientKind::All).await;
            let its_own = clients.iter().filter(|line| line.name.ends_with(client_id));
            all += its_own.count();
        }
        all
    }

    /// Waits until somebody listens for the release of a lock.
    async fn listening(&self, name: &str) {
        let listened_to = async || self.is_listened_to(name).await;
        eventually(SOON, "a waiter has subscribed", listened_to).await;
    }

    /// Waits until so many have a place in the queue of a fair lock.
    async fn queued(&self, name: &str, places: usize) {
        let queue = format!("redisson_lock_queue:{{{name}}}");
        eventually(SOON, "they have places", async || {
            let mut admin = self.server_of(&queue).await.admin().await;
            let mut llen = redis::cmd("LLEN");
            let length: usize = llen.arg(&queue).query_async(&mut admin).await.unwrap();
            length == places
        })
        .await;
    }

    /// Waits until a lock has no key but its fencing counters, and no subscription.
    async fn nothing_left(&self, name: &str) {
        let nothing = async || {
            let keys = self.keys(name).await;
            let counters = keys
                .iter()
                .all(|key| key.starts_with("redisson_lock_token"));
            let listened_to = self.is_listened_to(name).await;
            // Shown if it stays so.
            println!("left: {keys:?}, listened to: {listened_to}");
            counters && !listened_to
        };
        eventually(SOON, "no key and no subscription is left", nothing).await;
    }

    /// Loses everything there is about a lock.
    async fn forget(&self, name: &str) {
        for key in self.keys(name).await {
            let mut admin = self.server_of(&key).await.admin().await;
            let deleted = redis::cmd("DEL").arg(&key).query_async(&mut admin).await;
            let _: () = deleted.unwrap();
        }
    }
}

/// One server, of this test alone.
pub(crate) struct Alone(Server);

impl World for Alone {
    async fn start() -> Self {
        Self(Server::start())
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(&self.0.url())
    }

    async fn primaries(&self) -> Vec<&Server> {
        vec![&self.0]
    }

    async fn server_of(&self, _key: &str) -> &Server {
        &self.0
    }
}

/// A cluster that the whole process shares. The members of a multi-lock are in different slots.
pub(crate) struct OnCluster(&'static Cluster);

impl World for OnCluster {
    const HAS_SLOTS: bool = true;

    async fn start() -> Self {
        Self(Cluster::shared().await)
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(&self.0.url())
    }

    async fn primaries(&self) -> Vec<&Server> {
        self.0.primaries().await
    }

    async fn server_of(&self, key: &str) -> &Server {
        self.0.primary_of(key).await
    }
}

/// A primary behind sentinels, shared by the whole process.
pub(crate) struct BehindSentinels(&'static Sentinels);

impl World for BehindSentinels {
    async fn start() -> Self {
        Self(Sentinels::shared().await)
    }

    fn builder(&self) -> ClientBuilder {
        Client::builder(&self.0.url())
    }

    async fn primaries(&self) -> Vec<&Server> {
        vec![self.0.primary().await]
    }

    async fn server_of(&self, _key: &str) -> &Server {
        self.0.primary().await
    }
}

/// The channels with a subscriber at this server, sharded or not.
pub(crate) async fn all_channels(server: &Server) -> Vec<String> {
    let mut channels = server.pubsub_channels().await;
    let mut sharded = redis::cmd("PUBSUB");
    sharded.arg("SHARDCHANNELS");
    // Redis 6 has none.
    let sharded = sharded.query_async(&mut server.admin().await).await;
    channels.extend::<Vec<String>>(sharded.unwrap_or_default());
    channels
}

/// Makes the tests of `for_every_primitive!` in every world, in a module of its name.
macro_rules! for_every_world {
    ($($tests:tt)*) => {
        $crate::world::in_world!(alone, $crate::world::Alone, $($tests)*);
        $crate::world::in_world!(cluster, $crate::world::OnCluster, $($tests)*);
        $crate::world::in_world!(sentinel, $crate::world::BehindSentinels, $($tests)*);
    };
}

macro_rules! in_world {
    ($name:ident, $world:ty, $($tests:tt)*) => {
        mod $name {
            use super::*;
            type Here = $world;
            $crate::primitive::for_every_primitive!(@in Here, $($tests)*);
        }
    };
}

pub(crate) use {for_every_world, in_world};
