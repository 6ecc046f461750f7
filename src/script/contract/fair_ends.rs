//! The end of a queue: what dead waiters of ours leave is gone after a while, and Redisson's are let be.

use redis::Value;

use super::fair::{ALIVE, KEYS, QUEUE, TIMEOUTS, leave_args};
use super::fixture::{Fixture, HELD, U0, U1, U2, UNKNOWN, near};

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;

impl Fixture {
    /// What is left of the queue and of the scores.
    async fn ends(&mut self) -> [i64; 2] {
        [self.pttl_of(QUEUE).await, self.pttl_of(TIMEOUTS).await]
    }

    async fn ends_in(&mut self, span: i64) {
        let ends = self.ends().await;
        assert!(ends.iter().all(|end| near(*end, span)), "{ends:?}");
    }
}

#[tokio::test]
async fn a_queue_of_ours_ends_an_hour_after_the_last_has_asked() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.ends_in(HOUR).await;
    fixture.fair(U2).await;
    fixture.ends_in(HOUR).await;
    assert!(fixture.pttl_of(ALIVE).await > 0);
    // Whoever is there makes it longer.
    for key in [QUEUE, TIMEOUTS] {
        fixture.make(&["PEXPIRE", key, "60000"]).await;
    }
    fixture.fair(U1).await;
    fixture.ends_in(HOUR).await;
    // One has it and one is left: it still has an end.
    fixture.fair_release(U0, "0").await;
    assert_eq!(fixture.fair(U1).await, HELD);
    fixture.ends_in(HOUR).await;
    // It has come to that end while one was away, who is there again.
    fixture.make(&["DEL", QUEUE, TIMEOUTS]).await;
    fixture.fair(U2).await;
    fixture.in_all_three(&[U2]).await;
    fixture.ends_in(HOUR).await;
}

/// Redisson's waiters sleep until it may be their turn, and give their queue no end.
#[tokio::test]
async fn a_queue_with_redissons_in_it_is_let_be() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.redisson_waits("r:1", 300_000).await;
    fixture.fair(U1).await;
    fixture.fair(U1).await;
    assert_eq!(fixture.ends().await, [-1; 2], "as Redisson made it");
    fixture.make(&["FLUSHALL"]).await;

    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.redisson_waits("r:1", 900_000).await;
    fixture.ends_in(HOUR).await;
    fixture.fair(U1).await;
    fixture.ends_in(YEAR).await;
    // It is gone, and ours are alone.
    fixture.make(&["LREM", QUEUE, "0", "r:1"]).await;
    fixture.make(&["ZREM", TIMEOUTS, "r:1"]).await;
    fixture.fair(U1).await;
    assert!(fixture.ends().await.iter().all(|end| *end > HOUR / 2));
}

/// Whichever way the last of ours leaves, those of Redisson behind it are not to end with it.
#[tokio::test]
async fn the_last_of_ours_leaves_redissons_without_its_end() {
    for way in ["its turn", "gives up", "dead"] {
        let mut fixture = Fixture::new().await;
        fixture.fair(U0).await;
        fixture.fair(U1).await;
        fixture.redisson_waits("r:1", 900_000).await;
        fixture.ends_in(HOUR).await;
        if way == "dead" {
            fixture.dies(U1).await;
        }
        if way == "gives up" {
            fixture.fair_release(U1, "0").await;
        }
        let told = fixture.fair_release(U0, "0").await;
        assert_eq!(told, Value::Int(0), "nobody listens");
        if way == "its turn" {
            fixture.ends_in(HOUR).await;
            assert_eq!(fixture.fair_try(U1).await, HELD);
        } else {
            assert_eq!(fixture.fair_try(U1).await, UNKNOWN);
        }
        fixture.ends_in(YEAR).await;
    }
}

/// What a user lacked the right to take out with its place is no waiter of Redisson's.
#[tokio::test]
async fn what_is_left_beside_an_empty_queue_ends_as_ours() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2] {
        fixture.fair(holder).await;
    }
    let mut user = fixture.user("-zrem").await;
    let denied = user.run("fair_release", &KEYS, &leave_args(U1, "0")).await;
    assert!(denied.is_err(), "{denied:?}");
    fixture.fair_release(U2, "0").await;
    let [queue, scores] = fixture.ends().await;
    assert_eq!(queue, -2);
    assert!(near(scores, HOUR), "{scores}");
}
