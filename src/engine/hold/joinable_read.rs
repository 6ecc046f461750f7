//! The hold of a lock that the next readers of its client may join, and the terms that they must agree on.
//!
//! Invariants: it keeps no hold alive. The hold itself decides whether it still accepts readers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::registry::LocalHold;
use crate::api::options::Replication;
use crate::observe::group::Group;

#[derive(Debug, Default)]
pub(crate) struct JoinableRead {
    /// Lets callers that find nothing skip the mutex.
    is_full: AtomicBool,
    hold: Mutex<Option<Weak<dyn LocalHold>>>,
}

impl JoinableRead {
    /// Replaces the previous hold, because a later hold stays open for longer.
    pub(super) fn put(&self, hold: Weak<dyn LocalHold>) {
        *self.hold.lock() = Some(hold);
        self.is_full.store(true, Ordering::Release);
    }

    /// Whether a hold may be open.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    pub(super) fn get(&self) -> Option<Arc<dyn LocalHold>> {
        if !self.is_full() {
            return None;
        }
        self.hold.lock().as_ref()?.upgrade()
    }

    /// Removes a hold that has ended.
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

/// A reader's request to join a hold, for an owner that has nothing yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRequest {
    pub(crate) terms: ReaderClass,
    pub(crate) group: Group,
}

/// The terms that are equal for all readers of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderClass {
    /// The lease, which is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}
