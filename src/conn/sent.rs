//! Records whether a command was sent. A sent command may be executed, even if its caller no longer waits.
//!
//! A dropped future returns nothing, so a caller that needs to know drives the future through [`track`]. Links call
//! [`mark`] on the thread that polls them when they hand a command to a connection.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static WAS_SENT: Cell<bool> = const { Cell::new(false) };
}

/// Records that a command was handed to a connection.
pub(crate) fn mark() {
    WAS_SENT.set(true);
}

/// Drives `work`, and sets `sent` as soon as a command may have been sent. Takes `work` by reference, because a
/// future that is moved into another one takes space twice.
pub(crate) async fn track<F: Future>(sent: &AtomicBool, mut work: Pin<&mut F>) -> F::Output {
    std::future::poll_fn(|context| {
        let before = WAS_SENT.replace(false);
        let polled = work.as_mut().poll(context);
        if WAS_SENT.replace(before) {
            sent.store(true, Ordering::Relaxed);
            // For an enclosing `track`.
            mark();
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn a_sent_command_is_seen_by_all_that_drive_it_and_by_no_other() {
        let [outer, inner, other] = [(); 3].map(|()| AtomicBool::new(false));
        let mut context = Context::from_waker(Waker::noop());
        let mut nothing = pin!(std::future::pending::<()>());
        let waits = track(&other, nothing.as_mut());
        assert!(pin!(waits).poll(&mut context).is_pending());
        let sends = pin!(async { mark() });
        let work = pin!(track(&inner, sends));
        assert!(pin!(track(&outer, work)).poll(&mut context).is_ready());
        let waits = track(&other, nothing);
        assert!(pin!(waits).poll(&mut context).is_pending());
        let sent = [&outer, &inner, &other].map(|sent| sent.load(Ordering::Relaxed));
        assert_eq!(sent, [true, true, false]);
        WAS_SENT.set(false);
    }
}
