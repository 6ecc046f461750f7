//! The fair lock: its trace, and the waiters that are passed over.

use std::time::Duration;

use lockset_testkit::Redisson;
use redis::Value;

use super::fixture::{
    DONE, Fixture, HELD, NOT_HELD, U0, U1, U2, U3, U4, U9, UNKNOWN, User, elsewhere, list, near,
    token_of,
};
use crate::conn::error_reply::code;
use crate::script::reply::{self, Heartbeat};

pub(super) const QUEUE: &str = "redisson_lock_queue:{F}";
pub(super) const TIMEOUTS: &str = "redisson_lock_timeout:{F}";
pub(super) const ALIVE: &str = "lockset_fair_alive:{F}";
pub(super) const TOKEN: &str = "redisson_lock_token:{F}";
pub(super) const CHANNEL: &str = "redisson_lock__channel:{F}";
pub(super) const KEYS: [&str; 4] = ["F", QUEUE, TIMEOUTS, ALIVE];

/// The wish of a waiter for its turn.
pub(super) const WAKE: &str = "wake";
pub(super) const GRANT: &str = "grant";
pub(super) const GRANT_FENCED: &str = "grant_fenced";
/// The call does not wait.
pub(super) const NO_PLACE: &str = "";

pub(super) fn ask_args<'a>(holder: &'a str, on_turn: &'a str) -> [&'a str; 7] {
    let heartbeat = if on_turn == NO_PLACE { "0" } else { "3000" };
    let lease = "30000";
    [holder, lease, "0", heartbeat, on_turn, CHANNEL, "PUBLISH"]
}

pub(super) fn leave_args(holder: &str) -> [&str; 3] {
    [holder, CHANNEL, "PUBLISH"]
}

impl Fixture {
    /// Asks for the lock and joins the queue, to ask again on its turn.
    pub(super) async fn fair(&mut self, holder: &str) -> Value {
        self.queue_up(holder, WAKE).await.0
    }

    /// Asks for the lock and joins the queue. The second value is the time until which the place is kept.
    pub(super) async fn queue_up(&mut self, holder: &str, on_turn: &str) -> (Value, Option<i64>) {
        let args = ask_args(holder, on_turn);
        match self.run("fair_acquire", &KEYS, &args).await {
            Value::Array(reply) => {
                let [remaining, Value::Int(until), ..] = &*reply else {
                    panic!("{reply:?}");
                };
                assert_eq!(self.score(ALIVE, holder).await, *until);
                assert!(near(*until - self.now().await, 3_000), "{until}");
                (remaining.clone(), Some(*until))
            }
            reply => (reply, None),
        }
    }

    pub(super) async fn fair_try(&mut self, holder: &str) -> Value {
        self.run("fair_acquire", &KEYS, &ask_args(holder, NO_PLACE))
            .await
    }

    pub(super) async fn fair_release(&mut self, holder: &str) -> Value {
        self.run("fair_release", &KEYS, &leave_args(holder)).await
    }

    async fn place(&mut self, waiter: &str, places: &str) -> Value {
        self.run("fair_place", &[QUEUE], &[waiter, places]).await
    }

    pub(super) async fn queue(&mut self) -> Vec<String> {
        let reply = self.run("fair_waiters", &["F", QUEUE, ALIVE], &[]).await;
        reply::texts(&reply).unwrap()
    }

    /// The waiters that each key contains. All three must agree for waiters of lockset.
    pub(super) async fn in_all_three(&mut self, waiters: &[&str]) {
        let mut sorted: Vec<_> = waiters.to_vec();
        sorted.sort_unstable();
        let keys = self.keys().await;
        let of = |key: &str| keys.get(key).cloned().unwrap_or_default();
        assert_eq!(of(QUEUE), waiters);
        assert_eq!(of(TIMEOUTS), sorted);
        assert_eq!(of(ALIVE), sorted);
    }

