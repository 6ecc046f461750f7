//! What must be true of a world, whatever goes wrong in it.
//!
//! There is one true clock. A guard counts as valid for as long as it says so itself, and whoever looks, looks
//! at all guards of all processes at once, which nobody can do in reality.

use std::collections::BTreeMap;
use std::time::Duration;

use lockset::Loss;
use tokio::time::Instant;

use super::forgotten::Forgotten;
use super::order::Order;
use super::plan::{Kind, LEASE};
use super::trace::Trace;
use super::wakes::Wakes;
use crate::deployment::{Deployment, Layout};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

impl Held {
    /// Whether the true primary knows its holder.
    fn stands(&self, name: &str, deployment: &Deployment) -> bool {
        deployment.has_holder(name, &self.holder)
    }
}

const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A lock, by the name that the server knows.
pub(super) type Name = String;

struct Held {
    number: u64,
    process: usize,
    is_shared: bool,
    loss: Loss,
    /// As the server knows it.
    holder: String,
    /// By every replica.
    is_confirmed: bool,
    is_renewed: bool,
}

/// A guard as it was given out.
pub(super) struct Grant {
    pub(super) kind: Kind,
    pub(super) process: usize,
    pub(super) loss: Loss,
    pub(super) token: Option<u64>,
    pub(super) holder: String,
    pub(super) is_confirmed: bool,
    pub(super) is_renewed: bool,
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
    pub(super) forgotten: Forgotten,
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
            forgotten: Forgotten::default(),
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

    /// The only server has done a command.
    pub(super) fn done(&mut self, command: &Words, reply: &Reply, keys: &Store) {
        if self.history.is_some() {
            for line in self.trace.done(command, reply, keys) {
                self.note(|| line.to_string());
            }
        }
        if let Some(what) = self.order.done(command, reply, keys) {
            self.violate(what);
        }
        self.look_for_late_wakes(keys, |_| true);
    }

    /// A server has done a command; of its locks it has those for which `is_here`.
    pub(super) fn look_for_late_wakes(&mut self, keys: &Store, is_here: impl Fn(&str) -> bool) {
        if let Some(what) = self.wakes.done(keys, &self.excused, is_here) {
            self.violate(what);
        }
    }

    /// A guard was given out. Returns the number under which it is known.
    pub(super) fn granted(&mut self, name: &str, grant: Grant, deployment: &Deployment) -> u64 {
        self.next += 1;
        self.grants += 1;
        let number = self.next;
        let Grant {
            kind,
            process,
            token,
            ..
        } = grant;
        let is_shared = kind == Kind::Read;
        self.note(|| {
            format!("process {process} has {name} as {kind:?}, number {number}, token {token:?}")
        });
        if grant.loss.is_lost() {
            return number;
        }
        let is_forced = self.is_forced(name);
        let is_excused = is_forced || self.forgotten.is_excused(name);
        if let Some(token) = token.filter(|_| !is_shared) {
            let last = self.tokens.entry(name.to_owned()).or_default();
            let before = std::mem::replace(last, token.max(*last));
            // Of a hold that was ended by force, or forgotten, what its client passes on has a token that was set
            // aside for it.
            if token <= before && !is_excused {
                self.violate(format!(
                    "{name} is granted with token {token} after {before}"
                ));
            }
        }
        if is_forced {
            return number;
        }
        let all = self.held.entry(name.to_owned()).or_default();
        let ours = Held {
            number,
            process,
            is_shared,
            loss: grant.loss,
            holder: grant.holder,
            is_confirmed: grant.is_confirmed,
            is_renewed: grant.is_renewed,
        };
        let meets = |held: &&Held| {
            let may_share = held.is_shared && is_shared;
            !may_share && !held.loss.is_lost()
        };
        let other = all.iter().find(meets).map(|other| {
            let both_stand = [other, &ours]
                .iter()
                .all(|held| held.stands(name, deployment));
            (other.number, other.process, both_stand)
        });
        all.push(ours);
        if let Some((other, by, both_stand)) = other {
            if self.forgotten.is_excused(name) && !both_stand {
                self.forgotten.begins(name, [other, number]);
                self.note(|| format!("{name} has two holders, as a grant of it was forgotten"));
            } else {
                self.violate(format!(
                    "{name} is granted to process {process} (number {number}) while process {by} holds it (number {other})"
                ));
            }
        }
        self.look_at_overlaps();
        number
    }

    fn is_forced(&self, name: &str) -> bool {
        let now = Instant::now();
        self.excused.get(name).is_some_and(|until| now < *until)
    }

    /// Those who hold a lock twice, as a grant of it was forgotten, do so for no longer than a lease.
    pub(super) fn look_at_overlaps(&mut self) {
        let held = &self.held;
        let overdue = self.forgotten.overdue(|name, both| {
            let all = held.get(name).into_iter().flatten();
            let valid = all.filter(|held| both.contains(&held.number) && !held.loss.is_lost());
            valid.count() == 2
        });
        if let Some(what) = overdue {
            self.violate(what);
        }
    }

    /// A replica has taken over, which lacks what was granted or renewed of these locks. Whatever all replicas had
    /// confirmed it has.
    pub(super) fn promoted(&mut self, lacks: &[String], deployment: &Deployment, kept_up: bool) {
        lacks.iter().for_each(|name| self.forgotten.forgets(name));
        let missing = self.held.iter().find_map(|(name, all)| {
            let is_missing = |held: &&Held| {
                held.is_confirmed && !held.loss.is_lost() && !held.stands(name, deployment)
            };
            let missing = all.iter().find(is_missing)?;
            Some((name.clone(), missing.number))
        });
        if let Some((name, number)) = missing.filter(|(name, _)| kept_up && !self.is_forced(name)) {
            self.violate(format!(
                "number {number} of {name} was confirmed by every replica, and the one that took over lacks it"
            ));
        }
    }

    /// Everybody who believes to hold a lock has it at the true primary. In a cluster, where nobody is told of a
    /// failover, a lease that is not renewed may be over before its holder asks for anything.
    pub(super) fn look(&mut self, deployment: &Deployment) {
        let tells = !matches!(deployment.layout, Layout::Cluster { .. });
        let missing = self.held.iter().find_map(|(name, all)| {
            let is_missing = |held: &&Held| {
                (tells || held.is_renewed) && !held.loss.is_lost() && !held.stands(name, deployment)
            };
            let missing = all.iter().find(is_missing)?;
            Some((name.clone(), missing.number))
        });
        if let Some((name, number)) = missing.filter(|(name, _)| !self.is_forced(name)) {
            self.violate(format!(
                "number {number} of {name} believes to hold it, and the primary does not know it"
            ));
        }
    }

    /// It is about to be given back.
    pub(super) fn ends(&mut self, name: &str, number: u64, how: &str) {
        self.note(|| format!("number {number} of {name} ends: {how}"));
        if let Some(all) = self.held.get_mut(name) {
            all.retain(|held| held.number != number);
        }
        self.look_at_overlaps();
        self.forgotten.ends(number);
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
