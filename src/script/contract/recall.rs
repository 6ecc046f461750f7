//! A recall notifies the holders of a lock that a waiter elsewhere wants it.

use redis::Value;

use super::fixture::{DONE, Fixture, U1, U2, U3_WRITE};

const OURS: &str = "lockset_recall:fa2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a";
const ARGS: [&str; 2] = ["lockset_recall:", "PUBLISH"];

#[tokio::test]
async fn all_who_hold_a_lock_hear_of_it_and_nothing_changes() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    assert_eq!(fixture.run("recall", &["L"], &ARGS).await, DONE, "free");
    let readers = ["HSET", "L", "mode", "read", U1, "1", U2, "2"];
    for (fields, told) in [
        (&["HSET", "L", U2, "1"][..], vec!["2"]),
        (&readers, vec!["1", "2"]),
        (&["HSET", "L", "mode", "write", U3_WRITE, "1"], vec!["3"]),
        // Not a lock, so it has no holder.
        (&["HSET", "L", "color", "red"], vec![]),
    ] {
        fixture.make(&["DEL", "L"]).await;
        fixture.make(fields).await;
        let before = fixture.keys().await;
        for _ in 0..2 {
            let reply = fixture.run("recall", &["L"], &ARGS).await;
            assert_eq!(reply, Value::Int(told.len() as i64), "{fields:?}");
            let mut messages = fixture.messages(&mut heard).await;
            messages.sort();
            let told = told.iter().map(|number| format!("{OURS} {number}"));
            assert_eq!(messages, told.collect::<Vec<_>>(), "{fields:?}");
        }
        assert_eq!(fixture.keys().await, before, "{fields:?}");
    }
}

#[tokio::test]
async fn of_many_readers_some_hear_of_it() {
    let mut fixture = Fixture::new().await;
    let mut heard = fixture.subscriber().await;
    let (holder, _) = U1.rsplit_once(':').unwrap();
    for number in 0..200 {
        let holder = format!("{holder}:{number}");
        fixture.make(&["HSET", "L", &holder, "1"]).await;
    }
    assert_eq!(fixture.run("recall", &["L"], &ARGS).await, Value::Int(64));
    assert_eq!(fixture.messages(&mut heard).await.len(), 64);
}

#[tokio::test]
async fn who_may_not_publish_is_told_so_without_an_error() {
    let mut fixture = Fixture::new().await;
    fixture.make(&["HSET", "L", U1, "1"]).await;
    for rights in ["-publish", "resetchannels"] {
        let mut user = fixture.user(rights).await;
        let reply = user.run("recall", &["L"], &ARGS).await.unwrap();
        assert_eq!(reply, Value::Int(-1), "{rights}");
    }
}
