//! The fair lock: its trace, and who is passed over.

use redis::Value;

use super::bench::{
    Bench, DONE, HELD, NO_SUCH_HOLD, NOT_HELD, U0, U1, U2, U3, U4, U9, UNKNOWN, User, elsewhere,
    list, near,
};
use crate::conn::error_reply::code;
use crate::script::reply;

pub(super) const QUEUE: &str = "redisson_lock_queue:{F}";
pub(super) const TIMEOUTS: &str = "redisson_lock_timeout:{F}";
pub(super) const ALIVE: &str = "lockset_fair_alive:{F}";
pub(super) const TOKEN: &str = "redisson_lock_token:{F}";
pub(super) const CHANNEL: &str = "redisson_lock__channel:{F}";
pub(super) const KEYS: [&str; 4] = ["F", QUEUE, TIMEOUTS, ALIVE];

pub(super) fn ask_args<'a>(holder: &'a str, count: &'a str, heartbeat: &'a str) -> [&'a str; 7] {
    [holder, count, "30000", "0", heartbeat, CHANNEL, "PUBLISH"]
}

pub(super) fn leave_args<'a>(holder: &'a str, count: &'a str) -> [&'a str; 5] {
    [holder, count, "1", CHANNEL, "PUBLISH"]
}

impl Bench {
    /// Asks for the lock, and queues for it as one who will ask for it by itself.
    pub(super) async fn fair(&mut self, holder: &str) -> Value {
        self.queue_up(holder, "3000.25").await.0
    }

    /// Asks for the lock, and queues for it. Second: until when its place is kept.
    pub(super) async fn queue_up(&mut self, holder: &str, heartbeat: &str) -> (Value, Option<i64>) {
        let args = ask_args(holder, "1", heartbeat);
        match self.run("fair_acquire", &KEYS, &args).await {
            Value::Array(reply) => {
                let [remaining, Value::Int(until)] = &*reply else {
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
        self.run("fair_acquire", &KEYS, &ask_args(holder, "1", "0"))
            .await
    }

    pub(super) async fn fair_release(&mut self, holder: &str, count: &str) -> Value {
        self.run("fair_release", &KEYS, &leave_args(holder, count))
            .await
    }

    pub(super) async fn queue(&mut self) -> Vec<String> {
        let reply = self.run("fair_waiters", &["F", QUEUE, ALIVE], &[]).await;
        reply::texts(&reply).unwrap()
    }

    /// Whose place each key knows of, which is the same for all waiters of ours.
    pub(super) async fn in_all_three(&mut self, waiters: &[&str]) {
        let mut sorted: Vec<_> = waiters.to_vec();
        sorted.sort_unstable();
        let keys = self.keys().await;
        let of = |key: &str| keys.get(key).cloned().unwrap_or_default();
        assert_eq!(of(QUEUE), waiters);
        assert_eq!(of(TIMEOUTS), sorted);
        assert_eq!(of(ALIVE), sorted);
    }

    /// This waiter has not asked for longer than its heartbeat lasts.
    pub(super) async fn dies(&mut self, waiter: &str) {
        self.make(&["ZADD", ALIVE, "1", waiter]).await;
    }

    /// A waiter of Redisson's, with this much of its time left.
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

/// The trace of Redisson's `RFairLock`, step by step, with our own replies and without its defects.
#[tokio::test]
async fn the_fair_trace() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    assert_eq!(bench.fair(U0).await, HELD);
    assert_eq!(bench.server.keys().await, ["F"], "nobody waits");
    for (place, waiter) in [(1, U1), (2, U2)] {
        // The second time it asks it keeps its place.
        for _ in 0..2 {
            assert!(elsewhere(&bench.fair(waiter).await, 30_000));
        }
        let score = bench.score(TIMEOUTS, waiter).await - bench.now().await;
        assert!(near(score, 30_000 + place * 300_000), "{score}");
        let heartbeat = bench.score(ALIVE, waiter).await - bench.now().await;
        assert!(near(heartbeat, 3_000), "{heartbeat}");
    }
    bench.in_all_three(&[U1, U2]).await;
    assert!(near(bench.pttl_of(ALIVE).await, 930_000));
    assert!(near(bench.pttl_of(QUEUE).await, 3_600_000));
    assert!(near(bench.pttl_of(TIMEOUTS).await, 3_600_000));
    assert_eq!(bench.fair_release(U9, "0").await, NOT_HELD, "a stranger");
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);

    // The ear is the one who hears it.
    assert_eq!(bench.fair_release(U0, "0").await, Value::Int(1));
    let turn_of = |waiter: &str| vec![format!("{CHANNEL}:{waiter} 0")];
    assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
    assert_eq!(bench.fair_release(U0, "0").await, NOT_HELD);
    // A free lock is the turn of the head, and of nobody else, waiting or not.
    assert_eq!(bench.fair(U2).await, UNKNOWN);
    assert_eq!(bench.fair(U3).await, UNKNOWN);
    assert_eq!(bench.fair_try(U4).await, UNKNOWN);
    bench.in_all_three(&[U1, U2, U3]).await;
    let scores = [
        bench.score(TIMEOUTS, U2).await,
        bench.score(TIMEOUTS, U3).await,
    ];
    for _ in 0..2 {
        assert_eq!(bench.fair(U1).await, HELD);
        bench.in_all_three(&[U2, U3]).await;
    }
    let after = [
        bench.score(TIMEOUTS, U2).await,
        bench.score(TIMEOUTS, U3).await,
    ];
    assert_eq!(after, scores, "nobody's score is shifted");
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);

    // Entered again, and a lower count, touch no queue.
    let again = ask_args(U1, "2", "0");
    assert_eq!(bench.run("fair_acquire", &KEYS, &again).await, HELD);
    assert_eq!(bench.fair_release(U1, "1").await, DONE);
    bench.in_all_three(&[U2, U3]).await;
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);
    assert_eq!(bench.fair_release(U1, "0").await, Value::Int(1));
    assert_eq!(bench.heard(&mut ear).await, turn_of(U2));

