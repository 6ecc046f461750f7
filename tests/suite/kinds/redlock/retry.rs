//! Contention, waiting and timing out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lockset_testkit::{unique_name, within};
use tokio::sync::Barrier;

use super::{LONG, Nodes};
use crate::support::{SOON, took_less};

/// Five processes request the lock on the same five servers at the same time, several times.
#[tokio::test(flavor = "multi_thread")]
async fn split_votes_make_progress_and_exclude() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    let (start, inside) = (Arc::new(Barrier::new(5)), Arc::new(AtomicU32::new(0)));
    let mut tasks = Vec::new();
    for _ in 0..5 {
        let lock = nodes.stranger(LONG).await.lock(&name);
        let (start, inside) = (Arc::clone(&start), Arc::clone(&inside));
        tasks.push(lockset_testkit::spawn(async move {
            for _ in 0..10 {
                start.wait().await;
                let guard = lock.lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::task::yield_now().await;
                assert!(!guard.is_lost());
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        within(SOON * 6, task).await.unwrap();
    }
    nodes.nothing_left().await;
}

/// The tasks of one process do not split the vote.
#[tokio::test]
async fn tasks_of_a_process_are_served_in_order() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (lock, order) = (nodes.redlock.lock(&name), Arc::clone(&order));
        tasks.push(lockset_testkit::spawn(async move {
            let guard = lock.lock().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        all_wait(&nodes, number + 1).await;
    }
    guard.release().await.unwrap();
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    nodes.nothing_left().await;
}

async fn all_wait(nodes: &Nodes, count: usize) {
    lockset_testkit::eventually(SOON, "they wait", async || {
        let waiters = nodes.clients.iter().map(|client| client.stats().waiters);
        waiters.sum::<usize>() == count
    })
    .await;
}

/// A process that always has a waiter still lets other processes in.
#[tokio::test(flavor = "multi_thread")]
async fn no_process_starves() {
    let nodes = Nodes::start(3).await;
    let stranger = nodes.stranger(LONG).await;
    let name = unique_name("redlock");
    let stop = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for _ in 0..8 {
        let (lock, stop) = (nodes.redlock.lock(&name), Arc::clone(&stop));
        tasks.push(lockset_testkit::spawn(async move {
            while stop.load(Ordering::Relaxed) == 0 {
                lock.lock().await.unwrap().release().await.unwrap();
            }
        }));
    }
    let began = Instant::now();
    for _ in 0..20 {
        let guard = within(SOON, stranger.lock(&name).lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    took_less(began, SOON);
    stop.store(1, Ordering::Relaxed);
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    nodes.nothing_left().await;
}

#[tokio::test]
async fn a_timed_wait_ends_and_leaves_nothing() {
    let nodes = Nodes::start(3).await;
    let stranger = nodes.stranger(LONG).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    let wait = Duration::from_millis(150);
    for redlock in [&stranger, &nodes.redlock] {
        let began = Instant::now();
        let got = within(SOON, redlock.lock(&name).try_lock_for(wait)).await;
        assert!(got.unwrap().is_none());
        assert!(began.elapsed() >= wait);
    }
    let waiter = lockset_testkit::spawn({
        let lock = stranger.lock(&name);
        async move { lock.try_lock_for(SOON).await.unwrap() }
    });
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap().expect("it is free");
    guard.release().await.unwrap();
    nodes.nothing_left().await;
}

/// A future dropped at any moment leaves nothing on any server.
#[tokio::test(flavor = "multi_thread")]
async fn dropped_at_any_moment_it_leaves_nothing() {
    let nodes = Nodes::start(5).await;
    let stranger = nodes.stranger(LONG).await;
    let name = unique_name("redlock");
    for turn in 0..150_u32 {
        let lock = match turn % 3 {
            0 => nodes.redlock.lock(&name).fenced(),
            _ => nodes.redlock.lock(&name),
        };
        let held = match turn % 5 {
            0 => stranger.lock(&name).try_lock().await.unwrap(),
            _ => None,
        };
        let life = Duration::from_micros(u64::from(turn) * 37 % 4_000);
        let whole = async {
            let guard = lock.lock().await.unwrap();
            let again = guard.reenter().await.unwrap();
            guard.release().await.unwrap();
            again.release().await.unwrap();
        };
        // It may have completed or not.
        let _ = tokio::time::timeout(life, whole).await;
        drop(held);
    }
    nodes.nothing_left().await;
    let guard = within(SOON, stranger.lock(&name).lock()).await.unwrap();
    guard.release().await.unwrap();
    nodes.nothing_left().await;
}

/// As above, dropped at each poll.
#[tokio::test]
async fn dropped_at_every_await_it_leaves_nothing() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let mut polls = 0;
    loop {
        polls += 1;
        let lock = nodes.redlock.lock(&name).fenced();
        let mut whole = Box::pin(async move {
            let guard = lock.lock().await.unwrap();
            let again = guard.reenter().await.unwrap();
            again.release().await.unwrap();
            guard.release().await.unwrap();
        });
        let mut left = polls;
        let is_done = std::future::poll_fn(|context| {
            left -= 1;
            match whole.as_mut().poll(context) {
                std::task::Poll::Ready(()) => std::task::Poll::Ready(true),
                std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(false),
                std::task::Poll::Pending => std::task::Poll::Pending,
            }
        });
        let is_done = within(SOON, is_done).await;
        drop(whole);
        nodes.nothing_left().await;
        if is_done {
            break;
        }
    }
    // It waits for the votes, for the token and for the last release. A re-entry and its release need no server.
    assert!(polls > 3, "{polls}");
}

#[tokio::test]
async fn a_client_that_is_shut_down_has_no_vote() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    let guard = lock.lock().await.unwrap();
    nodes.all_joined().await;
    within(SOON, nodes.clients[0].clone().shutdown())
        .await
        .unwrap();
    assert!(!guard.is_lost(), "two of three are left");
    within(SOON, nodes.clients[1].clone().shutdown())
        .await
        .unwrap();
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, lockset::LostReason::Closed);
    assert!(guard.release().await.unwrap_err().is_not_held());
    let error = within(SOON, lock.lock()).await.unwrap_err();
    assert!(error.is_closed(), "{error}");
}
