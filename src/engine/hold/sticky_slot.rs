//! The hold of one lock that its client has though no guard has it.
//!
//! Invariants: whoever takes it out has it alone; what is dropped is given back; nothing is dropped under the
//! mutex; while there is one, somebody watches for its end.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::handoff::Handoff;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

#[derive(Debug, Default)]
pub(crate) struct StickySlot {
    /// So that those who find nothing need no mutex.
    is_full: AtomicBool,
    state: Mutex<State>,
    /// Given when there is an end before the one that is watched for.
    pub(super) sooner: Hint,
}

#[derive(Debug, Default)]
struct State {
    hold: Option<(Handoff, Tick)>,
    watched_until: Option<Tick>,
}

/// What whoever watches has to do.
#[derive(Debug)]
pub(super) enum Watched {
    /// Its time is over: to be dropped.
    Over(Handoff),
    Until(Tick),
    /// Nothing is there, and the watch is over.
    Nothing,
}

impl StickySlot {
    /// Puts a hold in until `end`; what was there is to be dropped. True if nobody watches: the caller has to
    /// see to that.
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
                self.sooner.give();
            }
        }
        (before.map(|(hold, _)| hold), is_unwatched)
    }

    /// Whether there may be one.
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

    /// Nobody watches any more; what is there is to be dropped.
    pub(super) fn end_watch(&self) -> Option<Handoff> {
        self.state.lock().watched_until = None;
        self.take()
    }
}
