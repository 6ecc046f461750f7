//! The fair lock handed over: whoever frees it makes the next waiter the holder and tells it, in one
//! script, if that waiter is there to hear it.

use redis::Value;

use super::bench::{
    Bench, DONE, Ear, HELD, NOT_HELD, U0, U1, U2, U3, U4, U9, UNKNOWN, elsewhere, near,
};
use super::fair::{ALIVE, CHANNEL, KEYS, QUEUE, TIMEOUTS, TOKEN, ask_args, leave_args};
use crate::hold::grant_message::GrantMessage;

const LOCK: &str = KEYS[0];
const FENCED: [&str; 5] = [KEYS[0], KEYS[1], KEYS[2], KEYS[3], TOKEN];
const TOLD: Value = Value::Int(1);

/// Whom a message made the holder, and until when. The ear is the one who hears it.
fn handed(heard: &[String]) -> Option<(&str, GrantMessage)> {
    let [message] = heard else {
        return None;
    };
    let (channel, words) = message.split_once(' ').expect("a channel");
    let waiter = channel.strip_prefix(CHANNEL)?.strip_prefix(':')?;
    Some((waiter, GrantMessage::parse(words.as_bytes())?))
}

fn turn_of(waiter: &str) -> Vec<String> {
    vec![format!("{CHANNEL}:{waiter} 0")]
}

impl Bench {
    /// Queues as one who may be handed the lock. Says until when its place is kept.
    async fn waits(&mut self, holder: &str) -> i64 {
        let (reply, until) = self.queue_up(holder, "3000").await;
        assert!(matches!(reply, Value::Int(_)), "{reply:?}");
        until.expect("it has a place")
    }

    async fn fair_holds(&mut self, holder: &str) {
        let (reply, _) = self.queue_up(holder, "3000").await;
        assert_eq!(reply, HELD);
    }

    /// The one holder, and its hold count.
    async fn held_by(&mut self) -> Vec<String> {
        self.ask(&["HGETALL", LOCK]).await
    }

    /// This waiter was handed the lock, and by the message for as long as its place was kept.
    async fn was_handed(&mut self, ear: &mut Ear, waiter: &str, until: i64) {
        let heard = self.heard(ear).await;
        let (told, letter) = handed(&heard).unwrap_or_else(|| panic!("{heard:?}"));
        assert_eq!(told, waiter);
        assert_eq!(i64::try_from(letter.until_ms), Ok(until));
        let lease = i64::try_from(letter.lease.as_millis()).unwrap();
        assert!(near(lease, 3_000), "{lease}");
        assert_eq!(self.held_by().await, [waiter, "1"]);
        let left = until - self.now().await;
        let pttl = self.pttl_of(LOCK).await;
        // Two looks, a moment after each other.
        assert!(
            (left - 1_000..=left + 5).contains(&pttl),
            "{pttl} of {left}"
        );
        let queue = self.queue().await;
        assert!(!queue.contains(&waiter.to_owned()), "{queue:?}");
    }
}

#[tokio::test]
async fn a_release_makes_the_next_one_the_holder_and_says_so() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let first = bench.waits(U1).await;
    let second = bench.waits(U2).await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    bench.was_handed(&mut ear, U1, first).await;
    bench.in_all_three(&[U2]).await;

    // The answer was lost: asked again, it changes nothing.
    let before = bench.keys().await;
    assert_eq!(bench.fair_release(U0, "0").await, NOT_HELD);
    assert_eq!(bench.keys().await, before);
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);

    // Whoever asks is told how long it lasts; the holder, that it has it, and gets its lease.
    let asked = bench.fair_try(U9).await;
    assert!(elsewhere(&asked, 3_000), "{asked:?}");
    bench.fair_holds(U1).await;
    assert!(near(bench.pttl_of(LOCK).await, 30_000));
    bench.in_all_three(&[U2]).await;

    assert_eq!(bench.fair_release(U1, "0").await, TOLD);
    bench.was_handed(&mut ear, U2, second).await;
    assert_eq!(bench.fair_release(U2, "0").await, DONE, "told nobody");
    assert_eq!(bench.server.keys().await, [""; 0]);
}

