//! A leader's value can be read while it leads, values keep their order, and a repeat changes nothing.

use redis::Value;

use super::fixture::{Fixture, U1, U2};
use crate::conn::error_reply::code;
use crate::script::reply;

const LEADER: &str = "lockset_leader:{L}";
const TELL: [&str; 2] = [LEADER, "PUBLISH"];
const YES: Value = Value::Int(1);
const NO: Value = Value::Int(0);

impl Fixture {
    async fn proclaim(&mut self, holder: &str, token: &str, version: &str, value: &str) -> Value {
        let args = [&[holder, token, version, value, "60000"], &TELL[..]].concat();
        self.run("leader_proclaim", &["L", LEADER], &args).await
    }

    async fn resign(&mut self, holder: &str, token: &str) -> Value {
        let args = [&[holder, token], &TELL[..]].concat();
        self.run("leader_resign", &[LEADER], &args).await
    }

    /// The token and value of the current leader.
    async fn leader(&mut self) -> Option<(u64, String)> {
        let reply = self.run("leader_read", &["L", LEADER], &[]).await;
        let leader = reply::leader(&reply).unwrap();
        leader.map(|(_, token, value)| (token.get(), value))
    }

    async fn leads(&mut self, holder: &str) {
        self.make(&["DEL", "L"]).await;
        self.make(&["HSET", "L", holder, "1"]).await;
    }
}

#[tokio::test]
async fn what_a_leader_says_is_read_while_it_leads() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    assert_eq!(fixture.leader().await, None);
    assert_eq!(fixture.proclaim(U1, "64", "0", "a").await, NO);
    fixture.leads(U1).await;
    assert_eq!(fixture.leader().await, None, "it has said nothing");
    for _ in 0..2 {
        assert_eq!(fixture.proclaim(U1, "64", "0", "a").await, YES);
    }
    assert_eq!(fixture.leader().await, Some((64, "a".to_owned())));
    assert!(fixture.pttl_of(LEADER).await > 0);
    let told = format!("{LEADER} 64");
    assert_eq!(fixture.messages(&mut subscriber).await, [&*told], "once");
    // The leader died.
    fixture.make(&["DEL", "L"]).await;
    assert_eq!(fixture.leader().await, None);
    fixture.leads(U2).await;
    assert_eq!(fixture.leader().await, None, "of another leader");
    assert_eq!(fixture.proclaim(U2, "128", "0", "").await, YES);
    assert_eq!(fixture.proclaim(U1, "64", "1", "late").await, NO);
    assert_eq!(fixture.resign(U1, "64").await, NO);
    assert_eq!(fixture.leader().await, Some((128, String::new())));
    fixture.messages(&mut subscriber).await;
    assert_eq!(fixture.resign(U2, "128").await, YES);
    assert_eq!(fixture.resign(U2, "128").await, NO);
    assert_eq!(fixture.messages(&mut subscriber).await.len(), 1);
    assert_eq!(fixture.server.keys().await, ["L"]);
}

#[tokio::test]
async fn the_last_value_stands_whatever_comes_late() {
    let mut fixture = Fixture::new().await;
    fixture.leads(U1).await;
    assert_eq!(fixture.proclaim(U1, "64", "1", "second").await, YES);
    assert_eq!(fixture.proclaim(U1, "64", "0", "first").await, YES);
    assert_eq!(fixture.leader().await, Some((64, "second".to_owned())));
    // A hand-off within a client keeps the holder id.
    assert_eq!(fixture.proclaim(U1, "65", "0", "next").await, YES);
    assert_eq!(fixture.proclaim(U1, "64", "9", "late").await, NO);
    assert_eq!(fixture.resign(U1, "64").await, NO);
    assert_eq!(fixture.leader().await, Some((65, "next".to_owned())));
}

#[tokio::test]
async fn a_foreign_key_is_left_alone() {
    let mut fixture = Fixture::new().await;
    fixture.leads(U1).await;
    fixture.make(&["SET", LEADER, "x"]).await;
    let proclaim = [&[U1, "64", "0", "a", "60000"], &TELL[..]].concat();
    for (name, keys, args) in [
        ("leader_proclaim", &["L", LEADER][..], &proclaim[..]),
        ("leader_resign", &[LEADER], &[U1, "64", LEADER, "PUBLISH"]),
        ("leader_read", &["L", LEADER], &[]),
    ] {
        let error = fixture.refused(name, keys, args).await;
        assert_eq!(code(&error), Some("WRONGTYPE"), "{name}: {error}");
    }
    assert_eq!(fixture.ask::<String>(&["GET", LEADER]).await, "x");
}