    /// Ends the heartbeat of this waiter.
    pub(super) async fn dies(&mut self, waiter: &str) {
        self.make(&["ZADD", ALIVE, "1", waiter]).await;
    }

    /// Adds a waiter of Redisson with this much of its time left.
    pub(super) async fn redisson_waits(&mut self, waiter: &str, left: i64) {
        let score = (self.now().await + left).to_string();
        self.make(&["ZADD", TIMEOUTS, &score, waiter]).await;
        self.make(&["RPUSH", QUEUE, waiter]).await;
    }

    pub(super) async fn a_score_for_each_in_the_queue(&mut self) {
        let keys = self.keys().await;
        let of = |key: &str| keys.get(key).cloned().unwrap_or_default();
        for waiter in of(QUEUE) {
            assert!(of(TIMEOUTS).contains(&waiter), "{waiter} blocks Redisson");
        }
    }
}

/// The place of a waiter. The search ends after the given number of places.
#[tokio::test]
async fn the_place_of_a_waiter() {
    let mut fixture = Fixture::new().await;
    let nowhere = Value::Nil;
    assert_eq!(fixture.place(U1, "0").await, nowhere, "there is no queue");
    for holder in [U0, U1, U2, U3] {
        fixture.fair(holder).await;
    }
    for (waiter, places, place) in [
        (U1, "1000", Value::Int(1)),
        (U3, "1000", Value::Int(3)),
        (U3, "0", Value::Int(3)),
        (U3, "3", Value::Int(3)),
        (U3, "2", nowhere.clone()),
        (U0, "1000", nowhere.clone()),
        (U1, "-1", nowhere.clone()),
    ] {
        assert_eq!(fixture.place(waiter, places).await, place, "{places}");
    }
    let before = fixture.keys().await;
    let mut user = fixture.user("-lpos").await;
    let denied = user.run("fair_place", &[QUEUE], &[U1, "1000"]).await;
    assert_eq!(denied.unwrap(), nowhere, "without the right");
    assert_eq!(fixture.keys().await, before, "it changes nothing");
}

/// After Redisson has removed a place, each waiter checks whether its own place is left.
#[tokio::test]
async fn who_may_not_look_for_its_place_takes_one_at_the_end() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2, U3] {
        fixture.fair(holder).await;
    }
    fixture.make(&["LREM", QUEUE, "1", U2]).await;
    let mut user = fixture.user("-lpos").await;
    let asked = user.run("fair_acquire", &KEYS, &ask_args(U1, WAKE)).await;
    assert!(matches!(asked.unwrap(), Value::Array(_)), "it has a place");
    assert_eq!(fixture.queue().await, [U3, U1]);
    fixture.fair(U3).await;
    assert_eq!(
        fixture.queue().await,
        [U3, U1],
        "who may look keeps its place"
    );
    fixture.a_score_for_each_in_the_queue().await;
}

/// One call keeps the places of many waiters, and returns which of them have to ask.
#[tokio::test]
async fn heartbeats_of_many_waiters() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2, U3] {
        fixture.queue_up(holder, GRANT).await;
    }
    let beat = [&["5000", CHANNEL, "PUBLISH", "0"][..], &[U1, U2, U3, U4]].concat();
    // The second round is a repeat.
    for _ in 0..2 {
        let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
        let beats = reply::heartbeats(&reply, 4).unwrap();
        let [first, Heartbeat::Kept { until_ms }, last, none] = beats[..] else {
            panic!("{beats:?}");
        };
        assert_eq!(first, Heartbeat::NotKept, "the head asks by itself");
        assert_eq!((last, none), (beats[1], Heartbeat::Gone));
        let until_ms = i64::try_from(until_ms).unwrap();
        assert!(near(until_ms - fixture.now().await, 5_000));
        assert_eq!(fixture.score(ALIVE, U2).await, until_ms);
        fixture.in_all_three(&[U1, U2, U3]).await;
    }
    // A place that ended is not kept, and one that Redisson took away is not trusted.
    fixture.dies(U3).await;
    let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
    let beats = reply::heartbeats(&reply, 4).unwrap();
    assert!(matches!(beats[1], Heartbeat::Kept { .. }));
    assert_eq!(beats[2], Heartbeat::NotKept);
    fixture.make(&["LREM", QUEUE, "1", U2]).await;
    let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
    let beats = reply::heartbeats(&reply, 4).unwrap();
    assert_eq!(beats[..3], [Heartbeat::NotKept; 3]);
}

