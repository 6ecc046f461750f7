//! The local queue of one lock: which task of this client is next, first come, first served.
//!
//! At its head stands one waiter that wants the lock alone, or all of the oldest waiters that may have it together.
//! Waiters that would share one hold are a cohort: its leader stands at the head, and the others follow the leader.
//! Only the head talks to the server. It need not if a task of this client hands the lock off to the head, or to a
//! cohort. Pure: it is under the mutex of its lock, and does not know the lock.
//!
//! Invariants: a place is taken when it is pushed, not when its future is first polled. No waiter follows a leader
//! past another waiter that wants the lock alone. A head that does not come in time is passed over, and is next again
//! once it comes. A waiter is handed nothing while it asks the server. A handed-off value is taken out by its task, or
//! dropped with its place or when the place is passed over, and never under the mutex.

pub(crate) mod place;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use super::followers::Followers;
use super::handoff::{Handoff, HandoffRequest, MISSED_MAX, ReaderClass};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::{Mark, set_waker};

/// At most this many waiters that may hold a lock together stand at the head together.
const HEADS_MAX: u32 = 64;

/// Counting the waiters before a place ends at this number.
const PLACE_MAX: usize = 1000;

/// Room for this many waiters is kept.
const KEPT_MAX: usize = 4;

/// The number of the next place in any queue, so that a queue need not be kept for its numbers.
static NEXT_PLACE: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Queue {
    /// The waiters by the number of their place, in the order of arrival. A waiter that leaves is removed at once, at
    /// any position, because thousands may come and go behind a waiter that waits for long. Boxed, because the entries
    /// behind it move up, under the mutex.
    places: VecDeque<Box<Entry>>,
    /// The box of the last waiter that left, which the next waiter uses, so that waiters that come and go in turn
    /// allocate none.
    spare: Option<Box<Entry>>,
    /// Waiters that were passed over and have not come back.
    absent: BTreeMap<u64, Box<Entry>>,
    /// Entries of `places` with a lower number are at the head, or follow a leader there.
    next: u64,
    /// How many waiters are at the head. `alone` is the place of the head that wants the lock alone, if there is one.
    heads: u32,
    alone: Option<u64>,
    /// The first entry of `places` that wants the lock alone.
    first_alone: Option<u64>,
    /// The terms and the leader of each cohort, in the order of arrival. The followers of a leader are the entries
    /// before `next` with the same terms that are not at the head.
    leaders: Vec<(ReaderClass, u64)>,
    /// The waiters and holds of a lock that queues at the server. Boxed: most locks do not queue there.
    pub(super) followers: Option<Box<Followers>>,
    /// Whether a task watches the head for the waiters behind it, and the followers.
    is_watched: bool,
    is_closed: bool,
    /// Tasks to wake once the mutex of the queue is free.
    pub(super) woken: Few<Waker>,
}

/// A waiter at its place.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Entry {
    number: u64,
    wants: Wants,
    is_head: bool,
    stage: Stage,
    /// How many checks in a row it has missed since it should have come.
    missed: u32,
    /// The waker of its task, for when it reaches the head or is handed something.
    waiting: Option<Waker>,
}

impl Entry {
    fn new(number: u64, wants: Wants) -> Self {
        Self {
            number,
            wants,
            is_head: false,
            stage: Stage::Next,
            missed: 0,
            waiting: None,
        }
    }

    /// Whether it may be handed a share.
    fn is_free(&self) -> bool {
        matches!(self.stage, Stage::Next | Stage::Resting(..))
    }

    /// Hands it a share. Returns the waker of its task.
    fn hand(&mut self, handoff: Handoff) -> Option<Waker> {
        self.stage = Stage::Handed(handoff);
        self.waiting.take()
    }

    /// Takes out the share that it was handed.
    fn take_handoff(&mut self) -> Option<Handoff> {
        match mem::replace(&mut self.stage, Stage::Next) {
            Stage::Handed(handoff) => return Some(handoff),
            other => self.stage = other,
        }
        None
    }

    /// Notes the waker of its task.
    fn wait(&mut self, context: &Context<'_>) {
        set_waker(&mut self.waiting, context);
    }

