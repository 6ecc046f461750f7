//! Plain semaphores: keys and messages are as Redisson expects them, and a repeat counts once.

use redis::Value;

use super::fixture::{Fixture, Subscriber, U1, U2, U3};
use crate::conn::error_reply::code;

const HOLDS: &str = "lockset_sem_holds:{S}";
const CHANNEL: &str = "redisson_sc:{S}";
const TELL: [&str; 2] = [CHANNEL, "PUBLISH"];
const YES: Value = Value::Int(1);
const NO: Value = Value::Int(0);

impl Fixture {
    async fn take(&mut self, holder: &str, count: &str, declared: &str) -> Value {
        let args = [&[holder, count, declared, "60000"], &TELL[..]].concat();
        self.run("plain_acquire", &["S", HOLDS], &args).await
    }

    async fn give_back(&mut self, holder: &str) -> Value {
        let args = [&[holder, "60000"], &TELL[..]].concat();
        self.run("plain_release", &["S", HOLDS], &args).await
    }

    async fn change(&mut self, script: &str, call: &str, count: &str) -> Value {
        let key = format!("lockset_sem_call:{{S}}:{call}");
        let args = [&[count, "60000"], &TELL[..]].concat();
        self.run(script, &["S", &key, HOLDS], &args).await
    }

    async fn available(&mut self) -> Value {
        self.run("plain_available", &["S"], &[]).await
    }

    async fn told(&mut self, subscriber: &mut Subscriber) -> Vec<String> {
        let messages = self.messages(subscriber).await;
        let payload = |message: &String| {
            let payload = message.strip_prefix(CHANNEL).expect("its channel");
            payload.trim().to_owned()
        };
        messages.iter().map(payload).collect()
    }
}

#[tokio::test]
async fn a_semaphore_is_what_redisson_expects() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.take(U1, "1", "").await, NO);
    assert_eq!(fixture.available().await, NO);
    assert_eq!(fixture.change("plain_give", "a", "1").await, NO);
    assert_eq!(fixture.server.keys().await, [""; 0]);
    assert_eq!(fixture.change("plain_init", "a", "2").await, YES);
    assert_eq!(fixture.change("plain_init", "b", "5").await, NO);
    assert_eq!(fixture.told(&mut subscriber).await, ["2"]);
    assert_eq!(fixture.take(U1, "3", "").await, NO);
    assert_eq!(fixture.take(U1, "2", "7").await, YES);
    assert_eq!(fixture.ask::<String>(&["GET", "S"]).await, "0");
    assert_eq!(fixture.give_back(U1).await, YES);
    assert_eq!(fixture.change("plain_give", "c", "2").await, YES);
    assert_eq!(fixture.told(&mut subscriber).await, ["2", "4"]);
    // A declared semaphore is created once.
    fixture.make(&["DEL", "S"]).await;
    assert_eq!(fixture.take(U2, "1", "3").await, YES);
    assert_eq!(fixture.available().await, Value::Int(2));
    assert_eq!(fixture.told(&mut subscriber).await, ["3"]);
    for key in fixture.server.keys().await {
        let has_lease = fixture.pttl_of(&key).await > 0;
        assert_eq!(has_lease, key != "S", "{key}");
    }
    assert_eq!(fixture.give_back(U2).await, YES);
    fixture.make(&["PEXPIRE", "S", "60000"]).await;
    assert_eq!(fixture.take(U3, "1", "").await, YES);
    assert!(fixture.pttl_of("S").await > 0, "the life set by Java");
}

#[tokio::test]
async fn a_repeat_adds_nothing() {
    let mut fixture = Fixture::new().await;
    for _ in 0..2 {
        assert_eq!(fixture.change("plain_init", "a", "3").await, YES);
        assert_eq!(fixture.take(U1, "2", "").await, YES);
    }
    assert_eq!(fixture.available().await, YES);
    assert_eq!(fixture.give_back(U1).await, YES);
    assert_eq!(fixture.give_back(U1).await, NO);
    for _ in 0..2 {
        assert_eq!(fixture.change("plain_give", "b", "1").await, YES);
    }
    assert_eq!(fixture.available().await, Value::Int(4));
}

#[tokio::test]
async fn what_java_deleted_is_not_made_again() {
    let mut fixture = Fixture::new().await;
    fixture.take(U1, "1", "1").await;
    fixture.make(&["DEL", "S"]).await;
    assert_eq!(fixture.give_back(U1).await, YES);
    assert_eq!(fixture.server.keys().await, [""; 0]);
}