/// With waiters of Redisson in the queue, there are as many scores and heartbeats as places even then.
#[tokio::test]
async fn a_heartbeat_keeps_no_place_that_redisson_removed() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2, U3] {
        fixture.queue_up(holder, GRANT).await;
    }
    fixture.redisson_waits("r:1", 60_000).await;
    fixture.make(&["LREM", QUEUE, "1", U2]).await;
    fixture.make(&["ZREM", TIMEOUTS, U2]).await;
    let beat = ["5000", CHANNEL, "PUBLISH", "0", U2, U3];
    let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
    let beats = reply::heartbeats(&reply, 2).unwrap();
    assert_eq!(beats[0], Heartbeat::NotKept);
    assert!(matches!(beats[1], Heartbeat::Kept { .. }), "{beats:?}");
}

/// Redisson removes the first waiter when its score is over. A wait of 15 minutes that ends lowers the scores by that
/// much.
#[tokio::test]
async fn a_waiter_that_redisson_removed_is_the_first_again() {
    let (lease, wait) = (Duration::from_secs(30), Duration::from_secs(900));
    let mut fixture = Fixture::new().await;
    let peer = Redisson::connect(&fixture.server).await;
    fixture.fair(U0).await;
    peer.fair_acquire("F", 1, lease, wait).await;
    fixture.fair(U1).await;
    for thread in [2, 3] {
        peer.fair_acquire("F", thread, lease, wait).await;
    }
    // As if the lock had been held for 40 s.
    for waiter in fixture.queue().await {
        fixture
            .make(&["ZINCRBY", TIMEOUTS, "-40000", &waiter])
            .await;
    }
    fixture.make(&["DEL", "F"]).await;
    assert_eq!(peer.fair_acquire("F", 1, lease, wait).await, None);
    peer.fair_release("F", 1).await;
    let left = [peer.holder(2), peer.holder(3)];
    assert_eq!(fixture.queue().await, left, "it was removed");
    assert_eq!(peer.fair_acquire("F", 2, lease, wait).await, None);
    assert!(elsewhere(&fixture.fair(U1).await, 30_000));
    let third = peer.holder(3);
    assert_eq!(fixture.queue().await, [U1, &*third]);
    let score = fixture.score(TIMEOUTS, U1).await - fixture.now().await;
    assert!(near(score, 630_000), "{score}");
    // It joins the end instead if its heartbeat is over, or if its user lacks the right.
    for is_dead in [true, false] {
        fixture.make(&["LREM", QUEUE, "1", U1]).await;
        fixture.make(&["ZREM", TIMEOUTS, U1]).await;
        let mut user = fixture.user("-lpush").await;
        if is_dead {
            fixture.dies(U1).await;
            user = fixture.user("+@all").await;
        }
        let asked = user.run("fair_acquire", &KEYS, &ask_args(U1, WAKE)).await;
        assert!(matches!(asked.unwrap(), Value::Array(_)), "it has a place");
        assert_eq!(fixture.queue().await, [&*third, U1]);
    }
}

/// A free lock goes to the head, or past a dead head to the next waiter.
#[tokio::test]
async fn a_heartbeat_frees_a_queue_whose_head_is_dead() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2, U3] {
        fixture.queue_up(holder, GRANT).await;
    }
    let mut subscriber = fixture.subscriber().await;
    fixture.dies(U1).await;
    fixture.make(&["DEL", "F"]).await;
    let beat = ["3000", CHANNEL, "PUBLISH", "0", U2, U3];
    let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
    let beats = reply::heartbeats(&reply, 2).unwrap();
    assert_eq!(beats[0], Heartbeat::Gone, "it has the lock");
    assert_eq!(beats[1], Heartbeat::NotKept, "it is the first now");
    assert_eq!(fixture.messages(&mut subscriber).await.len(), 1);
    assert_eq!(fixture.fair_release(U2).await, Value::Int(1));
}

