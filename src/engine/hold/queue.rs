//! The local queue of one lock: which task of this client is next, first come, first served.
//!
//! At its head stands one waiter that wants the lock alone, or all of the oldest waiters that may have it together.
//! Waiters that would share one hold are a cohort: its leader stands at the head, and the others follow the leader.
//! Only the head talks to the server, unless a task of this client that has the lock hands it off to the head, or to
//! a cohort. The queue does not know about locks: `R` is a waiter's request for a hand-off, `J` the terms that a
//! cohort has in common, `T` the handed-off value.
//!
//! Invariants: a place is taken when it is pushed, not when its future is first polled. No waiter follows a leader
//! past another waiter that wants the lock alone. A head that does not come in time is passed over, and is next again
//! once it comes. A waiter that asks the server is handed nothing in the meantime. A handed-off value is taken out by
//! its task, or dropped with its place or when that is passed over, and never under the mutex of the queue.

mod places;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

pub(super) use self::places::MISSED_MAX;
pub(crate) use self::places::Wants;
use self::places::{Entry, Places, Stage};
use super::locked::Wakes;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::Mark;

/// At most this many waiters that may hold a lock together stand at the head together.
const HEADS_MAX: u32 = 64;

/// Counting the waiters before a place ends at this number.
const PLACE_MAX: usize = 1000;

/// The number of the next place in any queue, so that a queue need not be kept for its numbers.
static NEXT_PLACE: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Queue<R, T, J = ()> {
    /// The places by number, in the order of arrival. Nothing is kept of a waiter that has left, at any position:
    /// thousands may come and go behind one that waits for long.
    places: Places<Entry<R, T, J>>,
    /// Waiters that were passed over and have not come since.
    absent: BTreeMap<u64, Entry<R, T, J>>,
    /// Entries of `places` with a lower number are at the head, or follow a leader there.
    next: u64,
    /// How many are at the head. `alone` is the number of the head that wants the lock alone, if there is one.
    heads: u32,
    alone: Option<u64>,
    /// The first entry of `places` that wants the lock alone.
    first_alone: Option<u64>,
    /// The leader of each cohort and its terms, in the order of their arrival. Its followers are the entries with these
    /// terms before `next` that are not at the head.
    leaders: Vec<(J, u64)>,
    /// Whether a task watches the head for the waiters behind it.
    is_watched: bool,
    is_closed: bool,
    /// Tasks to wake once the mutex of the queue is free.
    woken: Few<Waker>,
}

/// A lock that keeps its queue under a mutex.
pub(crate) trait Queued {
    type Request;
    type Handed;
    type Terms: Copy + PartialEq;

    fn with_queue<X>(
        &self,
        work: impl FnOnce(&mut Queue<Self::Request, Self::Handed, Self::Terms>) -> X,
    ) -> X;
}

/// A place in the queue of a lock. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Place<'a, L: Queued> {
    lock: &'a L,
    number: u64,
}

impl<R, T, J> Queue<R, T, J> {
    pub(super) const EMPTY: Self = Self {
        places: Places::EMPTY,
        absent: BTreeMap::new(),
        next: 0,
        heads: 0,
        alone: None,
        first_alone: None,
        leaders: Vec::new(),
        is_watched: false,
        is_closed: false,
        woken: Few::new_const(),
    };
}

impl<R, T, J> Wakes for Queue<R, T, J> {
    #[inline]
    fn woken(&mut self) -> Option<&mut Few<Waker>> {
        Some(&mut self.woken)
    }
}

impl<R, T, J: Copy + PartialEq> Queue<R, T, J> {
    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing of it is needed: any lock may have it next.
    pub(super) fn is_idle(&self) -> bool {
        let is_empty = self.places.len() == 0 && self.absent.is_empty() && self.woken.is_empty();
        is_empty && !self.is_watched && !self.is_closed
    }

