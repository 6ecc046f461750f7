//! The tasks inside a lock right now, as this process sees it: the check of exclusion.

use std::sync::atomic::{AtomicU64, Ordering};

/// A writer counts as this many, so that one number says it all.
const WRITER: u64 = 1 << 32;

/// Counts the tasks inside, and how often one was there against the rules.
#[derive(Debug)]
pub(crate) struct Inside {
    now: AtomicU64,
    /// How many may be inside that share.
    most: u64,
    violations: AtomicU64,
}

impl Inside {
    pub(crate) fn of(most: Option<u32>) -> Self {
        Self {
            now: AtomicU64::new(0),
            most: most.map_or(WRITER, u64::from),
            violations: AtomicU64::new(0),
        }
    }

    pub(crate) fn enter(&self, shares: bool) {
        let weight = if shares { 1 } else { WRITER };
        let others = self.now.fetch_add(weight, Ordering::SeqCst);
        if others >= self.most || (!shares && others > 0) {
            self.violations.fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(crate) fn leave(&self, shares: bool) {
        let weight = if shares { 1 } else { WRITER };
        self.now.fetch_sub(weight, Ordering::SeqCst);
    }

    pub(crate) fn violations(&self) -> u64 {
        self.violations.load(Ordering::SeqCst)
    }
}
