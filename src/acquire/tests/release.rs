//! Releases of one owner's guards that come together.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{LEASE, MS, holder};
use crate::client::Client;
use crate::owner::Owner;
use crate::script::catalog;
use crate::testing::{Answer, Scripted, granted};

/// Both guards of an owner are given back while a third call has the turn, so the first of them releases the hold, and is
/// dropped before the answer. What the second is told, if the server says no more than this of it.
async fn of_two(
    at_least: Duration,
    first: impl Fn() -> Answer + Send + Sync + 'static,
) -> crate::Result<()> {
    let is_first = AtomicBool::new(true);
    let server = Scripted::new(move |sent| {
        let is_keep = sent.words[1] == catalog::KEEP.sha();
        match sent.script_args()[2].as_str() {
            _ if is_keep => first(),
            "0" if is_first.swap(false, Ordering::SeqCst) && at_least.is_zero() => first(),
            "0" => Answer::Value(redis::Value::Int(-1)),
            "3" => Answer::Late(MS * 100, granted()),
            _ => Answer::Value(granted()),
        }
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new()).at_least(at_least);
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let mut third = Box::pin(lock.lock());
    assert!(tokio::time::timeout(MS, &mut third).await.is_err());
    let first = tokio::time::timeout(MS * 450, first.release());
    let (first, second, _third) = tokio::join!(first, second.release(), third);
    assert!(first.is_err(), "it was answered");
    let sent = server.sent();
    let releases = sent
        .iter()
        .filter(|later| later.script_args()[2] == "0" && holder(later) == holder(&sent[0]));
    let asked = if at_least.is_zero() { 2 } else { 1 };
    assert!(releases.count() >= asked, "each has asked: {sent:?}");
    second
}

/// The second finds no hold at the server: it was released for the first.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_released_for_another_guard_is_none_that_was_lost() {
    of_two(Duration::ZERO, || Answer::Silence).await.unwrap();
}

/// It was left at the server for the first, and what was left is over.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_left_for_another_guard_is_none_that_was_lost() {
    of_two(MS * 300, || Answer::Silence).await.unwrap();
}

/// Nothing was sent for the first, so somebody else has taken it away.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_not_released_for_another_guard_was_lost() {
    let lost = of_two(Duration::ZERO, || Answer::Unsent).await.unwrap_err();
    assert!(lost.is_not_held(), "{lost}");
}

/// The connection is there again just when a client that is shut down undoes what callers have left, and before the
/// release of one that has not left.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_released_by_a_shutdown_is_none_that_was_lost() {
    let releases = AtomicUsize::new(0);
    let server = Scripted::new(move |sent| match sent.script_args()[2].as_str() {
        "0" => match releases.fetch_add(1, Ordering::SeqCst) {
            0 => Answer::Unsent,
            1 => Answer::Value(granted()),
            _ => Answer::Value(redis::Value::Int(-1)),
        },
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    let (released, shut_down) = tokio::join!(guard.release(), client.shutdown());
    released.unwrap();
    shut_down.unwrap();
}

/// Nothing but a request to leave it concerns a hold that is to be left, so one that is not there was lost.
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
