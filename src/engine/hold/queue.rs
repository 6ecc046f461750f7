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
use std::mem;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use self::places::{Cohorts, Places, Stage, Wants};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::Mark;

/// At most this many waiters that may hold a lock together stand at the head together.
const HEADS_MAX: u32 = 64;

/// A head that was missing at this many checks in a row is passed over.
pub(super) const MISSED_MAX: u32 = 2;

/// Counting the waiters before a place ends at this number.
const PLACE_MAX: usize = 1000;

#[derive(Debug)]
pub(crate) struct LocalQueue<R, T, J = ()>(Mutex<QueueState<R, T, J>>);

#[derive(Debug)]
struct QueueState<R, T, J> {
    /// The places by number, in the order of arrival. Nothing is kept of a waiter that has left, at any position:
    /// thousands may come and go behind one that waits for long.
    places: Places<Entry<R, T, J>>,
    /// Waiters that were passed over and have not come since.
    absent: BTreeMap<u64, Entry<R, T, J>>,
    /// The number of the next place.
    end: u64,
    /// Entries of `places` with a lower number are at the head, or follow a leader there.
    next: u64,
    /// How many are at the head. `alone` is the number of the head that wants the lock alone, if there is one.
    heads: u32,
    alone: Option<u64>,
    /// The first entry of `places` that wants the lock alone.
    first_alone: Option<u64>,
    /// The waiters that would share the hold of a leader at the head.
    cohorts: Cohorts<J>,
    /// Whether a task watches the head for the waiters behind it.
    is_watched: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct Entry<R, T, J> {
    wants: Wants<R, J>,
    is_head: bool,
    stage: Stage<T>,
    /// How many checks in a row it has missed since it should have come.
    missed: u32,
    /// The waker of its task, for when it reaches the head or is handed something.
    waiting: Option<Waker>,
}

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Place<'a, R, T, J: Copy + PartialEq = ()> {
    queue: &'a LocalQueue<R, T, J>,
    number: u64,
}

impl<R, T, J> Default for LocalQueue<R, T, J> {
    fn default() -> Self {
        Self(Mutex::new(QueueState {
            places: Places::default(),
            absent: BTreeMap::new(),
            end: 0,
            next: 0,
            heads: 0,
            alone: None,
            first_alone: None,
            cohorts: Cohorts::default(),
            is_watched: false,
            is_closed: false,
        }))
    }
}

