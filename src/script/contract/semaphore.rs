//! Semaphores with leases: permits that are taken and permits that are free add up to the declared number, whatever is
//! repeated, comes late or is lost.

use redis::Value;

use super::fixture::{Fixture, Subscriber, U1, U2, U3, near};
use crate::conn::error_reply::code;

const TIMEOUTS: &str = "{S}:timeout";
const QUEUE: &str = "lockset_sem_queue:{S}";
const ALIVE: &str = "lockset_sem_alive:{S}";
const CHANNEL: &str = "redisson_sc:{S}";
const KEYS: [&str; 4] = ["S", TIMEOUTS, QUEUE, ALIVE];
const YES: Value = Value::Int(1);

impl Fixture {
    async fn take_permits(&mut self, ids: &[&str], declared: &str) -> Value {
        let count = ids.len().to_string();
        let head = ["30000", &count, declared, CHANNEL, "PUBLISH", "0"];
        let args = [&head[..], ids].concat();
        self.run("semaphore_acquire", &KEYS, &args).await
    }

    async fn release_permits(&mut self, ids: &[&str]) {
        let args = [&[CHANNEL, "PUBLISH", ""], ids].concat();
        self.run("semaphore_release", &KEYS, &args).await;
    }

    /// How many permits are free, and how many are taken.
    async fn counted(&mut self) -> (i64, i64) {
        (
            self.ask(&["GET", "S"]).await,
            self.ask(&["ZCARD", TIMEOUTS]).await,
        )
    }

    /// Ends the lease of this permit.
    async fn expires_there(&mut self, id: &str) {
        self.make(&["ZADD", TIMEOUTS, "XX", "1", id]).await;
    }

    async fn free_permits_told(&mut self, subscriber: &mut Subscriber) -> Vec<String> {
        let messages = self.messages(subscriber).await;
        let payload = |message: &String| {
            let payload = message.strip_prefix(CHANNEL).expect("its channel");
            payload.trim().to_owned()
        };
        messages.iter().map(payload).collect()
    }
}

/// A guard was split and one part was released. Then an earlier attempt arrives at the server.
#[tokio::test]
async fn a_late_attempt_takes_no_released_permit_again() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "2").await, YES);
    fixture.release_permits(&[U2]).await;
    assert_eq!(fixture.take_permits(&[U1, U2], "2").await, YES);
    assert_eq!(fixture.counted().await, (1, 1));
    assert_eq!(fixture.take_permits(&[U3], "2").await, YES);
    fixture.release_permits(&[U1]).await;
    assert_eq!(fixture.counted().await, (1, 1));
}

/// One permit is taken by a shorter way through the script.
#[tokio::test]
async fn a_repeat_finds_its_one_permit_taken_and_shortens_no_lease() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "2").await, YES);
    fixture
        .make(&["ZADD", TIMEOUTS, "99999999999999", U1])
        .await;
    for declared in ["2", "0"] {
        assert_eq!(fixture.take_permits(&[U1], declared).await, YES);
        assert_eq!(fixture.counted().await, (1, 1));
        let end: f64 = fixture.ask(&["ZSCORE", TIMEOUTS, U1]).await;
        assert_eq!(end, 99_999_999_999_999.0);
    }
    fixture.expires_there(U1).await;
    assert_eq!(fixture.take_permits(&[U1], "2").await, YES);
    let end: f64 = fixture.ask(&["ZSCORE", TIMEOUTS, U1]).await;
    assert!(end > 1.0, "its lease begins again");
    assert_eq!(fixture.take_permits(&[U2], "2").await, YES);
    assert_eq!(fixture.counted().await, (0, 2));
    assert_eq!(fixture.take_permits(&[U2], "2").await, YES, "a repeat");
    let refused = fixture.take_permits(&[U3], "2").await;
    assert_ne!(refused, YES);
    let other = fixture.take_permits(&[U3], "3").await;
    assert_eq!(other, Value::Array([-1, 2, 3].map(Value::Int).to_vec()));
    assert_eq!(fixture.counted().await, (0, 2));
}

#[tokio::test]
async fn one_free_permit_is_not_taken_by_a_caller_that_declares_another_number() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "2").await, YES);
    let other = fixture.take_permits(&[U2], "3").await;
    assert_eq!(other, Value::Array([-1, 2, 3].map(Value::Int).to_vec()));
    assert_eq!(fixture.counted().await, (1, 1));
}

#[tokio::test]
async fn a_renewal_takes_no_permit_that_ended() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "2").await, YES);
    fixture.release_permits(&[U1]).await;
    let renewed = fixture
        .run(
            "semaphore_renew",
            &[TIMEOUTS, TIMEOUTS],
            &[U1, "60000", U2, "60000"],
        )
        .await;
    assert_eq!(renewed, Value::Array([0, 1].map(Value::Int).to_vec()));
    assert_eq!(fixture.counted().await, (1, 1));
}