    // The head that was told gives up: the next one is told.
    assert_eq!(bench.fair_release(U2, "0").await, DONE);
    assert_eq!(bench.heard(&mut ear).await, turn_of(U3));
    assert_eq!(bench.fair_release(U2, "0").await, NOT_HELD, "not twice");
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);
    assert_eq!(bench.fair(U3).await, HELD);
    assert_eq!(bench.fair_release(U3, "0").await, DONE, "told nobody");
    assert_eq!(bench.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn one_who_gives_up_behind_the_head_tells_nobody() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    for waiter in [U0, U1, U2] {
        bench.fair(waiter).await;
    }
    // Of a lock that is held not even the next is told: it is when that ends.
    assert_eq!(bench.fair_release(U1, "0").await, DONE);
    bench.in_all_three(&[U2]).await;
    bench.fair(U3).await;
    bench.fair_release(U0, "0").await;
    bench.heard(&mut ear).await;
    assert_eq!(bench.fair_release(U3, "0").await, DONE);
    bench.in_all_three(&[U2]).await;
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);
}

#[tokio::test]
async fn a_re_entry_of_a_fair_lock_never_creates_a_hold() {
    let mut bench = Bench::new().await;
    let again = ask_args(U1, "2", "3000");
    assert_eq!(bench.run("fair_acquire", &KEYS, &again).await, NO_SUCH_HOLD);
    bench.fair(U2).await;
    assert_eq!(bench.run("fair_acquire", &KEYS, &again).await, NO_SUCH_HOLD);
    assert_eq!(bench.server.keys().await, ["F"], "and no place");
}

/// A heartbeat that was noted before the server's clock was set back lasts as long as any other.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_head() {
    let mut bench = Bench::new().await;
    bench.fair(U0).await;
    bench.fair(U1).await;
    let ahead = (bench.now().await + 3_600_000).to_string();
    bench.make(&["ZADD", ALIVE, &ahead, U1]).await;
    bench.fair_release(U0, "0").await;
    assert_eq!(bench.fair(U2).await, UNKNOWN, "not its turn yet");
    let left = bench.score(ALIVE, U1).await - bench.now().await;
    assert!((0..=3_000).contains(&left), "{left}");
}

