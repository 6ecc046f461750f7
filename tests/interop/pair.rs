//! A server with one client of each side, and helpers to check what they left behind.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Server, eventually};
use redis::FromRedisValue;

use crate::java::{Java, Settings};

/// A bound on what should take a few round trips.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// Lease and watchdog timeout of tests that wait for the end of a lease.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);

/// A Rust waiter that gets no message asks again after this time. A Redisson waiter sleeps for the
/// rest of the lease. So with long leases, a waiter that is granted the lock within `SOON` was
/// notified.
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
    /// Starts with the default leases, which do not run out within a test, so a waiter granted the
    /// lock soon was notified.
    pub(crate) async fn start() -> Self {
        Self::with_leases(LONG, LONG).await
    }

    /// Starts with the given leases of Rust and of Java.
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

    /// Waits until a waiter is subscribed.
    pub(crate) async fn listening(&self) {
        eventually(SOON, "a waiter has subscribed", async || {
            !self.server.pubsub_channels().await.is_empty()
        })
        .await;
    }

    /// Waits until no client is subscribed.
    pub(crate) async fn all_have_unsubscribed(&self) {
        eventually(SOON, "the last waiter has unsubscribed", async || {
            self.server.pubsub_channels().await.is_empty()
        })
        .await;
    }

    /// Waits until the queue of a fair lock has `count` entries.
    pub(crate) async fn queued(&self, name: &str, count: usize) {
        let mut admin = self.server.admin().await;
        let queue = format!("redisson_lock_queue:{{{name}}}");
        eventually(SOON, "the waiters are queued", async || {
            ask::<usize>(&mut admin, &["LLEN", &queue]).await == count
        })
        .await;
    }

    /// Waits until only fencing counters are left, and no subscription.
    pub(crate) async fn nothing_left(&self) {
        self.no_key_left().await;
        self.all_have_unsubscribed().await;
    }

    /// Waits until only fencing counters and client announcements are left.
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

/// Asserts that one of our waiters was woken by a message, not by its timer.
#[track_caller]
pub(crate) fn by_message(asked: Instant) {
    let took = asked.elapsed();
    assert!(took < POLL, "{took:?} is not by message");
}