/// What a waiter that gives up does, whether it knows that it was handed the lock or not.
#[tokio::test]
async fn one_that_gives_up_what_it_was_handed_hands_it_on() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let mut untils = Vec::new();
    for waiter in [U1, U2, U3] {
        untils.push(bench.waits(waiter).await);
    }
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    bench.was_handed(&mut ear, U1, untils[0]).await;
    assert_eq!(bench.fair_release(U1, "0").await, TOLD);
    bench.was_handed(&mut ear, U2, untils[1]).await;
    assert_eq!(bench.fair_release(U1, "0").await, NOT_HELD, "not twice");
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);
    assert_eq!(bench.held_by().await, [U2, "1"]);
}

/// The head of a free lock, which did not hear of it, leaves: the next one hears.
#[tokio::test]
async fn a_head_that_leaves_a_free_lock_hands_it_on() {
    let mut bench = Bench::new().await;
    bench.fair_holds(U0).await;
    bench.waits(U1).await;
    let second = bench.waits(U2).await;
    let third = bench.waits(U3).await;
    assert_eq!(bench.fair_release(U0, "0").await, DONE, "nobody listens");
    bench.in_all_three(&[U1, U2, U3]).await;
    let mut ear = bench.ear().await;
    assert_eq!(bench.fair_release(U1, "0").await, DONE);
    bench.was_handed(&mut ear, U2, second).await;
    bench.in_all_three(&[U3]).await;
    // Of a lock that is held nobody is next yet.
    bench.waits(U4).await;
    assert_eq!(bench.fair_release(U4, "0").await, DONE);
    assert_eq!(bench.heard(&mut ear).await, [""; 0]);
    assert_eq!(bench.held_by().await, [U2, "1"]);
    assert_eq!(bench.fair_release(U2, "0").await, TOLD);
    bench.was_handed(&mut ear, U3, third).await;
}

#[tokio::test]
async fn a_forced_unlock_hands_the_lock_over() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let first = bench.waits(U1).await;
    let args = [CHANNEL, "PUBLISH"];
    let forced = bench.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(forced, Value::Int(1));
    bench.was_handed(&mut ear, U1, first).await;
    assert_eq!(bench.fair_release(U0, "0").await, NOT_HELD);
    assert_eq!(bench.held_by().await, [U1, "1"]);
}

/// Nobody hears it: the lock is free, and everybody has the place that they had.
#[tokio::test]
async fn a_head_that_does_not_hear_is_not_made_the_holder() {
    let mut bench = Bench::new().await;
    bench.fair_holds(U0).await;
    bench.waits(U1).await;
    bench.waits(U2).await;
    assert_eq!(bench.fair_release(U0, "0").await, DONE);
    assert_eq!(bench.pttl_of(LOCK).await, -2);
    bench.in_all_three(&[U1, U2]).await;
    assert_eq!(bench.fair_try(U2).await, UNKNOWN, "not its turn");
    bench.fair_holds(U1).await;
}

/// Those who ask by themselves, those with hardly any time left, and Redisson's.
#[tokio::test]
async fn who_cannot_be_made_the_holder_is_told_that_it_is_its_turn() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    bench.queue_up(U1, "3000.25").await;
    bench.waits(U2).await;
    bench.redisson_waits("r:1", 300_000).await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
    assert_eq!(bench.pttl_of(LOCK).await, -2);
    bench.fair_holds(U1).await;
    let soon = (bench.now().await + 90).to_string();
    bench.make(&["ZADD", ALIVE, &soon, U2]).await;
    assert_eq!(bench.fair_release(U1, "0").await, TOLD);
    assert_eq!(bench.heard(&mut ear).await, turn_of(U2));
    bench.fair_release(U2, "0").await;
    assert_eq!(bench.heard(&mut ear).await, turn_of("r:1"));
    assert_eq!(bench.pttl_of(LOCK).await, -2);
    assert_eq!(bench.queue().await, ["r:1"]);
}

/// One member of a multi-lock needs the others too.
#[tokio::test]
async fn a_member_of_a_multi_lock_asks_by_itself() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let keys = [LOCK, TOKEN, QUEUE, TIMEOUTS, ALIVE];
    let args = [
        "PUBLISH", "0", "0", "fair", U1, "30000", "0", "3000", "0", CHANNEL,
    ];
    let refused = bench.run("multi_acquire", &keys, &args).await;
    assert!(matches!(refused, Value::Array(_)), "{refused:?}");
    bench.in_all_three(&[U1]).await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
    assert_eq!(bench.pttl_of(LOCK).await, -2);
}

