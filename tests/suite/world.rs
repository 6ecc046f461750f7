//! The servers under the conformance suite: how clients connect to them, and how tests inspect
//! them.
//!
//! Many tests may share a world, so every inspection is limited to one name.

use lockset::{Client, ClientBuilder};
use lockset_testkit::{ClientKind, Cluster, Sentinels, Server, eventually, unique_name};

use crate::support::{LEASE, PATIENCE, SOON};

/// One server, or several that a client sees as one.
pub(crate) trait World: Sized + Send + Sync {
    /// Whether keys may be in different slots, which one script cannot access together.
    const HAS_SLOTS: bool = false;

    /// Starts a world, or returns one shared by the process.
    async fn start() -> Self;

    /// A builder with the settings of a client in this world.
    fn builder(&self) -> ClientBuilder;

    /// All servers that accept writes.
    async fn primaries(&self) -> Vec<&Server>;

    /// The server that has a key.
    async fn server_of(&self, key: &str) -> &Server;

    /// An unused name.
    fn name(&self) -> String {
        unique_name("lock")
    }

    /// A client with a short lease.
    async fn client(&self) -> Client {
        let builder = self.builder().lease(LEASE).give_up_after(PATIENCE);
        let client = builder.connect_timeout(PATIENCE).build().await;
        client.expect("a client of this world")
    }

    /// A client that never renews or polls within a test.
    async fn patient_client(&self) -> Client {
        let client = self.builder().connect_timeout(PATIENCE).build().await;
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

    /// The channels of such a lock to which clients are subscribed.
    async fn channels(&self, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.primaries().await {
            let channels = all_channels(server).await.into_iter();
            all.extend(channels.filter(|channel| channel.contains(name)));
        }
        all
    }

    /// The id of the client that holds a lock, taken from the holder id.
    async fn client_id(&self, name: &str) -> String {
        let mut admin = self.server_of(name).await.admin().await;
        let fields = redis::cmd("HKEYS").arg(name).query_async(&mut admin).await;
        let fields: Vec<String> = fields.unwrap();
        let id = fields.iter().find_map(|field| field.split_once(':'));
        id.expect("a holder").0.to_owned()
    }

    /// The number of a client's connections.
    async fn connections(&self, client_id: &str) -> usize {
        let mut all = 0;
        for server in self.primaries().await {
            let clients = server.clients(ClientKind::All).await;
            let its_own = clients.iter().filter(|line| line.name.ends_with(client_id));
            all += its_own.count();
        }
        all
    }

    /// Waits until a client is subscribed to the release of a lock.
    async fn listening(&self, name: &str) {
        let listened_to = async || !self.channels(name).await.is_empty();
        eventually(SOON, "a waiter has subscribed", listened_to).await;
    }

    /// Waits until the queue of a fair lock has `places` entries.
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

    /// Waits until the lock has no keys but its fencing counters, and no subscription.
    async fn nothing_left(&self, name: &str) {
        let nothing = async || {
            let keys = self.keys(name).await;
            let counters = keys
                .iter()
                .all(|key| key.starts_with("redisson_lock_token"));
            let channels = self.channels(name).await;
            // Explains a timeout.
            println!("left: {keys:?}, channels: {channels:?}");
            counters && channels.is_empty()
        };
        eventually(SOON, "no key and no subscription is left", nothing).await;
    }

    /// Deletes all keys of a lock.
    async fn forget(&self, name: &str) {
        for key in self.keys(name).await {
            let mut admin = self.server_of(&key).await.admin().await;
            let deleted = redis::cmd("DEL").arg(&key).query_async(&mut admin).await;
            let _: () = deleted.unwrap();
        }
    }
}

/// One server, used by this test only.
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

/// A cluster shared by the process. The members of a multi-lock are in different slots.
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

/// A primary behind sentinels, shared by the process.
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

/// The channels with a subscriber at this server, sharded and plain.
pub(crate) async fn all_channels(server: &Server) -> Vec<String> {
    let mut channels = server.pubsub_channels().await;
    let mut sharded = redis::cmd("PUBSUB");
    sharded.arg("SHARDCHANNELS");
    // Redis 6 has no sharded channels.
    let sharded = sharded.query_async(&mut server.admin().await).await;
    channels.extend::<Vec<String>>(sharded.unwrap_or_default());
    channels
}

/// Instantiates the tests of `for_every_primitive!` in every world, in modules named after the
/// worlds.
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
