//! Many waiters with owners of their own: a grant wakes those it concerns.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lockset::{MultiLock, Owner};
use lockset_testkit::{Server, unique_name, within};

use crate::support::{SOON, idle, nothing_left, patient_client, waiting};

const TASKS: usize = 300;

/// A generous bound for one waiter, and far less than one for each grant before its own.
const POLLS_EACH: usize = 15;

/// Counts how often a future is polled.
async fn counted<F: Future>(polls: Arc<AtomicUsize>, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        polls.fetch_add(1, Ordering::Relaxed);
        work.as_mut().poll(context)
    })
    .await
}

#[tokio::test]
async fn a_grant_wakes_no_waiter_of_another_owner() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let guard = ours.lock(&name).lock().await.unwrap();
    let polls = Arc::<AtomicUsize>::default();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let lock = ours.lock(&name).owner(&Owner::new());
            let visit = async move { lock.lock().await?.release().await };
            lockset_testkit::spawn(counted(Arc::clone(&polls), visit))
        })
        .collect();
    waiting(&ours, TASKS).await;
    polls.store(0, Ordering::Relaxed);
    guard.release().await.unwrap();
    for task in tasks {
        within(SOON * 4, task).await.unwrap().unwrap();
    }
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls < TASKS * POLLS_EACH, "{polls} polls");
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_grant_wakes_no_waiter_of_another_multi_lock() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let names = ["a", "b"].map(unique_name);
    let lock = || MultiLock::new(names.each_ref().map(|name| ours.lock(name))).unwrap();
    let guard = lock().lock().await.unwrap();
    let polls = Arc::<AtomicUsize>::default();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let lock = lock();
            let visit = async move { lock.lock().await?.release().await };
            lockset_testkit::spawn(counted(Arc::clone(&polls), visit))
        })
        .collect();
    waiting(&ours, TASKS).await;
    polls.store(0, Ordering::Relaxed);
    guard.release().await.unwrap();
    for task in tasks {
        within(SOON * 4, task).await.unwrap().unwrap();
    }
    let polls = polls.load(Ordering::Relaxed);
    assert!(polls < TASKS * POLLS_EACH, "{polls} polls");
    idle(&ours).await;
    nothing_left(&server).await;
}