/// The first key has no permit, and the second is another kind.
#[tokio::test]
async fn a_full_server_renews_permits() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "2").await, YES);
    fixture.make(&["SET", "other", "theirs"]).await;
    fixture.fill().await;
    let keys = ["none", "other", TIMEOUTS, TIMEOUTS];
    let args = [U1, "60000", U1, "60000", U1, "60000", U2, "60000"];
    let renewed = fixture.run("semaphore_renew", &keys, &args).await;
    assert_eq!(renewed, Value::Array([0, 0, 1, 1].map(Value::Int).to_vec()));
    let left = fixture.score(TIMEOUTS, U1).await - fixture.now().await;
    assert!(near(left, 60_000), "{left}");
    assert_eq!(fixture.counted().await, (0, 2));
    fixture.release_permits(&[U1, U2]).await;
    assert_eq!(fixture.counted().await, (2, 0));
}

/// The first part of a guard was released, and the late attempt finds the second part taken.
#[tokio::test]
async fn a_late_attempt_counts_a_taken_permit_once() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "4").await, YES);
    fixture.release_permits(&[U1]).await;
    assert_eq!(fixture.take_permits(&[U1, U2], "4").await, YES);
    assert_eq!(fixture.counted().await, (2, 2));
}

/// The number of free permits was deleted, evicted or has expired, and the permits that are taken have not.
#[tokio::test]
async fn a_lost_number_issues_no_permit_twice() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "3").await, YES);
    fixture.expires_there(U2).await;
    fixture.make(&["DEL", "S"]).await;
    assert_eq!(fixture.take_permits(&[U3], "3").await, YES);
    assert_eq!(fixture.counted().await, (1, 2));
    fixture.release_permits(&[U1, U3]).await;
    assert_eq!(fixture.counted().await, (3, 0));
}

/// Java may wait for a semaphore that nobody has declared yet.
#[tokio::test]
async fn the_permits_that_are_left_by_the_first_acquire_are_announced() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.take_permits(&[U1], "3").await, YES);
    assert_eq!(fixture.take_permits(&[U2], "3").await, YES);
    assert_eq!(fixture.free_permits_told(&mut subscriber).await, ["2"]);
}

/// Otherwise a dead waiter would keep its place for longer than a heartbeat, and for ever if only its heartbeat was
/// lost.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_head_and_no_order_upside_down() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "1").await, YES);
    let hour = 3_600_000;
    let ahead = fixture.now().await + hour;
    let (came, kept) = ((ahead * 1_000).to_string(), ahead.to_string());
    fixture
        .make(&["ZADD", QUEUE, "1", "lost:1", &came, "dead:1"])
        .await;
    fixture.make(&["ZADD", ALIVE, &kept, "dead:1"]).await;
    let ids = ["30000", "1", "1", CHANNEL, "PUBLISH", "3000", U2, U3];
    let refused = fixture.run("semaphore_acquire", &KEYS, &ids).await;
    assert!(matches!(refused, Value::Array(_)), "{refused:?}");
    let places: Vec<String> = fixture.ask(&["ZRANGE", QUEUE, "0", "-1"]).await;
    assert_eq!(places, ["dead:1", U3]);
    let latest = fixture.now().await + 3_000;
    assert!(fixture.score(ALIVE, "dead:1").await <= latest);
}

/// Two attempts of one client may arrive in another order than it made them. The client asks for its first waiter.
#[tokio::test]
async fn waiters_of_one_client_go_in_the_order_of_its_calls() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "1").await, YES);
    let terms = ["30000", "1", "1", CHANNEL, "PUBLISH", "3000"];
    for ids in [["x:2", U3], ["x:1", U2]] {
        let args = [&terms[..], &ids].concat();
        let refused = fixture.run("semaphore_acquire", &KEYS, &args).await;
        assert!(matches!(refused, Value::Array(_)), "{refused:?}");
    }
    fixture.release_permits(&[U1]).await;
    let args = [&terms[..], &["x:3", U2, U3]].concat();
    let granted = fixture.run("semaphore_acquire", &KEYS, &args).await;
    assert_eq!(granted, YES);
    let places: Vec<String> = fixture.ask(&["ZRANGE", QUEUE, "0", "-1"]).await;
    assert_eq!(places, [U3]);
}

/// Waiters of Redisson's plain kind have no timer: a message alone wakes them.
#[tokio::test]
async fn permits_that_an_attempt_found_expired_are_announced_even_if_it_is_refused() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "2").await, YES);
    let mut subscriber = fixture.subscriber().await;
    fixture.expires_there(U2).await;
    let refused = fixture.take_permits(&[U3, "x:1"], "2").await;
    assert!(
        matches!(&refused, Value::Array(items) if items[0] == YES),
        "{refused:?}"
    );
    assert_eq!(fixture.free_permits_told(&mut subscriber).await, ["1"]);
}