    /// Checks on a waiter at the head. True if it has been missing for long enough to be passed over.
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

/// How a waiter wants the lock.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) enum Wants {
    /// Alone. A waiter with a request may be handed a hold.
    Alone(Option<HandoffRequest>),
    /// Together with others. A waiter with terms would share another waiter's hold on these terms.
    Together(Option<ReaderClass>),
}

impl Wants {
    fn is_alone(&self) -> bool {
        matches!(self, Self::Alone(_))
    }

    /// The terms on which it would share another waiter's hold.
    fn terms(&self) -> Option<&ReaderClass> {
        match self {
            Self::Together(terms) => terms.as_ref(),
            Self::Alone(_) => None,
        }
    }
}

/// The stage of a waiter.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Stage {
    /// It waits for its turn, or its task is about to go on.
    Next,
    /// It asks the server, and is handed nothing.
    Asking,
    /// It need not come until there is a hint after this mark, or this time is reached.
    Resting(Mark, Tick),
    /// It was handed this share.
    Handed(Handoff),
}

impl Queue {
    pub(super) const EMPTY: Self = Self {
        places: VecDeque::new(),
        spare: None,
        absent: BTreeMap::new(),
        next: 0,
        heads: 0,
        alone: None,
        first_alone: None,
        leaders: Vec::new(),
        followers: None,
        is_watched: false,
        is_closed: false,
        woken: Few::new_const(),
    };

    /// The number of places.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing in it is needed, so that another lock may use it.
    pub(super) fn is_idle(&self) -> bool {
        let is_empty = self.places.is_empty() && self.absent.is_empty() && self.woken.is_empty();
        is_empty && self.followers.is_none() && !self.is_watched && !self.is_closed
    }

    /// Takes the last place, and returns its number. A waiter that would share another waiter's hold follows the leader
    /// with the same terms, and comes to the head after the leader.
    pub(super) fn push(&mut self, wants: Wants) -> u64 {
        let number = NEXT_PLACE.fetch_add(1, Ordering::Relaxed);
        let entry = Entry::new(number, wants);
        let boxed = match self.spare.take() {
            Some(mut spare) => {
                *spare = entry;
                spare
            }
            None => Box::new(entry),
        };
        self.insert(boxed);
        self.promote();
        number
    }

    /// Hands the head the value that `offer` makes of its request. True if the head was handed one.
    pub(crate) fn hand_off(
        &mut self,
        offer: impl FnOnce(&HandoffRequest) -> Option<Handoff>,
    ) -> bool {
        if let Some(alone) = self.alone
            && let Some(head) = find(&mut self.places, alone)
            && head.is_free()
            && let Wants::Alone(Some(request)) = &head.wants
            && let Some(handoff) = offer(request)
        {
            self.woken.extend(head.hand(handoff));
            return true;
        }
        false
    }