    /// Takes the last place, and returns its number. A waiter that would share another's hold follows a leader with the
    /// same terms, and comes to the head after the leader.
    pub(super) fn push(&mut self, wants: Wants<R, J>) -> u64 {
        let number = NEXT_PLACE.fetch_add(1, Ordering::Relaxed);
        let entry = Entry {
            wants,
            is_head: false,
            stage: Stage::Next,
            missed: 0,
            waiting: None,
        };
        self.insert(number, entry);
        self.promote();
        number
    }

    /// Hands the head the value that `offer` makes of its request. True if there was a head that could take it, and a
    /// value.
    pub(crate) fn hand_off(&mut self, offer: impl FnOnce(&R) -> Option<T>) -> bool {
        if let Some(alone) = self.alone
            && let Some(head) = self.places.get_mut(alone)
            && head.is_free()
            && let Wants::Alone(Some(request)) = &head.wants
            && let Some(handoff) = offer(request)
        {
            self.woken.extend(head.hand(handoff));
            return true;
        }
        false
    }

    /// Hands each member of a cohort, in order, the value that `offer` makes of its terms, until there is none. Skips
    /// a leader that is asking the server or was handed something before. Serves only the first cohort that gets
    /// anything. True if any member was handed a value.
    pub(crate) fn hand_to_cohort(&mut self, mut offer: impl FnMut(&J) -> Option<T>) -> bool {
        let mut is_any = false;
        let Self {
            places,
            leaders,
            heads,
            woken,
            next,
            ..
        } = self;
        for (terms, leader) in leaders {
            let leader = places.get_mut(*leader).filter(|leader| leader.is_free());
            if let Some(leader) = leader {
                let Some(handoff) = offer(terms) else {
                    continue;
                };
                woken.extend(leader.hand(handoff));
                is_any = true;
            }
            for (_, follower) in followers(places, *next, *terms) {
                let Some(handoff) = offer(terms) else {
                    break;
                };
                follower.is_head = true;
                *heads += 1;
                woken.extend(follower.hand(handoff));
                is_any = true;
            }
            if is_any {
                break;
            }
        }
        is_any
    }

    /// The number of the oldest place that is left.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let absent = self.absent.keys().next().copied();
        self.places.first().into_iter().chain(absent).min()
    }

    /// The position of a place among those still there, counted from 1. `None` if it was left, or if at least
    /// [`PLACE_MAX`] places are before it.
    pub(crate) fn place_of(&mut self, number: u64) -> Option<usize> {
        let is_absent = self.absent.contains_key(&number);
        if !is_absent && self.places.get_mut(number).is_none() {
            return None;
        }
        let absent = self.absent.range(..number).take(PLACE_MAX).count();
        let before = self.places.before(number, PLACE_MAX) + absent;
        (before < PLACE_MAX).then_some(before + 1)
    }

    /// Whether any waiter is excluded by a hold in this mode.
    pub(crate) fn has_waiter_blocked_by(&self, held: Mode) -> bool {
        let mut all = self.places.values().chain(self.absent.values());
        all.any(|entry| held == Mode::Exclusive || entry.wants.is_alone())
    }

    /// Whether any waiter that was not passed over wants the lock alone.
    pub(crate) fn has_alone(&self) -> bool {
        self.first_alone.is_some()
    }

    /// Whether any waiter stands behind the head.
    pub(crate) fn has_more(&self) -> bool {
        self.places.len() > self.heads as usize
    }

    /// True if no task watches the queue though it has to be watched: waiters stand behind the head, or wait for what a
    /// call has not taken. The caller has to begin.
    pub(crate) fn begin_watch(&mut self, is_untaken: bool) -> bool {
        let is_needed = (is_untaken || self.has_more()) && !self.is_watched;
        self.is_watched |= is_needed;
        is_needed
    }

    /// Passes over the heads that do not come, and returns the values that they had been handed. `seen` marks the
    /// hints that they may have seen by now. `None` if no waiter needs that: the watch is over.
    pub(crate) fn pass_over_missing(
        &mut self,
        is_untaken: bool,
        seen: Mark,
        now: Tick,
    ) -> Option<Vec<T>> {
        if !is_untaken && !self.has_more() {
            self.is_watched = false;
            return None;
        }
        let count = self.heads as usize;
        let heads = self.places.from(0).filter(|(_, entry)| entry.is_head);
        let missing: Vec<u64> = heads
            .take(count)
            .filter_map(|(number, head)| head.is_missing(seen, now).then_some(number))
            .collect();
        let handoffs = missing.into_iter().filter_map(|head| self.skip(head));
        Some(handoffs.collect())
    }

    /// Wakes all waiters, because the client is closed.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        let all = self.places.from(0);
        self.woken
            .extend(all.filter_map(|(_, entry)| entry.waiting.take()));
    }
}

