//! The waiters of this client in one queue at the server: hand-offs between them in memory, and the heartbeats that
//! keep their places. Pure: it is under the mutex of its lock, beside the local queue.
//!
//! A waiter whose predecessor in that queue is a place or a hold of this client is a follower. A hold that ends may go
//! to its follower in memory. That keeps the order of the server, because no waiter can come between two places. A
//! follower need not listen to the server: it is woken when its predecessor ends or leaves, and asks behind it. One
//! script keeps the places of all resting waiters, so a crowd costs the server a few scripts a second.
//!
//! Invariants: a waiter is listed only while it rests with a place that the server keeps. While it asks, it is handed
//! nothing. A handed-off value is taken out by its task, or dropped with its entry or when its task does not come, and
//! never under the mutex. No task is woken under the mutex. From a heartbeat a waiter learns until when its place is
//! kept and when that was requested, as from a request of its own. Without an answer the waiter asks by itself in time.
//! A waiter that does not take its answers, because it is not polled, loses its place.

use std::mem;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use super::handoff::{Handoff, HandoffRequest, MISSED_MAX};
use super::share_lease::local_deadline;
use super::subscription::Subscription;
use crate::api::holder::HolderId;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::script::reply::Heartbeat;

/// Fewer waiters than this keep their places by their own attempts.
const WAITERS_MIN: usize = 6;

/// The most places that one script keeps. Bounds how long it blocks the server.
pub(crate) const PLACES_MAX: usize = 500;

/// A waiter takes every answer or every second one. After this many answers that it has not taken, its place is no
/// longer kept.
const UNTAKEN_MAX: u32 = 3;

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Followers {
    /// The waiters that rest, by place. Boxed, because a map allocates more slots than it uses.
    resting: FxHashMap<HolderId, Box<Resting>>,
    /// For each place or hold, the place of its follower.
    behind: FxHashMap<HolderId, HolderId>,
    /// The places and holds of this client. A hold with used places is listed by the last of them.
    here: FxHashSet<HolderId>,
    /// Whether a task sends heartbeats.
    is_sent: bool,
}

/// A waiter that rests with a place at the server.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Resting {
    /// The subscription whose hint wakes the waiter.
    waiter: Arc<Subscription>,
    /// Whether the server's messages reach the waiter.
    is_listening: bool,
    /// The place or hold directly ahead of a follower, and what the follower asks for.
    follows: Option<(HolderId, HandoffRequest)>,
    /// The earliest time at which the server may remove the place.
    kept_until: Tick,
    pub(crate) handed: Handed,
    /// The last heartbeat, until the waiter takes it.
    kept: Option<Kept>,
    /// How many heartbeats have come since the waiter last took one.
    untaken: u32,
}

/// The lock that a follower was handed, if any.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) enum Handed {
    #[default]
    Nothing,
    Lock {
        handoff: Handoff,
        /// At how many checks the lock had not been taken.
        missed: u32,
    },
    /// The follower did not take the lock in time. Its place was used for the hand-off, and ends with the hold.
    Withdrawn,
}

/// A heartbeat that keeps a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// When the answered request was sent.
    pub(crate) sent: Tick,
    /// A mark of failovers and moved slots, taken before `sent`.
    pub(crate) moved: Mark,
    /// Until when the place is kept, in ms of the server's clock.
    pub(crate) until_ms: u64,
}

impl Followers {
    /// Whether this can be dropped, because nothing is listed and no task sends heartbeats.
    pub(super) fn is_idle(&self) -> bool {
        self.resting.is_empty() && self.here.is_empty() && !self.is_sent
    }

    /// Whether something wakes the waiter with this place when it has to ask: a message, or its predecessor.
    pub(crate) fn is_told(&self, place: &HolderId) -> bool {
        self.resting.get(place).is_some_and(|waiter| {
            let ahead = waiter.follows.as_ref().map(|(ahead, _)| ahead);
            waiter.is_listening || ahead.is_some_and(|ahead| self.here.contains(ahead))
        })
    }

    /// Notes a place or hold of this client.
    pub(crate) fn enter(&mut self, id: HolderId) {
        self.here.insert(id);
    }

    /// Notes that a place or hold ends. Wakes its follower, which asks behind the command that ends the place or hold.
    pub(crate) fn leave(&mut self, id: &HolderId, woken: &mut Few<Waker>) {
        self.here.remove(id);
        let next = (self.behind.get(id)).and_then(|place| self.resting.get(place));
        let next = next.filter(|next| !next.is_listening);
        woken.extend(next.map(|next| next.waker()));
    }