/// Redisson sends the next waiter no message when the wait of the first one ends at its turn. That one sleeps for the lease
/// it was told.
#[tokio::test]
async fn a_first_waiter_of_redisson_is_woken_whenever_the_lock_is_free() {
    let mut fixture = Fixture::new().await;
    fixture.redisson_waits("r:1", 60_000).await;
    let mut subscriber = fixture.subscriber().await;
    let its_turn = [format!("{CHANNEL}:r:1 0")];
    for asks in 1..=2 {
        assert_eq!(fixture.fair(U1).await, UNKNOWN);
        assert_eq!(fixture.messages(&mut subscriber).await, its_turn, "{asks}");
    }
    assert_eq!(fixture.fair_try(U2).await, UNKNOWN);
    assert_eq!(fixture.messages(&mut subscriber).await, its_turn);
    fixture.make(&["HSET", "F", U3, "1"]).await;
    fixture.make(&["PEXPIRE", "F", "30000"]).await;
    assert!(elsewhere(&fixture.fair(U1).await, 30_000));
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
}

/// The trace of Redisson's `RFairLock`, step by step, with our own replies and without its defects.
#[tokio::test]
async fn the_fair_trace() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.fair(U0).await, HELD);
    assert_eq!(fixture.server.keys().await, ["F"], "nobody waits");
    for (place, waiter) in [(1, U1), (2, U2)] {
        // Asking a second time keeps the place.
        for _ in 0..2 {
            assert!(elsewhere(&fixture.fair(waiter).await, 30_000));
        }
        let score = fixture.score(TIMEOUTS, waiter).await - fixture.now().await;
        assert!(near(score, 30_000 + place * 300_000), "{score}");
        let heartbeat = fixture.score(ALIVE, waiter).await - fixture.now().await;
        assert!(near(heartbeat, 3_000), "{heartbeat}");
    }
    fixture.in_all_three(&[U1, U2]).await;
    assert!(near(fixture.pttl_of(ALIVE).await, 930_000));
    assert!(near(fixture.pttl_of(QUEUE).await, 3_600_000));
    assert!(near(fixture.pttl_of(TIMEOUTS).await, 3_600_000));
    assert_eq!(fixture.fair_release(U9).await, NOT_HELD, "no holder");
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);

    // The reply counts the subscriber of this test.
    assert_eq!(fixture.fair_release(U0).await, Value::Int(1));
    let turn_of = |waiter: &str| vec![format!("{CHANNEL}:{waiter} 0")];
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
    // A repeat wakes the head again, because the lease may have ended without a wake-up.
    assert_eq!(fixture.fair_release(U0).await, NOT_HELD);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
    // A free lock belongs to the head, not to any other caller, waiting or not.
    assert_eq!(fixture.fair(U2).await, UNKNOWN);
    assert_eq!(fixture.fair(U3).await, UNKNOWN);
    assert_eq!(fixture.fair_try(U4).await, UNKNOWN);
    fixture.in_all_three(&[U1, U2, U3]).await;
    let scores = [
        fixture.score(TIMEOUTS, U2).await,
        fixture.score(TIMEOUTS, U3).await,
    ];
    for _ in 0..2 {
        assert_eq!(fixture.fair(U1).await, HELD);
        fixture.in_all_three(&[U2, U3]).await;
    }
    let after = [
        fixture.score(TIMEOUTS, U2).await,
        fixture.score(TIMEOUTS, U3).await,
    ];
    assert_eq!(after, scores, "nobody's score is shifted");
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);

    // A repeat does not touch the queue.
    assert_eq!(fixture.fair_try(U1).await, HELD);
    fixture.in_all_three(&[U2, U3]).await;
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert_eq!(fixture.fair_release(U1).await, Value::Int(1));
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U2));

    // The notified head leaves the queue, so the next waiter is notified.
    assert_eq!(fixture.fair_release(U2).await, DONE);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U3));
    assert_eq!(fixture.fair_release(U2).await, NOT_HELD, "not twice");
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U3));
    assert_eq!(fixture.fair(U3).await, HELD);
    assert_eq!(fixture.fair_release(U3).await, DONE, "no waiter");
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_waiter_that_gives_up_behind_the_head_notifies_nobody() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for waiter in [U0, U1, U2] {
        fixture.fair(waiter).await;
    }
    // While the lock is held, not even the next waiter is notified. It is notified when the hold ends.
    assert_eq!(fixture.fair_release(U1).await, DONE);
    fixture.in_all_three(&[U2]).await;
    fixture.fair(U3).await;
    fixture.fair_release(U0).await;
    fixture.messages(&mut subscriber).await;
    assert_eq!(fixture.fair_release(U3).await, DONE);
    fixture.in_all_three(&[U2]).await;
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
}