impl<R, T, J: Copy + PartialEq> Queue<R, T, J> {
    /// Moves waiters to the head whose turn it is, or has them follow a leader there.
    fn promote(&mut self) {
        for (number, entry) in self.places.from(self.next) {
            if entry.is_head {
                // It stands behind a waiter that was passed over and has come back.
                continue;
            }
            let is_alone = entry.wants.is_alone();
            if self.alone.is_some() || is_alone && self.heads > 0 {
                return;
            }
            let terms = entry.wants.terms().copied();
            let follows = |(of, _): &(J, u64)| terms == Some(*of);
            if !self.leaders.iter().any(follows) {
                if self.heads >= HEADS_MAX {
                    return;
                }
                self.leaders.extend(terms.map(|terms| (terms, number)));
                self.woken.extend(entry.waiting.take());
                entry.is_head = true;
                self.heads += 1;
                self.alone = is_alone.then_some(number);
            }
            self.next = number + 1;
        }
    }

    fn insert(&mut self, number: u64, entry: Entry<R, T, J>) {
        if entry.wants.is_alone() {
            let first = self.first_alone.get_or_insert(number);
            *first = number.min(*first);
        }
        self.places.insert(number, entry);
    }

    /// Notes that its task has come. Returns whether it is at the head. A waiter that was passed over is next again.
    fn come(&mut self, number: u64) -> bool {
        if let Some(entry) = self.absent.remove(&number) {
            self.insert(number, entry);
            self.next = self.next.min(number);
            self.promote();
        }
        let entry = self.places.get_mut(number);
        entry.is_some_and(|entry| {
            entry.missed = 0;
            if let Stage::Resting(..) = entry.stage {
                entry.stage = Stage::Next;
            }
            entry.is_head
        })
    }

    fn entry(&mut self, number: u64) -> &mut Entry<R, T, J> {
        let entry = self.places.get_mut(number);
        let entry = entry.or_else(|| self.absent.get_mut(&number));
        entry.expect("a place is in the queue until it is dropped")
    }

    /// As [`Place::begin_attempt`], if there is no other place and nothing was handed to this one.
    pub(super) fn begin_alone(&mut self, number: u64) -> bool {
        let is_alone = self.places.len() == 1 && self.absent.is_empty();
        let entry = self.entry(number);
        let may_ask = is_alone && entry.is_head && entry.is_free();
        if may_ask {
            entry.stage = Stage::Asking;
        }
        may_ask
    }

    /// Passes over a head that does not come. Returns the value that it had been handed, which is for others now.
    fn skip(&mut self, number: u64) -> Option<T> {
        let mut entry = self.leave(number)?;
        let handoff = entry.take_handoff();
        (entry.is_head, entry.stage, entry.missed) = (false, Stage::Next, 0);
        self.absent.insert(number, entry);
        handoff
    }

