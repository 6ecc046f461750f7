//! Compatibility with other clients of the wire format: the state they see, and our reaction to
//! theirs.
//!
//! The tests play the other side by plain commands, as Redisson's scripts would issue them.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lockset::Owner;
use lockset_testkit::{Server, unique_name, within};

use crate::support::{BY_MESSAGE, SOON, ask, listening, patient_client, took_less};

#[tokio::test]
async fn a_hold_looks_like_redissons() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let name = unique_name("lock");
    let owner = Owner::new();
    let lock = client.lock(&name).owner(&owner);
    let guard = lock.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();

    let fields: Vec<(String, String)> = ask(&mut admin, &["HGETALL", &name]).await;
    let [(holder, count)] = &fields[..] else {
        panic!("exactly one field: {fields:?}");
    };
    assert_eq!(
        (count.as_str(), inner.hold_count()),
        ("1", 2),
        "one for all guards"
    );
    let (uuid, number) = holder.rsplit_once(':').expect("uuid:number");
    assert!(uuid::Uuid::parse_str(uuid).is_ok(), "{holder}");
    assert!(number.parse::<u64>().is_ok(), "{holder}");
    let seen = lock.holder().await.unwrap().expect("it is held");
    assert_eq!((&seen.id, seen.hold_count), (holder, 1));
    assert!(seen.remaining <= Duration::from_secs(30));
    let pttl: i64 = ask(&mut admin, &["PTTL", &name]).await;
    assert!((25_000..=30_000).contains(&pttl), "{pttl}");
    assert_eq!(server.keys().await, [&*name], "no key beside it");

    let url = redis::Client::open(server.admin_url()).unwrap();
    let mut messages = url.get_async_pubsub().await.unwrap();
    let channel = format!("redisson_lock__channel:{{{name}}}");
    messages.subscribe(&channel).await.unwrap();
    inner.release().await.unwrap();
    guard.release().await.unwrap();
    let message = within(SOON, messages.on_message().next()).await.unwrap();
    assert_eq!(message.get_payload::<String>().unwrap(), "0");
    let count: i64 = ask(&mut admin, &["EXISTS", &name]).await;
    assert_eq!(
        count, 0,
        "the message comes once it is free, not at the inner release"
    );
}

#[tokio::test]
async fn a_foreign_hold_is_respected_and_its_message_heard() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let name = unique_name("lock");
    let holder = "8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:57";
    let _: i64 = ask(&mut admin, &["HSET", &name, holder, "1"]).await;
    let _: i64 = ask(&mut admin, &["PEXPIRE", &name, "60000"]).await;
    let lock = client.lock(&name);
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(lock.holder().await.unwrap().unwrap().id, holder);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    let channel = format!("redisson_lock__channel:{{{name}}}");
    // A message only leads to another attempt, whatever its payload.
    for payload in ["-5", "nonsense", "99999999999999999999", ""] {
        let _: i64 = ask(&mut admin, &["PUBLISH", &channel, payload]).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiter.is_finished());
    let freed = Instant::now();
    let _: i64 = ask(&mut admin, &["DEL", &name]).await;
    let _: i64 = ask(&mut admin, &["PUBLISH", &channel, "0"]).await;
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    took_less(freed, BY_MESSAGE);
}

#[tokio::test]
async fn fencing_tokens_are_shared_with_plain_counters() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let lock = client.lock("x").fenced();
    let guard = lock.lock().await.unwrap();
    let ours = guard.fencing_token().unwrap().get();
    guard.release().await.unwrap();
    // Redisson's fenced lock increments the counter.
    let theirs: u64 = ask(&mut admin, &["INCR", "redisson_lock_token:{x}"]).await;
    assert_eq!(theirs, ours + 1);
    // A counter ahead of the clock is incremented too.
    let _: () = ask(
        &mut admin,
        &["SET", "redisson_lock_token:{x}", "9007199254740000"],
    )
    .await;
    // By 1, because no plain command has raised the counter before.
    let another = patient_client(&server.url()).await.lock("x").fenced();
    let guard = another.lock().await.unwrap();
    assert_eq!(guard.fencing_token().unwrap().get(), 9_007_199_254_740_001);
    guard.release().await.unwrap();
    let guard = lock.lock().await.unwrap();
    let next = guard.fencing_token().unwrap().get();
    assert!(next > 9_007_199_254_740_001 && next < 1 << 53, "{next}");
}
