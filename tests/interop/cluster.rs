//! In a cluster, both sides put a lock into the same slot and use the same kind of channel: sharded
//! if the nodes support it.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Cluster, eventually, unique_name, within};

use crate::java::{Java, Settings, Topology};
use crate::kind::{Kind, for_kinds};
use crate::pair::{SOON, by_message};

struct Sides {
    cluster: &'static Cluster,
    rust: Client,
    java: Java,
}

impl Sides {
    async fn start() -> Self {
        let cluster = Cluster::shared().await;
        let nodes = cluster.nodes().iter();
        let urls: Vec<String> = nodes
            .map(|node| format!("redis://{}", node.addr()))
            .collect();
        let settings = Settings {
            topology: Topology::Cluster,
            ..Settings::of(&urls.join(","))
        };
        Self {
            cluster,
            rust: Client::connect(&cluster.url()).await.unwrap(),
            java: Java::connect(&settings).await,
        }
    }

    /// Waits until a client is subscribed to a channel of this lock.
    async fn listening(&self, name: &str) {
        eventually(SOON, "a waiter has subscribed", async || {
            for node in self.cluster.nodes() {
                let mut sharded = redis::cmd("PUBSUB");
                sharded.arg("SHARDCHANNELS");
                let sharded = sharded.query_async(&mut node.admin().await).await;
                // Redis 6 has no sharded channels.
                let mut channels: Vec<String> = sharded.unwrap_or_default();
                channels.extend(node.pubsub_channels().await);
                if channels.iter().any(|channel| channel.contains(name)) {
                    return true;
                }
            }
            false
        })
        .await;
    }

    async fn nothing_left(&self, name: &str) {
        eventually(Duration::from_secs(10), "no key is left", async || {
            let keys = self.cluster.keys(&format!("*{name}*")).await;
            keys.iter()
                .all(|key| key.starts_with("redisson_lock_token"))
        })
        .await;
    }
}

async fn java_waits_for_rust(kind: Kind) {
    let sides = Sides::start().await;
    let (java, name) = (&sides.java, unique_name("lock"));
    let wish = kind.rival().java(&name);
    let guard = kind.rust(&sides.rust, &name).lock().await;
    assert!(!java.is(1, "try_lock", &wish).await);
    let waiter = java.tell(1, "lock", &wish);
    java.sleeps(1).await;
    guard.release().await.unwrap();
    // Without a message the waiter would sleep for the rest of the lease.
    within(SOON, waiter).await;
    assert!(kind.rust(&sides.rust, &name).try_lock().await.is_none());
    java.tell(1, "unlock", &wish).await;
    sides.nothing_left(&name).await;
}

async fn rust_waits_for_java(kind: Kind) {
    let sides = Sides::start().await;
    let (java, name) = (&sides.java, unique_name("lock"));
    let hold = kind.java(&name);
    let lock = kind.rival().rust(&sides.rust, &name);
    java.tell(1, "lock", &hold).await;
    assert!(lock.try_lock().await.is_none());
    let asked = Instant::now();
    let waiter = tokio::spawn(async move { lock.lock().await });
    sides.listening(&name).await;
    java.tell(1, "unlock", &hold).await;
    let guard = within(SOON, waiter).await.unwrap();
    by_message(asked);
    assert!(!java.is(1, "try_lock", &hold).await);
    guard.release().await.unwrap();
    assert!(java.is(1, "try_lock", &hold).await);
    java.tell(1, "unlock", &hold).await;
    sides.nothing_left(&name).await;
}

for_kinds! {
    java_waits_for_rust: lock fenced fair read write multi;
    rust_waits_for_java: lock fenced fair read write multi;
}
