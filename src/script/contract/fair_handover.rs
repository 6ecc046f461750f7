//! The handover of a fair lock: the script that frees it makes the next waiter the holder and notifies it, if that
//! waiter is subscribed.

use redis::Value;

use super::fair::{
    ALIVE, CHANNEL, GRANT, GRANT_FENCED, KEYS, QUEUE, TIMEOUTS, TOKEN, WAKE, ask_args, leave_args,
};
use super::fixture::{
    DONE, Fixture, HELD, NOT_HELD, Subscriber, U0, U1, U2, U3, U4, U9, UNKNOWN, elsewhere, near,
    place_of, token_of,
};
use crate::engine::hold::subscription::GrantMessage;

const LOCK: &str = KEYS[0];
const FENCED: [&str; 5] = [KEYS[0], KEYS[1], KEYS[2], KEYS[3], TOKEN];
const TOLD: Value = Value::Int(1);

/// Returns the waiter that a message made the holder, with the message. The subscriber receives it in the waiter's
/// place.
fn handed(messages: &[String]) -> Option<(&str, GrantMessage)> {
    let [message] = messages else {
        return None;
    };
    let (channel, words) = message.split_once(' ').expect("a channel");
    let waiter = channel.strip_prefix(CHANNEL)?.strip_prefix(':')?;
    Some((waiter, GrantMessage::parse(words.as_bytes())?))
}

fn turn_of(waiter: &str) -> Vec<String> {
    vec![format!("{CHANNEL}:{waiter} 0")]
}

impl Fixture {
    /// Joins the queue as a waiter that may be handed the lock. Returns the time until which its place is kept.
    async fn waits(&mut self, holder: &str) -> i64 {
        let (reply, until) = self.queue_up(holder, GRANT).await;
        assert!(matches!(reply, Value::Int(_)), "{reply:?}");
        until.expect("it has a place")
    }

    async fn fair_holds(&mut self, holder: &str) {
        let (reply, _) = self.queue_up(holder, GRANT).await;
        assert_eq!(reply, HELD);
    }

    /// The holder and its hold count.
    async fn held_by(&mut self) -> Vec<String> {
        self.ask(&["HGETALL", LOCK]).await
    }

    /// Checks that a message handed the lock to this waiter, for as long as its place was kept.
    async fn was_handed(&mut self, subscriber: &mut Subscriber, waiter: &str, until: i64) {
        let messages = self.messages(subscriber).await;
        let (told, letter) = handed(&messages).unwrap_or_else(|| panic!("{messages:?}"));
        assert_eq!(told, waiter);
        assert_eq!(i64::try_from(letter.until_ms), Ok(until));
        let lease = i64::try_from(letter.lease.as_millis()).unwrap();
        assert!(near(lease, 3_000), "{lease}");
        assert_eq!(self.held_by().await, [waiter, "1"]);
        // The script reads the time before the lease begins, and on a busy machine a few milliseconds pass in between.
        // The lease may end later than the place by these, but it is no longer than the rest of the place.
        let now = self.now().await;
        assert!(until - lease <= now, "{lease} until {until} at {now}");
        let pttl = self.pttl_of(LOCK).await;
        let left = until - now;
        assert!(
            (left - 1_000..=lease).contains(&pttl),
            "{pttl} of {lease}, {left}"
        );
        let queue = self.queue().await;
        assert!(!queue.contains(&waiter.to_owned()), "{queue:?}");
    }
}