/// All that were noted before end together, not one after the other.
#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_dead_for_longer_than_one() {
    let mut bench = Bench::new().await;
    let waiters = [U1, U2, U3, U4];
    bench.fair(U0).await;
    for waiter in waiters {
        bench.fair(waiter).await;
    }
    let ahead = format!("{}.25", bench.now().await + 3_600_000);
    for waiter in &waiters[..3] {
        bench.make(&["ZADD", ALIVE, &ahead, waiter]).await;
    }
    bench.fair_release(U0, "0").await;
    for waiter in waiters {
        let score: f64 = bench.ask(&["ZSCORE", ALIVE, waiter]).await;
        let left = score - bench.now().await as f64;
        assert!((0.0..=3_000.25).contains(&left), "{waiter}: {left}");
        assert_eq!(score % 1.0, 0.25, "{waiter}: what it wants is kept");
    }
}

#[tokio::test]
async fn the_dead_are_passed_over_and_the_next_is_told() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair(U0).await;
    bench.fair(U1).await;
    bench.redisson_waits("r:1", -1).await;
    bench.make(&["RPUSH", QUEUE, "neither"]).await;
    bench.fair(U2).await;
    bench.fair(U3).await;
    bench.dies(U1).await;
    // Of a lock that is held nobody is passed over yet.
    assert!(elsewhere(&bench.fair_try(U9).await, 30_000));
    assert_eq!(bench.queue().await.len(), 5);
    bench.fair_release(U0, "0").await;
    bench.in_all_three(&[U2, U3]).await;
    let turn = |waiter: &str| vec![format!("{CHANNEL}:{waiter} 0")];
    assert_eq!(bench.heard(&mut ear).await, turn(U2));
    // Also by one who only asks.
    bench.dies(U2).await;
    assert_eq!(bench.fair_try(U9).await, UNKNOWN);
    bench.in_all_three(&[U3]).await;
    assert_eq!(bench.heard(&mut ear).await, turn(U3));
    assert_eq!(bench.fair_try(U9).await, UNKNOWN);
    assert_eq!(bench.heard(&mut ear).await, [""; 0], "told once");
    // And one that comes back goes to the end.
    bench.fair(U2).await;
    bench.in_all_three(&[U3, U2]).await;
    bench.dies(U3).await;
    assert_eq!(bench.fair(U2).await, HELD);
    bench.fair_release(U2, "0").await;
    assert_eq!(bench.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_head_of_redissons_keeps_the_lock_for_five_minutes_at_most() {
    let mut bench = Bench::new().await;
    bench.redisson_waits("r:1", 1_000_000).await;
    bench.redisson_waits("r:2", 2_000_000).await;
    assert_eq!(bench.fair(U1).await, UNKNOWN);
    let left = bench.score(TIMEOUTS, "r:1").await - bench.now().await;
    assert!(near(left, 300_000), "{left}");
    let left = bench.score(TIMEOUTS, "r:2").await - bench.now().await;
    assert!(near(left, 2_000_000), "{left}");
    // What it has left of less is let be.
    bench.make(&["DEL", QUEUE, TIMEOUTS, ALIVE]).await;
    bench.redisson_waits("r:1", 1_000).await;
    bench.fair(U1).await;
    let left = bench.score(TIMEOUTS, "r:1").await - bench.now().await;
    assert!(left <= 1_000, "{left}");
}

/// A waiter ahead that is Redisson's takes 300 s off all scores behind it when it is served.
#[tokio::test]
async fn whoever_asks_again_gets_back_what_redisson_took_off_its_score() {
    let mut bench = Bench::new().await;
    bench.fair(U0).await;
    bench.fair(U1).await;
    bench.make(&["ZINCRBY", TIMEOUTS, "-300000", U1]).await;
    bench.fair(U1).await;
    let left = bench.score(TIMEOUTS, U1).await - bench.now().await;
    assert!(near(left, 630_000), "{left}");
    bench.in_all_three(&[U1]).await;
}

/// Somebody took a part of a place away: the rest does not become a second place.
#[tokio::test]
async fn a_place_is_made_whole_again_at_the_end_of_the_queue() {
    let mut bench = Bench::new().await;
    for waiter in [U0, U1, U2] {
        bench.fair(waiter).await;
    }
    bench.make(&["ZREM", TIMEOUTS, U1]).await;
    bench.fair(U1).await;
    bench.in_all_three(&[U2, U1]).await;
    // One that gives up takes with it what is left.
    bench.make(&["ZREM", TIMEOUTS, U1]).await;
    bench.make(&["ZREM", ALIVE, U1]).await;
    assert_eq!(bench.fair_release(U1, "0").await, DONE);
    bench.in_all_three(&[U2]).await;
}

/// Redisson takes a waiter of ours out of its own keys only.
#[tokio::test]
async fn heartbeats_that_redisson_left_behind_go_with_the_next_queue() {
    let mut bench = Bench::new().await;
    bench.fair(U0).await;
    bench.fair(U1).await;
    bench.dies(U1).await;
    bench.make(&["DEL", QUEUE, TIMEOUTS]).await;
    bench.fair(U2).await;
    bench.in_all_three(&[U2]).await;
}

#[tokio::test]
async fn one_call_passes_over_so_many_and_no_more() {
    let mut bench = Bench::new().await;
    let dead: Vec<String> = (0..2_500).map(|number| format!("d:{number}")).collect();
    let mut push = redis::cmd("RPUSH");
    push.arg(QUEUE).arg(dead);
    let _: i64 = push.query_async(&mut bench.connection).await.unwrap();
    bench.fair(U1).await;
    assert_eq!(bench.queue().await.len(), 501);
    assert_eq!(bench.fair(U1).await, HELD, "who asks next goes on");
    bench.fair_release(U1, "0").await;
    assert_eq!(bench.server.keys().await, [""; 0]);
}

#[tokio::test]
async fn a_fair_lock_is_forced_for_its_head() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    let args = [CHANNEL, "PUBLISH"];
    let free = bench.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(free, Value::Int(0));
    bench.fair(U0).await;
    bench.fair(U1).await;
    let forced = bench.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(forced, Value::Int(1));
    let told = bench.heard(&mut ear).await;
    assert_eq!(told, [format!("{CHANNEL}:{U1} 0")]);
    let again = bench.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(again, Value::Int(0));
    assert_eq!(bench.fair(U1).await, HELD);
}

