//! Rounds of a barrier: all waiting parties get the same result, and a repeat counts once.

use super::fixture::{Fixture, U1, U2, U3, U4, U8};
use crate::conn::error_reply::code;
use crate::script::reply::{self, Arrived};

const PARTIES: &str = "lockset_barrier:{B}";
const ARRIVED: &str = "lockset_barrier_arrived:{B}";
const OVER: &str = "lockset_barrier_over:{B}:";
const TELL: [&str; 2] = [PARTIES, "PUBLISH"];
const LEADS: Arrived = Arrived::Passed { is_leader: true };
const PASSED: Arrived = Arrived::Passed { is_leader: false };

fn broken(party: &str, is_dead: bool) -> Arrived {
    let party = party.to_owned();
    Arrived::Broken { party, is_dead }
}

impl Fixture {
    async fn arrive(&mut self, party: &str, parties: &str) -> Arrived {
        let over = format!("{OVER}{party}");
        let args = [&[party, parties, "30000", OVER, "60000"], &TELL[..]].concat();
        let keys = [PARTIES, ARRIVED, &over];
        let reply = self.run("barrier_arrive", &keys, &args).await;
        reply::arrived(&reply).unwrap()
    }

    /// Arrives as a party whose client has withdrawn others.
    async fn arrive_for(&mut self, party: &str, parties: &str, gone: &[&str]) -> Arrived {
        let over = format!("{OVER}{party}");
        let first = [&[party, parties, "30000", OVER, "60000"], &TELL[..], &["0"]];
        let args = [&first.concat(), gone].concat();
        let keys = [PARTIES, ARRIVED, &over];
        let reply = self.run("barrier_arrive", &keys, &args).await;
        reply::arrived(&reply).unwrap()
    }

    /// Asks again as a party that knows that it waits.
    async fn asks_again(&mut self, party: &str, parties: &str) -> Arrived {
        let over = format!("{OVER}{party}");
        let args = [&[party, parties, "30000", OVER, "60000"], &TELL[..], &["1"]].concat();
        let keys = [PARTIES, ARRIVED, &over];
        let reply = self.run("barrier_arrive", &keys, &args).await;
        reply::arrived(&reply).unwrap()
    }

    async fn leave(&mut self, party: &str, breaks: &str) -> Arrived {
        let over = format!("{OVER}{party}");
        let args = [&[party, breaks, OVER, "60000"], &TELL[..]].concat();
        let keys = [PARTIES, ARRIVED, &over];
        let reply = self.run("barrier_leave", &keys, &args).await;
        reply::arrived(&reply).unwrap()
    }

    /// Ends the lease of this party.
    async fn dies_there(&mut self, party: &str) {
        self.make(&["ZADD", ARRIVED, "XX", "1", party]).await;
    }
}

#[tokio::test]
async fn all_go_on_when_the_last_one_comes() {
    let mut fixture = Fixture::new().await;
    let mut subscriber = fixture.subscriber().await;
    for round in 0..3 {
        let [one, two, three] = [U1, U2, U3].map(|id| format!("{id} {round}"));
        for _ in 0..2 {
            assert_eq!(fixture.arrive(&one, "3").await, Arrived::Waits(1));
        }
        assert_eq!(fixture.arrive(&two, "3").await, Arrived::Waits(2));
        assert_eq!(fixture.arrive(&one, "3").await, Arrived::Waits(2));
        assert_eq!(fixture.messages(&mut subscriber).await, [""; 0]);
        // A repeat does not start the next round.
        for _ in 0..2 {
            assert_eq!(fixture.arrive(&three, "3").await, LEADS);
            assert_eq!(fixture.arrive(&one, "3").await, PASSED);
        }
        // The round has passed, so a party can no longer leave it.
        assert_eq!(fixture.leave(&two, "1").await, PASSED);
        let told = format!("{PARTIES} 0");
        assert_eq!(fixture.messages(&mut subscriber).await, [&*told]);
    }
    assert_eq!(fixture.arrive(U4, "1").await, LEADS);
    for key in fixture.server.keys().await {
        assert!(key.starts_with(OVER), "{key}");
        assert!(fixture.pttl_of(&key).await > 0, "{key} has no lease");
    }
}