#[tokio::test]
async fn a_release_makes_the_next_one_the_holder_and_says_so() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let first = fixture.waits(U1).await;
    let second = fixture.waits(U2).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    fixture.was_handed(&mut subscriber, U1, first).await;
    fixture.in_all_three(&[U2]).await;

    // The caller lost the answer and repeats the call, which changes nothing.
    let before = fixture.keys().await;
    assert_eq!(fixture.fair_release(U0).await, NOT_HELD);
    assert_eq!(fixture.keys().await, before);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);

    // A refusal says how long the lock is still held. The new holder asks, learns that it has the lock, and gets its
    // full lease.
    let asked = fixture.fair_try(U9).await;
    assert!(elsewhere(&asked, 3_000), "{asked:?}");
    fixture.fair_holds(U1).await;
    assert!(near(fixture.pttl_of(LOCK).await, 30_000));
    fixture.in_all_three(&[U2]).await;

    assert_eq!(fixture.fair_release(U1).await, TOLD);
    fixture.was_handed(&mut subscriber, U2, second).await;
    assert_eq!(fixture.fair_release(U2).await, DONE, "no waiter");
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// A waiter leaves in the same way whether it knows of the handover or not.
#[tokio::test]
async fn one_that_gives_up_what_it_was_handed_hands_it_on() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let mut untils = Vec::new();
    for waiter in [U1, U2, U3] {
        untils.push(fixture.waits(waiter).await);
    }
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    fixture.was_handed(&mut subscriber, U1, untils[0]).await;
    assert_eq!(fixture.fair_release(U1).await, TOLD);
    fixture.was_handed(&mut subscriber, U2, untils[1]).await;
    assert_eq!(fixture.fair_release(U1).await, NOT_HELD, "a repeat");
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert_eq!(fixture.held_by().await, [U2, "1"]);
}

/// The head of a free lock was not notified and leaves: the next waiter is notified.
#[tokio::test]
async fn a_head_that_leaves_a_free_lock_hands_it_on() {
    let mut fixture = Fixture::new().await;
    fixture.fair_holds(U0).await;
    fixture.waits(U1).await;
    let second = fixture.waits(U2).await;
    let third = fixture.waits(U3).await;
    assert_eq!(fixture.fair_release(U0).await, DONE, "nobody listens");
    fixture.in_all_three(&[U1, U2, U3]).await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.fair_release(U1).await, DONE);
    fixture.was_handed(&mut subscriber, U2, second).await;
    fixture.in_all_three(&[U3]).await;
    // While the lock is held, no waiter is next.
    fixture.waits(U4).await;
    assert_eq!(fixture.fair_release(U4).await, DONE);
    assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
    assert_eq!(fixture.held_by().await, [U2, "1"]);
    assert_eq!(fixture.fair_release(U2).await, TOLD);
    fixture.was_handed(&mut subscriber, U3, third).await;
}

#[tokio::test]
async fn a_forced_unlock_hands_the_lock_over() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let first = fixture.waits(U1).await;
    let args = [CHANNEL, "PUBLISH"];
    let forced = fixture.run("fair_force_unlock", &KEYS, &args).await;
    assert_eq!(forced, Value::Int(1));
    fixture.was_handed(&mut subscriber, U1, first).await;
    assert_eq!(fixture.fair_release(U0).await, NOT_HELD);
    assert_eq!(fixture.held_by().await, [U1, "1"]);
}

/// The message reaches no connection, so the lock stays free and all waiters keep their places.
#[tokio::test]
async fn a_head_that_does_not_hear_is_not_made_the_holder() {
    let mut fixture = Fixture::new().await;
    fixture.fair_holds(U0).await;
    fixture.waits(U1).await;
    fixture.waits(U2).await;
    assert_eq!(fixture.fair_release(U0).await, DONE);
    assert_eq!(fixture.pttl_of(LOCK).await, -2);
    fixture.in_all_three(&[U1, U2]).await;
    assert_eq!(fixture.fair_try(U2).await, UNKNOWN, "not its turn");
    fixture.fair_holds(U1).await;
}

/// Waiters that want to ask by themselves, waiters with hardly any time left, and waiters of Redisson.
#[tokio::test]
async fn a_waiter_that_cannot_be_made_the_holder_is_notified_of_its_turn() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    fixture.queue_up(U1, WAKE).await;
    fixture.waits(U2).await;
    fixture.redisson_waits("r:1", 300_000).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
    assert_eq!(fixture.pttl_of(LOCK).await, -2);
    fixture.fair_holds(U1).await;
    let soon = (fixture.now().await + 90).to_string();
    fixture.make(&["ZADD", ALIVE, &soon, U2]).await;
    assert_eq!(fixture.fair_release(U1).await, TOLD);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U2));
    fixture.fair_release(U2).await;
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of("r:1"));
    assert_eq!(fixture.pttl_of(LOCK).await, -2);
    assert_eq!(fixture.queue().await, ["r:1"]);
}

