//! Tests simultaneous releases of two guards of one owner.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::{LEASE, MS, holder};
use crate::api::owner::Owner;
use crate::client::Client;
use crate::script::catalog;
use crate::testing::{Answer, Scripted, granted};

/// Releases both guards of an owner while a third call has the turn. The first release therefore ends the hold, and is
/// dropped before its answer. Returns the result of the second release, for a server that answers only that it has no
/// such hold.
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
    assert!(releases.count() >= asked, "each release asks: {sent:?}");
    second
}

/// The second release finds no hold at the server, because the first release ended it.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_released_for_another_guard_is_none_that_was_lost() {
    of_two(Duration::ZERO, || Answer::Silence).await.unwrap();
}

/// The first release kept the hold at the server, and its time is over.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_left_for_another_guard_is_none_that_was_lost() {
    of_two(MS * 300, || Answer::Silence).await.unwrap();
}

/// No command was sent for the first release, so another client took the hold away.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_not_released_for_another_guard_was_lost() {
    let lost = of_two(Duration::ZERO, || Answer::Unsent).await.unwrap_err();
    assert!(lost.is_not_held(), "{lost}");
}

/// The connection returns just when a client that shuts down undoes the calls of callers that left, and before a
/// release whose caller still waits.
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
