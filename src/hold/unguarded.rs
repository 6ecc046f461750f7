//! What no guard holds and a server may have all the same: attempts that are not answered yet, places
//! in queues, releases under way.
//!
//! Whoever drives one of these gives it back. But a future may be one that nobody polls any more, and
//! a client that is shut down leaves nothing behind: it undoes by itself what is still here then.
//! Invariant: an entry is there before its request is sent, and until there is a guard, or nothing is
//! left, or the watchdog's task has been handed what undoes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::core::Core;
use super::undo::Undo;
use crate::conn::Lane;
use crate::counts::Counts;
use crate::hold::protocol::{HolderRef, Protocol};
use crate::keys::LockName;

/// By the number in the holder id.
#[derive(Debug, Default)]
pub(super) struct AllUnguarded(Mutex<HashMap<u64, Unguarded>>);

/// One holder.
#[derive(Clone, Debug)]
pub(crate) struct Unguarded {
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) name: LockName,
    pub(crate) holder: Arc<str>,
    pub(crate) fenced: bool,
    pub(crate) lease: Duration,
}

impl Unguarded {
    /// Has whatever the server has of it undone, behind what was sent on this lane.
    pub(crate) fn undo_later(&self, core: &Core, lane: Lane) {
        let holder = HolderRef {
            name: &self.name,
            id: &self.holder,
            counts: Counts::NONE,
            fenced: self.fenced,
            token_retention: core.timing.token_retention,
        };
        let publish = core.channels().publish();
        let call = self.protocol.release(&holder, Duration::ZERO, publish);
        let until = core.clock.now().after(core.timing.linger);
        let until = until.max(core.clock.now().after(self.lease));
        core.undo_later(Undo::new(call, lane, self.lease, until, None));
    }
}

impl Core {
    pub(crate) fn note_unguarded(&self, number: u64, unguarded: Unguarded) {
        self.unguarded.0.lock().insert(number, unguarded);
    }

    /// There is a guard of it, or nothing, or it is in hand.
    pub(crate) fn settle_unguarded(&self, number: u64) {
        self.unguarded.0.lock().remove(&number);
        if self.is_closed() {
            self.locals.waiter_left.give();
        }
    }

    pub(super) fn has_unguarded(&self) -> bool {
        !self.unguarded.0.lock().is_empty()
    }

    /// For those who are not polled any more.
    pub(super) fn undo_all_unguarded(&self) {
        let all = std::mem::take(&mut *self.unguarded.0.lock());
        for unguarded in all.values() {
            // An attempt takes the one or the other, and what undoes it must not overtake it.
            for lane in [Lane::Command, Lane::Push] {
                unguarded.undo_later(self, lane);
            }
        }
    }
}
