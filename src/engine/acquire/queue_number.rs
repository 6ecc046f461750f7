//! Notes where a call waits, for reports of long waits.
//!
//! The call itself stores the number, and a report reads it only after a long wait. So a call pays for one atomic store
//! and nothing else.

use std::sync::atomic::{AtomicU64, Ordering};

/// Where a call for one lock waits: the number of its place in the local queue, or of its holder id if waiters queue at
/// the server.
#[derive(Debug, Default)]
pub(crate) struct QueueNumber(AtomicU64);

/// Waits nowhere. Other numbers are stored plus one.
const NOWHERE: u64 = 0;

impl QueueNumber {
    pub(crate) fn note(&self, number: u64) {
        self.0.store(number + 1, Ordering::Relaxed);
    }

    /// Forgets the place when the call leaves it.
    pub(super) fn clear(&self) {
        self.0.store(NOWHERE, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// A clone belongs to another call, so it starts empty.
impl Clone for QueueNumber {
    fn clone(&self) -> Self {
        Self::default()
    }
}
