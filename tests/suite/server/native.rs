//! Locks acquired and released by plain commands: the state at the server, the fallback where these
//! commands are denied, and faults between the commands.

use std::time::Duration;

use futures_util::StreamExt;
use lockset::{Client, NativePath};
use lockset_testkit::{Proxy, Redisson, Server, eventually, unique_name, within};

use crate::support::{
    LEASE, SOON, ask, command, cycle, idle, listening, nothing_left, user_without,
};

async fn native(url: &str) -> Client {
    Client::connect(url).await.unwrap()
}

async fn scripts_only(url: &str) -> Client {
    Client::builder(url).native(false).build().await.unwrap()
}

async fn behind_a_proxy() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::builder(&proxy.url()).lease(LEASE * 10);
    let client = client.build().await.unwrap();
    (server, proxy, client)
}

/// Subscribes to the messages of this lock.
async fn messages(server: &Server, name: &str) -> redis::aio::PubSub {
    let url = redis::Client::open(server.admin_url()).unwrap();
    let mut messages = url.get_async_pubsub().await.unwrap();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    messages.subscribe(&channel).await.unwrap();
    messages
}

/// How often a command was called.
async fn calls(server: &Server, command: &str) -> u64 {
    let calls = server.commandstats().await;
    calls.get(command).copied().unwrap_or(0)
}

/// The state at the server after an acquire, without the holder.
async fn shape(server: &Server, name: &str) -> (Vec<String>, String, Vec<String>, bool) {
    let mut admin = server.admin().await;
    let values: Vec<String> = ask(&mut admin, &["HVALS", name]).await;
    let encoding: String = ask(&mut admin, &["OBJECT", "ENCODING", name]).await;
    let lease: i64 = ask(&mut admin, &["PTTL", name]).await;
    (
        values,
        encoding,
        server.keys().await,
        (25_000..=30_000).contains(&lease),
    )
}

#[tokio::test]
async fn a_plain_acquire_leaves_the_same_keys_as_the_script() {
    let server = Server::start();
    let mut shapes = Vec::new();
    for client in [
        native(&server.url()).await,
        scripts_only(&server.url()).await,
    ] {
        let guard = client.lock("the lock").lock().await.unwrap();
        shapes.push(shape(&server, "the lock").await);
        // Later operations find the state they expect.
        let inner = guard.reenter().await.unwrap();
        assert!(client.lock("the lock").try_lock().await.unwrap().is_none());
        inner.release().await.unwrap();
        guard.release().await.unwrap();
        nothing_left(&server).await;
    }
    assert_eq!(shapes[0], shapes[1]);
    assert_eq!(calls(&server, "restore").await, 1);
}

#[tokio::test]
async fn the_native_path_is_reported() {
    let server = Server::start();
    let (on, off) = (
        native(&server.url()).await,
        scripts_only(&server.url()).await,
    );
    for client in [&on, &off] {
        cycle(&client.lock("x")).await;
    }
    assert_eq!(on.stats().native, NativePath::On);
    assert_eq!(off.stats().native, NativePath::Off);
    assert_eq!(calls(&server, "restore").await, 1);
    assert_eq!(calls(&server, "evalsha").await, 2, "those of the other");
}

/// `RESTORE` is tried once on a server or for a user that denies it, and no call fails.
#[tokio::test]
async fn without_restore_scripts_take_the_lock() {
    let unknown = Server::builder()
        .args(["--rename-command", "RESTORE", ""])
        .start();
    let denied = Server::start();
    let denied_url = user_without(&denied, "restore").await;
    for (server, url, path) in [
        (&unknown, unknown.url(), NativePath::Unknown),
        (&denied, denied_url, NativePath::Denied),
    ] {
        let client = native(&url).await;
        for _ in 0..3 {
            cycle(&client.lock("x")).await;
        }
        assert_eq!(client.stats().native, path);
        assert_eq!(calls(server, "evalsha").await, 3, "{path:?}");
        nothing_left(server).await;
    }
}