impl<R, T, J: Copy + PartialEq> LocalQueue<R, T, J> {
    /// Takes the last place. With a request, another task may hand its hold off to a waiter that wants the lock alone.
    pub(crate) fn push(&self, mode: Mode, request: Option<R>) -> Place<'_, R, T, J> {
        self.add(match mode {
            Mode::Exclusive => Wants::Alone(request),
            Mode::Shared => Wants::Together(None),
        })
    }

    /// Takes the last place, for a waiter that would share another's hold on these terms. It follows a leader with
    /// the same terms, and comes to the head after the leader.
    pub(crate) fn push_joining(&self, terms: J) -> Place<'_, R, T, J> {
        self.add(Wants::Together(Some(terms)))
    }

    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().places.len()
    }

    fn add(&self, wants: Wants<R, J>) -> Place<'_, R, T, J> {
        let mut state = self.0.lock();
        let number = state.end;
        state.end += 1;
        let entry = Entry {
            wants,
            is_head: false,
            stage: Stage::Next,
            missed: 0,
            waiting: None,
        };
        state.insert(number, entry);
        state.promote();
        Place {
            queue: self,
            number,
        }
    }

    /// Hands the head the value that `offer` makes of its request. True if there was a head that could take it, and a
    /// value.
    pub(crate) fn hand_off(&self, offer: impl FnOnce(&R) -> Option<T>) -> bool {
        let mut state = self.0.lock();
        if let Some(alone) = state.alone
            && let Some(head) = state.places.get_mut(alone)
            && head.is_free()
            && let Wants::Alone(Some(request)) = &head.wants
            && let Some(handoff) = offer(request)
        {
            head.stage = Stage::Handed(handoff);
            head.wake();
            return true;
        }
        false
    }

    /// Hands each member of a cohort, in order, the value that `offer` makes of its terms, until there is none. Skips
    /// a leader that is asking the server or was handed something before. Serves only the first cohort that gets
    /// anything. True if any member was handed a value.
    pub(crate) fn hand_to_cohort(&self, mut offer: impl FnMut(&J) -> Option<T>) -> bool {
        let mut woken = Vec::new();
        {
            let mut state = self.0.lock();
            let QueueState {
                places,
                cohorts,
                heads,
                ..
            } = &mut *state;
            for cohort in cohorts.all() {
                let leader = places
                    .get_mut(cohort.leader)
                    .filter(|leader| leader.is_free());
                if let Some(leader) = leader {
                    let Some(handoff) = offer(&cohort.terms) else {
                        continue;
                    };
                    leader.stage = Stage::Handed(handoff);
                    woken.push(leader.waiting.take());
                }
                while let Some(next) = cohort.followers.first().copied()
                    && let Some(follower) = places.get_mut(next)
                    && let Some(handoff) = offer(&cohort.terms)
                {
                    cohort.followers.pop_first();
                    follower.stage = Stage::Handed(handoff);
                    follower.is_head = true;
                    *heads += 1;
                    woken.push(follower.waiting.take());
                }
                if !woken.is_empty() {
                    break;
                }
            }
        }
        let is_any = !woken.is_empty();
        // Not under the mutex, because all of them come and lock it.
        woken.into_iter().flatten().for_each(Waker::wake);
        is_any
    }

    /// The number of the oldest place that is left.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let state = self.0.lock();
        let absent = state.absent.keys().next().copied();
        state.places.first().into_iter().chain(absent).min()
    }

    /// The position of a place among those still there, counted from 1. `None` if it was left, or if at least
    /// [`PLACE_MAX`] places are before it.
    pub(crate) fn place_of(&self, number: u64) -> Option<usize> {
        let mut state = self.0.lock();
        let is_absent = state.absent.contains_key(&number);
        if !is_absent && state.places.get_mut(number).is_none() {
            return None;
        }
        let absent = state.absent.range(..number).take(PLACE_MAX).count();
        let before = state.places.before(number, PLACE_MAX) + absent;
        (before < PLACE_MAX).then_some(before + 1)
    }

    /// Whether any waiter is excluded by a hold in this mode.
    pub(crate) fn has_waiter_blocked_by(&self, held: Mode) -> bool {
        let state = self.0.lock();
        let mut all = state.places.values().chain(state.absent.values());
        all.any(|entry| held == Mode::Exclusive || entry.wants.is_alone())
    }

    /// Whether any waiter that was not passed over wants the lock alone.
    pub(crate) fn has_alone(&self) -> bool {
        self.0.lock().first_alone.is_some()
    }

    /// Whether any waiter stands behind the head.
    pub(crate) fn has_more(&self) -> bool {
        self.0.lock().has_more()
    }

    /// True if waiters stand behind the head and no task watches it: the caller has to begin.
    pub(crate) fn begin_watch(&self) -> bool {
        let mut state = self.0.lock();
        let is_needed = state.has_more() && !state.is_watched;
        state.is_watched |= is_needed;
        is_needed
    }

    /// Passes over the heads that do not come, and returns the values that they had been handed. `seen` marks the
    /// hints that they may have seen by now. `None` if no waiter stands behind them: the watch is over.
    pub(crate) fn pass_over_missing(&self, seen: Mark, now: Tick) -> Option<Vec<T>> {
        let mut state = self.0.lock();
        if !state.has_more() {
            state.is_watched = false;
            return None;
        }
        let count = state.heads as usize;
        let heads = state.places.from(0).filter(|(_, entry)| entry.is_head);
        let missing: Vec<u64> = heads
            .take(count)
            .filter_map(|(number, head)| head.is_missing(seen, now).then_some(number))
            .collect();
        let handoffs = missing.into_iter().filter_map(|head| state.skip(head));
        Some(handoffs.collect())
    }

    /// Wakes all waiters, because the client is closed.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        for (_, entry) in state.places.from(0) {
            entry.wake();
        }
    }
}

