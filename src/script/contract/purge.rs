//! Which token counters a purge removes, and which it keeps.

use redis::Value;

use super::fixture::{Fixture, U1, U2, token_of};
use crate::script::reply;

const COUNTER: &str = "redisson_lock_token:{L}";
const CHANNEL: &str = "redisson_lock__channel:{L}";
const IN_USE: [&str; 3] = ["L", "{L}", "redisson_lock_queue:{L}"];
/// The statuses of the script.
const PURGED: i64 = 1;
const ABSENT: i64 = 0;
const USED_SINCE: i64 = -1;
const IN_USE_NOW: i64 = -2;
const STAYS: i64 = -3;
const HOUR_US: i64 = 3_600_000_000;

impl Fixture {
    /// Makes a counter with a last token of this age.
    async fn counter(&mut self, age_us: i64) {
        let now = self.now().await * 1_000 - age_us;
        self.make(&["SET", COUNTER, &(now - now % 64).to_string()])
            .await;
    }

    async fn purge(&mut self) -> i64 {
        let keys = [&[COUNTER], &IN_USE[..]].concat();
        let args = [&HOUR_US.to_string(), "NUMSUB", CHANNEL];
        let reply = self.run("purge_token", &keys, &args).await;
        reply::int(&reply).unwrap()
    }
}

#[tokio::test]
async fn a_counter_goes_once_nobody_has_used_it_for_long() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.purge().await, ABSENT);
    fixture.counter(HOUR_US + 1_000_000).await;
    assert_eq!(fixture.purge().await, PURGED);
    assert_eq!(fixture.purge().await, ABSENT);
    assert_eq!(fixture.server.keys().await, [""; 0]);
    fixture.counter(HOUR_US - 60_000_000).await;
    assert_eq!(fixture.purge().await, USED_SINCE);
    assert_eq!(fixture.server.keys().await, [COUNTER]);
}

#[tokio::test]
async fn a_counter_in_use_stays() {
    let mut fixture = Fixture::new().await;
    fixture.counter(2 * HOUR_US).await;
    for key in IN_USE {
        fixture.make(&["HSET", key, U1, "1"]).await;
        assert_eq!(fixture.purge().await, IN_USE_NOW, "{key}");
        fixture.make(&["DEL", key]).await;
    }
    let client = redis::Client::open(fixture.server.url()).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener.subscribe(CHANNEL).await.unwrap();
    assert_eq!(fixture.purge().await, IN_USE_NOW);
    listener.unsubscribe(CHANNEL).await.unwrap();
    assert_eq!(fixture.purge().await, PURGED);
}

/// A value that is no time, or lies in the future, does not show the last use.
#[tokio::test]
async fn a_counter_that_is_no_time_stays() {
    let mut fixture = Fixture::new().await;
    let now = fixture.now().await * 1_000;
    let ahead = (now - now % 64 + 64 * 1_000_000).to_string();
    let raised = (now - now % 64 - 2 * HOUR_US + 1).to_string();
    for number in ["0", "-64", "1", "64", "6400", &ahead, &raised] {
        fixture.make(&["SET", COUNTER, number]).await;
        assert_eq!(fixture.purge().await, STAYS, "{number}");
    }
    for make in [["RPUSH", COUNTER, "x"], ["SET", COUNTER, "not a number"]] {
        fixture.make(&["DEL", COUNTER]).await;
        fixture.make(&make).await;
        let args = [&HOUR_US.to_string(), "NUMSUB"];
        let error = fixture.refused("purge_token", &[COUNTER], &args).await;
        let code = crate::conn::error_reply::code(&error);
        assert_eq!(code, Some("WRONGTYPE"), "{error}");
    }
    assert_eq!(fixture.server.keys().await, [COUNTER]);
}

const SEMAPHORE: [&str; 4] = ["S", "{S}:timeout", "lockset_sem_holds:{S}", "{S}"];
const OTHER_NUMBER: i64 = -1;

