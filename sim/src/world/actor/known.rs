//! The checks' knowledge of a task, for as long as it is true: that it has a guard, that it waits.

use std::sync::Arc;

use lockset::LostReason;
use parking_lot::Mutex;

use crate::world::checks::Checks;

/// A guard that the checks know; they forget it when this is dropped, which is before the guard is.
pub(super) struct Registered {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) checks: Arc<Mutex<Checks>>,
}

impl Registered {
    /// A guard of these was lost.
    pub(super) fn lost(all: Vec<Self>, reason: LostReason) {
        for held in &all {
            let mut checks = held.checks.lock();
            // Any of them takes the others with it.
            let is_forced = all.iter().any(|held| checks.is_forced(&held.name));
            checks.lost(&held.name, held.number, reason, is_forced);
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.checks
            .lock()
            .ends(&self.name, self.number, "given back");
    }
}

/// A task that waits for a lock.
pub(super) struct Waits {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) checks: Arc<Mutex<Checks>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.checks.lock().wakes.ends(&self.name, self.number);
    }
}