/// And one that holds several hands over the fair one.
#[tokio::test]
async fn the_release_of_a_multi_lock_hands_over() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let first = bench.waits(U1).await;
    let args = ["PUBLISH", "fair", U0, "0", "0", "0", CHANNEL];
    let told = bench.run("multi_release", &KEYS, &args).await;
    assert_eq!(told, Value::Array(vec![TOLD]));
    bench.was_handed(&mut ear, U1, first).await;
}

#[tokio::test]
async fn a_token_goes_with_the_lock_if_there_is_a_key_for_it() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    let mut last = 0;
    for (keys, is_handed) in [(&FENCED[..], true), (&KEYS[..], false)] {
        bench.fair_holds(U0).await;
        let mut args = ask_args(U1, "1", "3000.5");
        args[3] = "1";
        bench.run("fair_acquire", &FENCED, &args).await;
        let release = leave_args(U0, "0");
        assert_eq!(bench.run("fair_release", keys, &release).await, TOLD);
        let heard = bench.heard(&mut ear).await;
        if is_handed {
            let (waiter, letter) = handed(&heard).unwrap_or_else(|| panic!("{heard:?}"));
            last = letter.token.expect("it wants one").get();
            assert_eq!((waiter, last < 1 << 53), (U1, true));
            assert_eq!(bench.ask::<String>(&["GET", TOKEN]).await, last.to_string());
            // If it does not hear of it, it asks, and gets one that is larger.
            let asked = bench.run("fair_acquire", &FENCED, &args).await;
            assert!(token(&asked) > last, "{asked:?}");
        } else {
            assert_eq!(heard, turn_of(U1));
            let asked = bench.run("fair_acquire", &FENCED, &args).await;
            assert!(token(&asked) > last, "{asked:?}");
        }
        assert_eq!(bench.fair_release(U1, "0").await, DONE);
    }
    assert_eq!(bench.server.keys().await, [TOKEN]);
    // One that wants none gets none, whoever could give it one.
    bench.fair_holds(U0).await;
    let until = bench.waits(U1).await;
    let release = leave_args(U0, "0");
    bench.run("fair_release", &FENCED, &release).await;
    let kept: u64 = bench.ask(&["GET", TOKEN]).await;
    bench.was_handed(&mut ear, U1, until).await;
    assert_eq!(bench.ask::<u64>(&["GET", TOKEN]).await, kept);
}

fn token(reply: &Value) -> u64 {
    match crate::script::reply::acquired(reply) {
        Ok(crate::script::reply::Acquired::Held { token: Some(token) }) => token.get(),
        other => panic!("{other:?}"),
    }
}

/// A counter that is none does not keep the lock from being freed.
#[tokio::test]
async fn a_foreign_counter_is_not_touched_and_the_head_is_told() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    for foreign in [&["SET", TOKEN, "theirs"][..], &["HSET", TOKEN, "a", "b"]] {
        bench.make(&["DEL", TOKEN]).await;
        bench.fair_holds(U0).await;
        bench.queue_up(U1, "3000.5").await;
        bench.make(foreign).await;
        let before = bench.keys().await[TOKEN].clone();
        let release = leave_args(U0, "0");
        assert_eq!(bench.run("fair_release", &FENCED, &release).await, TOLD);
        assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
        assert_eq!(bench.keys().await[TOKEN], before);
        assert_eq!(bench.pttl_of(LOCK).await, -2);
        bench.fair_release(U1, "0").await;
    }
}

/// Another one of this hash is no free lock.
#[tokio::test]
async fn a_lock_that_somebody_else_has_too_is_handed_to_nobody() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    bench.waits(U1).await;
    bench.make(&["HSET", LOCK, "stranger", "1"]).await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
    assert_eq!(bench.held_by().await, ["stranger", "1"]);
}

