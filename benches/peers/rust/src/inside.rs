//! The tasks inside a lock right now, as this process sees it: the check of exclusion.

use std::sync::atomic::{AtomicU64, Ordering};

/// A writer counts as this many, so that one number says it all.
const WRITER: u64 = 1 << 32;

/// Counts the tasks inside, and how often one was there against the rules.
#[derive(Debug, Default)]
pub(crate) struct Inside {
    now: AtomicU64,
    violations: AtomicU64,
}

impl Inside {
    pub(crate) fn enter(&self, reads: bool) {
        let weight = if reads { 1 } else { WRITER };
        let others = self.now.fetch_add(weight, Ordering::SeqCst);
        if others >= WRITER || (!reads && others > 0) {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn leave(&self, reads: bool) {
        let weight = if reads { 1 } else { WRITER };
        self.now.fetch_sub(weight, Ordering::SeqCst);
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Ordering::SeqCst)
    }
}
