//! Releases of one owner's guards that come together.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{LEASE, MS, holder};
use crate::client::Client;
use crate::owner::Owner;
use crate::testing::{Answer, Scripted, done, granted};

/// Both are given back while a third call has the turn, so the first of them releases the hold, and is dropped before
/// the answer. The second finds no hold at the server: it was released.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_released_for_another_guard_is_none_that_was_lost() {
    let is_released = AtomicBool::new(false);
    let server = Scripted::new(move |sent| match sent.script_args()[2].as_str() {
        "0" if is_released.swap(true, Ordering::SeqCst) => Answer::Value(redis::Value::Int(-1)),
        "0" => Answer::Late(MS * 100, done()),
        "3" => Answer::Late(MS * 100, granted()),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x").owner(&Owner::new());
    let (first, second) = (lock.lock().await.unwrap(), lock.lock().await.unwrap());
    let mut third = Box::pin(lock.lock());
    assert!(tokio::time::timeout(MS, &mut third).await.is_err());
    let first = tokio::time::timeout(MS * 150, first.release());
    let (first, second, _third) = tokio::join!(first, second.release(), third);
    assert!(first.is_err(), "it was answered");
    second.unwrap();
    let sent = server.sent();
    let releases = sent
        .iter()
        .filter(|later| later.script_args()[2] == "0" && holder(later) == holder(&sent[0]));
    assert!(releases.count() >= 2, "each has asked: {sent:?}");
}
