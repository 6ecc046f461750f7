//! Everything that a server may have and no guard holds: unanswered attempts, places in queues, releases under way.
//!
//! The future that drives such an operation also releases it. But a future may never be polled again, and a client
//! that is shut down leaves nothing behind: it undoes the entries that are left here. Invariant: an entry is noted
//! before its request is sent, and stays until a guard has the hold, nothing is left at the server, or the watchdog's
//! task has the undoing.

use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::protocol::{HolderRef, Protocol};
use crate::api::holder::HolderId;
use crate::engine::keys::LockName;
use crate::script::Call;

/// An empty table keeps room for this many entries.
const KEPT_MAX: usize = 64;

/// The entries, by the number in the holder id.
#[derive(Debug, Default)]
pub(super) struct AllUnguarded(Mutex<FxHashMap<u64, Unguarded>>);

/// One holder.
#[derive(Clone, Debug)]
pub(crate) struct Unguarded {
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) name: LockName,
    pub(crate) holder: HolderId,
    pub(crate) fenced: bool,
    /// Used places that end with it.
    pub(crate) places: Vec<HolderId>,
    pub(crate) lease: Duration,
}

impl Unguarded {
    /// Releases the hold or place that the server has for it.
    pub(super) fn release(&self, publish: &str, token_retention: u64) -> Call {
        let holder = HolderRef {
            name: &self.name,
            id: &self.holder,
            fenced: self.fenced,
            token_retention,
        };
        self.protocol.release_places(&holder, publish, &self.places)
    }
}

impl AllUnguarded {
    pub(super) fn insert(&self, number: u64, unguarded: Unguarded) {
        self.0.lock().insert(number, unguarded);
    }

    pub(super) fn remove(&self, number: u64) {
        let mut all = self.0.lock();
        all.remove(&number);
        if all.is_empty() {
            // Frees the memory that a peak needed.
            all.shrink_to(KEPT_MAX);
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.0.lock().contains_key(&number)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Takes all entries, oldest first. They are undone in this order.
    pub(super) fn take(&self) -> impl Iterator<Item = Unguarded> {
        let all = std::mem::take(&mut *self.0.lock());
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, unguarded)| unguarded)
    }
}
