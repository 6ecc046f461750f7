//! Shared helpers: clients with short leases, and checks for leftovers.

use std::process::Command;
use std::time::{Duration, Instant};

use lockset::{Client, ClientBuilder, Guard as _, Lock};
use lockset_testkit::{Server, eventually, stalls};
pub(crate) use lockset_testkit::{took_less, took_less_until};
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;

/// Long enough for a noisy machine, and short enough for a test that waits for its end.
pub(crate) const LEASE: Duration = Duration::from_millis(1_800);

/// A bound on a few round trips.
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// The environment variable that marks the process of a test that has one for itself.
const ALONE: &str = "LOCKSET_PROBE";

/// Runs a test in a separate process and prints its output.
pub(crate) fn alone(test: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--test-threads", "1", "--nocapture"]);
    let output = child.env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    let complaint = String::from_utf8_lossy(&output.stderr);
    let is_found = said.contains("1 passed");
    assert!(output.status.success() && is_found, "{said}\n{complaint}");
}

pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Sends a command and returns the reply.
pub(crate) async fn ask<T: FromRedisValue>(admin: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(admin).await.unwrap()
}

/// Like `ask`, on a new connection.
pub(crate) async fn command(server: &Server, words: &[&str]) -> redis::Value {
    ask(&mut server.admin().await, words).await
}

/// Less than the time after which a waiter of a patient client polls.
pub(crate) const BY_MESSAGE: Duration = Duration::from_millis(900);

/// The extra time that a busy machine may take.
pub(crate) const SLACK: Duration = Duration::from_secs(1);

/// How long calls of most clients go on without an answer: longer than a stall of a busy machine, and less than
/// [`SOON`].
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// A client with a short lease.
pub(crate) async fn client(url: &str) -> Client {
    client_with_lease(url, LEASE).await
}

/// As [`client`], with another lease.
pub(crate) async fn client_with_lease(url: &str, lease: Duration) -> Client {
    built(Client::builder(url).lease(lease).give_up_after(PATIENCE)).await
}

/// As [`client`]. Its calls end as soon as they do by default with this lease.
pub(crate) async fn hasty_client(url: &str) -> Client {
    built(Client::builder(url).lease(LEASE)).await
}

/// Whether plain commands are used where possible. With `LOCKSET_TEST_NATIVE=0`, scripts do
/// everything.
pub(crate) fn is_native() -> bool {
    std::env::var("LOCKSET_TEST_NATIVE").as_deref() != Ok("0")
}

/// A client that never renews or polls within a test.
pub(crate) async fn patient_client(url: &str) -> Client {
    built(Client::builder(url)).await
}

async fn built(builder: ClientBuilder) -> Client {
    stalls::begin();
    let client = builder.native(is_native()).build().await;
    client.expect("a client for the test's own server")
}

/// Creates a user with all rights except this one, and returns its URL.
pub(crate) async fn user_without(server: &Server, right: &str) -> String {
    let denied: Vec<_> = right.split(' ').map(|each| format!("-{each}")).collect();
    let mut rules = vec!["ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all"];
    rules.extend(denied.iter().map(String::as_str));
    command(server, &rules).await;
    format!("redis://u:p@{}", server.addr())
}

/// Acquires a free lock and releases it.
pub(crate) async fn cycle(lock: &impl Lock) {
    lock.lock().await.unwrap().release().await.unwrap();
}

/// Waits until a client has no work in the background.
pub(crate) async fn idle(client: &Client) {
    let deadline = Instant::now() + SOON;
    while !client.stats().is_idle() {
        let is_late = Instant::now() > deadline;
        assert!(!is_late, "not idle after {SOON:?}: {client:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The keys that are left when all locks are free, without fencing counters and client
/// announcements, which end with the client.
pub(crate) async fn keys_left(server: &Server) -> Vec<String> {
    let mut keys = server.keys().await;
    let stays = ["redisson_lock_token", "lockset_client"];
    keys.retain(|key| !stays.iter().any(|stays| key.starts_with(stays)));
    keys
}

/// Waits until the server has no lock keys and no subscriptions. Prints the leftovers on a timeout.
pub(crate) async fn nothing_left(server: &Server) {
    let deadline = Instant::now() + SOON;
    loop {
        let (keys, channels) = (keys_left(server).await, server.pubsub_channels().await);
        if keys.is_empty() && channels.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            let keys = in_full(server, &keys).await;
            panic!("left after {SOON:?}: keys {keys:#?}, channels {channels:#?}");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Describes these keys with their remaining lives and, for hashes, their fields.
async fn in_full(server: &Server, keys: &[String]) -> Vec<String> {
    let mut admin = server.admin().await;
    let mut shown = Vec::new();
    for key in keys {
        let both = redis::pipe().pttl(key).hgetall(key).clone();
        let replies: Result<redis::Value, _> = both.query_async(&mut admin).await;
        shown.push(format!("{key}: {replies:?}"));
    }
    shown
}

/// All keys, sorted, without the leases of single read holds.
pub(crate) async fn lock_keys(server: &Server) -> Vec<String> {
    let mut keys = server.keys().await;
    keys.retain(|key| !key.contains(":rwlock_timeout:"));
    keys.sort();
    keys
}

/// The server's hold counts of the locks with these names.
pub(crate) async fn hold_counts(server: &Server, names: &[String]) -> Vec<u32> {
    let mut admin = server.admin().await;
    let mut counts = Vec::new();
    for name in names {
        let mut hgetall = redis::cmd("HGETALL");
        let fields: Vec<(String, String)> =
            hgetall.arg(name).query_async(&mut admin).await.unwrap();
        let holds = fields.into_iter().filter(|(field, _)| field != "mode");
        counts.extend(holds.map(|(_, count)| count.parse::<u32>().expect("a count")));
    }
    counts
}

/// Waits until `count` callers of this client wait for a lock.
pub(crate) async fn waiting(client: &Client, count: usize) {
    eventually(SOON, "the callers wait", async || {
        client.stats().waiters == count
    })
    .await;
}

/// Waits until a client is subscribed to a lock.
pub(crate) async fn listening(server: &Server) {
    eventually(SOON, "a waiter has subscribed", async || {
        !server.pubsub_channels().await.is_empty()
    })
    .await;
}
