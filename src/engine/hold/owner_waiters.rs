//! Wakes the waiters of one owner when another task of that owner gets the lock: they can enter it then.
//!
//! Invariant: a waiter is listed before it looks for a hold of its owner, and a hold is registered before its owner is
//! looked up here. So one of the two sees the other, and a grant wakes no waiter of other owners.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::api::holder::Owner;
use crate::engine::hint::Hint;

#[derive(Debug, Default)]
pub(crate) struct OwnerWaiters {
    /// The number of waiters. Most locks have none, and then a grant looks no further.
    waiters: AtomicUsize,
    by_owner: Mutex<FxHashMap<Owner, Arc<Hint>>>,
}

/// Counts as a waiter of its owner until dropped.
#[derive(Debug)]
pub(crate) struct OwnersWaiter<'a> {
    all: &'a OwnerWaiters,
    owner: &'a Owner,
    hint: Arc<Hint>,
}

impl OwnerWaiters {
    /// Lists a waiter of this owner.
    pub(crate) fn wait_as<'a>(&'a self, owner: &'a Owner) -> OwnersWaiter<'a> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let hint = Arc::clone(self.by_owner.lock().entry(owner.clone()).or_default());
        OwnersWaiter {
            all: self,
            owner,
            hint,
        }
    }

    /// Wakes the waiters of an owner that has just got the lock.
    pub(crate) fn notify(&self, owner: &Owner) {
        if self.waiters.load(Ordering::SeqCst) == 0 {
            return;
        }
        let hint = self.by_owner.lock().get(owner).cloned();
        if let Some(hint) = hint {
            hint.notify();
        }
    }
}

impl OwnersWaiter<'_> {
    /// Signalled when another task of the owner gets the lock.
    pub(crate) fn hint(&self) -> &Hint {
        &self.hint
    }
}

impl Drop for OwnersWaiter<'_> {
    fn drop(&mut self) {
        let mut by_owner = self.all.by_owner.lock();
        let of_map_and_this = 2;
        // Others are added and dropped under the mutex.
        if Arc::strong_count(&self.hint) == of_map_and_this {
            by_owner.remove(self.owner);
        }
        self.hint = Arc::default();
        self.all.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_wakes_the_waiters_of_its_owner_alone() {
        let owner_waiters = OwnerWaiters::default();
        let owners = [Owner::new(), Owner::new()];
        let waiters = [0, 0, 1].map(|at: usize| owner_waiters.wait_as(&owners[at]));
        let marks = waiters.each_ref().map(|waiter| waiter.hint().mark());
        owner_waiters.notify(&owners[0]);
        let woken = [0, 1, 2].map(|at| waiters[at].hint().mark() != marks[at]);
        assert_eq!(woken, [true, true, false]);
        let [first, second, third] = waiters;
        drop((first, third));
        assert_eq!(owner_waiters.by_owner.lock().len(), 1);
        drop(second);
        assert!(owner_waiters.by_owner.lock().is_empty());
    }
}
