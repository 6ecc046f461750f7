//! Where a call waits, for whoever tells of it that it waits for long.
//!
//! Invariant: noted by the call itself, and read by nobody until it has waited for long: so all that it costs is a
//! number that is kept.

use std::sync::atomic::{AtomicU64, Ordering};

/// That of a call for one lock: the number of its place in the local queue, or, where waiters queue at the server,
/// that of its holder id there.
#[derive(Debug, Default)]
pub(crate) struct Queued(AtomicU64);

/// It waits nowhere. Numbers are noted as the next higher one.
const NOWHERE: u64 = 0;

impl Queued {
    pub(crate) fn note(&self, number: u64) {
        self.0.store(number + 1, Ordering::Relaxed);
    }

    /// It has left.
    pub(super) fn clear(&self) {
        self.0.store(NOWHERE, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// A copy is of another call.
impl Clone for Queued {
    fn clone(&self) -> Self {
        Self::default()
    }
}