#[tokio::test]
async fn a_party_that_dies_breaks_the_round_for_all() {
    let mut fixture = Fixture::new().await;
    fixture.arrive(U1, "4").await;
    fixture.arrive(U2, "4").await;
    fixture.arrive(U3, "4").await;
    fixture.dies_there(U2).await;
    assert_eq!(fixture.arrive(U1, "4").await, broken(U2, true));
    assert_eq!(fixture.arrive(U3, "4").await, broken(U2, true));
    // The party was only suspended.
    assert_eq!(fixture.arrive(U2, "4").await, broken(U2, true));
    // A new party finds the dead one, and starts the next round with any number of parties.
    let next = format!("{U1} again");
    fixture.arrive(&next, "2").await;
    fixture.dies_there(&next).await;
    assert_eq!(fixture.arrive(U4, "3").await, Arrived::Waits(1));
    assert_eq!(fixture.arrive(&next, "2").await, broken(&next, true));
    // A suspended party that no other party has missed stays alive.
    fixture.dies_there(U4).await;
    assert_eq!(fixture.arrive(U4, "3").await, Arrived::Waits(1));
    assert!(fixture.score(ARRIVED, U4).await > fixture.now().await);
}

/// The party stood still until the server had forgotten the result of its round.
#[tokio::test]
async fn a_party_of_a_forgotten_round_counts_in_no_other() {
    let mut fixture = Fixture::new().await;
    assert_eq!(fixture.arrive(U1, "2").await, Arrived::Waits(1));
    assert_eq!(fixture.asks_again(U1, "2").await, Arrived::Waits(1));
    assert_eq!(fixture.arrive(U2, "2").await, LEADS);
    assert_eq!(fixture.asks_again(U1, "2").await, PASSED);
    fixture.make(&["DEL", &format!("{OVER}{U1}")]).await;
    assert_eq!(fixture.arrive(U3, "2").await, Arrived::Waits(1));
    assert_eq!(fixture.asks_again(U1, "2").await, broken(U1, true));
    assert_eq!(fixture.asks_again(U3, "2").await, Arrived::Waits(1));
}

/// Only a new party needs room.
#[tokio::test]
async fn a_full_server_lets_parties_wait_and_leave() {
    let mut fixture = Fixture::new().await;
    for party in [U1, U2, U3] {
        fixture.arrive(party, "5").await;
    }
    fixture.fill().await;
    let over = format!("{OVER}{U4}");
    let args = [&[U4, "5", "30000", OVER, "60000"], &TELL[..], &["0"]].concat();
    let refused = fixture
        .refused("barrier_arrive", &[PARTIES, ARRIVED, &over], &args)
        .await;
    assert_eq!(code(&refused), Some("OOM"), "{refused}");
    assert_eq!(fixture.asks_again(U1, "5").await, Arrived::Waits(3));
    assert_eq!(fixture.leave(U3, "0").await, broken(U3, false));
    fixture.make(&["CONFIG", "SET", "maxmemory", "0"]).await;
    fixture.dies_there(U2).await;
    fixture.fill().await;
    assert_eq!(fixture.asks_again(U1, "5").await, broken(U2, true));
    fixture.make(&["CONFIG", "SET", "maxmemory", "0"]).await;
    for party in [U4, U8] {
        fixture.arrive(party, "5").await;
    }
    fixture.fill().await;
    assert_eq!(fixture.leave(U4, "1").await, broken(U4, false));
    assert_eq!(fixture.asks_again(U8, "5").await, broken(U4, false));
}

#[tokio::test]
async fn one_that_leaves_breaks_the_round_only_if_it_says_so() {
    let mut fixture = Fixture::new().await;
    fixture.arrive(U1, "2").await;
    for _ in 0..2 {
        assert_eq!(fixture.leave(U1, "0").await, broken(U1, false));
    }
    assert_eq!(
        fixture.arrive(U1, "2").await,
        broken(U1, false),
        "it comes late"
    );
    assert!(!fixture.server.keys().await.contains(&PARTIES.to_owned()));
    fixture.arrive(U2, "3").await;
    fixture.arrive(U3, "3").await;
    let mut subscriber = fixture.subscriber().await;
    for _ in 0..2 {
        assert_eq!(fixture.leave(U3, "1").await, broken(U3, false));
    }
    assert_eq!(fixture.messages(&mut subscriber).await.len(), 1);
    assert_eq!(fixture.arrive(U2, "3").await, broken(U3, false));
}

