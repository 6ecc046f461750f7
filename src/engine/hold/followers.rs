//! The waiters of this client in one queue at the server: whom a hold passes to in memory, and who keeps their places.
//! Pure: it is under the mutex of its lock, beside the local queue.
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

/// Fewer waiters than this ask by themselves.
const WAITERS_MIN: usize = 6;

/// The most places that one script keeps. Bounds how long it blocks the server.
pub(crate) const PLACES_MAX: usize = 500;

/// A waiter looks at every answer or every second one. If it has not after this many, its place is not kept.
const UNTAKEN_MAX: u32 = 3;

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Followers {
    /// The waiters that rest, by place. Boxed, because a map has room for more than it holds.
    resting: FxHashMap<HolderId, Box<Resting>>,
    /// The place of the follower that stands directly behind each place or hold.
    behind: FxHashMap<HolderId, HolderId>,
    /// The places and holds of this client. Of a hold with used places the last of these.
    here: FxHashSet<HolderId>,
    /// Whether a task sends heartbeats.
    is_sent: bool,
}

/// A waiter that rests with a place at the server.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Resting {
    /// Its hint wakes the waiter.
    waiter: Arc<Subscription>,
    /// Whether the server's messages reach it.
    is_listening: bool,
    /// The place or hold directly ahead of a follower, and what the follower asks for.
    follows: Option<(HolderId, HandoffRequest)>,
    /// Until when the server keeps the place, at least.
    kept_until: Tick,
    pub(crate) handed: Handed,
    /// The last heartbeat, until the waiter takes it.
    kept: Option<Kept>,
    /// How many heartbeats came since it last took one.
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

impl Followers {
    /// Whether nothing of it is needed.
    pub(super) fn is_idle(&self) -> bool {
        self.resting.is_empty() && self.here.is_empty() && !self.is_sent
    }

    /// Whether something wakes the waiter with this place when it has to ask: a message, or the one ahead.
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

    /// Notes that a place or hold ends. Its follower asks behind the command that ends it.
    pub(crate) fn leave(&mut self, id: &HolderId, woken: &mut Few<Waker>) {
        self.here.remove(id);
        let next = (self.behind.get(id)).and_then(|place| self.resting.get(place));
        let next = next.filter(|next| !next.is_listening);
        woken.extend(next.map(|next| next.waker()));
    }

    /// Lists a waiter that rests with this place.
    pub(crate) fn rest(&mut self, place: HolderId, waiter: Resting) {
        if let Some((ahead, _)) = &waiter.follows {
            // One that was behind it before has lost its place.
            self.behind.insert(*ahead, place);
        }
        self.resting.insert(place, Box::new(waiter));
    }

    /// Ends the entry of a waiter. Returns what that was, for the caller to drop without the mutex.
    pub(crate) fn end_rest(&mut self, place: &HolderId) -> Option<Box<Resting>> {
        let resting = self.resting.remove(place)?;
        if let Some((ahead, _)) = &resting.follows
            && self.behind.get(ahead) == Some(place)
        {
            self.behind.remove(ahead);
        }
        Some(resting)
    }

    /// Hands the follower of `ahead` what `offer` makes of its request and its place. True if there is a follower that
    /// could take it, and a value.
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

    /// Whether any waiter that rests now may follow another, if none did before. Each waiter asks, so it looks at none.
    pub(super) fn have_new(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Whether any waiter follows another.
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

    /// The places to keep: of waiters that take the heartbeats, and need not ask to learn of their turn. `None` if there
    /// are too few waiters: the task ends.
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

    /// Notes the answers to a request that was sent then. Wakes the waiters that have no place.
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

    /// Takes the last heartbeat of a waiter, if one came since the last look. It keeps the place for this long.
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
