//! Notes whether the server may have executed a release that no caller has had an answer to. A later release, perhaps
//! for another guard of the hold, then finds no hold, and that is not a loss.
//!
//! Invariant: a request that no connection took, or that was refused as a whole, has released nothing. Only for the
//! undoing by a client that is being shut down, it is not known whether it was sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use super::shell::Hold;
use crate::conn::sent;
use crate::engine::few::Few;
use crate::script::{Executed, Failure};

/// One request that releases these holds. Its outcome is noted when this is dropped.
pub(super) struct Releasing<'a> {
    holds: Few<&'a Hold>,
    was_sent: AtomicBool,
}

impl<'a> Releasing<'a> {
    pub(super) fn of(holds: impl Iterator<Item = &'a Hold>) -> Self {
        Self {
            holds: holds.collect(),
            was_sent: AtomicBool::new(false),
        }
    }

    /// Drives the request. Cancel safe.
    pub(super) async fn drive<T>(
        &self,
        request: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let answered = sent::track(&self.was_sent, request).await;
        if let Err(failure) = &answered
            && failure.executed == Executed::No
        {
            self.was_sent.store(false, Ordering::Relaxed);
        }
        answered
    }
}

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        if self.was_sent.load(Ordering::Relaxed) {
            let holds = self.holds.iter();
            holds.for_each(|hold| hold.may_be_released.store(true, Ordering::Relaxed));
        }
    }
}

impl Hold {
    /// Whether a request that releases the hold may have been executed.
    pub(super) fn may_be_released(&self) -> bool {
        self.may_be_released.load(Ordering::Relaxed)
    }
}
