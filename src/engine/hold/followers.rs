//! The waiters of this client in one queue at the server: whom a hold passes to in memory, and who keeps their places.
//!
//! A hold that ends may go in memory to the waiter of this client that stands directly behind it in that queue: a
//! follower. The order is the server's, because nobody can come between two places. While the one ahead is here, a
//! follower need not listen to the server: it is woken when that one ends or leaves, and asks behind it. One script keeps
//! the places of all resting waiters, so a crowd costs the server a few scripts a second.
//!
//! Invariants: a waiter is listed only while it rests with a place that the server keeps. While it asks, it is handed
//! nothing. A handed-off value is taken out by its task, or dropped with its entry or when its task does not come, and
//! never under the mutex. No task is woken under it. What a waiter learns of its place is the time until which it is
//! kept, together with the time at which that was requested, as from a request of its own. Without an answer it asks by
//! itself in time. A waiter that does not take its answers, because it is not polled, loses its place.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::handoff::{Handoff, HandoffRequest};
use super::queue::MISSED_MAX;
use super::share_lease::local_deadline;
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
pub(crate) struct Followers(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    /// The waiters that rest, by place. Boxed, because a map has room for more than it holds.
    resting: FxHashMap<HolderId, Box<Resting>>,
    /// The place of the follower that stands directly behind each place or hold.
    behind: FxHashMap<HolderId, HolderId>,
    /// The places and holds of this client. Of a hold with used places the last of these.
    here: FxHashSet<HolderId>,
    /// Whether a task watches for followers that do not take what they were handed.
    is_watched: bool,
    /// Whether a task sends heartbeats.
    is_sent: bool,
}

/// A waiter that rests with a place at the server.
#[derive(Debug)]
pub(crate) struct Resting {
    /// Its hint wakes the waiter.
    waiter: Arc<Subscription>,
    /// Whether the server's messages reach it.
    is_listening: bool,
    /// The place or hold directly ahead of a follower, and what the follower asks for.
    follows: Option<(HolderId, HandoffRequest)>,
    /// Until when the server keeps the place, at least.
    kept_until: Tick,
    handed: Handed,
    /// The last heartbeat, until the waiter takes it.
    kept: Option<Kept>,
    /// How many heartbeats came since it last took one.
    untaken: u32,
}

/// The lock that a follower was handed, if any.
#[derive(Debug, Default)]
pub(crate) enum Handed {
    #[default]
    Nothing,
    Lock {
        handoff: Handoff,
        /// At how many checks it had not been taken.
        missed: u32,
    },
    /// A lock that it did not take in time. Its place was used for it, and ends with the hold.
    Withdrawn,
}

/// A heartbeat that keeps a place.
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
pub(crate) struct RestingPlace<'a> {
    followers: &'a Followers,
    place: HolderId,
}

impl Listed {
    /// Whether something wakes this waiter when it has to ask: a message, or the one ahead.
    fn is_told(&self, waiter: &Resting) -> bool {
        let ahead = waiter.follows.as_ref().map(|(ahead, _)| ahead);
        waiter.is_listening || ahead.is_some_and(|ahead| self.here.contains(ahead))
    }
}

impl Followers {
    /// Notes a place or hold of this client.
    pub(crate) fn enter(&self, id: &HolderId) {
        self.0.lock().here.insert(*id);
    }

    /// Notes that a place or hold ends. Its follower asks behind the command that ends it.
    pub(crate) fn leave(&self, id: &HolderId) {
        let woken = {
            let mut state = self.0.lock();
            state.here.remove(id);
            let next = (state.behind.get(id)).and_then(|place| state.resting.get(place));
            let next = next.filter(|next| !next.is_listening);
            next.map(|next| Arc::clone(&next.waiter))
        };
        if let Some(waiter) = woken {
            waiter.hint.notify();
        }
    }

