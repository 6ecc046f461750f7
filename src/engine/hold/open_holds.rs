//! The holds of a lock that the next tasks of its client may take as they are: readers join one, and any task takes one
//! that is without a guard.
//!
//! Invariants: a hold that can be joined is not kept alive here, and decides itself whether it still accepts readers.
//! One task takes a hold without a guard out of its slot. A dropped hold is released. Nothing is dropped under the mutex.
//! A task watches for the end of the hold while there is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::registry::{Handoff, LocalHold};
use crate::api::options::Replication;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

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

/// The terms that are equal for all readers of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReaderClass {
    /// The lease, which is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct StickySlot {
    /// Lets callers that find nothing skip the mutex.
    is_full: AtomicBool,
    state: Mutex<SlotState>,
    /// Signalled when the hold's end is earlier than the watched end.
    pub(super) sooner: Hint,
}

#[derive(Debug, Default)]
struct SlotState {
    hold: Option<(Handoff, Tick)>,
    watched_until: Option<Tick>,
}

/// The next step of the watching task.
#[derive(Debug)]
pub(super) enum Watched {
    /// The time is over: drop it.
    Over(Handoff),
    Until(Tick),
    /// The slot is empty, and the watch is over.
    Nothing,
}

impl StickySlot {
    /// Puts a hold in until `end`. Returns the previous hold, for the caller to drop, and whether no task watches:
    /// the caller has to start one.
    #[must_use]
    pub(super) fn put(&self, hold: Handoff, end: Tick) -> (Option<Handoff>, bool) {
        let mut state = self.state.lock();
        let before = state.hold.replace((hold, end));
        self.is_full.store(true, Ordering::Release);
        let watched_until = *state.watched_until.get_or_insert(Tick::NEVER);
        let is_unwatched = watched_until == Tick::NEVER;
        if end < watched_until {
            state.watched_until = Some(end);
            drop(state);
            if !is_unwatched {
                self.sooner.notify();
            }
        }
        (before.map(|(hold, _)| hold), is_unwatched)
    }

    /// Whether there may be a hold.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<Handoff> {
        if !self.is_full() {
            return None;
        }
        let mut state = self.state.lock();
        self.is_full.store(false, Ordering::Release);
        state.hold.take().map(|(hold, _)| hold)
    }

    pub(super) fn watch(&self, now: Tick) -> Watched {
        let mut state = self.state.lock();
        match &state.hold {
            Some((_, end)) if now < *end => {
                let end = *end;
                state.watched_until = Some(end);
                return Watched::Until(end);
            }
            Some(_) => {}
            None => {
                state.watched_until = None;
                return Watched::Nothing;
            }
        }
        self.is_full.store(false, Ordering::Release);
        match state.hold.take() {
            Some((hold, _)) => Watched::Over(hold),
            None => Watched::Nothing,
        }
    }

    /// Notes that the watch has ended. Returns the hold, for the caller to drop.
    pub(super) fn end_watch(&self) -> Option<Handoff> {
        self.state.lock().watched_until = None;
        self.take()
    }
}