/// A key that is not a lock is refused by either way, when acquiring and when releasing.
#[tokio::test]
async fn a_foreign_key_is_refused() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let client = native(&server.url()).await;
    for (make, kind) in [
        (&["SET", "k", "v"][..], "string"),
        (&["HSET", "k", "state", "shipped"], "hash"),
        (&["RPUSH", "k", "a"], "list"),
    ] {
        let held = client.lock("k").lock().await.unwrap();
        let _: () = ask(&mut admin, &["DEL", "k"]).await;
        let _: redis::Value = ask(&mut admin, make).await;
        let released = held.release().await.unwrap_err();
        assert!(released.is_wrong_type(), "{kind}: {released}");
        for lock in [client.lock("k"), native(&server.url()).await.lock("k")] {
            let refused = within(SOON, lock.lock()).await.unwrap_err();
            assert!(refused.is_wrong_type(), "{kind}: {refused}");
            let wait = Duration::from_millis(1);
            let refused = lock.try_lock_for(wait).await.unwrap_err();
            assert!(refused.is_wrong_type(), "{kind}: {refused}");
        }
        let still: String = ask(&mut admin, &["TYPE", "k"]).await;
        assert_eq!(still, kind);
        let _: () = ask(&mut admin, &["DEL", "k"]).await;
    }
}

/// After a refusal, attempts use the script for a while, which reports the holder and the remaining
/// time.
#[tokio::test]
async fn a_refusal_leads_to_the_script_and_is_not_repeated() {
    let server = Server::start();
    let (ours, theirs) = (native(&server.url()).await, native(&server.url()).await);
    let held = theirs.lock("x").lock().await.unwrap();
    server.reset_stats().await;
    let lock = ours.lock("x");
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    held.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert_eq!(calls(&server, "restore").await, 1);
    // The attempts are after the subscription and after the message, with a recall beside them.
    eventually(SOON, "the recall is sent", async || {
        calls(&server, "evalsha").await >= 3
    })
    .await;
    assert_eq!(calls(&server, "evalsha").await, 3);
    guard.release().await.unwrap();
}

/// The reply to `RESTORE` is lost: the script recognizes its holder, and there is one hold.
#[tokio::test]
async fn a_restore_without_a_reply_is_found_again() {
    let (server, proxy, client) = behind_a_proxy().await;
    for round in 0..10 {
        let name = format!("lock {round}");
        proxy.swallow_reply_to(b"RESTORE");
        let guard = within(SOON, client.lock(&name).lock()).await.unwrap();
        let mut admin = server.admin().await;
        let holders: Vec<(String, String)> = ask(&mut admin, &["HGETALL", &name]).await;
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(holders[0].1, "1");
        guard.release().await.unwrap();
    }
    assert_eq!(proxy.fired(), 10);
    nothing_left(&server).await;
}

/// A `RESTORE` arrives after its caller is gone, together with its undo.
#[tokio::test]
async fn a_restore_that_comes_late_is_undone() {
    let (server, proxy, client) = behind_a_proxy().await;
    for round in 0..10 {
        let name = format!("lock {round}");
        proxy.hold_request_containing(b"RESTORE");
        let call = tokio::time::timeout(LEASE / 20, client.lock(&name).lock()).await;
        assert!(call.is_err(), "it was answered");
        eventually(SOON, "it is on its way", async || proxy.held() == 1).await;
        if round % 2 == 0 {
            // By this time the connection is gone too.
            proxy.cut();
        }
        proxy.release_held();
        idle(&client).await;
        nothing_left(&server).await;
        let guard = within(SOON, client.lock(&name).lock()).await.unwrap();
        guard.release().await.unwrap();
    }
}

