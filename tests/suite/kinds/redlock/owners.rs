//! Tasks of one owner that re-enter while other tasks release.

use std::time::Duration;

use lockset::{Owner, RedlockLock};
use lockset_testkit::{unique_name, within};

use super::Nodes;
use crate::support::SOON;

const TASKS: usize = 8;
const CALLS: usize = 100;

/// A re-entry that comes just as the hold ends starts a new hold: no call fails while all servers
/// are healthy.
async fn come_and_go(fenced: bool, waits: Option<Duration>) {
    let nodes = Nodes::start(3).await;
    let lock = nodes.redlock.lock(unique_name("owners"));
    let lock = lock.owner(&Owner::new());
    let lock = if fenced { lock.fenced() } else { lock };
    let tasks = (0..TASKS).map(|_| lockset_testkit::spawn(calls(lock.clone(), waits)));
    let mut failed = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        failed.extend(within(SOON * 12, task).await.unwrap());
    }
    let count = failed.len();
    assert!(
        count == 0,
        "{count} of {} calls failed: {:?}",
        TASKS * CALLS,
        failed.first()
    );
    nodes.nothing_left().await;
}

/// The errors of `CALLS` calls.
async fn calls(lock: RedlockLock, waits: Option<Duration>) -> Vec<lockset::Error> {
    let mut failed = Vec::new();
    for _ in 0..CALLS {
        let guard = match waits {
            Some(wait) => lock.try_lock_for(wait).await,
            None => lock.try_lock().await,
        };
        match guard {
            Ok(Some(guard)) => failed.extend(guard.release().await.err()),
            Ok(None) => {}
            Err(error) => failed.push(error),
        }
    }
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn they_wait() {
    come_and_go(false, Some(SOON * 4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_wait_for_a_token() {
    come_and_go(true, Some(SOON * 4)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_try() {
    come_and_go(false, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_try_for_a_token() {
    come_and_go(true, None).await;
}
