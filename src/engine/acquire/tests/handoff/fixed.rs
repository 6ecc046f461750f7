//! Tests hand-offs that take one script: to a fixed lease, and to another lease.

use std::time::Duration;

use super::*;
use crate::LostReason;
use crate::conn::Lane;

/// How much of a lease remains right after the request for it.
fn fresh(lease: Duration) -> Duration {
    lease - (lease / 100 + MS * 2)
}

fn late_takeover(after: Duration) -> impl Fn(&Sent, What) -> Option<Answer> {
    move |sent, what| {
        let is_takeover = what == What::Renew && sent.lane == Lane::Command;
        is_takeover.then(|| Answer::Late(after, Value::Array(vec![Value::Int(1)])))
    }
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_begins_anew_with_one_script() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").fixed_lease(LEASE);
    let mut guard = lock.lock().await.unwrap();
    for held in [0, 0, 1, 10_000, 300] {
        let next = waiter(lock.clone()).await;
        tokio::time::sleep(MS * held).await;
        // Starts a new slice.
        client.core().locals.all()[0].reset_handoffs();
        let before = server.sent().len();
        drop(guard);
        guard = got(next).await;
        let sent = server.sent().split_off(before);
        let [renewal] = &sent[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(What::of(renewal), What::Renew);
        assert_eq!(renewal.lane, Lane::Command);
        assert_eq!(holder(renewal), holder(&takes(&server)[0]));
        assert_eq!(args(renewal)[1], "30000");
        assert_eq!(guard.remaining(), fresh(LEASE));
    }
    assert_eq!(takes(&server).len(), 1);
    assert_eq!(guard.lost().await, LostReason::Expired);
    drop(guard);
    nothing_is_left(&client).await;
}

/// The lease counts from before the request was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_answer_is_counted_from_before_it_was_asked_for() {
    let server = generous(late_takeover(MS * 700));
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").fixed_lease(LEASE);
    let guard = lock.lock().await.unwrap();
    let next = waiter(lock).await;
    tokio::time::sleep(MS * 4_000).await;
    client.core().locals.all()[0].reset_handoffs();
    drop(guard);
    let guard = next.await.unwrap().unwrap();
    assert_eq!(guard.remaining(), fresh(LEASE) - MS * 700);
    assert_eq!(whats(&server), [What::Take, What::Renew]);
    drop(guard);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_renewed_lease_goes_on_as_a_longer_fixed_one() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let next = waiter(client.lock("x").fixed_lease(LEASE * 2)).await;
    drop(guard);
    let guard = got(next).await;
    let begun = server.clock().now();
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert_eq!(begun.until(server.clock().now()), fresh(LEASE * 2));
    assert_eq!(whats(&server), [What::Take, What::Renew], "not renewed");
    drop(guard);
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_goes_on_as_a_renewed_one() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").fixed_lease(LEASE / 2);
    let guard = guard.lock().await.unwrap();
    let next = waiter(client.lock("x")).await;
    drop(guard);
    let guard = got(next).await;
    assert_eq!(whats(&server), [What::Take, What::Renew]);
    assert_eq!(guard.remaining(), fresh(LEASE));
    tokio::time::sleep(LEASE * 4).await;
    assert!(!guard.is_lost());
    drop(guard);
    nothing_is_left(&client).await;
}

/// A renewal of the former lease that comes due while the server is asked does not lengthen a fixed lease.
#[tokio::test(start_paused = true)]
async fn a_fixed_lease_is_not_lengthened_by_what_it_was() {
    let server = generous(late_takeover(MS * 900));
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let lease = LEASE * 3 / 4;
    let next = waiter(client.lock("x").fixed_lease(lease)).await;
    tokio::time::sleep(MS * 9_300).await;
    client.core().locals.all()[0].reset_handoffs();
    let asked = server.clock().now();
    drop(guard);
    // A third of the renewed lease ends in the middle of this.
    let guard = next.await.unwrap().unwrap();
    let taken = asked.until(server.clock().now());
    assert_eq!(taken, MS * 900);
    assert_eq!(takes(&server).len(), 1);
    let remaining = guard.remaining();
    assert!(remaining <= lease - taken, "{remaining:?}");
    assert!(server.times(Lane::Renewal).is_empty(), "never renewed");
    assert_eq!(guard.lost().await, LostReason::Expired);
    drop(guard);
    nothing_is_left(&client).await;
}