    fn leave(&mut self, number: u64) -> Option<Entry<R, T, J>> {
        let Some(entry) = self.places.remove(number) else {
            return self.absent.remove(&number);
        };
        if entry.is_head {
            self.heads -= 1;
            self.alone = None;
        }
        let mut leaders = self.leaders.iter();
        if let Some(at) = leaders.position(|(_, leader)| *leader == number) {
            let (terms, _) = self.leaders[at];
            if let Some((next, follower)) = followers(&mut self.places, self.next, terms).next() {
                self.woken.extend(follower.waiting.take());
                follower.is_head = true;
                self.heads += 1;
                self.leaders[at].1 = next;
            } else {
                self.leaders.remove(at);
            }
        }
        if self.first_alone == Some(number) {
            let mut behind = self.places.from(number);
            let next = behind.find(|(_, entry)| entry.wants.is_alone());
            self.first_alone = next.map(|(number, _)| number);
        }
        self.promote();
        Some(entry)
    }
}

/// The waiters before `next` that follow a leader with these terms.
fn followers<R, T, J: PartialEq>(
    places: &mut Places<Entry<R, T, J>>,
    next: u64,
    terms: J,
) -> impl Iterator<Item = (u64, &mut Entry<R, T, J>)> {
    let before = places.from(0).take_while(move |(number, _)| *number < next);
    before.filter(move |(_, entry)| !entry.is_head && entry.wants.terms() == Some(&terms))
}

impl<'a, L: Queued> Place<'a, L> {
    /// See [`Queue::push`].
    pub(crate) fn take(lock: &'a L, wants: Wants<L::Request, L::Terms>) -> Self {
        let number = lock.with_queue(|queue| queue.push(wants));
        Self { lock, number }
    }

    /// The number of the place. Later places have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is at the head. A waiter that was passed over and comes back is next again.
    pub(crate) fn is_head(&self) -> bool {
        self.lock.with_queue(|queue| queue.come(self.number))
    }

    /// Whether a waiter before it wants the lock alone.
    pub(crate) fn is_behind_alone(&self) -> bool {
        let first = self.lock.with_queue(|queue| queue.first_alone);
        first.is_some_and(|first| first < self.number)
    }

    /// Resolves when it is at the head, or when the client is closed. Cancel safe.
    pub(crate) async fn turn(&self) {
        let turn = |context: &mut Context<'_>| {
            self.lock.with_queue(|queue| {
                if queue.come(self.number) || queue.is_closed {
                    return Poll::Ready(());
                }
                queue.entry(self.number).wait(context);
                Poll::Pending
            })
        };
        poll_fn(turn).await;
    }

    /// Resolves when it was handed something. Cancel safe.
    pub(crate) async fn handed_off(&self) {
        let handed_off = |context: &mut Context<'_>| {
            self.with(|entry| {
                if let Stage::Handed(_) = entry.stage {
                    return Poll::Ready(());
                }
                entry.wait(context);
                Poll::Pending
            })
        };
        poll_fn(handed_off).await;
    }

    /// Takes out the value that it was handed.
    pub(crate) fn take_handoff(&self) -> Option<L::Handed> {
        self.with(Entry::take_handoff)
    }

    /// Takes out the value that it was handed. If there is none, it asks the server now, and is handed nothing until
    /// it rests again.
    pub(crate) fn begin_attempt(&self) -> Option<L::Handed> {
        self.with(|entry| {
            let handoff = entry.take_handoff();
            if handoff.is_none() {
                entry.stage = Stage::Asking;
            }
            handoff
        })
    }

    /// Ends its request to the server. It need not come until there is a hint beyond `seen`, or `until` is reached.
    pub(crate) fn rest(&self, seen: Mark, until: Tick) {
        self.with(|entry| {
            if !matches!(entry.stage, Stage::Handed(_)) {
                entry.stage = Stage::Resting(seen, until);
            }
        });
    }

    fn with<X>(&self, change: impl FnOnce(&mut Entry<L::Request, L::Handed, L::Terms>) -> X) -> X {
        self.lock.with_queue(|queue| {
            let entry = queue.entry(self.number);
            entry.missed = 0;
            change(entry)
        })
    }
}

impl<L: Queued> Drop for Place<'_, L> {
    fn drop(&mut self) {
        let left = self.lock.with_queue(|queue| queue.leave(self.number));
        // Dropped outside the mutex: its hand-off is released, or handed off again.
        drop(left);
    }
}
