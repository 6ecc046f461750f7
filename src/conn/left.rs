//! Whether a command left: from then on it may be executed, also if nobody waits for it any more.
//!
//! A future that is dropped says nothing. So whoever has to know notes it while it drives the future:
//! links say so on the thread that polls them, at the moment at which they hand a command to a
//! connection.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static HAS_LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Said by whoever hands a command to a connection.
pub(crate) fn leaves() {
    HAS_LEFT.set(true);
}

/// Drives `work`, and sets `left` before it returns if a command may have left by then.
pub(crate) async fn noting<F: Future>(left: &AtomicBool, work: F) -> F::Output {
    let mut work = pin!(work);
    std::future::poll_fn(|context| {
        let before = HAS_LEFT.replace(false);
        let polled = work.as_mut().poll(context);
        if HAS_LEFT.replace(before) {
            left.store(true, Ordering::Relaxed);
            // For whoever notes it of this one.
            leaves();
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn what_leaves_is_noted_by_all_who_drive_it_and_by_nobody_else() {
        let [outer, inner, other] = [(); 3].map(|()| AtomicBool::new(false));
        let mut context = Context::from_waker(Waker::noop());
        let waits = noting(&other, std::future::pending::<()>());
        assert!(pin!(waits).poll(&mut context).is_pending());
        let work = noting(&inner, async { leaves() });
        assert!(pin!(noting(&outer, work)).poll(&mut context).is_ready());
        let waits = noting(&other, std::future::pending::<()>());
        assert!(pin!(waits).poll(&mut context).is_pending());
        let noted = [outer, inner, other].map(AtomicBool::into_inner);
        assert_eq!(noted, [true, true, false]);
        HAS_LEFT.set(false);
    }
}
