//! The holds that a client has on one lock, to be found by their owner.
//!
//! Invariant: it keeps none of them alive, and does not know what they are, so that a hold can know the
//! lock that it is a hold on.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::clock::Tick;
use crate::owner::Owner;

/// A hold, as far as those have to know it who want the same lock.
pub(crate) trait LocalHold: Any + Debug + Send + Sync {
    fn is_of(&self, owner: &Owner) -> bool;
    fn is_held(&self) -> bool;
    /// Until then it is held for certain.
    fn deadline(&self) -> Tick;
}

#[derive(Debug, Default)]
pub(crate) struct LocalHolds(Mutex<Vec<Weak<dyn LocalHold>>>);

impl LocalHolds {
    pub(crate) fn add(&self, hold: Weak<dyn LocalHold>) {
        self.0.lock().push(hold);
    }

    pub(crate) fn remove<H: LocalHold>(&self, hold: &H) {
        let hold: *const H = hold;
        let mut holds = self.0.lock();
        holds.retain(|other| !std::ptr::addr_eq(other.as_ptr(), hold));
    }

    /// The live hold of `owner`.
    pub(crate) fn of_owner<H: LocalHold>(&self, owner: &Owner) -> Option<Arc<H>> {
        let mut live = self.live().into_iter();
        let hold: Arc<dyn Any + Send + Sync> = live.find(|hold| hold.is_of(owner))?;
        hold.downcast().ok()
    }

    /// The latest local deadline of a live hold.
    pub(crate) fn held_until(&self) -> Option<Tick> {
        self.live().iter().map(|hold| hold.deadline()).max()
    }

    fn live(&self) -> Vec<Arc<dyn LocalHold>> {
        let holds: Vec<_> = {
            let holds = self.0.lock();
            holds.iter().filter_map(Weak::upgrade).collect()
        };
        holds.into_iter().filter(|hold| hold.is_held()).collect()
    }
}