/// The connection is cut after the hold was removed and before the message: the message is still
/// published.
#[tokio::test]
async fn a_release_cut_in_two_still_publishes() {
    let (server, proxy, client) = behind_a_proxy().await;
    for round in 0..10 {
        let name = unique_name("lock");
        let guard = client.lock(&name).lock().await.unwrap();
        let mut told = messages(&server, &name).await;
        // Simulates a lost `PUBLISH`: only `HDEL` was executed, and its reply is lost.
        proxy.hold_request_containing(b"HDEL");
        let release = lockset_testkit::spawn(guard.release());
        eventually(SOON, "it is on its way", async || proxy.held() == 1).await;
        let _: redis::Value = command(&server, &["DEL", &name]).await;
        proxy.cut();
        let released = within(SOON, release).await;
        assert!(released.is_ok(), "round {round}: {released:?}");
        within(SOON, told.on_message().next()).await.unwrap();
        proxy.release_held();
        idle(&client).await;
    }
    nothing_left(&server).await;
}

/// The release was executed and its reply lost: it is reported as a success.
#[tokio::test]
async fn a_release_without_a_reply_is_no_loss() {
    let (server, proxy, client) = behind_a_proxy().await;
    for _ in 0..10 {
        let guard = client.lock("x").lock().await.unwrap();
        proxy.swallow_reply_to(b"HDEL");
        within(SOON, guard.release()).await.unwrap();
    }
    assert_eq!(proxy.fired(), 10);
    nothing_left(&server).await;
}

/// A release of a missing hold reports the loss, and leaves another holder alone.
#[tokio::test]
async fn a_release_of_a_missing_hold_reports_the_loss() {
    let server = Server::start();
    let (ours, theirs) = (native(&server.url()).await, native(&server.url()).await);
    let guard = ours.lock("x").lock().await.unwrap();
    assert!(theirs.lock("x").force_unlock().await.unwrap());
    let rival = theirs.lock("x").lock().await.unwrap();
    assert!(guard.release().await.unwrap_err().is_not_held());
    assert!(!rival.is_lost());
    rival.release().await.unwrap();
}

/// A lease is detected, however short.
#[tokio::test]
async fn a_short_lease_ends() {
    let server = Server::start();
    let client = native(&server.url()).await;
    for lease in [100, 900] {
        server.reset_stats().await;
        let lease = Duration::from_millis(lease);
        let lock = client.lock("x").fixed_lease(lease);
        let guard = lock.lock().await.unwrap();
        within(SOON, guard.lost()).await;
        eventually(SOON, "its key is gone", async || {
            server.keys().await.is_empty()
        })
        .await;
    }
    // A shorter one may be over before its answer comes, and is then asked for again.
    assert_eq!(calls(&server, "restore").await, 1);
}

/// Without the right to publish, a release still frees the lock.
#[tokio::test]
async fn a_release_works_without_the_right_to_publish() {
    let server = Server::start();
    let client = native(&user_without(&server, "publish").await).await;
    cycle(&client.lock("x")).await;
    nothing_left(&server).await;
}

/// Redisson is refused, woken by the message, and excludes us until it unlocks.
#[tokio::test]
async fn redisson_respects_a_restored_lock_and_its_release_message() {
    let server = Server::start();
    let client = native(&server.admin_url()).await;
    let peer = Redisson::connect(&server).await;
    let lease = Duration::from_secs(30);
    let guard = client.lock("x").lock().await.unwrap();
    assert_eq!(calls(&server, "restore").await, 1);
    let told = peer.lock_acquire("x", 7, lease).await;
    assert!(
        told.is_some_and(|ms| (25_000..=30_000).contains(&ms)),
        "{told:?}"
    );
    assert_eq!(peer.lock_release("x", 7).await, None, "it is not theirs");
    let waiter = {
        let peer = peer.clone();
        lockset_testkit::spawn(async move { peer.lock("x", 7, lease, SOON * 2).await })
    };
    listening(&server).await;
    guard.release().await.unwrap();
    let acquired = within(SOON, waiter).await.unwrap();
    assert!(acquired, "its lease would have kept it waiting");

    let lock = client.lock("x");
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    eventually(SOON, "it listens", async || {
        client.stats().subscriptions == 1
    })
    .await;
    assert_eq!(calls(&server, "restore").await, 2, "refused");
    assert_eq!(peer.lock_release("x", 7).await, Some(1));
    let guard = within(SOON, waiter).await.unwrap();
    guard.release().await.unwrap();
    assert!(peer.undecodable().is_empty());
}
