//! Allows one operation at a time, without a queue.
//!
//! A caller that comes later waits for the end of the operation and tries again. Invariant: a waiting future is never
//! given a turn, so a future that is not polled delays no other.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::hint::Hint;

/// Whether an operation is under way.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    is_under_way: AtomicBool,
    /// Signalled at the end of an operation.
    ended: Hint,
}

/// An operation that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Operation<'a>(&'a Operations);

impl Operations {
    /// Begins an operation. `None` while another is under way.
    pub(crate) fn begin(&self) -> Option<Operation<'_>> {
        let is_free = !self.is_under_way.swap(true, Ordering::AcqRel);
        is_free.then(|| Operation(self))
    }

    /// Resolves when no operation is under way. The next may have begun by then. Cancel safe.
    pub(crate) async fn ended(&self) {
        loop {
            let mark = self.ended.mark();
            if !self.is_under_way.load(Ordering::Acquire) {
                return;
            }
            self.ended.changed_since(mark).await;
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.is_under_way.store(false, Ordering::Release);
        self.0.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_waiting_future_that_is_not_polled_delays_no_other() {
        let operations = Operations::default();
        let first = operations.begin();
        assert!(first.is_some() && operations.begin().is_none());
        let mut left = Box::pin(operations.ended());
        assert!((&mut left).now_or_never().is_none());
        drop(first);
        let second = operations.begin();
        assert!(second.is_some());
        assert!((&mut left).now_or_never().is_none(), "the second one");
        drop(second);
        assert!(left.now_or_never().is_some());
    }
}