#[tokio::test]
async fn a_fair_grant_has_its_token() {
    let mut bench = Bench::new().await;
    let [lock, queue, timeouts, alive] = KEYS;
    let keys = [lock, queue, timeouts, alive, TOKEN];
    let mut args = ask_args(U1, "1", "3000");
    args[3] = "1";
    let mut last = 0;
    for _ in 0..2 {
        let reply = bench.run("fair_acquire", &keys, &args).await;
        let Ok(reply::Acquired::Held { token: Some(token) }) = reply::acquired(&reply) else {
            panic!("{reply:?}");
        };
        assert!(token.get() > last && token.get() < 1 << 53);
        last = token.get();
        let kept: String = bench.ask(&["GET", TOKEN]).await;
        assert_eq!(kept, last.to_string());
    }
    // Who is refused costs no token.
    (args[0], args[4]) = (U2, "0");
    assert!(elsewhere(
        &bench.run("fair_acquire", &keys, &args).await,
        30_000
    ));
    let kept: String = bench.ask(&["GET", TOKEN]).await;
    assert_eq!(kept, last.to_string());
}

/// Taking a lock may be refused; everything that makes room may not.
#[tokio::test]
async fn a_full_server_lets_fair_waiters_and_holders_go() {
    let mut bench = Bench::new().await;
    for waiter in [U0, U1, U2] {
        bench.fair(waiter).await;
    }
    let again = ask_args(U0, "2", "0");
    bench.run("fair_acquire", &KEYS, &again).await;
    let before = bench.keys().await;
    bench.fill().await;
    let args = ask_args(U3, "1", "3000");
    let refused = bench.refused("fair_acquire", &KEYS, &args).await;
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert_eq!(bench.keys().await, before, "nothing is half done");
    let renewed = bench.run("renew", &["F"], &[U0, "60000"]).await;
    assert_eq!(renewed, list(&[1]));
    assert_eq!(bench.fair_release(U0, "1").await, DONE);
    assert_eq!(bench.fair_release(U1, "0").await, DONE);
    assert_eq!(bench.fair_release(U0, "0").await, DONE);
    assert_eq!(bench.fair_release(U2, "0").await, DONE);
    assert_eq!(bench.queue().await, [""; 0]);
}

