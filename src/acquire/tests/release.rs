//! Releases of one owner's guards that come together.

use std::sync::atomic::{AtomicBool, Ordering};
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