/// The lease became shorter than the waiters were told, and only the head was notified of that.
#[tokio::test]
async fn the_next_one_is_told_of_a_lock_that_is_left() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for (lease, told) in [("600", true), ("5000", false)] {
        fixture.make(&["FLUSHALL"]).await;
        for waiter in [U0, U1, U2] {
            fixture.fair(waiter).await;
        }
        let kept = ["F", QUEUE];
        let args = [U0, U9, lease, CHANNEL, "PUBLISH"];
        assert_eq!(fixture.run("keep", &kept, &args).await, Value::Int(1));
        let turn_of = |waiter: &str| format!("{CHANNEL}:{waiter} 0");
        assert_eq!(fixture.messages(&mut subscriber).await, [turn_of(U1)]);
        assert_eq!(fixture.fair_release(U1).await, DONE);
        let expected = if told { vec![turn_of(U2)] } else { vec![] };
        assert_eq!(fixture.messages(&mut subscriber).await, expected, "{lease}");
        fixture.in_all_three(&[U2]).await;
    }
}

#[tokio::test]
async fn a_release_after_the_end_of_its_lease_wakes_the_first_waiter() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for waiter in [U0, U1, U2] {
        fixture.fair(waiter).await;
    }
    // While another holder has the lock, such a release notifies no waiter.
    assert_eq!(fixture.fair_release(U9).await, NOT_HELD);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    fixture.make(&["DEL", "F"]).await;
    for _again in 0..2 {
        assert_eq!(fixture.fair_release(U0).await, NOT_HELD);
        let woken = format!("{CHANNEL}:{U1} 0");
        assert_eq!(fixture.messages(&mut subscriber).await, [woken]);
        fixture.in_all_three(&[U1, U2]).await;
    }
}

/// A heartbeat from before the server's clock was set back lasts no longer than any other.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_head() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    let ahead = (fixture.now().await + 3_600_000).to_string();
    fixture.make(&["ZADD", ALIVE, &ahead, U1]).await;
    fixture.fair_release(U0).await;
    assert_eq!(fixture.fair(U2).await, UNKNOWN, "not its turn yet");
    let left = fixture.score(ALIVE, U1).await - fixture.now().await;
    assert!((0..=3_000).contains(&left), "{left}");
}

/// All such heartbeats end together, not one after the other.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_for_longer_than_one() {
    let mut fixture = Fixture::new().await;
    let waiters = [U1, U2, U3, U4];
    fixture.fair(U0).await;
    for waiter in waiters {
        fixture.fair(waiter).await;
    }
    let ahead = format!("{}.25", fixture.now().await + 3_600_000);
    for waiter in &waiters[..3] {
        fixture.make(&["ZADD", ALIVE, &ahead, waiter]).await;
    }
    fixture.fair_release(U0).await;
    for waiter in waiters {
        let score: f64 = fixture.ask(&["ZSCORE", ALIVE, waiter]).await;
        let left = score - fixture.now().await as f64;
        assert!((0.0..=3_000.25).contains(&left), "{waiter}: {left}");
        assert_eq!(score % 1.0, 0.25, "{waiter}: its wish is kept");
    }
}

