//! Whether the server may have executed a request that releases a hold, though nobody has heard of that: who asks
//! again then, maybe for another guard of the same hold, finds none, and that is no loss.
//!
//! Invariant: what was handed to no connection, or was refused as a whole, has released nothing. Only of what a
//! client undoes while it is shut down it is not known whether it was sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};

use super::shell::Hold;
use crate::conn::sent;
use crate::engine::few::Few;
use crate::script::{Executed, Failure};

/// One request that releases these holds. Its end is noted when this is dropped.
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

    /// Sends it. Cancel safe.
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
    /// Whether a request that releases it may have been executed.
    pub(super) fn may_be_released(&self) -> bool {
        self.may_be_released.load(Ordering::Relaxed)
    }

    /// Whether its client has released it by itself, beside a request of ours: it is being shut down, and a future that
    /// nobody polls would release nothing.
    pub(super) fn is_released_by_shutdown(&self) -> bool {
        self.core.has_undone(self.number)
    }
}