/// A foreign key is found before anything is written; a lock can be given back all the same.
#[tokio::test]
async fn a_foreign_key_beside_a_fair_lock_is_not_touched() {
    let mut bench = Bench::new().await;
    for foreign in KEYS {
        for held in [false, true] {
            let _: () = bench.ask(&["FLUSHALL"]).await;
            if held {
                bench.fair(U0).await;
                bench.fair(U1).await;
            }
            bench.make(&["SET", foreign, "theirs"]).await;
            let before = bench.keys().await;
            let args = ask_args(U3, "1", "3000");
            let what = format!("{foreign}, held: {held}");
            match bench.try_fair(&args).await {
                Ok(reply) => {
                    // It had no need to look at it.
                    assert!(!held && reply == HELD, "{what}: {reply:?}");
                }
                Err(error) => {
                    assert_eq!(code(&error), Some("WRONGTYPE"), "{what}: {error}");
                    assert_eq!(bench.keys().await, before, "{what}");
                }
            }
            let kept: String = bench.ask(&["GET", foreign]).await;
            assert_eq!(kept, "theirs");
            if held && foreign != "F" {
                assert_eq!(bench.fair_release(U0, "0").await, DONE, "{what}");
                let exists: i64 = bench.ask(&["EXISTS", "F"]).await;
                assert_eq!(exists, 0, "{what}: it is free");
            }
        }
    }
}

impl Bench {
    async fn try_fair(&mut self, args: &[&str]) -> redis::RedisResult<Value> {
        let mut user = self.user("+@all").await;
        user.run("fair_acquire", &KEYS, args).await
    }
}

async fn anything(user: &mut User, name: &str, args: &[&str]) {
    // What it may not do it is told; what is left is looked at.
    let _ = user.run(name, &KEYS, args).await;
}

/// Whatever right a user lacks: no hold without a lease, none in the queue without a score, and what
/// is given up as that user leaves no place behind that this user could still remove.
#[tokio::test]
async fn a_missing_right_leaves_no_half_of_a_fair_place() {
    let mut bench = Bench::new().await;
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
    ] {
        let _: () = bench.ask(&["FLUSHALL"]).await;
        bench.fair(U0).await;
        let mut user = bench.user(&format!("-{right}")).await;
        anything(&mut user, "fair_acquire", &ask_args(U1, "1", "3000")).await;
        bench.a_score_for_each_in_the_queue().await;
        anything(&mut user, "fair_release", &leave_args(U1, "0")).await;
        bench.a_score_for_each_in_the_queue().await;
        if !["lindex", "lrem", "zrem", "exists", "hdel"].contains(&right) {
            bench.in_all_three(&[]).await;
        }
        // And as the head of a free lock.
        bench.fair(U1).await;
        bench.fair_release(U0, "0").await;
        anything(&mut user, "fair_acquire", &ask_args(U1, "1", "3000")).await;
        bench.a_score_for_each_in_the_queue().await;
        assert_ne!(bench.pttl_of("F").await, -1, "{right}: a hold for ever");
        anything(&mut user, "fair_release", &leave_args(U1, "0")).await;
        bench.a_score_for_each_in_the_queue().await;
        if right != "hdel" {
            assert_eq!(bench.pttl_of("F").await, -2, "{right}: it is free again");
        }
    }
}
