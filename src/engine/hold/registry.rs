//! The holds that a client has on one lock, found by their owner.
//!
//! Invariant: it keeps no hold alive and does not know their type, so that a hold can refer to its lock.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::api::owner::Owner;
use crate::engine::clock::Tick;

/// A hold as other tasks that want the lock see it.
pub(crate) trait LocalHold: Any + Debug + Send + Sync {
    fn is_of(&self, owner: &Owner) -> bool;
    fn is_held(&self) -> bool;
    /// Whether it excludes all other holders.
    fn is_exclusive(&self) -> bool;
    /// Its local deadline.
    fn deadline(&self) -> Tick;
    /// Its holder id, its key, and the time of its request, if it is a single hold at one server.
    fn at_server(&self) -> Option<(&str, &str, Tick)> {
        None
    }
    /// Ends it, because the client is closed.
    fn close(&self);
}

#[derive(Debug, Default)]
pub(crate) struct LocalHolds(Mutex<Vec<Weak<dyn LocalHold>>>);

impl LocalHolds {
    pub(crate) fn add(&self, hold: Weak<dyn LocalHold>) {
        self.0.lock().push(hold);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Removes a hold. True if no other is left.
    pub(crate) fn remove<H: LocalHold>(&self, hold: &H) -> bool {
        let hold: *const H = hold;
        let mut holds = self.0.lock();
        holds.retain(|other| !std::ptr::addr_eq(other.as_ptr(), hold));
        if holds.is_empty() {
            // Frees the memory that a peak needed.
            holds.shrink_to(4);
        }
        holds.is_empty()
    }

    /// A live hold of `owner`. An exclusive hold if there is one.
    pub(crate) fn of_owner<H: LocalHold>(&self, owner: &Owner) -> Option<Arc<H>> {
        let live = self.live().into_iter().filter(|hold| hold.is_of(owner));
        known(live.max_by_key(|hold| hold.is_exclusive())?)
    }

    /// The latest local deadline of the live exclusive holds.
    pub(crate) fn exclusive_until(&self) -> Option<Tick> {
        let live = self.live().into_iter();
        let exclusive = live.filter(|hold| hold.is_exclusive());
        exclusive.map(|hold| hold.deadline()).max()
    }

    /// Whether a live hold excludes only writers.
    pub(crate) fn is_read(&self) -> bool {
        let mut live = self.live().into_iter();
        live.any(|hold| !hold.is_exclusive())
    }

    /// All holds except `this`, including holds that have ended.
    pub(crate) fn others<H: LocalHold>(&self, this: &H) -> Vec<Arc<H>> {
        let this: *const H = this;
        let holds = self.0.lock();
        if let [only] = &**holds
            && std::ptr::addr_eq(only.as_ptr(), this)
        {
            return Vec::new();
        }
        let others = holds
            .iter()
            .filter(|other| !std::ptr::addr_eq(other.as_ptr(), this));
        let others: Vec<_> = others.filter_map(Weak::upgrade).collect();
        drop(holds);
        others.into_iter().filter_map(known).collect()
    }

    pub(crate) fn live_as<H: LocalHold>(&self) -> Vec<Arc<H>> {
        self.live().into_iter().filter_map(known).collect()
    }

    pub(crate) fn live(&self) -> Vec<Arc<dyn LocalHold>> {
        let mut holds = self.all();
        holds.retain(|hold| hold.is_held());
        holds
    }

    fn all(&self) -> Vec<Arc<dyn LocalHold>> {
        let holds = self.0.lock();
        holds.iter().filter_map(Weak::upgrade).collect()
    }
}

/// Downcasts the hold to its type.
pub(crate) fn known<H: LocalHold>(hold: Arc<dyn LocalHold>) -> Option<Arc<H>> {
    let hold: Arc<dyn Any + Send + Sync> = hold;
    hold.downcast().ok()
}