impl Fixture {
    /// Returns the waiter or holder that stands directly ahead, from the reply to a call.
    async fn ahead_of(&mut self, waiter: &str) -> Option<String> {
        let reply = self
            .run("fair_acquire", &KEYS, &ask_args(waiter, GRANT))
            .await;
        place_of(&reply).ahead.map(|ahead| ahead.to_string())
    }

    /// Ends a hold under which these waiters had the lock in turn.
    async fn release_with(&mut self, holder: &str, used: &[&str]) -> Value {
        let args = [&leave_args(holder)[..], &["0"], used].concat();
        self.run("fair_release", &KEYS, &args).await
    }
}

#[tokio::test]
async fn the_reply_to_a_new_place_says_who_stands_directly_ahead() {
    let mut fixture = Fixture::new().await;
    fixture.fair_holds(U0).await;
    assert_eq!(
        fixture.ahead_of(U1).await.as_deref(),
        Some(U0),
        "the holder"
    );
    assert_eq!(fixture.ahead_of(U2).await.as_deref(), Some(U1));
    for waiter in [U1, U2] {
        assert_eq!(fixture.ahead_of(waiter).await, None, "it has its place");
    }
    fixture.redisson_waits("r:1", 300_000).await;
    assert_eq!(fixture.ahead_of(U3).await.as_deref(), Some("r:1"));
    // The lock is free, and the head of its queue does not come.
    assert_eq!(fixture.fair_release(U0).await, DONE);
    assert_eq!(fixture.ahead_of(U4).await.as_deref(), Some(U3));
    // A waiter that comes back is behind the last.
    fixture.dies(U1).await;
    fixture.fair_try(U9).await;
    assert_eq!(fixture.ahead_of(U1).await.as_deref(), Some(U4));
}

#[tokio::test]
async fn places_that_were_used_under_a_hold_end_with_it() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    for waiter in [U1, U2] {
        fixture.waits(waiter).await;
    }
    let third = fixture.waits(U3).await;
    assert_eq!(fixture.release_with(U0, &[U1, U2]).await, TOLD);
    fixture.was_handed(&mut subscriber, U3, third).await;
    let before = fixture.keys().await;
    assert_eq!(
        fixture.release_with(U0, &[U1, U2]).await,
        NOT_HELD,
        "a repeat"
    );
    assert_eq!(fixture.keys().await, before);
    // These places no longer exist.
    assert_eq!(fixture.release_with(U3, &[U1, U9]).await, DONE);
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// An operator freed the lock, and the server handed it over to a waiter that had it already.
#[tokio::test]
async fn a_hold_that_was_taken_away_frees_what_the_used_places_got() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let first = fixture.waits(U1).await;
    fixture.waits(U2).await;
    let third = fixture.waits(U3).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    fixture.was_handed(&mut subscriber, U1, first).await;
    let late = fixture.release_with(U0, &[U1, U2]).await;
    assert_eq!(late, NOT_HELD, "its caller has to learn of it");
    let messages = fixture.messages(&mut subscriber).await;
    let (told, letter) = handed(&messages[messages.len() - 1..]).expect("a grant");
    assert_eq!((told, i64::try_from(letter.until_ms)), (U3, Ok(third)));
    assert_eq!(fixture.held_by().await, [U3, "1"]);
    fixture.in_all_three(&[]).await;
}

/// A waiter for several locks needs the other members too.
#[tokio::test]
async fn a_member_of_a_multi_lock_asks_by_itself() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let keys = [LOCK, TOKEN, QUEUE, TIMEOUTS, ALIVE];
    let args = [
        "PUBLISH", "0", "0", "30000", "fair", U1, "30000", "0", "3000", "0", CHANNEL,
    ];
    let refused = fixture.run("multi_acquire", &keys, &args).await;
    assert!(matches!(refused, Value::Array(_)), "{refused:?}");
    fixture.in_all_three(&[U1]).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
    assert_eq!(fixture.pttl_of(LOCK).await, -2);
}

