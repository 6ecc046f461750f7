//! A server with a client of either side, and looks at what they left behind.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Server, eventually};
use redis::FromRedisValue;

use crate::java::{Java, Settings};

/// A bound on what should take a few round trips.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Leases and watchdog timeouts of tests that wait for their end.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);

/// A waiter of ours without a message asks again after this. One of Redisson's sleeps for the rest of
/// the lease, so with long leases who comes `SOON` was told.
pub(crate) const POLL: Duration = Duration::from_secs(1);

/// The default lease of both sides.
const LONG: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) rust: Client,
    pub(crate) java: Java,
    pub(crate) server: Server,
}

impl Pair {
    /// With the default leases: nothing runs out within a test, and who comes soon was told.
    pub(crate) async fn start() -> Self {
        Self::with_leases(LONG, LONG).await
    }

    /// With these leases, of Rust and of Java.
    pub(crate) async fn with_leases(rust: Duration, java: Duration) -> Self {
        let server = Server::start();
        let settings = Settings {
            watchdog_timeout: java,
            ..Settings::of(&server.url())
        };
        Self {
            rust: rust_client(&server, rust).await,
            java: Java::connect(&settings).await,
            server,
        }
    }

    /// Waits until a waiter listens.
    pub(crate) async fn listening(&self) {
        eventually(SOON, "a waiter has subscribed", async || {
            !self.server.pubsub_channels().await.is_empty()
        })
        .await;
    }

    /// Waits until nobody listens any more.
    pub(crate) async fn nobody_listens(&self) {
        eventually(SOON, "the last waiter has unsubscribed", async || {
            self.server.pubsub_channels().await.is_empty()
        })
        .await;
    }

    /// Waits until so many stand in the queue of a fair lock.
    pub(crate) async fn queued(&self, name: &str, count: usize) {
        let mut admin = self.server.admin().await;
        let queue = format!("redisson_lock_queue:{{{name}}}");
        eventually(SOON, "the waiters are queued", async || {
            ask::<usize>(&mut admin, &["LLEN", &queue]).await == count
        })
        .await;
    }

    /// Waits until no key is left but fencing counters, and no subscription.
    pub(crate) async fn nothing_left(&self) {
        self.no_key_left().await;
        self.nobody_listens().await;
    }

    /// Waits until no key is left but fencing counters, and what clients say of themselves.
    pub(crate) async fn no_key_left(&self) {
        let stays = ["redisson_lock_token", "lockset_client"];
        eventually(SOON, "no key is left", async || {
            let keys = self.server.keys().await;
            keys.iter()
                .all(|key| stays.iter().any(|stays| key.starts_with(stays)))
        })
        .await;
    }
}

pub(crate) async fn rust_client(server: &Server, lease: Duration) -> Client {
    let builder = Client::builder(&server.url()).lease(lease);
    builder.build().await.unwrap()
}

pub(crate) async fn ask<T: FromRedisValue>(
    admin: &mut redis::aio::MultiplexedConnection,
    words: &[&str],
) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(admin).await.unwrap()
}

/// One of ours that came within less than this after it asked was woken by a message.
#[track_caller]
pub(crate) fn by_message(asked: Instant) {
    let took = asked.elapsed();
    assert!(took < POLL, "{took:?} is not by message");
}