    /// Hands each member of a cohort, in order, the value that `offer` makes of its terms, until `offer` makes none.
    /// Skips a leader that is asking the server or was handed a value before. Serves only the first cohort that gets a
    /// value. True if any member was handed one.
    pub(crate) fn hand_to_cohort(
        &mut self,
        mut offer: impl FnMut(&ReaderClass) -> Option<Handoff>,
    ) -> bool {
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
            let leader = find(places, *leader).filter(|leader| leader.is_free());
            if let Some(leader) = leader {
                let Some(handoff) = offer(terms) else {
                    continue;
                };
                woken.extend(leader.hand(handoff));
                is_any = true;
            }
            for follower in followers(places, *next, *terms) {
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

    /// The number of the oldest place in the queue.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let absent = self.absent.keys().next().copied();
        let first = self.places.front().map(|entry| entry.number);
        first.into_iter().chain(absent).min()
    }

    /// The position of a place in the queue, counted from 1. `None` if its waiter has left, or if at least
    /// [`PLACE_MAX`] places are before it.
    pub(crate) fn place_of(&self, number: u64) -> Option<usize> {
        let at = position(&self.places, number);
        let is_there = at.is_ok() || self.absent.contains_key(&number);
        let absent = self.absent.range(..number).take(PLACE_MAX).count();
        let before = at.unwrap_or_else(|at| at) + absent;
        (is_there && before < PLACE_MAX).then_some(before + 1)
    }

    /// Whether a hold in this mode excludes any waiter.
    pub(crate) fn has_waiter_blocked_by(&self, held: Mode) -> bool {
        let mut all = self.places.iter().chain(self.absent.values());
        all.any(|entry| held == Mode::Exclusive || entry.wants.is_alone())
    }

    /// Whether any waiter wants the lock alone, except for waiters that were passed over.
    pub(crate) fn has_alone(&self) -> bool {
        self.first_alone.is_some()
    }

    /// Whether any waiter stands behind the head.
    pub(crate) fn has_more(&self) -> bool {
        self.places.len() > self.heads as usize
    }

    /// True if the queue has to be watched and no task watches it: the caller has to begin. `is_untaken` is whether a
    /// call has not taken its grant yet.
    pub(crate) fn begin_watch(&mut self, is_untaken: bool) -> bool {
        let follow = (self.followers.as_ref()).is_some_and(|followers| followers.may_be_any());
        let is_needed = !self.is_watched && (is_untaken || self.has_more() || follow);
        self.is_watched |= is_needed;
        is_needed
    }

    /// Passes over the heads and followers that do not come, and returns the values that they had been handed. `seen`
    /// marks the hints that the heads have had time to see. `None` if no waiter needs this, so that the watch is over.
    pub(crate) fn pass_over_missing(
        &mut self,
        is_untaken: bool,
        seen: Mark,
        now: Tick,
    ) -> Option<Vec<Handoff>> {
        let follow = (self.followers.as_ref()).is_some_and(|followers| followers.are_any());
        // The watch is for waiters behind the head, for waiters behind a grant that its call has not taken, and for
        // followers at the server.
        if !is_untaken && !self.has_more() && !follow {
            self.is_watched = false;
            return None;
        }
        let count = self.heads as usize;
        let heads = self.places.iter_mut().filter(|entry| entry.is_head);
        let missing: Vec<u64> = heads
            .take(count)
            .filter_map(|head| head.is_missing(seen, now).then_some(head.number))
            .collect();
        let handoffs = missing.into_iter().filter_map(|head| self.skip(head));
        let mut handoffs: Vec<_> = handoffs.collect();
        let followers = self.followers.iter_mut();
        handoffs.extend(followers.flat_map(|followers| followers.withdraw_untaken()));
        Some(handoffs)
    }

    /// Wakes all waiters, because the client is closed.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        let all = self.places.iter_mut();
        self.woken
            .extend(all.filter_map(|entry| entry.waiting.take()));
    }

    /// Moves the waiters whose turn it is to the head, or lets them follow a leader there.
    fn promote(&mut self) {
        for entry in from(&mut self.places, self.next) {
            if entry.is_head {
                // It came to the head while a waiter before it was passed over, and that waiter has come back.
                continue;
            }
            let is_alone = entry.wants.is_alone();
            if self.alone.is_some() || is_alone && self.heads > 0 {
                return;
            }
            let terms = entry.wants.terms().copied();
            let follows = |(of, _): &(ReaderClass, u64)| terms == Some(*of);
            if !self.leaders.iter().any(follows) {
                if self.heads >= HEADS_MAX {
                    return;
                }
                self.leaders
                    .extend(terms.map(|terms| (terms, entry.number)));
                self.woken.extend(entry.waiting.take());
                entry.is_head = true;
                self.heads += 1;
                self.alone = is_alone.then_some(entry.number);
            }
            self.next = entry.number + 1;
        }
    }

    fn insert(&mut self, entry: Box<Entry>) {
        let number = entry.number;
        if entry.wants.is_alone() {
            let first = self.first_alone.get_or_insert(number);
            *first = number.min(*first);
        }
        if self.places.len() == self.places.capacity() {
            // Room for one waiter, as most queues have one, or for a quarter more.
            self.places.reserve_exact(1 + self.places.len() / 4);
        }
        let (Ok(at) | Err(at)) = position(&self.places, number);
        self.places.insert(at, entry);
    }