/// In a queue such a call would hold up all calls behind it.
#[tokio::test]
async fn more_permits_than_there_are_are_never_waited_for() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "2").await, YES);
    let ids = ["30000", "3", "0", CHANNEL, "PUBLISH", "3000"];
    let ids = [&ids[..], &[U2, "x:1", "x:2", U3]].concat();
    let refused = fixture.run("semaphore_acquire", &KEYS, &ids).await;
    let [never, total, declared] = [-1, 2, 0].map(Value::Int);
    assert_eq!(refused, Value::Array(vec![never, total, declared]));
    assert_eq!(fixture.ask::<u64>(&["EXISTS", QUEUE]).await, 0);
}

#[tokio::test]
async fn a_release_beside_a_foreign_key_removes_nothing() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1], "2").await, YES);
    for foreign in [&["LPUSH", "S", "a"][..], &["SET", "S", "a text"]] {
        fixture.make(&["DEL", "S"]).await;
        fixture.make(foreign).await;
        let args = [CHANNEL, "PUBLISH", "", U1];
        let error = fixture.refused("semaphore_release", &KEYS, &args).await;
        assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
        assert_eq!(fixture.ask::<u64>(&["ZCARD", TIMEOUTS]).await, 1);
    }
}

/// Attempts, repeats and late attempts, releases of parts, resizes, lost numbers and ended leases, in any order.
#[tokio::test]
async fn whatever_happens_free_and_taken_permits_add_up() {
    let mut fixture = Fixture::new().await;
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        fixture.make(&["FLUSHALL"]).await;
        let mut total = random.i64(1..5);
        let mut sent: Vec<(Vec<String>, String)> = Vec::new();
        for step in 0..40 {
            let had_number: bool = fixture.ask(&["EXISTS", "S"]).await;
            match random.u8(0..100) {
                0..50 => {
                    let is_late = random.bool() && !sent.is_empty();
                    if !is_late {
                        let count = random.u32(1..4);
                        let ids = (0..count).map(|id| format!("{step}:{id}"));
                        sent.push((ids.collect(), total.max(1).to_string()));
                    }
                    let (ids, declared) = if is_late {
                        random.choice(&sent).unwrap()
                    } else {
                        sent.last().unwrap()
                    };
                    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                    fixture.take_permits(&ids, declared).await;
                    if !had_number {
                        total = declared.parse().unwrap();
                    }
                }
                50..80 => {
                    if let Some((ids, _)) = random.choice(&sent) {
                        let part = random.usize(0..=ids.len());
                        let part: Vec<&str> = ids[part..].iter().map(String::as_str).collect();
                        fixture.release_permits(&part).await;
                    }
                }
                80..88 => {
                    total = random.i64(0..5);
                    let args = [&*total.to_string(), CHANNEL, "PUBLISH"];
                    fixture.run("semaphore_resize", &KEYS[..2], &args).await;
                }
                88..92 => fixture.make(&["DEL", "S"]).await,
                _ => {
                    let taken: Vec<String> = fixture.ask(&["ZRANGE", TIMEOUTS, "0", "-1"]).await;
                    if let Some(id) = random.choice(&taken) {
                        fixture.expires_there(id).await;
                    }
                }
            }
            let free: Option<i64> = fixture.ask(&["GET", "S"]).await;
            let taken: i64 = fixture.ask(&["ZCARD", TIMEOUTS]).await;
            if let Some(free) = free {
                assert_eq!(free + taken, total, "seed {seed}, step {step}");
            }
        }
    }
}

/// Otherwise the permits would be lost for all callers.
#[tokio::test]
async fn permits_that_cannot_be_added_for_want_of_a_right_are_added_by_the_next() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take_permits(&[U1, U2], "3").await, YES);
    let mut user = fixture.user("-incrby").await;
    // A repeat changes nothing.
    for _ in 0..2 {
        let released = [CHANNEL, "PUBLISH", "", U1, U3];
        user.refused("semaphore_release", &KEYS, &released).await;
        assert_eq!(fixture.counted().await, (1, 2));
    }
    fixture.expires_there(U2).await;
    let many = ["30000", "2", "3", CHANNEL, "PUBLISH", "0", "x:1", "x:2"];
    for _ in 0..2 {
        user.refused("semaphore_acquire", &KEYS, &many).await;
        let resized = ["3", CHANNEL, "PUBLISH"];
        user.refused("semaphore_resize", &KEYS[..2], &resized).await;
        assert_eq!(fixture.counted().await, (1, 2));
    }
    assert_eq!(fixture.take_permits(&["x:3", "x:4"], "3").await, YES);
    assert_eq!(fixture.counted().await, (1, 2));
    assert_eq!(fixture.take_permits(&["x:5"], "3").await, YES);
    assert_eq!(fixture.counted().await, (0, 3));
}
