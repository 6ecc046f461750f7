//! The slot for a lock's sticky hold, which its client has without a guard.
//!
//! Invariants: one task takes the hold out. A dropped hold is released. Nothing is dropped under
//! the mutex. A task watches for the end of the hold while there is one.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::handoff::Handoff;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

#[derive(Debug, Default)]
pub(crate) struct StickySlot {
    /// Lets callers that find nothing skip the mutex.
    is_full: AtomicBool,
    state: Mutex<State>,
    /// Signalled when the hold's end is earlier than the watched end.
    pub(super) sooner: Hint,
}

#[derive(Debug, Default)]
struct State {
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