impl Fixture {
    /// Purges a semaphore of three permits.
    async fn purge_semaphore(&mut self) -> i64 {
        let args = ["3", "NUMSUB", "redisson_sc:{S}"];
        let reply = self.run("purge_semaphore", &SEMAPHORE, &args).await;
        reply::int(&reply).unwrap()
    }
}

#[tokio::test]
async fn a_semaphore_goes_once_all_its_permits_are_free() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.purge_semaphore().await, ABSENT);
    fixture.make(&["SET", "S", "3"]).await;
    assert_eq!(fixture.purge_semaphore().await, PURGED);
    assert_eq!(fixture.purge_semaphore().await, ABSENT);
    let javas = "0123456789abcdef0123456789abcdef";
    let now = fixture.now().await;
    let (ended, runs) = ((now - 1).to_string(), (now + 60_000).to_string());
    for (number, taken, became) in [
        ("2", &[][..], OTHER_NUMBER),
        ("4", &[], OTHER_NUMBER),
        ("2", &[(U1, &runs)], IN_USE_NOW),
        ("3", &[(U1, &runs)], IN_USE_NOW),
        ("2", &[("user:7", &ended)], IN_USE_NOW),
        ("2", &[("session:12345678", &ended)], IN_USE_NOW),
        ("1", &[(U1, &ended)], OTHER_NUMBER),
        (
            "0",
            &[(U1, &ended), (javas, &ended), ("ended:1", &ended)],
            PURGED,
        ),
    ] {
        fixture.make(&["SET", "S", number]).await;
        for (permit, end) in taken {
            fixture.make(&["ZADD", "{S}:timeout", end, permit]).await;
        }
        let before = fixture.server.keys().await.len();
        assert_eq!(
            fixture.purge_semaphore().await,
            became,
            "{number} {taken:?}"
        );
        let left = fixture.server.keys().await.len();
        assert_eq!(left, if became == PURGED { 0 } else { before });
        fixture.make(&["DEL", "{S}:timeout"]).await;
    }
}

#[tokio::test]
async fn a_semaphore_in_use_stays() {
    let mut fixture = Fixture::new().await;
    fixture.make(&["SET", "S", "3"]).await;
    for key in &SEMAPHORE[2..] {
        fixture.make(&["HSET", key, U1, "1"]).await;
        assert_eq!(fixture.purge_semaphore().await, IN_USE_NOW, "{key}");
        fixture.make(&["DEL", key]).await;
    }
    let client = redis::Client::open(fixture.server.url()).unwrap();
    let mut listener = client.get_async_pubsub().await.unwrap();
    listener.subscribe("redisson_sc:{S}").await.unwrap();
    assert_eq!(fixture.purge_semaphore().await, IN_USE_NOW);
    listener.unsubscribe("redisson_sc:{S}").await.unwrap();
    for foreign in [["HSET", "S", "a", "1"], ["SET", "S", "three", "KEEPTTL"]] {
        fixture.make(&["DEL", "S"]).await;
        fixture.make(&foreign).await;
        let args = ["3", "NUMSUB"];
        let error = fixture.refused("purge_semaphore", &SEMAPHORE, &args).await;
        let code = crate::conn::error_reply::code(&error);
        assert_eq!(code, Some("WRONGTYPE"), "{error}");
    }
    assert_eq!(fixture.server.keys().await, ["S"]);
}

/// The first token after a purge is larger than the last one before it.
#[tokio::test]
async fn tokens_grow_over_a_purge() {
    let mut fixture = Fixture::new().await;
    fixture.counter(HOUR_US + 1_000_000).await;
    let last: i64 = fixture.ask(&["GET", COUNTER]).await;
    assert_eq!(fixture.purge().await, PURGED);
    let args = [U2, "30000", "1"];
    let granted = fixture
        .run("reentrant_acquire", &["L", COUNTER], &args)
        .await;
    assert!(token_of(&granted) > u64::try_from(last).unwrap());
    assert_eq!(fixture.purge().await, USED_SINCE);
    let _: Value = fixture.ask(&["DEL", "L"]).await;
}
