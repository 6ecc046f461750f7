//! What must be true of a world, whatever goes wrong in it.
//!
//! There is one true clock. A guard counts as valid for as long as it says so itself, and whoever looks, looks
//! at all guards of all processes at once, which nobody can do in reality.

use std::collections::BTreeMap;
use std::time::Duration;

use lockset::Loss;
use tokio::time::Instant;

use super::order::Order;
use super::plan::{Kind, LEASE};
use super::trace::Trace;
use super::wakes::Wakes;
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A lock, by the name that the server knows.
pub(super) type Name = String;

struct Held {
    number: u64,
    process: usize,
    is_shared: bool,
    loss: Loss,
}

/// All that is held, and the first thing that was wrong.
pub(super) struct Checks {
    began: Instant,
    held: BTreeMap<Name, Vec<Held>>,
    /// Locks that were freed by force: until then their holders may not know, and guards are not compared.
    excused: BTreeMap<Name, Instant>,
    /// The last token of an exclusive grant.
    tokens: BTreeMap<Name, u64>,
    next: u64,
    order: Order,
    trace: Trace,
    pub(super) wakes: Wakes,
    /// Calls that came to their end.
    pub(super) calls: u64,
    pub(super) grants: u64,
    pub(super) joins: u64,
    pub(super) losses: u64,
    pub(super) violation: Option<String>,
    /// `None` unless it is wanted.
    pub(super) history: Option<Vec<String>>,
}

impl Checks {
    /// `has_faults`: then a wake-up may be late.
    pub(super) fn new(wants_history: bool, has_faults: bool) -> Self {
        Self {
            began: Instant::now(),
            held: BTreeMap::new(),
            excused: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next: 0,
            order: Order::default(),
            trace: Trace::default(),
            wakes: Wakes::new(!has_faults),
            calls: 0,
            grants: 0,
            joins: 0,
            losses: 0,
            violation: None,
            history: wants_history.then(Vec::new),
        }
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let at = self.began.elapsed();
        if let Some(history) = &mut self.history {
            history.push(format!("{:>12} {}", format!("{at:?}"), what()));
        }
    }

    pub(super) fn violate(&mut self, what: String) {
        self.note(|| format!("VIOLATION {what}"));
        let at = self.began.elapsed();
        self.violation
            .get_or_insert_with(|| format!("at {at:?}: {what}"));
    }

    /// A server has done a command.
    pub(super) fn done(&mut self, command: &Words, reply: &Reply, keys: &Store) {
        if self.history.is_some() {
            for line in self.trace.done(command, reply, keys) {
                self.note(|| line.to_string());
            }
        }
        let order = self.order.done(command, reply, keys);
        let wakes = self.wakes.done(keys, &self.excused);
        for what in order.into_iter().chain(wakes) {
            self.violate(what);
        }
    }

    /// A guard was given out. Returns the number under which it is known.
    pub(super) fn granted(
        &mut self,
        name: &str,
        kind: Kind,
        process: usize,
        loss: &Loss,
        token: Option<u64>,
    ) -> u64 {
        self.next += 1;
        self.grants += 1;
        let number = self.next;
        let is_shared = kind == Kind::Read;
        self.note(|| {
            format!("process {process} has {name} as {kind:?}, number {number}, token {token:?}")
        });
        if loss.is_lost() {
            return number;
        }
        let now = Instant::now();
        let is_excused = self.excused.get(name).is_some_and(|until| now < *until);
        if let Some(token) = token.filter(|_| !is_shared) {
            let last = self.tokens.entry(name.to_owned()).or_default();
            let before = std::mem::replace(last, token.max(*last));
            // Of a hold that was ended by force, what its client passes on has a token that was set aside for it.
            if token <= before && !is_excused {
                self.violate(format!(
                    "{name} is granted with token {token} after {before}"
                ));
            }
        }
        if is_excused {
            return number;
        }
        let all = self.held.entry(name.to_owned()).or_default();
        let meets = |held: &&Held| {
            let may_share = held.is_shared && is_shared;
            !may_share && !held.loss.is_lost()
        };
        let other = all
            .iter()
            .find(meets)
            .map(|held| (held.number, held.process));
        all.push(Held {
            number,
            process,
            is_shared,
            loss: loss.clone(),
        });
        if let Some((other, by)) = other {
            self.violate(format!(
                "{name} is granted to process {process} (number {number}) while process {by} holds it (number {other})"
            ));
        }
        number
    }

    /// It is about to be given back.
    pub(super) fn ends(&mut self, name: &str, number: u64, how: &str) {
        self.note(|| format!("number {number} of {name} ends: {how}"));
        if let Some(all) = self.held.get_mut(name) {
            all.retain(|held| held.number != number);
        }
    }

    /// A hold of this lock may be ended by force from now on.
    pub(super) fn forces(&mut self, name: &str) {
        self.held.remove(name);
        self.excused
            .insert(name.to_owned(), Instant::now() + FOREVER);
    }

    /// It was: whoever held it learns that within a lease.
    pub(super) fn forced(&mut self, name: &str) {
        self.excused.insert(name.to_owned(), Instant::now() + LEASE);
    }

    /// It is read from now on.
    pub(super) fn downgrades(&mut self, name: &str, number: u64) {
        for held in self.held.entry(name.to_owned()).or_default() {
            held.is_shared |= held.number == number;
        }
    }

    pub(super) fn lost(&mut self, name: &str, number: u64) {
        self.losses += 1;
        self.ends(name, number, "lost");
    }

    /// Of a process that is no more, nothing is held.
    pub(super) fn crashed(&mut self, process: usize) {
        for all in self.held.values_mut() {
            all.retain(|held| held.process != process);
        }
    }
}
