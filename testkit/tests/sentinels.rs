//! The testkit's sentinels: they know all servers, and change the primary by themselves or on
//! request.

use std::time::Duration;

use lockset_testkit::{Sentinels, Server, eventually};
use redis::{
    AsyncCommands as _, AsyncConnectionConfig, ErrorKind, RedisResult, ServerErrorKind, cmd,
};

const SOON: Duration = Duration::from_secs(10);

/// A replica's error for a write.
const READ_ONLY: ErrorKind = ErrorKind::Server(ServerErrorKind::ReadOnly);

/// A timeout long enough for a busy machine.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON))
}

async fn set(server: &Server, key: &str) -> RedisResult<()> {
    server.admin().await.set(key, 1).await
}

/// The port that each sentinel gives to clients.
async fn told(sentinels: &Sentinels) -> Vec<u16> {
    let mut told = Vec::new();
    for sentinel in sentinels.sentinels() {
        let (_, port): (String, u16) = cmd("SENTINEL")
            .arg(&["GET-MASTER-ADDR-BY-NAME", "main"])
            .query_async(&mut sentinel.admin().await)
            .await
            .unwrap();
        told.push(port);
    }
    told
}

#[tokio::test]
async fn form_and_replicate() {
    let sentinels = Sentinels::start().await;
    let (servers, watchers) = (sentinels.servers(), sentinels.sentinels());
    assert_eq!((servers.len(), watchers.len()), (3, 3));
    let addrs: Vec<String> = watchers.iter().map(|one| one.addr().to_string()).collect();
    assert_eq!(
        sentinels.url(),
        format!("redis+sentinel://{}/main", addrs.join(","))
    );

    let primary = sentinels.primary().await;
    assert_eq!(primary.addr(), servers[0].addr());
    assert_eq!(told(&sentinels).await, [primary.port(); 3]);
    set(primary, "a").await.unwrap();
    for replica in &servers[1..] {
        eventually(SOON, "the replica has the key", async || {
            replica.keys().await == ["a"]
        })
        .await;
        assert_eq!(set(replica, "b").await.unwrap_err().kind(), READ_ONLY);
    }
}

#[tokio::test]
async fn fail_over_as_told() {
    let sentinels = Sentinels::builder().hurried().start().await;
    let first = sentinels.primary().await;
    set(first, "a").await.unwrap();
    for replica in &sentinels.servers()[1..] {
        eventually(SOON, "the replica has the key", async || {
            replica.keys().await == ["a"]
        })
        .await;
    }
    for _ in 0..2 {
        let before = sentinels.primary().await;
        let old = sentinels.fail_over().await;
        assert_eq!(old.addr(), before.addr());
        let new = sentinels.primary().await;
        assert_ne!(new.addr(), old.addr());
        assert_eq!(told(&sentinels).await, [new.port(); 3]);
        assert_eq!(new.keys().await, ["a"]);
        sentinels.is_well().await;
        assert_eq!(set(old, "b").await.unwrap_err().kind(), READ_ONLY);
    }
}

#[tokio::test]
async fn replace_a_dead_primary() {
    let sentinels = Sentinels::builder().hurried().start().await;
    set(sentinels.primary().await, "a").await.unwrap();
    let old = sentinels.kill_primary().await;
    let new = sentinels.primary().await;
    assert_ne!(new.addr(), old.addr());
    set(new, "b").await.unwrap();

    old.restart();
    sentinels.is_well().await;
    assert_eq!(sentinels.primary().await.addr(), new.addr());
    eventually(SOON, "the old primary has the new data", async || {
        old.keys().await.contains(&"b".to_owned())
    })
    .await;
}

#[tokio::test]
async fn replace_a_frozen_primary() {
    let sentinels = Sentinels::builder().hurried().start().await;
    let old = sentinels.primary().await;
    old.stop();
    let new = sentinels.promoted(old).await;
    assert_ne!(new.addr(), old.addr());
    old.cont();
    sentinels.is_well().await;
    assert_eq!(set(old, "a").await.unwrap_err().kind(), READ_ONLY);
}

#[tokio::test]
async fn a_restarted_replica_knows_its_place() {
    let sentinels = Sentinels::start().await;
    let replica = &sentinels.servers()[1];
    replica.restart();
    assert_eq!(set(replica, "a").await.unwrap_err().kind(), READ_ONLY);
    sentinels.is_well().await;

    let sentinel = &sentinels.sentinels()[0];
    sentinel.restart();
    sentinels.is_well().await;
}

#[tokio::test]
async fn passwords_of_both_kinds() {
    let sentinels = Sentinels::builder()
        .password("secret")
        .sentinel_password("hidden")
        .args(["--min-replicas-to-write", "1"])
        .hurried()
        .start()
        .await;
    for server in [&sentinels.servers()[0], &sentinels.sentinels()[0]] {
        let stranger = redis::Client::open(server.url()).unwrap();
        let refused: RedisResult<()> = match stranger
            .get_multiplexed_async_connection_with_config(&patient())
            .await
        {
            Ok(mut stranger) => cmd("INFO").query_async(&mut stranger).await,
            Err(error) => Err(error),
        };
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("NOAUTH"), "{refused}");
    }
    set(sentinels.primary().await, "a").await.unwrap();
    sentinels.fail_over().await;
    sentinels.is_well().await;
    set(sentinels.primary().await, "b").await.unwrap();
}

#[tokio::test]
async fn start_valkey_and_share() {
    let sentinels = Sentinels::builder()
        .valkey()
        .replicas(1)
        .sentinels(1)
        .start()
        .await;
    assert!(sentinels.servers().iter().all(Server::is_valkey));
    assert!(sentinels.sentinels().iter().all(Server::is_valkey));
    let shared = Sentinels::shared().await;
    assert!(std::ptr::eq(shared, Sentinels::shared().await));
    set(shared.primary().await, "a").await.unwrap();
}