/// A release of several locks hands over the fair one.
#[tokio::test]
async fn the_release_of_a_multi_lock_hands_over() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let first = fixture.waits(U1).await;
    let args = ["PUBLISH", "fair", U0, CHANNEL];
    let told = fixture.run("multi_release", &KEYS, &args).await;
    assert_eq!(told, Value::Array(vec![TOLD]));
    fixture.was_handed(&mut subscriber, U1, first).await;
}

#[tokio::test]
async fn a_token_goes_with_the_lock_if_there_is_a_key_for_it() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    let mut last = 0;
    for (keys, is_handed) in [(&FENCED[..], true), (&KEYS[..], false)] {
        fixture.fair_holds(U0).await;
        let mut args = ask_args(U1, GRANT_FENCED);
        args[2] = "1";
        fixture.run("fair_acquire", &FENCED, &args).await;
        let release = leave_args(U0);
        assert_eq!(fixture.run("fair_release", keys, &release).await, TOLD);
        let messages = fixture.messages(&mut subscriber).await;
        if is_handed {
            let (waiter, letter) = handed(&messages).unwrap_or_else(|| panic!("{messages:?}"));
            last = letter.token.expect("it asked for one").get();
            assert_eq!((waiter, last < 1 << 53), (U1, true));
            assert_eq!(
                fixture.ask::<String>(&["GET", TOKEN]).await,
                last.to_string()
            );
            // A waiter that misses the message asks, and gets a larger token.
            let asked = fixture.run("fair_acquire", &FENCED, &args).await;
            assert!(token_of(&asked) > last, "{asked:?}");
        } else {
            assert_eq!(messages, turn_of(U1));
            let asked = fixture.run("fair_acquire", &FENCED, &args).await;
            assert!(token_of(&asked) > last, "{asked:?}");
        }
        assert_eq!(fixture.fair_release(U1).await, DONE);
    }
    assert_eq!(fixture.server.keys().await, [TOKEN]);
    // A waiter that wants no token gets none, even if the releasing holder could supply it.
    fixture.fair_holds(U0).await;
    let until = fixture.waits(U1).await;
    let release = leave_args(U0);
    fixture.run("fair_release", &FENCED, &release).await;
    let kept: u64 = fixture.ask(&["GET", TOKEN]).await;
    fixture.was_handed(&mut subscriber, U1, until).await;
    assert_eq!(fixture.ask::<u64>(&["GET", TOKEN]).await, kept);
}

/// A foreign counter does not keep the lock from being freed.
#[tokio::test]
async fn a_foreign_counter_is_not_touched_and_the_head_is_told() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for foreign in [&["SET", TOKEN, "theirs"][..], &["HSET", TOKEN, "a", "b"]] {
        fixture.make(&["DEL", TOKEN]).await;
        fixture.fair_holds(U0).await;
        fixture.queue_up(U1, GRANT_FENCED).await;
        fixture.make(foreign).await;
        let before = fixture.keys().await[TOKEN].clone();
        let release = leave_args(U0);
        assert_eq!(fixture.run("fair_release", &FENCED, &release).await, TOLD);
        assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
        assert_eq!(fixture.keys().await[TOKEN], before);
        assert_eq!(fixture.pttl_of(LOCK).await, -2);
        fixture.fair_release(U1).await;
    }
}

/// The hash has another holder, so the lock is not free.
#[tokio::test]
async fn a_lock_that_somebody_else_has_too_is_handed_to_nobody() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    fixture.waits(U1).await;
    fixture.make(&["HSET", LOCK, "stranger", "1"]).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
    assert_eq!(fixture.held_by().await, ["stranger", "1"]);
}

