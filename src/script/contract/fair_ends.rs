//! The end of a queue: places of dead lockset waiters expire after a while, places of Redisson's waiters stay.

use redis::Value;

use super::fair::{ALIVE, KEYS, QUEUE, TIMEOUTS, leave_args};
use super::fixture::{Fixture, HELD, U0, U1, U2, UNKNOWN, near};

const HOUR: i64 = 3_600_000;
const YEAR: i64 = 365 * 24 * HOUR;

impl Fixture {
    /// The remaining lives of the queue and of the scores.
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
    // Every waiter of lockset that asks prolongs the queue.
    for key in [QUEUE, TIMEOUTS] {
        fixture.make(&["PEXPIRE", key, "60000"]).await;
    }
    fixture.fair(U1).await;
    fixture.ends_in(HOUR).await;
    // One waiter has taken the lock and one is left: the queue still has an end.
    fixture.fair_release(U0).await;
    assert_eq!(fixture.fair(U1).await, HELD);
    fixture.ends_in(HOUR).await;
    // The queue expired while a waiter was away. It asks again.
    fixture.make(&["DEL", QUEUE, TIMEOUTS]).await;
    fixture.fair(U2).await;
    fixture.in_all_three(&[U2]).await;
    fixture.ends_in(HOUR).await;
}

/// Redisson's waiters sleep until their turn may have come, and set no end for their queue.
#[tokio::test]
async fn a_queue_with_redissons_in_it_is_let_be() {
    let mut fixture = Fixture::new().await;
    fixture.fair(U0).await;
    fixture.redisson_waits("r:1", 300_000).await;
    fixture.fair(U1).await;
    fixture.fair(U1).await;
    assert_eq!(fixture.ends().await, [-1; 2], "it has no end");
    fixture.make(&["FLUSHALL"]).await;

    fixture.fair(U0).await;
    fixture.fair(U1).await;
    fixture.redisson_waits("r:1", 900_000).await;
    fixture.ends_in(HOUR).await;
    fixture.fair(U1).await;
    fixture.ends_in(YEAR).await;
    // Redisson's waiter is gone, and only waiters of lockset are left.
    fixture.make(&["LREM", QUEUE, "0", "r:1"]).await;
    fixture.make(&["ZREM", TIMEOUTS, "r:1"]).await;
    fixture.fair(U1).await;
    assert!(fixture.ends().await.iter().all(|end| *end > HOUR / 2));
}

/// The last lockset waiter may leave in several ways. The Redisson waiters behind it keep their places.
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
            fixture.fair_release(U1).await;
        }
        let told = fixture.fair_release(U0).await;
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

/// An entry that a user had no right to remove does not pass for a Redisson waiter.
#[tokio::test]
async fn what_is_left_beside_an_empty_queue_ends_as_ours() {
    let mut fixture = Fixture::new().await;
    for holder in [U0, U1, U2] {
        fixture.fair(holder).await;
    }
    let mut user = fixture.user("-zrem").await;
    let denied = user.run("fair_release", &KEYS, &leave_args(U1)).await;
    assert!(denied.is_err(), "{denied:?}");
    fixture.fair_release(U2).await;
    let [queue, scores] = fixture.ends().await;
    assert_eq!(queue, -2);
    assert!(near(scores, HOUR), "{scores}");
}
