//! The local queue of one lock: who of this client is next, first come, first served.
//!
//! At its head is one who wants the lock alone, or all those of the oldest who may have it together.
//! They talk to the server, unless a task of this client that has the lock puts its share into the
//! place of the head: then the lock has passed from task to task without the server. Invariants: a
//! place is taken when it is entered, not when its future is first polled; who is at the head and does
//! not come when it is to is passed over, and is the next one again when it does; whoever asks the
//! server is given nothing meanwhile; a share in a place is taken out by its task, or given back with the
//! place or when that is passed over; no share is dropped under the lock of the queue.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Share;
use crate::clock::Tick;
use crate::counts::Mode;
use crate::hint::Mark;
use crate::options::{Replication, Term};
use crate::owner::Owner;

/// So many who may hold a lock together are at the head together.
const HEADS_MAX: u32 = 64;

/// Who is at the head and has not come at so many looks in a row is passed over.
const MISSED_MAX: u32 = 2;

#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By number, in the order of arrival. Nothing is kept of who has left, wherever it stood: there
    /// may be thousands that come and go behind one who waits for long.
    places: BTreeMap<u64, Entry>,
    /// Those that were passed over and have not come since.
    absent: BTreeMap<u64, Entry>,
    /// The number that the next place gets.
    end: u64,
    /// Who has a lower number and is in `places` is at the head.
    next: u64,
    /// How many are at the head, and which one, if it wants it alone.
    heads: u32,
    alone: Option<u64>,
    /// Whether somebody looks after those behind the head.
    is_attended: bool,
    is_closed: bool,
}

#[derive(Debug)]
struct Entry {
    mode: Mode,
    wish: Option<Wish>,
    is_head: bool,
    is_asking: bool,
    given: Option<Given>,
    /// It need not come before it is told something new, or before that time.
    rest: Option<(Mark, Tick)>,
    /// How often it has been looked for since it should have come.
    missed: u32,
    woken: Arc<Notify>,
}

/// What a waiter would take over from another task.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) owner: Option<Owner>,
    pub(crate) term: Term,
    pub(crate) fenced: bool,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

/// What a waiter was given.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) share: Share,
    /// Whether it is all that was wished for. If not, the server has to agree to the rest.
    pub(crate) is_complete: bool,
}

/// A place in the queue; left when dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    line: &'a Line,
    number: u64,
    woken: Arc<Notify>,
}

impl Line {
    /// Takes the last place. With a wish, it may be given what another task has.
    pub(crate) fn enter(&self, mode: Mode, wish: Option<Wish>) -> Place<'_> {
        let woken = Arc::<Notify>::default();
        let mut state = self.0.lock();
        let number = state.end;
        state.end += 1;
        let entry = Entry {
            mode,
            wish,
            is_head: false,
            is_asking: false,
            given: None,
            rest: None,
            missed: 0,
            woken: Arc::clone(&woken),
        };
        state.places.insert(number, entry);
        state.promote();
        Place {
            line: self,
            number,
            woken,
        }
    }

    /// Gives the head what `offer` makes of its wish, if it would take it. True if it was given.
    pub(crate) fn give(&self, offer: impl FnOnce(&Wish) -> Option<Given>) -> bool {
        let mut state = self.0.lock();
        let Some(alone) = state.alone else {
            return false;
        };
        let Some(head) = state.places.get_mut(&alone) else {
            return false;
        };
        if head.is_asking || head.given.is_some() {
            return false;
        }
        head.given = head.wish.as_ref().and_then(offer);
        if head.given.is_some() {
            head.woken.notify_one();
        }
        head.given.is_some()
    }

    /// Whether anybody waits behind the head.
    pub(crate) fn has_more(&self) -> bool {
        self.0.lock().has_more()
    }

    /// True if somebody waits behind the head whom nobody looks after: the caller is to.
    pub(super) fn attend(&self) -> bool {
        let mut state = self.0.lock();
        let is_needed = state.has_more() && !state.is_attended;
        state.is_attended |= is_needed;
        is_needed
    }

    /// Passes over those at the head that do not come: what they had been given. `told` is what they
    /// may have been told by now. `None`: nobody waits behind them, and nobody looks after it any more.
    pub(super) fn look(&self, told: Mark, now: Tick) -> Option<Vec<Given>> {
        let mut state = self.0.lock();
        if !state.has_more() {
            state.is_attended = false;
            return None;
        }
        let count = state.heads as usize;
        let heads = state.places.iter_mut().filter(|(_, entry)| entry.is_head);
        let missing: Vec<u64> = heads
            .take(count)
            .filter_map(|(number, head)| head.is_missing(told, now).then_some(*number))
            .collect();
        let given = missing.into_iter().filter_map(|head| state.pass_over(head));
        Some(given.collect())
    }

    /// Lets all of them go on: the client is closed.
    pub(crate) fn close(&self) {
        let mut state = self.0.lock();
        state.is_closed = true;
        for entry in state.places.values() {
            entry.woken.notify_one();
        }
    }
}

