//! Latches: keys and messages are as Redisson expects them, and a repeat counts once.

use redis::Value;

use super::fixture::{Fixture, Subscriber, U1, U2, U3};
use crate::conn::error_reply::code;
use crate::script::reply::{self, Counted};

const OPENED: &str = "lockset_latch_opened:{L}";
const CHANNEL: &str = "redisson_countdownlatch__channel__{L}";
const YES: Value = Value::Int(1);
const NO: Value = Value::Int(0);

impl Fixture {
    async fn init(&mut self, call: &str, count: &str) -> Value {
        let key = format!("call:{{L}}:{call}");
        let args = [count, "60000", CHANNEL, "PUBLISH"];
        self.run("latch_init", &["L", &key], &args).await
    }

    async fn count(&mut self, id: &str, call: &str) -> Counted {
        let done = format!("done:{{L}}:{id}");
        let args = [call, "60000", "60000", CHANNEL, "PUBLISH"];
        let keys = ["L", &done, OPENED];
        let reply = self.run("latch_count_down", &keys, &args).await;
        reply::latch_counted(&reply).unwrap()
    }

    async fn count_down(&mut self, id: &str, call: &str) -> Value {
        match self.count(id, call).await {
            Counted::No => NO,
            Counted::Earlier | Counted::Now { .. } => YES,
        }
    }

    async fn look(&mut self) -> (u64, String) {
        let reply = self.run("latch_count", &["L", OPENED], &[]).await;
        reply::latch_count(&reply).unwrap()
    }

    async fn delete(&mut self, call: &str) -> Value {
        let key = format!("call:{{L}}:{call}");
        let args = [call, "60000", CHANNEL, "PUBLISH"];
        self.run("latch_delete", &["L", OPENED, &key], &args).await
    }

    async fn heard(&mut self, subscriber: &mut Subscriber) -> Vec<String> {
        let messages = self.messages(subscriber).await;
        let payload = |message: &String| {
            message
                .strip_prefix(CHANNEL)
                .map(str::trim)
                .map(str::to_owned)
        };
        messages
            .iter()
            .map(|m| payload(m).expect("the latch's channel"))
            .collect()
    }
}

#[tokio::test]
async fn a_latch_is_what_redisson_expects() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.init(U1, "2").await, YES);
    assert_eq!(fixture.ask::<String>(&["GET", "L"]).await, "2");
    assert_eq!(fixture.pttl_of("L").await, -1);
    assert_eq!(fixture.init(U2, "9").await, NO);
    assert_eq!(fixture.count_down("a", U1).await, YES);
    assert_eq!(fixture.ask::<String>(&["GET", "L"]).await, "1");
    assert_eq!(fixture.heard(&mut subscriber).await, ["1"]);
    assert_eq!(fixture.count_down("b", U2).await, YES);
    assert_eq!(fixture.look().await, (0, U2.to_owned()));
    assert!(!fixture.server.keys().await.contains(&"L".to_owned()));
    assert_eq!(fixture.heard(&mut subscriber).await, ["0"]);
    // The latch is open, so this id does not count, and may count later.
    assert_eq!(fixture.count_down("c", U3).await, NO);
    assert_eq!(fixture.delete(U2).await, NO);
    assert_eq!(fixture.init(U3, "1").await, YES);
    assert_eq!(fixture.delete(U2).await, YES);
    assert_eq!(fixture.heard(&mut subscriber).await, ["1", "0"]);
    for key in fixture.server.keys().await {
        assert!(fixture.pttl_of(&key).await > 0, "{key} has no lease");
    }
}

#[tokio::test]
async fn a_repeat_counts_once() {
    let mut fixture = Fixture::new().await;
    for _ in 0..2 {
        assert_eq!(fixture.init(U1, "2").await, YES);
        assert_eq!(fixture.count_down("a", U1).await, YES);
    }
    assert_eq!(
        fixture.count_down("a", U2).await,
        NO,
        "a second call with one id"
    );
    assert_eq!(fixture.look().await.0, 1);
    assert_eq!(fixture.count_down("b", U1).await, YES);
    // A late repeat neither closes the latch nor counts in the next round.
    assert_eq!(fixture.init(U1, "2").await, YES);
    assert_eq!(fixture.look().await.0, 0);
    assert_eq!(fixture.init(U2, "1").await, YES);
    assert_eq!(fixture.count_down("b", U1).await, YES);
    assert_eq!(fixture.look().await.0, 1);
}

