//! The hold of a lock that the next readers of its client may join.
//!
//! Invariants: it keeps no hold alive; whether a hold still takes readers, the hold says.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::registry::LocalHold;

#[derive(Debug, Default)]
pub(crate) struct OpenRead {
    /// So that those who find nothing need no mutex.
    is_full: AtomicBool,
    hold: Mutex<Option<Weak<dyn LocalHold>>>,
}

impl OpenRead {
    /// Of several the last counts: it is open for longest.
    pub(super) fn put(&self, hold: Weak<dyn LocalHold>) {
        *self.hold.lock() = Some(hold);
        self.is_full.store(true, Ordering::Release);
    }

    /// Whether there may be one.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<Arc<dyn LocalHold>> {
        if !self.is_full() {
            return None;
        }
        self.hold.lock().as_ref()?.upgrade()
    }

    /// It is over.
    pub(super) fn remove<H: LocalHold>(&self, hold: &H) {
        if !self.is_full() {
            return;
        }
        let hold: *const H = hold;
        let mut there = self.hold.lock();
        let removed = there.take_if(|there| std::ptr::addr_eq(there.as_ptr(), hold));
        if removed.is_some() {
            self.is_full.store(false, Ordering::Release);
        }
    }
}