#[tokio::test]
async fn a_party_that_leaves_does_not_count_beside_the_one_that_comes_for_it() {
    let mut fixture = Fixture::new().await;
    fixture.arrive(U1, "3").await;
    fixture.arrive(U2, "3").await;
    for _ in 0..2 {
        let arrived = fixture.arrive_for(U3, "3", &[U2]).await;
        assert_eq!(arrived, Arrived::Waits(2));
    }
    // The calls of the withdrawn party arrive later.
    assert_eq!(fixture.leave(U2, "1").await, broken(U2, false));
    assert_eq!(fixture.arrive(U2, "3").await, broken(U2, false));
    assert_eq!(fixture.arrive(U1, "3").await, Arrived::Waits(2));
    // A party that waited alone, or whose lease has ended, is not part of the round that begins.
    fixture.leave(U1, "0").await;
    fixture.dies_there(U3).await;
    let arrived = fixture.arrive_for(U4, "2", &[U3, U2]).await;
    assert_eq!(arrived, Arrived::Waits(1));
}

#[tokio::test]
async fn all_name_one_number_of_parties() {
    let mut fixture = Fixture::new().await;
    fixture.arrive(U1, "3").await;
    assert_eq!(fixture.arrive(U2, "2").await, Arrived::Parties(3));
    assert_eq!(fixture.arrive(U1, "3").await, Arrived::Waits(1));
}

#[tokio::test]
async fn a_foreign_key_is_left_alone() {
    let mut fixture = Fixture::new().await;
    for key in [PARTIES, ARRIVED] {
        fixture.make(&["HSET", key, "a", "b"]).await;
        let over = format!("{OVER}{U1}");
        let args = [&[U1, "2", "30000", OVER, "60000"], &TELL[..]].concat();
        let keys = [PARTIES, ARRIVED, &over];
        let error = fixture.refused("barrier_arrive", &keys, &args).await;
        assert_eq!(code(&error), Some("WRONGTYPE"), "{error}");
        assert_eq!(fixture.server.keys().await, [key]);
        fixture.make(&["DEL", key]).await;
    }
}

/// Otherwise the waiting parties would go on without the party that could not end the round.
#[tokio::test]
async fn a_party_without_a_right_ends_no_round() {
    let mut fixture = Fixture::new().await;
    for right in ["-del", "-set"] {
        fixture.make(&["FLUSHALL"]).await;
        fixture.arrive(U1, "3").await;
        fixture.arrive(U2, "3").await;
        let mut user = fixture.user(right).await;
        let over = format!("{OVER}{U3}");
        let args = [&[U3, "3", "30000", OVER, "60000"], &TELL[..], &["0"]].concat();
        let keys = [PARTIES, ARRIVED, &over];
        user.refused("barrier_arrive", &keys, &args).await;
        fixture.leave(U3, "0").await;
        assert_eq!(
            fixture.asks_again(U1, "3").await,
            Arrived::Waits(2),
            "{right}"
        );
        assert_eq!(fixture.arrive(U4, "3").await, LEADS);
        for party in [U1, U2] {
            assert_eq!(fixture.asks_again(party, "3").await, PASSED);
        }
    }
}

/// The error of an arriving party implies that nothing was changed.
#[tokio::test]
async fn a_party_that_is_not_there_leaves_no_foreign_key() {
    let mut fixture = Fixture::new().await;
    fixture.make(&["SET", PARTIES, "a text"]).await;
    for breaks in ["0", "1"] {
        assert_eq!(fixture.leave(U1, breaks).await, broken(U1, false));
        assert_eq!(fixture.ask::<String>(&["GET", PARTIES]).await, "a text");
    }
    fixture.make(&["SET", PARTIES, "7"]).await;
    let arrived = fixture.arrive_for(U2, "2", &[U3]).await;
    assert_eq!(arrived, Arrived::Parties(7));
    assert_eq!(fixture.ask::<String>(&["GET", PARTIES]).await, "7");
}