#[tokio::test]
async fn a_repeated_delete_says_that_it_has_opened_the_latch_and_opens_no_later_one() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.delete(U1).await, NO);
    assert_eq!(fixture.init(U2, "2").await, YES);
    for _ in 0..2 {
        assert_eq!(fixture.delete(U3).await, YES);
    }
    assert_eq!(fixture.init(&format!("{U2}:next"), "2").await, YES);
    assert_eq!(fixture.delete(U3).await, YES);
    assert_eq!(fixture.look().await.0, 2, "closed since");
}

/// A call that has counted waits for a later opening.
#[tokio::test]
async fn a_count_down_says_who_opened_the_latch_before() {
    let mut fixture = Fixture::new().await;
    let now = |by: &str| Counted::Now { opened: by.into() };
    assert_eq!(fixture.init(U1, "1").await, YES);
    assert_eq!(fixture.count("a", U1).await, now(""));
    assert_eq!(fixture.init(U2, "2").await, YES);
    assert_eq!(fixture.count("b", U2).await, now(U1));
    assert_eq!(fixture.count("b", U2).await, Counted::Earlier);
    assert_eq!(fixture.count("b", U3).await, Counted::No);
    assert_eq!(fixture.count("c", U3).await, now(U1));
    assert_eq!(fixture.count("d", U1).await, Counted::No);
    assert_eq!(fixture.look().await, (0, U3.to_owned()));
}

/// Redisson accepts 0 and less, and cannot close such a latch until a count-down. lockset can.
#[tokio::test]
async fn a_count_of_nothing_is_an_open_latch() {
    let mut fixture = Fixture::new().await;
    for count in ["0", "-3"] {
        fixture.make(&["SET", "L", count]).await;
        assert_eq!(fixture.look().await.0, 0);
        // It is open, so an id does not count there, and may count later.
        let id = format!("id{count}");
        assert_eq!(fixture.count_down(&id, U2).await, NO);
        assert_eq!(fixture.init(&format!("{U1}{count}"), "2").await, YES);
        assert_eq!(fixture.count_down(&id, U3).await, YES);
        assert_eq!(fixture.look().await.0, 1);
    }
}

#[tokio::test]
async fn what_is_no_latch_is_left_alone() {
    let mut fixture = Fixture::new().await;
    for make in [
        ["SET", "L", "a text"],
        ["HSET", "L", "a"],
        ["SET", "L", "1.5"],
    ] {
        fixture.make(&["DEL", "L"]).await;
        let mut words = make.to_vec();
        if make[0] == "HSET" {
            words.push("b");
        }
        fixture.make(&words).await;
        let before = fixture.keys().await;
        for (name, keys, args) in [
            (
                "latch_init",
                &["L", "c"][..],
                &["1", "60000", CHANNEL, "PUBLISH"][..],
            ),
            (
                "latch_count_down",
                &["L", "d", OPENED],
                &[U1, "60000", "60000", CHANNEL, "PUBLISH"],
            ),
            ("latch_count", &["L", OPENED], &[]),
            (
                "latch_delete",
                &["L", OPENED, "c"],
                &[U1, "60000", CHANNEL, "PUBLISH"],
            ),
        ] {
            let error = fixture.refused(name, keys, args).await;
            assert_eq!(code(&error), Some("WRONGTYPE"), "{name}: {error}");
        }
        assert_eq!(fixture.keys().await, before);
    }
}

/// A later call with this id, by a user with the right, is not too late.
#[tokio::test]
async fn what_was_not_counted_for_want_of_a_right_counts_later() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.init("a", "2").await, YES);
    let mut user = fixture.user("-incrby").await;
    let args = [U1, "60000", "60000", CHANNEL, "PUBLISH"];
    let keys = ["L", "done:{L}:part", OPENED];
    user.refused("latch_count_down", &keys, &args).await;
    assert_eq!(fixture.count_down("part", U2).await, YES);
    assert_eq!(fixture.look().await.0, 1);
}
