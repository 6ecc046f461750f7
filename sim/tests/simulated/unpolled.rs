//! Calls whose futures are kept and not polled: they stop no other call for longer than a lease.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lockset_sim::Server;

const SECOND: Duration = Duration::from_secs(1);

/// Polls a call once and leaves it.
async fn leave<F: Future>(call: &mut Pin<Box<F>>) {
    let once = |context: &mut Context<'_>| {
        assert!(call.as_mut().poll(context).is_pending());
        Poll::Ready(())
    };
    std::future::poll_fn(once).await;
}

#[tokio::test(start_paused = true)]
async fn permits_are_not_renewed_for_a_call_that_does_not_come() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let [seats, also] = [&ours, &theirs].map(|client| client.semaphore("seats").permits(2));
    let both = seats.many(2);
    let mut left = Box::pin(both.acquire());
    leave(&mut left).await;
    server.advance(SECOND).await;
    assert_eq!(
        also.available().await.unwrap(),
        0,
        "given to the call that is left"
    );
    let lease = 30 * SECOND;
    let permit = also.try_acquire_for(lease + SECOND).await.unwrap();
    drop(permit.expect("within a lease"));
    // When it is polled again it has to ask again.
    let guard = left.await.unwrap();
    assert!(guard.count() == 2 && !guard.is_lost());
    server.advance(2 * lease).await;
    assert!(!guard.is_lost(), "it is renewed now");
}

/// The lock of the election is granted first, and the value written after that.
#[tokio::test(start_paused = true)]
async fn nobody_leads_for_longer_than_a_lease_before_its_value_is_written() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let (election, other) = (ours.election("a"), theirs.election("a"));
    let mut left = Box::pin(election.campaign());
    let lock = theirs.lock("a");
    while lock.holder().await.unwrap().is_none() {
        leave(&mut left).await;
        server.advance(Duration::from_millis(1)).await;
    }
    // It sees the grant, and begins to write its value.
    leave(&mut left).await;
    let lease = 30 * SECOND;
    let leads = other.campaign_for(lease + SECOND).await.unwrap();
    leads.expect("within a lease").resign().await.unwrap();
    // When it is polled again it has to campaign again.
    let leads = left.await.unwrap();
    server.advance(2 * lease).await;
    assert!(!leads.is_lost(), "it is renewed now");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_begins_to_resign_leads_no_longer() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let (election, other) = (ours.election("a"), theirs.election("a"));
    let mut left = Box::pin(election.campaign().await.unwrap().resign());
    leave(&mut left).await;
    let leads = other.campaign_for(SECOND).await.unwrap();
    leads.expect("at once").resign().await.unwrap();
    left.await.unwrap();
}

/// The second waiter is about to ask in the place of the first when it leaves as well.
#[tokio::test(start_paused = true)]
async fn waiters_for_permits_that_leave_together_leave_no_place() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let [seats, also] = [&ours, &theirs].map(|client| client.semaphore("seats").permits(3).fair());
    let held = also.many(2).acquire().await.unwrap();
    let (three, two) = (seats.clone().many(3), seats.many(2));
    for _ in 0..8 {
        let (first, second) = (
            tokio::spawn({
                let three = three.clone();
                async move { three.acquire().await.map(drop) }
            }),
            tokio::spawn({
                let two = two.clone();
                async move { two.acquire().await.map(drop) }
            }),
        );
        server.advance(SECOND).await;
        server.delay(Duration::from_millis(4));
        first.abort();
        second.abort();
        server.advance(Duration::from_millis(50)).await;
        let left: Vec<_> = server.keys();
        assert!(
            left.iter().all(|key| !key.contains("sem_queue")),
            "{left:?}"
        );
        server.delay(Duration::ZERO);
    }
    drop(held);
}

/// The value is written again once in a lease. A leader resigns just before that, or while a write has had no answer
/// for some time.
#[tokio::test(start_paused = true)]
async fn a_leader_that_resigns_writes_its_value_no_more() {
    let (lease, ms) = (30 * SECOND, Duration::from_millis(1));
    for unanswered in (0..40).map(|times| times * 50 * ms) {
        let server = Server::new();
        let client = server.client().await;
        let leads = client.election("a").campaign().await.unwrap();
        server.advance(lease - 2 * ms).await;
        if !unanswered.is_zero() {
            server.partition(&client);
            server.advance(unanswered).await;
        }
        server.delay(4 * ms);
        server.heal();
        leads.resign().await.unwrap();
        server.advance(SECOND).await;
        let left = server.keys();
        assert!(left.iter().all(|key| !key.contains("leader")), "{left:?}");
    }
}