#[tokio::test]
async fn the_dead_are_passed_over_and_the_next_is_notified() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.redisson_waits("r:1", -1).await;
    fixture.make(&["RPUSH", QUEUE, "neither"]).await;
    fixture.fair(U2).await;
    fixture.fair(U3).await;
    fixture.dies(U1).await;
    // No waiter is passed over while the lock is held.
    assert!(elsewhere(&fixture.fair_try(U9).await, 30_000));
    assert_eq!(fixture.queue().await.len(), 5);
    fixture.fair_release(U0).await;
    fixture.in_all_three(&[U2, U3]).await;
    let turn = |waiter: &str| vec![format!("{CHANNEL}:{waiter} 0")];
    assert_eq!(fixture.messages(&mut subscriber).await, turn(U2));
    // A call that only tries also passes over dead waiters.
    fixture.dies(U2).await;
    assert_eq!(fixture.fair_try(U9).await, UNKNOWN);
    fixture.in_all_three(&[U3]).await;
    assert_eq!(fixture.messages(&mut subscriber).await, turn(U3));
    assert_eq!(fixture.fair_try(U9).await, UNKNOWN);
    assert_eq!(
        fixture.messages(&mut subscriber).await,
        [""; 0],
        "notified once"
    );
    // A waiter that comes back joins the end of the queue.
    fixture.fair(U2).await;
    fixture.in_all_three(&[U3, U2]).await;
    fixture.dies(U3).await;
    assert_eq!(fixture.fair(U2).await, HELD);
    fixture.fair_release(U2).await;
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_head_of_redissons_keeps_the_lock_for_five_minutes_at_most() {
    let mut fixture = Fixture::new().await;
    fixture.redisson_waits("r:1", 1_000_000).await;
    fixture.redisson_waits("r:2", 2_000_000).await;
    assert_eq!(fixture.fair(U1).await, UNKNOWN);
    let left = fixture.score(TIMEOUTS, "r:1").await - fixture.now().await;
    assert!(near(left, 300_000), "{left}");
    let left = fixture.score(TIMEOUTS, "r:2").await - fixture.now().await;
    assert!(near(left, 2_000_000), "{left}");
    // A shorter time that is left stays unchanged.
    fixture.make(&["DEL", QUEUE, TIMEOUTS, ALIVE]).await;
    fixture.redisson_waits("r:1", 1_000).await;
    fixture.fair(U1).await;
    let left = fixture.score(TIMEOUTS, "r:1").await - fixture.now().await;
    assert!(left <= 1_000, "{left}");
}

/// When Redisson serves a waiter, it lowers all scores behind it by 300 s.
#[tokio::test]
async fn whoever_asks_again_gets_back_what_redisson_took_off_its_score() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.make(&["ZINCRBY", TIMEOUTS, "-300000", U1]).await;
    fixture.fair(U1).await;
    let left = fixture.score(TIMEOUTS, U1).await - fixture.now().await;
    assert!(near(left, 630_000), "{left}");
    fixture.in_all_three(&[U1]).await;
}

/// An operator removed a part of a place. The rest does not become a second place.
#[tokio::test]
async fn a_place_is_made_whole_again_at_the_end_of_the_queue() {
    let mut fixture = Fixture::new().await;
    for waiter in [U0, U1, U2] {
        fixture.fair(waiter).await;
    }
    fixture.make(&["ZREM", TIMEOUTS, U1]).await;
    fixture.fair(U1).await;
    fixture.in_all_three(&[U2, U1]).await;
    // A waiter that leaves removes the rest of its place.
    fixture.make(&["ZREM", TIMEOUTS, U1]).await;
    fixture.make(&["ZREM", ALIVE, U1]).await;
    assert_eq!(fixture.fair_release(U1).await, DONE);
    fixture.in_all_three(&[U2]).await;
}