/// The end of a place from before the clock was set back is too far ahead. The fraction of the score encodes the
/// waiter's wish.
#[tokio::test]
async fn a_clock_that_is_set_back_gives_no_long_lease() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    fixture.waits(U1).await;
    let ahead = fixture.now().await + 3_600_000;
    fixture.make(&["ZADD", ALIVE, &ahead.to_string(), U1]).await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    let messages = fixture.messages(&mut subscriber).await;
    let (_, letter) = handed(&messages).unwrap_or_else(|| panic!("{messages:?}"));
    assert_eq!(letter.lease.as_millis(), 3_000);
    assert!(i64::try_from(letter.until_ms).unwrap() < ahead);
    assert!(near(fixture.pttl_of(LOCK).await, 3_000));
    fixture.fair_release(U1).await;

    fixture.fair_holds(U0).await;
    fixture.queue_up(U1, WAKE).await;
    fixture
        .make(&["ZADD", ALIVE, &format!("{ahead}.25"), U1])
        .await;
    for _ in 0..2 {
        fixture.fair_release(U0).await;
        assert_eq!(fixture.messages(&mut subscriber).await, turn_of(U1));
        let score: f64 = fixture.ask(&["ZSCORE", ALIVE, U1]).await;
        assert!(score < ahead as f64);
        assert_eq!(score.fract(), 0.25);
        fixture.make(&["HSET", LOCK, U0, "1"]).await;
    }
}

#[tokio::test]
async fn a_full_server_hands_over() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    fixture.fair_holds(U0).await;
    let first = fixture.waits(U1).await;
    let mut args = ask_args(U2, GRANT_FENCED);
    args[2] = "1";
    fixture.run("fair_acquire", &FENCED, &args).await;
    let third = fixture.waits(U3).await;
    fixture.fill().await;
    assert_eq!(fixture.fair_release(U0).await, TOLD);
    fixture.was_handed(&mut subscriber, U1, first).await;
    let release = leave_args(U1);
    assert_eq!(fixture.run("fair_release", &FENCED, &release).await, TOLD);
    let messages = fixture.messages(&mut subscriber).await;
    let (waiter, letter) = handed(&messages).unwrap_or_else(|| panic!("{messages:?}"));
    assert_eq!((waiter, letter.token.is_some()), (U2, true));
    let args = [CHANNEL, "PUBLISH"];
    fixture.run("fair_force_unlock", &KEYS, &args).await;
    fixture.was_handed(&mut subscriber, U3, third).await;
}

/// With any one right missing, the lock is free or completely handed over. There is no hold without a lease, no
/// holder without a notification, and no waiter in the queue without a score.
#[tokio::test]
async fn a_missing_right_hands_over_whole_or_not_at_all() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for right in [
        "hset", "pexpire", "pttl", "publish", "lrem", "zrem", "lindex", "zscore", "time", "get",
        "set", "exists", "zadd",
    ] {
        for wish in [GRANT, GRANT_FENCED] {
            fixture.make(&["FLUSHALL"]).await;
            fixture.fair_holds(U0).await;
            fixture.queue_up(U1, wish).await;
            fixture.waits(U2).await;
            let mut user = fixture.user(&format!("-{right}")).await;
            let what = format!("-{right}, {wish}");
            let release = leave_args(U0);
            let released = user.run("fair_release", &FENCED, &release).await;
            assert!(matches!(released, Ok(Value::Int(0 | 1))), "{what}");
            let messages = fixture.messages(&mut subscriber).await;
            match handed(&messages) {
                Some((waiter, letter)) => {
                    assert_eq!(waiter, U1, "{what}");
                    assert_eq!(letter.token.is_some(), wish == GRANT_FENCED, "{what}");
                    assert_eq!(fixture.held_by().await, [U1, "1"], "{what}");
                    let pttl = fixture.pttl_of(LOCK).await;
                    assert!(near(pttl, 3_000), "{what}: {pttl}");
                }
                None => {
                    assert_eq!(fixture.pttl_of(LOCK).await, -2, "{what}: it is free");
                    assert_eq!(fixture.queue().await, [U1, U2], "{what}");
                    let silent = ["publish", "lindex", "zscore", "time"].contains(&right);
                    let expected = if silent { vec![] } else { turn_of(U1) };
                    assert_eq!(messages, expected, "{what}");
                }
            }
            fixture.a_score_for_each_in_the_queue().await;
        }
    }
}
