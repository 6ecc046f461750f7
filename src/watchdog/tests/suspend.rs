//! Tests a clock that goes on while the timers stand still, as when a machine was suspended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{LEASE, MS, all_held, renewing};
use crate::api::loss::LostReason;
use crate::client::Client;
use crate::conn::Lane;
use crate::engine::clock::LOOK_MAX;
use crate::multilock::MultiLock;
use crate::testing::{Answer, Scripted};

/// Gives tasks a short time to run.
const MOMENT: Duration = Duration::from_millis(5);

fn server() -> Arc<Scripted> {
    renewing(|sent| Answer::Value(all_held(sent)))
}

#[tokio::test(start_paused = true)]
async fn who_sleeps_since_before_a_suspend_is_told() {
    let server = server();
    let client = Client::over(&server, LEASE);
    let locks = [client.lock("x"), client.lock("y").fixed_lease(LEASE)];
    for lock in locks.map(|lock| MultiLock::new([lock]).unwrap()) {
        let guard = lock.lock().await.unwrap();
        let told = tokio::spawn(async move {
            let lost = guard.run(std::future::pending::<()>()).await;
            (lost.unwrap_err().reason(), Instant::now())
        });
        sleep(MS * 100).await;
        server.clock().jump(LEASE);
        let resumed = Instant::now();
        let (reason, at) = told.await.unwrap();
        assert_eq!(reason, LostReason::Expired);
        let late = at.duration_since(resumed);
        assert!(late <= MS * 250 + MOMENT, "{late:?}");
    }
}

/// No step of the work begins after the lease has ended, even if the steps are short.
#[tokio::test(start_paused = true)]
async fn no_step_of_the_work_is_begun_after_a_suspend() {
    let server = server();
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let steps = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&steps);
    let work = tokio::spawn(async move {
        let work = async {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                sleep(MS * 10).await;
            }
        };
        guard.run::<_>(work).await.map(|(): ()| ())
    });
    sleep(MS * 95).await;
    let before = steps.load(Ordering::Relaxed);
    assert_eq!(before, 10);
    server.clock().jump(LEASE);
    assert!(work.await.unwrap().is_err());
    assert_eq!(steps.load(Ordering::Relaxed), before);
}

/// Checking the clock more often sends no extra renewals. Without holds there are no checks.
#[tokio::test(start_paused = true)]
async fn a_suspend_shorter_than_what_is_left_is_made_up_for() {
    let server = server();
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    sleep(LEASE / 6).await;
    assert!(server.times(Lane::Renewal).is_empty());
    server.clock().jump(LEASE / 2);
    sleep(LOOK_MAX + MOMENT).await;
    assert_eq!(server.times(Lane::Renewal).len(), 1, "overdue, so at once");
    assert!(!guard.is_lost() && guard.remaining() > LEASE * 9 / 10);
}

/// The shutdown is the first to look at the hold.
#[tokio::test(start_paused = true)]
async fn a_hold_that_expired_is_not_lost_to_the_shutdown_that_finds_it() {
    let server = server();
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    server.clock().jump(LEASE);
    client.shutdown().await.unwrap();
    assert_eq!(guard.loss().reason(), Some(LostReason::Expired));
}