    /// Lists a waiter that rests with this place.
    pub(crate) fn rest(&mut self, place: HolderId, waiter: Resting) {
        if let Some((ahead, _)) = &waiter.follows {
            // An earlier follower of the same predecessor has lost its place.
            self.behind.insert(*ahead, place);
        }
        self.resting.insert(place, Box::new(waiter));
    }

    /// Removes the entry of a waiter, and returns it. The caller has to drop it without the mutex.
    pub(crate) fn end_rest(&mut self, place: &HolderId) -> Option<Box<Resting>> {
        let resting = self.resting.remove(place)?;
        if let Some((ahead, _)) = &resting.follows
            && self.behind.get(ahead) == Some(place)
        {
            self.behind.remove(ahead);
        }
        Some(resting)
    }

    /// Hands the follower of `ahead` the value that `offer` makes of its request and its place. True if the follower
    /// was handed one.
    pub(super) fn hand_off(
        &mut self,
        ahead: &HolderId,
        now: Tick,
        woken: &mut Few<Waker>,
        offer: impl FnOnce(&HandoffRequest, HolderId) -> Option<Handoff>,
    ) -> bool {
        if let Some(place) = self.behind.get(ahead).copied()
            && let Some(next) = self.resting.get_mut(&place)
            && next.may_be_handed(now)
            && let Some((_, request)) = &next.follows
            && let Some(handoff) = offer(request, place)
        {
            next.handed = Handed::Lock { handoff, missed: 0 };
            woken.push(next.waker());
            self.here.remove(ahead);
            return true;
        }
        false
    }

    /// Whether there may be followers. Each waiter asks this, so it does not look at the entries.
    pub(super) fn may_be_any(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Whether any waiter is a follower.
    pub(super) fn are_any(&self) -> bool {
        let mut all = self.resting.values();
        all.any(|waiter| waiter.follows.is_some())
    }

    /// Withdraws the locks that were not taken in time, and returns them.
    pub(super) fn withdraw_untaken(&mut self) -> impl Iterator<Item = Handoff> {
        let all = self.resting.values_mut();
        all.filter_map(|next| next.handed.check())
    }

    /// True if there are enough waiters and no task sends heartbeats: the caller has to begin.
    pub(crate) fn begin_heartbeats(&mut self) -> bool {
        let is_needed = self.resting.len() >= WAITERS_MIN && !self.is_sent;
        self.is_sent |= is_needed;
        is_needed
    }

    /// Returns the places to keep: the places of waiters that take their answers, and that something wakes when they
    /// have to ask. `None` if there are too few waiters. In that case the task that sends heartbeats has to end.
    pub(crate) fn places(&mut self) -> Option<Vec<HolderId>> {
        if self.resting.len() < WAITERS_MIN {
            self.is_sent = false;
            return None;
        }
        let all = self.resting.iter();
        let polled = all.filter(|(_, resting)| resting.untaken < UNTAKEN_MAX);
        let places = polled.map(|(place, _)| *place);
        Some(places.filter(|place| self.is_told(place)).collect())
    }

    /// Notes the answers to a request that was sent at `sent`. Wakes the waiters that no longer have a place.
    pub(crate) fn answered(
        &mut self,
        places: &[HolderId],
        answers: &[Heartbeat],
        (sent, moved): (Tick, Mark),
        woken: &mut Few<Waker>,
    ) {
        for (place, answer) in places.iter().zip(answers) {
            let Some(resting) = self.resting.get_mut(place) else {
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
                Heartbeat::Gone => woken.push(resting.waker()),
            }
        }
    }

    /// Takes the last heartbeat of a waiter, if one came since the last call. `heartbeat` is how long it keeps the
    /// place.
    pub(crate) fn take_kept(&mut self, place: &HolderId, heartbeat: Duration) -> Option<Kept> {
        let resting = self.resting.get_mut(place)?;
        resting.untaken = 0;
        let kept = resting.kept.take()?;
        resting.kept_until = local_deadline(kept.sent, heartbeat);
        Some(kept)
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

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.waiter))
    }

    fn may_be_handed(&self, now: Tick) -> bool {
        matches!(self.handed, Handed::Nothing) && now < self.kept_until
    }
}

impl Handed {
    /// Checks whether the lock was taken. Withdraws a lock that was not taken at two checks.
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