/// The permits that were taken before belong to the semaphore that is gone.
#[tokio::test]
async fn what_is_made_again_has_as_many_permits_as_declared() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take(U1, "1", "1").await, YES);
    fixture.make(&["DEL", "S"]).await;
    assert_eq!(fixture.take(U2, "1", "1").await, YES);
    assert_eq!(fixture.give_back(U1).await, NO);
    assert_eq!(fixture.give_back(U2).await, YES);
    assert_eq!(fixture.available().await, YES);
    assert_eq!(fixture.take(U3, "1", "").await, YES);
    fixture.make(&["DEL", "S"]).await;
    assert_eq!(fixture.change("plain_init", "a", "1").await, YES);
    assert_eq!(fixture.give_back(U3).await, NO);
    assert_eq!(fixture.available().await, YES);
}

/// Redisson can lower the number below zero by `addPermits` with a negative number.
#[tokio::test]
async fn a_negative_number_is_not_published() {
    let mut fixture = Fixture::new().await;
    fixture.take(U1, "1", "1").await;
    fixture.make(&["SET", "S", "-2"]).await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.give_back(U1).await, YES);
    assert_eq!(fixture.change("plain_give", "a", "1").await, YES);
    assert_eq!(fixture.told(&mut subscriber).await, [""; 0]);
    assert_eq!(fixture.change("plain_give", "b", "1").await, YES);
    assert_eq!(fixture.told(&mut subscriber).await, ["1"]);
}

#[tokio::test]
async fn what_is_no_semaphore_is_left_alone() {
    let mut fixture = Fixture::new().await;
    fixture.make(&["HSET", HOLDS, U1, "1"]).await;
    for make in [&["SET", "S", "a text"][..], &["HSET", "S", "a", "b"]] {
        fixture.make(&["DEL", "S"]).await;
        fixture.make(make).await;
        let before = fixture.keys().await;
        let change = [&["1", "60000"], &TELL[..]].concat();
        for (name, keys, args) in [
            (
                "plain_acquire",
                &["S", HOLDS][..],
                [&[U2, "1", "1", "60000"], &TELL[..]].concat(),
            ),
            (
                "plain_release",
                &["S", HOLDS],
                [&[U1, "60000"], &TELL[..]].concat(),
            ),
            ("plain_give", &["S", "c"], change.clone()),
            ("plain_init", &["S", "c"], change),
            ("plain_available", &["S"], Vec::new()),
        ] {
            let error = fixture.refused(name, keys, &args).await;
            assert_eq!(code(&error), Some("WRONGTYPE"), "{name}: {error}");
        }
        assert_eq!(fixture.keys().await, before);
    }
}

/// A permit that cannot be recorded is not taken.
#[tokio::test]
async fn without_a_right_nothing_is_taken() {
    let mut fixture = Fixture::new().await;
    fixture.change("plain_init", "a", "1").await;
    let mut user = fixture.user("-hset").await;
    let args = [&[U1, "1", "", "60000"], &TELL[..]].concat();
    user.refused("plain_acquire", &["S", HOLDS], &args).await;
    assert_eq!(fixture.available().await, YES);
}

/// Otherwise each such attempt would cost the semaphore a permit.
#[tokio::test]
async fn what_is_taken_without_a_right_is_given_back() {
    let mut fixture = Fixture::new().await;
    fixture.change("plain_init", "a", "1").await;
    let mut user = fixture.user("-pexpire").await;
    let (keys, tell) = (["S", HOLDS], &TELL[..]);
    let take = [&[U1, "1", "", "60000"], tell].concat();
    user.refused("plain_acquire", &keys, &take).await;
    let give_back = [&[U1, "60000"], tell].concat();
    user.refused("plain_release", &keys, &give_back).await;
    assert_eq!(fixture.available().await, YES);
    assert_eq!(fixture.give_back(U1).await, NO);
}

/// Otherwise the permit would be lost for all callers.
#[tokio::test]
async fn what_cannot_be_added_for_want_of_a_right_stays_taken() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.take(U1, "1", "1").await, YES);
    let mut user = fixture.user("-incrby").await;
    let give_back = [&[U1, "60000"], &TELL[..]].concat();
    user.refused("plain_release", &["S", HOLDS], &give_back)
        .await;
    assert!(fixture.pttl_of(HOLDS).await > 0);
    assert_eq!(fixture.give_back(U1).await, YES);
    assert_eq!(fixture.available().await, YES);
}
