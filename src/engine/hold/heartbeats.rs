//! The places of all waiters of one client in one queue at the server, which one script keeps.
//!
//! A waiter whose place is kept here need not ask, so a crowd costs the server a few scripts a second. Invariants: a
//! waiter is listed only while it rests with a place. What it learns here is the time until which its place is kept,
//! together with the time at which that was requested, as from a request of its own. Without an answer here it asks
//! by itself in time. A waiter that does not take its answers, because it is not polled, loses its place.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::subscription::Subscription;
use crate::api::holder::HolderId;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::script::reply::Heartbeat;

/// Fewer waiters than this ask by themselves.
const WAITERS_MIN: usize = 6;

/// The most places that one script keeps. Bounds how long it blocks the server.
pub(crate) const PLACES_MAX: usize = 500;

/// A waiter looks at every answer or every second one. If it has not after this many, its place is not kept.
const UNTAKEN_MAX: u32 = 3;

#[derive(Debug, Default)]
pub(crate) struct Heartbeats(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    resting: FxHashMap<HolderId, Resting>,
    /// Whether a task sends heartbeats.
    is_sent: bool,
}

#[derive(Debug)]
struct Resting {
    /// Its hint wakes the waiter.
    waiter: Arc<Subscription>,
    kept: Option<Kept>,
    /// How many answers came since it last took one.
    untaken: u32,
}

/// A place that the server keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// When the answered request was sent.
    pub(crate) sent: Tick,
    /// A mark of failovers and moved slots, taken before that.
    pub(crate) moved: Mark,
    /// Until when the place is kept, in ms of the server's clock.
    pub(crate) until_ms: u64,
}

/// Lists a waiter until dropped.
#[derive(Debug)]
pub(crate) struct KeptPlace<'a> {
    heartbeats: &'a Heartbeats,
    place: HolderId,
}

impl Heartbeats {
    /// Lists a waiter that rests with this place.
    pub(crate) fn rest(&self, place: HolderId, waiter: Arc<Subscription>) -> KeptPlace<'_> {
        let resting = Resting {
            waiter,
            kept: None,
            untaken: 0,
        };
        self.0.lock().resting.insert(place, resting);
        KeptPlace {
            heartbeats: self,
            place,
        }
    }

    /// True if there are enough waiters and no task sends heartbeats: the caller has to begin.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.0.lock();
        let is_needed = state.resting.len() >= WAITERS_MIN && !state.is_sent;
        state.is_sent |= is_needed;
        is_needed
    }

    /// The places to keep. `None` if they are too few: the task ends.
    pub(crate) fn places(&self) -> Option<Vec<HolderId>> {
        let mut state = self.0.lock();
        if state.resting.len() < WAITERS_MIN {
            state.is_sent = false;
            return None;
        }
        let all = state.resting.iter();
        let polled = all.filter(|(_, resting)| resting.untaken < UNTAKEN_MAX);
        Some(polled.map(|(place, _)| *place).collect())
    }

    /// Notes the answers to a request that was sent then. Wakes the waiters that have no place.
    pub(crate) fn answered(
        &self,
        places: &[HolderId],
        answers: &[Heartbeat],
        sent: Tick,
        moved: Mark,
    ) {
        let mut gone = Vec::new();
        let mut state = self.0.lock();
        for (place, answer) in places.iter().zip(answers) {
            let Some(resting) = state.resting.get_mut(place) else {
                continue;
            };
            match *answer {
                Heartbeat::Kept { until_ms } => {
                    resting.untaken += 1;
                    resting.kept = Some(Kept {
                        sent,
                        moved,
                        until_ms,
                    });
                }
                Heartbeat::NotKept => {}
                Heartbeat::Gone => gone.push(Arc::clone(&resting.waiter)),
            }
        }
        drop(state);
        gone.iter().for_each(|waiter| waiter.hint.notify());
    }
}

impl KeptPlace<'_> {
    /// The last answer, if one came since the last look.
    pub(crate) fn take(&self) -> Option<Kept> {
        let mut state = self.heartbeats.0.lock();
        let resting = state.resting.get_mut(&self.place)?;
        resting.untaken = 0;
        resting.kept.take()
    }
}

impl Drop for KeptPlace<'_> {
    fn drop(&mut self) {
        self.heartbeats.0.lock().resting.remove(&self.place);
    }
}
