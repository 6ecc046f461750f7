//! Tests releases beside a shutdown.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{LEASE, MS};
use crate::client::Client;
use crate::script::catalog;
use crate::testing::{Answer, Scripted, granted};

/// The connection returns just when a client that shuts down undoes the calls of callers that left, and before a
/// release whose caller still waits.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_released_by_a_shutdown_is_none_that_was_lost() {
    let releases = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.is_release() {
        true => match releases.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::Unsent,
            1 => Answer::Value(granted()),
            _ => Answer::Value(redis::Value::Int(-1)),
        },
        false => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let (released, shut_down) = tokio::join!(guard.release(), client.shutdown());
    released.unwrap();
    shut_down.unwrap();
}

/// Only a keep request concerns a hold that is kept, so a hold that is missing was lost.
#[tokio::test(start_paused = true)]
async fn a_hold_that_is_to_be_left_is_lost_beside_a_shutdown_too() {
    let server = Scripted::new(|sent| {
        let is_keep = sent.words[1] == catalog::KEEP.sha();
        let not_held = redis::Value::Int(-1);
        match is_keep {
            true => Answer::Late(MS * 10, not_held),
            false => Answer::Value(granted()),
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").at_least(LEASE);
    let guard = lock.lock().await.unwrap();
    let (released, shut_down) = tokio::join!(guard.release(), client.shutdown());
    assert!(released.unwrap_err().is_not_held());
    shut_down.unwrap();
}