    /// Notes that the task of this place has come. Returns whether it is at the head. A waiter that was passed over is
    /// next again.
    fn come(&mut self, number: u64) -> bool {
        if let Some(entry) = self.absent.remove(&number) {
            self.insert(entry);
            self.next = self.next.min(number);
            self.promote();
        }
        let entry = find(&mut self.places, number);
        entry.is_some_and(|entry| {
            entry.missed = 0;
            if let Stage::Resting(..) = entry.stage {
                entry.stage = Stage::Next;
            }
            entry.is_head
        })
    }

    fn entry(&mut self, number: u64) -> &mut Entry {
        let entry = find(&mut self.places, number);
        let entry = entry.or_else(|| self.absent.get_mut(&number).map(Box::as_mut));
        entry.expect("a place is in the queue until it is dropped")
    }

    /// Begins an attempt, as [`begin_attempt`](place::QueuePlace::begin_attempt) does, if there is no other place and
    /// this one was handed nothing.
    pub(super) fn begin_alone(&mut self, number: u64) -> bool {
        let is_alone = self.places.len() == 1 && self.absent.is_empty();
        let entry = self.entry(number);
        let may_ask = is_alone && entry.is_head && entry.is_free();
        if may_ask {
            entry.stage = Stage::Asking;
        }
        may_ask
    }

    /// Passes over a head that does not come. Returns the value that it had been handed, for the caller to drop.
    fn skip(&mut self, number: u64) -> Option<Handoff> {
        let mut entry = self.remove(number)?;
        let handoff = entry.take_handoff();
        (entry.is_head, entry.stage, entry.missed) = (false, Stage::Next, 0);
        self.absent.insert(number, entry);
        handoff
    }

    /// Removes the waiter at this place, and returns it.
    fn leave(&mut self, number: u64) -> Option<Entry> {
        let mut entry = self.remove(number)?;
        let nobody = Entry::new(number, Wants::Together(None));
        let left = mem::replace(&mut *entry, nobody);
        self.spare = Some(entry);
        Some(left)
    }

    fn remove(&mut self, number: u64) -> Option<Box<Entry>> {
        let Ok(at) = position(&self.places, number) else {
            return self.absent.remove(&number);
        };
        let entry = self.places.remove(at)?;
        if self.places.capacity() > KEPT_MAX.max(4 * self.places.len()) {
            self.places.shrink_to_fit();
        }
        if entry.is_head {
            self.heads -= 1;
            self.alone = None;
        }
        let mut leaders = self.leaders.iter();
        if let Some(at) = leaders.position(|(_, leader)| *leader == number) {
            let (terms, _) = self.leaders[at];
            if let Some(follower) = followers(&mut self.places, self.next, terms).next() {
                self.woken.extend(follower.waiting.take());
                follower.is_head = true;
                self.heads += 1;
                self.leaders[at].1 = follower.number;
            } else {
                self.leaders.remove(at);
            }
        }
        if self.first_alone == Some(number) {
            let mut behind = from(&mut self.places, number);
            let next = behind.find(|entry| entry.wants.is_alone());
            self.first_alone = next.map(|entry| entry.number);
        }
        self.promote();
        Some(entry)
    }
}

/// The index of a place, or the index at which to insert it.
fn position(places: &VecDeque<Box<Entry>>, number: u64) -> Result<usize, usize> {
    places.binary_search_by_key(&number, |entry| entry.number)
}

fn find(places: &mut VecDeque<Box<Entry>>, number: u64) -> Option<&mut Entry> {
    let at = position(places, number).ok()?;
    places.get_mut(at).map(Box::as_mut)
}

/// The entries from this place on, in order.
fn from(places: &mut VecDeque<Box<Entry>>, first: u64) -> impl Iterator<Item = &mut Entry> {
    let (Ok(at) | Err(at)) = position(places, first);
    places.range_mut(at..).map(Box::as_mut)
}

/// The waiters before `next` that follow a leader with these terms.
fn followers(
    places: &mut VecDeque<Box<Entry>>,
    next: u64,
    terms: ReaderClass,
) -> impl Iterator<Item = &mut Entry> {
    let before = places
        .iter_mut()
        .map(Box::as_mut)
        .take_while(move |entry| entry.number < next);
    before.filter(move |entry| !entry.is_head && entry.wants.terms() == Some(&terms))
}