/// Redisson removes a waiter of lockset only from its own keys.
#[tokio::test]
async fn heartbeats_that_redisson_left_behind_go_with_the_next_queue() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.dies(U1).await;
    fixture.make(&["DEL", QUEUE, TIMEOUTS]).await;
    fixture.fair(U2).await;
    fixture.in_all_three(&[U2]).await;
}

#[tokio::test]
async fn one_call_passes_over_so_many_and_no_more() {
    let mut fixture = Fixture::new().await;
    let dead: Vec<String> = (0..2_500).map(|number| format!("d:{number}")).collect();
    let mut push = redis::cmd("RPUSH");
    push.arg(QUEUE).arg(dead);
    let _: i64 = push.query_async(&mut fixture.connection).await.unwrap();
    fixture.fair(U1).await;
    assert_eq!(fixture.queue().await.len(), 501);
    assert_eq!(fixture.fair(U1).await, HELD, "the next call continues");
    fixture.fair_release(U1).await;
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_fair_lock_is_forced_for_its_head() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    let args = [CHANNEL, "PUBLISH"];
    let free = fixture.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(free, Value::Int(0));
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    let forced = fixture.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(forced, Value::Int(1));
    let told = fixture.messages(&mut subscriber).await;
    assert_eq!(told, [format!("{CHANNEL}:{U1} 0")]);
    let again = fixture.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(again, Value::Int(0));
    assert_eq!(fixture.fair(U1).await, HELD);
}

#[tokio::test]
async fn a_fair_grant_has_its_token() {
    let mut fixture = Fixture::new().await;
    let [lock, queue, timeouts, alive] = KEYS;
    let keys = [lock, queue, timeouts, alive, TOKEN];
    let mut args = ask_args(U1, GRANT);
    args[2] = "1";
    let mut last = 0;
    for _ in 0..2 {
        let reply = fixture.run("fair_acquire", &keys, &args).await;
        let token = token_of(&reply);
        assert!(token > last && token < 1 << 53);
        last = token;
        let kept: String = fixture.ask(&["GET", TOKEN]).await;
        assert_eq!(kept, last.to_string());
    }
    // A refused call uses up no token.
    args = ask_args(U2, NO_PLACE);
    args[2] = "1";
    assert!(elsewhere(
        &fixture.run("fair_acquire", &keys, &args).await,
        30_000
    ));
    let kept: String = fixture.ask(&["GET", TOKEN]).await;
    assert_eq!(kept, last.to_string());
}

/// A full server may refuse to grant a lock, but never a call that frees memory.
#[tokio::test]
async fn a_full_server_lets_fair_waiters_and_holders_go() {
    let mut fixture = Fixture::new().await;
    for waiter in [U0, U1, U2] {
        fixture.fair(waiter).await;
    }
    let before = fixture.keys().await;
    fixture.fill().await;
    let args = ask_args(U3, GRANT);
    let refused = fixture.refused("fair_acquire", &KEYS, &args).await;
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert_eq!(fixture.keys().await, before, "nothing is half done");
    // A place that is there is kept.
    for waiter in [U1, U2] {
        fixture.queue_up(waiter, WAKE).await;
    }
    let beat = ["5000", CHANNEL, "PUBLISH", "0", U2];
    let reply = fixture.run("fair_heartbeat", &KEYS, &beat).await;
    let beats = reply::heartbeats(&reply, 1).unwrap();
    assert!(matches!(beats[0], Heartbeat::Kept { .. }), "{beats:?}");
    assert_eq!(fixture.keys().await, before, "the same waiters");
    let renewed = fixture.run("renew", &["F"], &[U0, "60000"]).await;
    assert_eq!(renewed, list(&[1]));
    assert_eq!(fixture.fair_release(U1).await, DONE);
    assert_eq!(fixture.fair_release(U0).await, DONE);
    assert_eq!(fixture.fair_release(U2).await, DONE);
    assert_eq!(fixture.queue().await, [""; 0]);
}

