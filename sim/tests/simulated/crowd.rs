//! Many waiters of one client for a fair lock: one script keeps the places of all.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use lockset::Client;
use lockset_sim::Server;

const SECOND: Duration = Duration::from_secs(1);
const WAITERS: u64 = 60;

fn wait(client: &Client) -> tokio::task::JoinHandle<()> {
    let lock = client.fair_lock("desk");
    tokio::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() })
}

#[tokio::test(start_paused = true)]
async fn their_heartbeats_are_one_script() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let held = theirs.fair_lock("desk").lock().await.unwrap();
    let waiters: Vec<_> = (0..WAITERS).map(|_| wait(&ours)).collect();
    // Each asks once or twice by itself.
    server.advance(3 * SECOND).await;
    let before = server.commands();
    server.advance(30 * SECOND).await;
    let commands = server.commands() - before;
    // The heartbeats of all, a poll and a recall of the first, and the renewals of the holder.
    assert!((60..=110).contains(&commands), "{commands}");
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap();
    }
}

/// Each would delay the others by its place when its turn comes, one after the other.
#[tokio::test(start_paused = true)]
async fn those_that_are_not_polled_lose_their_places() {
    let server = Server::new();
    let (ours, theirs) = (server.client().await, server.client().await);
    let held = theirs.fair_lock("desk").lock().await.unwrap();
    let lock = ours.fair_lock("desk");
    let mut left: Vec<Pin<Box<dyn Future<Output = _> + Send>>> = Vec::new();
    for _ in 0..WAITERS {
        let lock = lock.clone();
        left.push(Box::pin(async move { lock.lock().await }));
    }
    // Until all of them rest.
    for _ in 0..2_000 {
        let all = |context: &mut Context<'_>| {
            let mut all = left.iter_mut();
            assert!(all.all(|waiter| waiter.as_mut().poll(context).is_pending()));
            Poll::Ready(())
        };
        std::future::poll_fn(all).await;
        server.advance(Duration::from_millis(1)).await;
    }
    let places = theirs.fair_lock("desk").waiters().await.unwrap();
    assert_eq!(places.len() as u64, WAITERS);
    let next = wait(&theirs);
    server.advance(10 * SECOND).await;
    held.release().await.unwrap();
    server.advance(SECOND).await;
    assert!(next.is_finished());
    drop(left);
}