impl Entry {
    /// Looks for one at the head. True if it has not come for long enough.
    fn is_missing(&mut self, told: Mark, now: Tick) -> bool {
        let may_rest = self
            .rest
            .is_some_and(|(mark, until)| mark == told && now < until);
        if may_rest && self.given.is_none() {
            return false;
        }
        self.missed += 1;
        self.missed >= MISSED_MAX
    }
}

impl State {
    fn has_more(&self) -> bool {
        self.places.len() > self.heads as usize
    }

    /// Takes those to the head whose turn it is.
    fn promote(&mut self) {
        for (number, entry) in self.places.range_mut(self.next..) {
            if entry.is_head {
                // Behind one that was passed over, and has come back.
                continue;
            }
            let has_room = match entry.mode {
                Mode::Exclusive => self.heads == 0,
                Mode::Shared => self.alone.is_none() && self.heads < HEADS_MAX,
            };
            if !has_room {
                return;
            }
            entry.woken.notify_one();
            entry.is_head = true;
            self.heads += 1;
            self.alone = (entry.mode == Mode::Exclusive).then_some(*number);
            self.next = number + 1;
        }
    }

    /// Its task has come: whether it is its turn. Who was passed over is the first of the others.
    fn come(&mut self, number: u64) -> bool {
        if let Some(entry) = self.absent.remove(&number) {
            self.places.insert(number, entry);
            self.next = self.next.min(number);
            self.promote();
        }
        let entry = self.places.get_mut(&number);
        entry.is_some_and(|entry| {
            (entry.missed, entry.rest) = (0, None);
            entry.is_head
        })
    }

    /// The head does not come. What it had been given is for others.
    fn pass_over(&mut self, number: u64) -> Option<Given> {
        let mut entry = self.leave(number)?;
        let given = entry.given.take();
        (entry.is_head, entry.is_asking, entry.missed) = (false, false, 0);
        self.absent.insert(number, entry);
        given
    }

    fn leave(&mut self, number: u64) -> Option<Entry> {
        let Some(entry) = self.places.remove(&number) else {
            return self.absent.remove(&number);
        };
        if self.places.is_empty() {
            // An empty one keeps its last node, which would be a third of what a hold costs.
            self.places = BTreeMap::new();
        }
        if entry.is_head {
            self.heads -= 1;
            self.alone = None;
        }
        self.promote();
        Some(entry)
    }
}

impl Place<'_> {
    /// Whether it is at the head. Who was passed over and comes back is the next one.
    pub(crate) fn is_head(&self) -> bool {
        self.line.0.lock().come(self.number)
    }

    /// Resolves when it is at the head, or the client is closed. Cancel safe.
    pub(crate) async fn turn(&self) {
        loop {
            if self.is_head() || self.line.0.lock().is_closed {
                return;
            }
            self.woken.notified().await;
        }
    }

    /// Resolves when it was given what it wants. Cancel safe.
    pub(crate) async fn given(&self) {
        loop {
            if self.with(|entry| entry.given.is_some()) {
                return;
            }
            self.woken.notified().await;
        }
    }

    /// Takes out what it was given.
    pub(crate) fn take(&self) -> Option<Given> {
        self.with(|entry| entry.given.take())
    }

    /// What it was given; if that is nothing, it asks the server now, and is given nothing until it
    /// waits again.
    pub(crate) fn ask(&self) -> Option<Given> {
        self.with(|entry| {
            let given = entry.given.take();
            entry.is_asking = given.is_none();
            entry.rest = None;
            given
        })
    }

    /// It does not ask the server any more, and need not come before it is told something that `told`
    /// does not mark, or before that time.
    pub(crate) fn wait(&self, told: Mark, until: Tick) {
        self.with(|entry| {
            entry.is_asking = false;
            entry.rest = Some((told, until));
        });
    }

    fn with<T>(&self, look: impl FnOnce(&mut Entry) -> T) -> T {
        let mut guard = self.line.0.lock();
        let state = &mut *guard;
        let entry = state.places.get_mut(&self.number);
        let entry = entry.or_else(|| state.absent.get_mut(&self.number));
        let entry = entry.expect("a place is there until it is dropped");
        entry.missed = 0;
        look(entry)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.line.0.lock().leave(self.number);
        // What it was given is released, or passed on.
        drop(left);
    }
}