impl<R, T, J> Entry<R, T, J> {
    /// Whether it may be handed something.
    fn is_free(&self) -> bool {
        matches!(self.stage, Stage::Next | Stage::Resting(..))
    }

    /// Takes out what it was handed.
    fn take_handoff(&mut self) -> Option<T> {
        match mem::replace(&mut self.stage, Stage::Next) {
            Stage::Handed(handoff) => return Some(handoff),
            other => self.stage = other,
        }
        None
    }

    fn wake(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }

    /// Notes the waker of its task.
    fn wait(&mut self, context: &Context<'_>) {
        match &mut self.waiting {
            Some(waiting) => waiting.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
    }

    /// Checks on one head. True if it has been missing for long enough.
    fn is_missing(&mut self, seen: Mark, now: Tick) -> bool {
        if let Stage::Resting(mark, until) = self.stage
            && mark == seen
            && now < until
        {
            return false;
        }
        self.missed += 1;
        self.missed >= MISSED_MAX
    }
}

impl<R, T, J: Copy + PartialEq> QueueState<R, T, J> {
    fn has_more(&self) -> bool {
        self.places.len() > self.heads as usize
    }

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
            let follows = terms.is_some_and(|terms| self.cohorts.follow(terms, number));
            if !follows {
                if self.heads >= HEADS_MAX {
                    return;
                }
                if let Some(terms) = terms {
                    self.cohorts.begin(terms, number);
                }
                entry.wake();
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
        if let Some(next) = entry
            .wants
            .terms()
            .copied()
            .and_then(|terms| self.cohorts.leave(terms, number))
            && let Some(next) = self.places.get_mut(next)
        {
            next.wake();
            next.is_head = true;
            self.heads += 1;
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

impl<R, T, J: Copy + PartialEq> Place<'_, R, T, J> {
    /// The number of the place. Later places have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether it is at the head. A waiter that was passed over and comes back is next again.
    pub(crate) fn is_head(&self) -> bool {
        self.queue.0.lock().come(self.number)
    }

    /// Whether a waiter before it wants the lock alone.
    pub(crate) fn is_behind_alone(&self) -> bool {
        let first = self.queue.0.lock().first_alone;
        first.is_some_and(|first| first < self.number)
    }

    /// Resolves when it is at the head, or when the client is closed. Cancel safe.
    pub(crate) async fn turn(&self) {
        poll_fn(|context| {
            let mut state = self.queue.0.lock();
            if state.come(self.number) || state.is_closed {
                return Poll::Ready(());
            }
            state.entry(self.number).wait(context);
            Poll::Pending
        })
        .await;
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
    pub(crate) fn take_handoff(&self) -> Option<T> {
        self.with(Entry::take_handoff)
    }

    /// As [`begin_attempt`](Self::begin_attempt), if there is no other place and nothing was handed to this one.
    pub(crate) fn begin_alone(&self) -> bool {
        let mut state = self.queue.0.lock();
        let is_alone = state.places.len() == 1 && state.absent.is_empty();
        let entry = state.entry(self.number);
        let may_ask = is_alone && entry.is_head && entry.is_free();
        if may_ask {
            entry.stage = Stage::Asking;
        }
        may_ask
    }

    /// Takes out the value that it was handed. If there is none, it asks the server now, and is handed nothing until
    /// it rests again.
    pub(crate) fn begin_attempt(&self) -> Option<T> {
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

    fn with<X>(&self, change: impl FnOnce(&mut Entry<R, T, J>) -> X) -> X {
        let mut state = self.queue.0.lock();
        let entry = state.entry(self.number);
        entry.missed = 0;
        change(entry)
    }
}

impl<R, T, J: Copy + PartialEq> Drop for Place<'_, R, T, J> {
    fn drop(&mut self) {
        let left = self.queue.0.lock().leave(self.number);
        // Dropped outside the mutex: its hand-off is released, or handed off again.
        drop(left);
    }
}