    /// Lists a waiter that rests with this place.
    pub(crate) fn rest(&self, place: HolderId, waiter: Resting) -> RestingPlace<'_> {
        let mut state = self.0.lock();
        if let Some((ahead, _)) = &waiter.follows {
            // One that was behind it before has lost its place.
            state.behind.insert(*ahead, place);
        }
        state.resting.insert(place, Box::new(waiter));
        RestingPlace {
            followers: self,
            place,
        }
    }

    /// Hands the follower of `ahead` what `offer` makes of its request and its place. True if there is a follower that
    /// could take it, and a value.
    pub(super) fn hand_off(
        &self,
        ahead: &HolderId,
        now: Tick,
        offer: impl FnOnce(&HandoffRequest, HolderId) -> Option<Handoff>,
    ) -> bool {
        let mut state = self.0.lock();
        let Some(place) = state.behind.get(ahead).copied() else {
            return false;
        };
        let next = state.resting.get_mut(&place);
        let Some(next) = next.filter(|next| next.may_be_handed(now)) else {
            return false;
        };
        let request = next.follows.as_ref().map(|(_, request)| request);
        let Some(handoff) = request.and_then(|request| offer(request, place)) else {
            return false;
        };
        next.handed = Handed::Lock { handoff, missed: 0 };
        let woken = Arc::clone(&next.waiter);
        state.here.remove(ahead);
        drop(state);
        woken.hint.notify();
        true
    }

    /// True if there are followers and no task watches them: the caller has to begin.
    pub(super) fn begin_watch(&self) -> bool {
        let mut state = self.0.lock();
        let is_needed = !state.behind.is_empty() && !state.is_watched;
        state.is_watched |= is_needed;
        is_needed
    }

    /// Withdraws the locks that were not taken in time, and returns them. `None` if there is no follower: the watch is
    /// over.
    pub(super) fn withdraw_untaken(&self) -> Option<Vec<Handoff>> {
        let mut state = self.0.lock();
        let mut all = state.resting.values();
        if !all.any(|waiter| waiter.follows.is_some()) {
            state.is_watched = false;
            return None;
        }
        let all = state.resting.values_mut();
        Some(all.filter_map(|next| next.handed.check()).collect())
    }

    /// True if there are enough waiters and no task sends heartbeats: the caller has to begin.
    pub(crate) fn begin_heartbeats(&self) -> bool {
        let mut state = self.0.lock();
        let is_needed = state.resting.len() >= WAITERS_MIN && !state.is_sent;
        state.is_sent |= is_needed;
        is_needed
    }

    /// The places to keep: of waiters that take the heartbeats, and need not ask to learn of their turn. `None` if there
    /// are too few waiters: the task ends.
    pub(crate) fn places(&self) -> Option<Vec<HolderId>> {
        let mut state = self.0.lock();
        if state.resting.len() < WAITERS_MIN {
            state.is_sent = false;
            return None;
        }
        let all = state.resting.iter();
        let polled = all.filter(|(_, resting)| resting.untaken < UNTAKEN_MAX);
        let told = polled.filter(|(_, resting)| state.is_told(resting));
        Some(told.map(|(place, _)| *place).collect())
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

impl Resting {
    pub(crate) fn new(
        waiter: Arc<Subscription>,
        is_listening: bool,
        follows: Option<(HolderId, HandoffRequest)>,
        kept_until: Tick,
    ) -> Self {
        Self {
            waiter,
            is_listening,
            follows,
            kept_until,
            handed: Handed::Nothing,
            kept: None,
            untaken: 0,
        }
    }

    fn may_be_handed(&self, now: Tick) -> bool {
        matches!(self.handed, Handed::Nothing) && now < self.kept_until
    }
}

impl Handed {
    /// Checks whether the lock was taken. Withdraws one that was missed twice.
    fn check(&mut self) -> Option<Handoff> {
        if let Self::Lock { missed, .. } = self {
            *missed += 1;
            if *missed >= MISSED_MAX
                && let Self::Lock { handoff, .. } = mem::replace(self, Self::Withdrawn)
            {
                return Some(handoff);
            }
        }
        None
    }
}

impl RestingPlace<'_> {
    /// Whether something wakes the waiter when it has to ask.
    pub(crate) fn is_told(&self) -> bool {
        let state = self.followers.0.lock();
        let waiter = state.resting.get(&self.place);
        waiter.is_some_and(|waiter| state.is_told(waiter))
    }

    /// Takes the last heartbeat, if one came since the last look. It keeps the place for this long.
    pub(crate) fn take_kept(&self, heartbeat: Duration) -> Option<Kept> {
        let mut state = self.followers.0.lock();
        let resting = state.resting.get_mut(&self.place)?;
        resting.untaken = 0;
        let kept = resting.kept.take()?;
        resting.kept_until = local_deadline(kept.sent, heartbeat);
        Some(kept)
    }

    /// Ends the entry. Returns what the waiter was handed.
    pub(crate) fn end(self) -> Handed {
        self.remove()
            .map_or(Handed::Nothing, |resting| resting.handed)
    }

    fn remove(&self) -> Option<Box<Resting>> {
        let mut state = self.followers.0.lock();
        let resting = state.resting.remove(&self.place)?;
        if let Some((ahead, _)) = &resting.follows
            && state.behind.get(ahead) == Some(&self.place)
        {
            state.behind.remove(ahead);
        }
        Some(resting)
    }
}

impl Drop for RestingPlace<'_> {
    fn drop(&mut self) {
        // Dropped outside the mutex: its hand-off is released, or handed off again.
        drop(self.remove());
    }
}
