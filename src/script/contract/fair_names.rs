//! Two fair locks with one queue, as Redisson lays it out: `F` and `{F}`.

use redis::Value;

use super::bench::{Bench, DONE, HELD, U0, U1, U9, UNKNOWN};
use super::fair::{ALIVE, CHANNEL, KEYS, QUEUE, TIMEOUTS, ask_args, leave_args};

/// Holders that wait for the other lock.
const V0: &str = "fb5c02d4-6a1e-4f7b-8c3d-92e0a4d7b6f1:0";
const V1: &str = "fb5c02d4-6a1e-4f7b-8c3d-92e0a4d7b6f1:1";
const BRACED: [&str; 4] = ["{F}", QUEUE, TIMEOUTS, ALIVE];

impl Bench {
    async fn asks(&mut self, keys: &[&str], holder: &str, heartbeat: &str) -> Value {
        self.run("fair_acquire", keys, &ask_args(holder, "1", heartbeat))
            .await
    }

    async fn leaves(&mut self, keys: &[&str], holder: &str) -> Value {
        self.run("fair_release", keys, &leave_args(holder, "0"))
            .await
    }

    async fn waiters_of(&mut self, keys: &[&str; 4]) -> Vec<String> {
        let keys = [keys[0], keys[1], keys[3]];
        let reply = self.run("fair_waiters", &keys, &[]).await;
        crate::script::reply::texts(&reply).unwrap()
    }

    /// Each is held, and has one that waits and may be handed it; that of the other lock goes first.
    async fn both_are_waited_for(&mut self, [this, other]: [&[&str; 4]; 2]) {
        self.make(&["FLUSHALL"]).await;
        assert_eq!(self.asks(this, U0, "3000").await, HELD);
        assert_eq!(self.asks(other, V0, "3000").await, HELD);
        self.asks(other, V1, "3000").await;
        self.asks(this, U1, "3000").await;
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
    let mut bench = Bench::new().await;
    for [this, other] in BOTH_WAYS {
        for wish in ["3000", "3000.25", "3000.5"] {
            bench.both_are_waited_for([this, other]).await;
            let mut ear = bench.ear().await;
            bench.asks(this, U1, wish).await;
            assert_eq!(bench.leaves(this, U0).await, Value::Int(1));
            let heard = bench.heard(&mut ear).await;
            let [message] = &*heard else {
                panic!("{heard:?}")
            };
            let words = message.strip_prefix(&format!("{CHANNEL}:{U1} ")).unwrap();
            if wish == "3000" {
                assert!(words.ends_with(&format!(" - {}", this[0])), "{words}");
                assert_eq!(bench.queue_keys().await, [V1]);
            } else {
                // There is no key for a token.
                assert_eq!(words, "0");
                assert_eq!(bench.asks(this, U1, wish).await, HELD);
            }
            let held: Vec<String> = bench.ask(&["HKEYS", other[0]]).await;
            assert_eq!(held, [V0]);
            bench.in_all_three(&[V1]).await;
        }
    }
}

#[tokio::test]
async fn a_free_lock_is_the_turn_of_nobody_who_waits_for_the_other() {
    let mut bench = Bench::new().await;
    for [this, other] in BOTH_WAYS {
        bench.both_are_waited_for([this, other]).await;
        assert_eq!(bench.leaves(this, U1).await, DONE);
        assert_eq!(bench.leaves(this, U0).await, DONE);
        assert_eq!(bench.asks(this, U9, "0").await, HELD);
        assert_eq!(bench.leaves(this, U9).await, DONE);
        bench.in_all_three(&[V1]).await;
        // One of Redisson's may wait for either.
        bench.redisson_waits("r:1", 300_000).await;
        assert_eq!(bench.asks(this, U9, "0").await, UNKNOWN);
        bench.make(&["ZADD", TIMEOUTS, "1", "r:1"]).await;
        assert_eq!(bench.asks(this, U9, "0").await, HELD);
        // One that is dead is so for both.
        assert_eq!(bench.leaves(this, U9).await, DONE);
        bench.dies(V1).await;
        assert_eq!(bench.asks(this, U9, "0").await, HELD);
        bench.in_all_three(&[]).await;
    }
}

#[tokio::test]
async fn many_that_wait_for_the_other_are_passed_in_a_bounded_time() {
    let mut bench = Bench::new().await;
    let ahead = (bench.now().await + 2_000).to_string();
    let (mut push, mut score) = (redis::cmd("RPUSH"), redis::cmd("ZADD"));
    push.arg(QUEUE);
    score.arg(ALIVE);
    for waiter in 0..2_500 {
        push.arg(format!("v:{waiter}"));
        score.arg(format!("{ahead}.125")).arg(format!("v:{waiter}"));
    }
    let _: i64 = push.query_async(&mut bench.connection).await.unwrap();
    let _: i64 = score.query_async(&mut bench.connection).await.unwrap();
    assert_eq!(bench.asks(&KEYS, U1, "0").await, UNKNOWN);
    bench.make(&["LTRIM", QUEUE, "501", "-1"]).await;
    assert_eq!(bench.asks(&KEYS, U1, "0").await, HELD);
}
