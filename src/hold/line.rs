//! The local queue of one lock: who of this client is next, first come, first served.
//!
//! At its head is one who wants the lock alone, or all those of the oldest who may have it together.
//! They talk to the server, unless a task of this client that has the lock puts its share into the
//! place of the head: then the lock has passed from task to task without the server. Invariants: a
//! place is taken when it is entered, not when its future is first polled; whoever asks the server
//! is given nothing meanwhile; a share in a place is taken out by its task or given back with the
//! place; no share is dropped under the lock of the queue.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Share;
use crate::counts::Mode;
use crate::options::{Replication, Term};
use crate::owner::Owner;

/// So many who may hold a lock together are at the head together.
const HEADS_MAX: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By number, in the order of arrival. Nothing is kept of who has left, wherever it stood: there
    /// may be thousands that come and go behind one who waits for long.
    places: BTreeMap<u64, Entry>,
    /// The number that the next place gets.
    end: u64,
    /// Who has this number or a higher one is not at the head.
    next: u64,
    /// How many are at the head, and whether it is one who wants it alone.
    heads: u32,
    is_alone: bool,
}

#[derive(Debug)]
struct Entry {
    mode: Mode,
    wish: Option<Wish>,
    is_asking: bool,
    given: Option<Given>,
    woken: Arc<Notify>,
}

/// What a waiter would take over from another task.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) owner: Option<Owner>,
    pub(crate) term: Term,
    pub(crate) fenced: bool,
    pub(crate) replication: Option<Replication>,
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
            is_asking: false,
            given: None,
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
        if !state.is_alone {
            return false;
        }
        // One who is there alone is the first of all.
        let Some(mut head) = state.places.first_entry() else {
            return false;
        };
        let head = head.get_mut();
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
        let state = self.0.lock();
        state.places.range(state.next..).next().is_some()
    }
}

impl State {
    fn is_head(&self, number: u64) -> bool {
        number < self.next
    }

    /// Takes those to the head whose turn it is.
    fn promote(&mut self) {
        for (number, entry) in self.places.range(self.next..) {
            let has_room = match entry.mode {
                Mode::Exclusive => self.heads == 0,
                Mode::Shared => !self.is_alone && self.heads < HEADS_MAX,
            };
            if !has_room {
                return;
            }
            entry.woken.notify_one();
            self.heads += 1;
            self.is_alone = entry.mode == Mode::Exclusive;
            self.next = number + 1;
        }
    }

    fn leave(&mut self, number: u64) -> Option<Given> {
        let entry = self.places.remove(&number)?;
        if self.places.is_empty() {
            // An empty one keeps its last node, which would be a third of what a hold costs.
            self.places = BTreeMap::new();
        }
        if self.is_head(number) {
            self.heads -= 1;
            self.is_alone = false;
        }
        self.promote();
        entry.given
    }
}

impl Place<'_> {
    /// Resolves when it is at the head, or was given what it wants. Cancel safe.
    pub(crate) async fn turn(&self) {
        loop {
            if self.line.0.lock().is_head(self.number) {
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
            given
        })
    }

    /// It does not ask the server any more.
    pub(crate) fn wait(&self) {
        self.with(|entry| entry.is_asking = false);
    }

    fn with<T>(&self, look: impl FnOnce(&mut Entry) -> T) -> T {
        let mut state = self.line.0.lock();
        let entry = state.places.get_mut(&self.number);
        look(entry.expect("a place is there until it is dropped"))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let given = self.line.0.lock().leave(self.number);
        // Released, or passed on.
        drop(given);
    }
}