/// The end of a place that was noted before the clock was set back lies too far ahead; what it wants
/// stands in the fraction.
#[tokio::test]
async fn a_clock_that_is_set_back_gives_no_long_lease() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    bench.waits(U1).await;
    let ahead = bench.now().await + 3_600_000;
    bench.make(&["ZADD", ALIVE, &ahead.to_string(), U1]).await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    let heard = bench.heard(&mut ear).await;
    let (_, letter) = handed(&heard).unwrap_or_else(|| panic!("{heard:?}"));
    assert_eq!(letter.lease.as_millis(), 3_000);
    assert!(i64::try_from(letter.until_ms).unwrap() < ahead);
    assert!(near(bench.pttl_of(LOCK).await, 3_000));
    bench.fair_release(U1, "0").await;

    bench.fair_holds(U0).await;
    bench.queue_up(U1, "3000.25").await;
    bench
        .make(&["ZADD", ALIVE, &format!("{ahead}.25"), U1])
        .await;
    for _ in 0..2 {
        bench.fair_release(U0, "0").await;
        assert_eq!(bench.heard(&mut ear).await, turn_of(U1));
        let score: f64 = bench.ask(&["ZSCORE", ALIVE, U1]).await;
        assert!(score < ahead as f64);
        assert_eq!(score.fract(), 0.25);
        bench.make(&["HSET", LOCK, U0, "1"]).await;
    }
}

#[tokio::test]
async fn a_full_server_hands_over() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    bench.fair_holds(U0).await;
    let first = bench.waits(U1).await;
    let mut args = ask_args(U2, "1", "3000.5");
    args[3] = "1";
    bench.run("fair_acquire", &FENCED, &args).await;
    let third = bench.waits(U3).await;
    bench.fill().await;
    assert_eq!(bench.fair_release(U0, "0").await, TOLD);
    bench.was_handed(&mut ear, U1, first).await;
    let release = leave_args(U1, "0");
    assert_eq!(bench.run("fair_release", &FENCED, &release).await, TOLD);
    let heard = bench.heard(&mut ear).await;
    let (waiter, letter) = handed(&heard).unwrap_or_else(|| panic!("{heard:?}"));
    assert_eq!((waiter, letter.token.is_some()), (U2, true));
    let args = [CHANNEL, "PUBLISH"];
    bench.run("fair_force_unlock", &KEYS, &args).await;
    bench.was_handed(&mut ear, U3, third).await;
}

/// Whatever right the one who frees the lock lacks: it is free or handed over whole, no hold is without
/// a lease, nobody holds it who was not told, and nobody is in the queue without a score.
#[tokio::test]
async fn a_missing_right_hands_over_whole_or_not_at_all() {
    let mut bench = Bench::new().await;
    let mut ear = bench.ear().await;
    for right in [
        "hset", "pexpire", "pttl", "publish", "lrem", "zrem", "lindex", "zscore", "time", "get",
        "set", "exists", "zadd",
    ] {
        for wish in ["3000", "3000.5"] {
            bench.make(&["FLUSHALL"]).await;
            bench.fair_holds(U0).await;
            bench.queue_up(U1, wish).await;
            bench.waits(U2).await;
            let mut user = bench.user(&format!("-{right}")).await;
            let what = format!("-{right}, {wish}");
            let release = leave_args(U0, "0");
            let released = user.run("fair_release", &FENCED, &release).await;
            assert!(matches!(released, Ok(Value::Int(0 | 1))), "{what}");
            let heard = bench.heard(&mut ear).await;
            match handed(&heard) {
                Some((waiter, letter)) => {
                    assert_eq!(waiter, U1, "{what}");
                    assert_eq!(letter.token.is_some(), wish == "3000.5", "{what}");
                    assert_eq!(bench.held_by().await, [U1, "1"], "{what}");
                    let pttl = bench.pttl_of(LOCK).await;
                    assert!(near(pttl, 3_000), "{what}: {pttl}");
                }
                None => {
                    assert_eq!(bench.pttl_of(LOCK).await, -2, "{what}: it is free");
                    assert_eq!(bench.queue().await, [U1, U2], "{what}");
                    let silent = ["publish", "lindex", "zscore", "time"].contains(&right);
                    let expected = if silent { vec![] } else { turn_of(U1) };
                    assert_eq!(heard, expected, "{what}");
                }
            }
            bench.a_score_for_each_in_the_queue().await;
        }
    }
}
