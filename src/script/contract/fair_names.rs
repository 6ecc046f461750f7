//! Two fair locks with one queue, as Redisson lays it out: `F` and `{F}`.

use redis::Value;

use super::fair::{
    ALIVE, CHANNEL, GRANT, GRANT_FENCED, KEYS, NO_PLACE, QUEUE, TIMEOUTS, WAKE, ask_args,
    leave_args,
};
use super::fixture::{DONE, Fixture, HELD, U0, U1, U9, UNKNOWN, place_of};
use crate::script::reply;

/// A holder of the other lock, and a waiter for it.
const V0: &str = "fb5c02d4-6a1e-4f7b-8c3d-92e0a4d7b6f1:0";
const V1: &str = "fb5c02d4-6a1e-4f7b-8c3d-92e0a4d7b6f1:1";
const BRACED: [&str; 4] = ["{F}", QUEUE, TIMEOUTS, ALIVE];

impl Fixture {
    async fn asks(&mut self, keys: &[&str], holder: &str, on_turn: &str) -> Value {
        self.run("fair_acquire", keys, &ask_args(holder, on_turn))
            .await
    }

    async fn leaves(&mut self, keys: &[&str], holder: &str) -> Value {
        self.run("fair_release", keys, &leave_args(holder)).await
    }

    async fn waiters_of(&mut self, keys: &[&str; 4]) -> Vec<String> {
        let keys = [keys[0], keys[1], keys[3]];
        let reply = self.run("fair_waiters", &keys, &[]).await;
        reply::texts(&reply).unwrap()
    }

    /// Both locks are held, and each has a waiter that may be handed it. The other lock's waiter is first in the
    /// queue.
    async fn both_are_waited_for(&mut self, [this, other]: [&[&str; 4]; 2]) {
        self.make(&["FLUSHALL"]).await;
        assert_eq!(self.asks(this, U0, GRANT).await, HELD);
        assert_eq!(self.asks(other, V0, GRANT).await, HELD);
        self.asks(other, V1, GRANT).await;
        self.asks(this, U1, GRANT).await;
        assert_eq!(self.queue_keys().await, [V1, U1]);
        assert_eq!(self.waiters_of(this).await, [U1]);
        assert_eq!(self.waiters_of(other).await, [V1]);
    }

    async fn queue_keys(&mut self) -> Vec<String> {
        self.ask(&["LRANGE", QUEUE, "0", "-1"]).await
    }
}

const BOTH_WAYS: [[&[&str; 4]; 2]; 2] = [[&KEYS, &BRACED], [&BRACED, &KEYS]];

#[tokio::test]
async fn a_release_hands_the_lock_to_the_first_that_waits_for_it_and_names_it() {
    let mut fixture = Fixture::new().await;
    // All rounds share one subscriber, because the server may still count one that has just disconnected.
    let mut subscriber = fixture.subscriber().await;
    for [this, other] in BOTH_WAYS {
        for wish in [GRANT, WAKE, GRANT_FENCED] {
            fixture.both_are_waited_for([this, other]).await;
            fixture.messages(&mut subscriber).await;
            fixture.asks(this, U1, wish).await;
            assert_eq!(fixture.leaves(this, U0).await, Value::Int(1));
            let messages = fixture.messages(&mut subscriber).await;
            let [message] = &*messages else {
                panic!("{messages:?}")
            };
            let words = message.strip_prefix(&format!("{CHANNEL}:{U1} ")).unwrap();
            if wish == GRANT {
                assert!(words.ends_with(&format!(" - {}", this[0])), "{words}");
                assert_eq!(fixture.queue_keys().await, [V1]);
            } else {
                // The release had no key for a token.
                assert_eq!(words, "0");
                assert_eq!(fixture.asks(this, U1, wish).await, HELD);
            }
            let held: Vec<String> = fixture.ask(&["HKEYS", other[0]]).await;
            assert_eq!(held, [V0]);
            fixture.in_all_three(&[V1]).await;
        }
    }
}

/// Clients of other versions read this fraction.
#[tokio::test]
async fn the_fraction_of_a_heartbeat_says_what_is_wanted_and_for_which_lock() {
    let mut fixture = Fixture::new().await;
    for (keys, of_the_lock) in [(&KEYS, 0.0), (&BRACED, 0.125)] {
        fixture.make(&["FLUSHALL"]).await;
        assert_eq!(fixture.asks(keys, U0, NO_PLACE).await, HELD);
        for (on_turn, wish) in [(GRANT, 0.0), (WAKE, 0.25), (GRANT_FENCED, 0.5)] {
            let asked = fixture.asks(keys, U1, on_turn).await;
            let place = place_of(&asked);
            let score: f64 = fixture.ask(&["ZSCORE", ALIVE, U1]).await;
            assert_eq!(
                score,
                place.until_ms as f64 + wish + of_the_lock,
                "{on_turn}"
            );
        }
    }
}

#[tokio::test]
async fn a_free_lock_is_the_turn_of_nobody_who_waits_for_the_other() {
    let mut fixture = Fixture::new().await;
    for [this, other] in BOTH_WAYS {
        fixture.both_are_waited_for([this, other]).await;
        assert_eq!(fixture.leaves(this, U1).await, DONE);
        assert_eq!(fixture.leaves(this, U0).await, DONE);
        assert_eq!(fixture.asks(this, U9, NO_PLACE).await, HELD);
        assert_eq!(fixture.leaves(this, U9).await, DONE);
        fixture.in_all_three(&[V1]).await;
        // A waiter of Redisson may wait for either lock.
        fixture.redisson_waits("r:1", 300_000).await;
        assert_eq!(fixture.asks(this, U9, NO_PLACE).await, UNKNOWN);
        fixture.make(&["ZADD", TIMEOUTS, "1", "r:1"]).await;
        assert_eq!(fixture.asks(this, U9, NO_PLACE).await, HELD);
        // A dead waiter is dead for both locks.
        assert_eq!(fixture.leaves(this, U9).await, DONE);
        fixture.dies(V1).await;
        assert_eq!(fixture.asks(this, U9, NO_PLACE).await, HELD);
        fixture.in_all_three(&[]).await;
    }
}

#[tokio::test]
async fn many_that_wait_for_the_other_are_passed_in_a_bounded_time() {
    let mut fixture = Fixture::new().await;
    let ahead = (fixture.now().await + 2_000).to_string();
    let (mut push, mut score) = (redis::cmd("RPUSH"), redis::cmd("ZADD"));
    push.arg(QUEUE);
    score.arg(ALIVE);
    for waiter in 0..2_500 {
        push.arg(format!("v:{waiter}"));
        score.arg(format!("{ahead}.125")).arg(format!("v:{waiter}"));
    }
    let _: i64 = push.query_async(&mut fixture.connection).await.unwrap();
    let _: i64 = score.query_async(&mut fixture.connection).await.unwrap();
    assert_eq!(fixture.asks(&KEYS, U1, NO_PLACE).await, UNKNOWN);
    fixture.make(&["LTRIM", QUEUE, "501", "-1"]).await;
    assert_eq!(fixture.asks(&KEYS, U1, NO_PLACE).await, HELD);
}
