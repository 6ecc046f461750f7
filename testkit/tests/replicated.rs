//! The testkit's replicas: they follow, freeze when told to, and can take over.

use std::time::Duration;

use lockset_testkit::{Replicated, Server, eventually, within};
use redis::{AsyncCommands as _, ErrorKind, RedisResult, ServerErrorKind, cmd};

const SOON: Duration = Duration::from_secs(10);

async fn set(server: &Server, key: &str) -> RedisResult<()> {
    server.admin().await.set(key, 1).await
}

/// Writes a key, and returns how many replicas confirm it within `time`.
async fn set_and_wait(server: &Server, key: &str, replicas: usize, time: Duration) -> usize {
    let mut admin = server.admin().await;
    let () = admin.set(key, 1).await.unwrap();
    cmd("WAIT")
        .arg(replicas)
        .arg(u64::try_from(time.as_millis()).unwrap())
        .query_async(&mut admin)
        .await
        .unwrap()
}

#[tokio::test]
async fn replicas_follow_and_confirm() {
    let all = Replicated::builder().replicas(2).start().await;
    let patience = Duration::from_secs(4);
    assert_eq!(set_and_wait(all.primary(), "a", 2, patience).await, 2);
    for replica in all.replicas() {
        assert_eq!(replica.keys().await, ["a"]);
        let refused = set(replica, "b").await.unwrap_err().kind();
        assert_eq!(refused, ErrorKind::Server(ServerErrorKind::ReadOnly));
    }

    all.replica(0).kill();
    let some = set_and_wait(all.primary(), "b", 2, Duration::from_secs(1)).await;
    assert_eq!(some, 1);
    all.replica(0).restart();
    all.is_well().await;
    all.have_caught_up().await;
    assert_eq!(all.replica(0).keys().await, ["a", "b"]);
}

#[tokio::test]
async fn a_link_freezes_data_or_what_is_confirmed() {
    let all = Replicated::builder().proxied().start().await;
    let short = Duration::from_millis(100);

    all.link(0).hold_replies();
    assert_eq!(set_and_wait(all.primary(), "a", 1, short).await, 0);
    assert!(all.replica(0).keys().await.is_empty());
    all.link(0).pass();
    within(SOON, all.have_caught_up()).await;
    assert_eq!(all.replica(0).keys().await, ["a"]);

    all.link(0).hold_requests();
    assert_eq!(set_and_wait(all.primary(), "b", 1, short).await, 0);
    within(SOON, all.have_caught_up()).await;
    assert_eq!(all.replica(0).keys().await, ["a", "b"]);
    all.link(0).pass();

    all.link(0).cut();
    all.is_well().await;
}

#[tokio::test]
async fn a_replica_takes_over_without_unreplicated_data() {
    let all = Replicated::builder()
        .replicas(2)
        .proxied()
        .args(["--requirepass", "secret"])
        .start()
        .await;
    set(all.primary(), "a").await.unwrap();
    all.have_caught_up().await;
    all.link(0).hold_replies();
    all.link(1).hold_replies();
    set(all.primary(), "b").await.unwrap();

    let new = all.promote(0).await;
    assert_eq!(new.keys().await, ["a"]);
    set(new, "c").await.unwrap();
    eventually(SOON, "the other replica follows", async || {
        all.replica(1).keys().await == ["a", "c"]
    })
    .await;
    assert_eq!(all.primary().keys().await, ["a", "b"]);
}

#[tokio::test]
async fn starts_valkey() {
    let all = Replicated::builder().valkey().start().await;
    assert!(all.primary().is_valkey() && all.replica(0).is_valkey());
    set(all.primary(), "a").await.unwrap();
    all.have_caught_up().await;
    assert_eq!(all.replica(0).keys().await, ["a"]);
}