/// Scripts detect a foreign key before their first write. A lock that is held can still be released.
#[tokio::test]
async fn a_foreign_key_beside_a_fair_lock_is_not_touched() {
    let mut fixture = Fixture::new().await;
    for foreign in KEYS {
        for held in [false, true] {
            let _: () = fixture.ask(&["FLUSHALL"]).await;
            if held {
                fixture.fair(U0).await;
                fixture.fair(U1).await;
            }
            fixture.make(&["SET", foreign, "theirs"]).await;
            let before = fixture.keys().await;
            let args = ask_args(U3, GRANT);
            let what = format!("{foreign}, held: {held}");
            match fixture.try_fair(&args).await {
                Ok(reply) => {
                    // The script had no reason to read this key.
                    assert!(!held && reply == HELD, "{what}: {reply:?}");
                }
                Err(error) => {
                    assert_eq!(code(&error), Some("WRONGTYPE"), "{what}: {error}");
                    assert_eq!(fixture.keys().await, before, "{what}");
                }
            }
            let kept: String = fixture.ask(&["GET", foreign]).await;
            assert_eq!(kept, "theirs");
            if held && foreign != "F" {
                assert_eq!(fixture.fair_release(U0).await, DONE, "{what}");
                let exists: i64 = fixture.ask(&["EXISTS", "F"]).await;
                assert_eq!(exists, 0, "{what}: it is free");
            }
        }
    }
}

impl Fixture {
    async fn try_fair(&mut self, args: &[&str]) -> redis::RedisResult<Value> {
        let mut user = self.user("+@all").await;
        user.run("fair_acquire", &KEYS, args).await
    }
}

async fn anything(user: &mut User, name: &str, args: &[&str]) {
    // Ignores an error about the right. The test checks the state that is left.
    let _ = user.run(name, &KEYS, args).await;
}

/// With any one right missing, there is no hold without a lease and no waiter in the queue without a score. A release
/// by this user leaves nothing behind that this user could remove.
#[tokio::test]
async fn a_missing_right_leaves_no_half_of_a_fair_place() {
    let mut fixture = Fixture::new().await;
    for right in [
        "llen",
        "lindex",
        "rpush",
        "lrem",
        "zadd",
        "zrem",
        "zscore",
        "exists",
        "pexpire",
        "hset",
        "hdel",
        "hexists",
        "pttl",
        "time",
        "publish",
        "zremrangebyscore",
        "zcard",
        "lpos",
        "lpush",
    ] {
        let _: () = fixture.ask(&["FLUSHALL"]).await;
        fixture.fair(U0).await;
        let mut user = fixture.user(&format!("-{right}")).await;
        anything(&mut user, "fair_acquire", &ask_args(U1, GRANT)).await;
        fixture.a_score_for_each_in_the_queue().await;
        anything(&mut user, "fair_release", &leave_args(U1)).await;
        fixture.a_score_for_each_in_the_queue().await;
        if !["lindex", "lrem", "zrem", "exists", "hdel"].contains(&right) {
            fixture.in_all_three(&[]).await;
        }
        // Once more for the head of a free lock.
        fixture.fair(U1).await;
        fixture.fair_release(U0).await;
        anything(&mut user, "fair_acquire", &ask_args(U1, GRANT)).await;
        fixture.a_score_for_each_in_the_queue().await;
        assert_ne!(fixture.pttl_of("F").await, -1, "{right}: a hold for ever");
        anything(&mut user, "fair_release", &leave_args(U1)).await;
        fixture.a_score_for_each_in_the_queue().await;
        if right != "hdel" {
            assert_eq!(fixture.pttl_of("F").await, -2, "{right}: it is free again");
        }
    }
}
