//! Properties of every world, under all faults.
//!
//! There is one true clock. A guard counts as valid for as long as it says so itself, and the checks see all guards of
//! all processes at once, as no real observer can.

mod errors;
mod permits;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockset::LostReason;
use tokio::time::Instant;

use super::forgotten::Forgotten;
use super::held::{Grant, Held};
use super::left::{Left, ToBeKept};
use super::names::lock_names;
use super::order::Order;
use super::permits::Permits;
use super::plan::{Kind, LEASE};
use super::rounds::Rounds;
use super::trace::Trace;
use super::wakes::{Wakes, free_max};
use crate::deployment::{Deployment, Layout};
use crate::reply::Reply;
use crate::rights::Right;
use crate::store::Store;
use crate::words::Words;

const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A lock, by the name that the server knows.
pub(super) type Name = String;

/// All that is held, and the first thing that was wrong.
pub(super) struct Checks {
    began: Instant,
    held: BTreeMap<Name, Vec<Held>>,
    /// Locks that were freed by force: until then their holders may not know, and guards are not compared.
    excused: BTreeMap<Name, Instant>,
    /// The last token of an exclusive grant, and its holder.
    tokens: BTreeMap<Name, (u64, String)>,
    next: u64,
    /// Whether something went wrong that may end any hold.
    may_fail: bool,
    /// Whether nothing goes wrong: then no call fails.
    is_still: bool,
    /// Processes whose clients are being shut down, and whether they have been.
    closed: BTreeMap<usize, bool>,
    /// Whether some clients may not publish a release, or not receive it.
    pub(super) polls: bool,
    /// Calls that ended for want of replicas.
    pub(super) unconfirmed: u64,
    pub(super) left: Left,
    /// Whether a client was shut down while it had something, or a user lacked a right: an unreleased hold ends with
    /// its lease.
    pub(super) leaves_leases: bool,
    /// Whether a script may have stopped in the middle, for want of a right.
    pub(super) leaves_parts: bool,
    pub(super) forgotten: Forgotten,
    order: Order,
    pub(super) permits: Permits,
    pub(super) rounds: Rounds,
    trace: Trace,
    pub(super) wakes: Wakes,
    /// Calls that came to their end.
    pub(super) calls: u64,
    pub(super) grants: u64,
    pub(super) joins: u64,
    pub(super) losses: u64,
    /// Guards that were held for as long as their handle allows.
    pub(super) ended: u64,
    pub(super) violation: Option<String>,
    /// `None` unless it is wanted.
    pub(super) history: Option<Vec<String>>,
}

impl Checks {
    /// `has_faults`: then a wake-up may be late. `may_fail`: something goes wrong that may end any hold.
    pub(super) fn new(wants_history: bool, has_faults: bool, may_fail: bool) -> Self {
        Self {
            began: Instant::now(),
            held: BTreeMap::new(),
            excused: BTreeMap::new(),
            tokens: BTreeMap::new(),
            next: 0,
            may_fail,
            is_still: !has_faults && !may_fail,
            closed: BTreeMap::new(),
            polls: false,
            unconfirmed: 0,
            left: Left::default(),
            leaves_leases: false,
            leaves_parts: false,
            forgotten: Forgotten::default(),
            order: Order::default(),
            permits: Permits::default(),
            rounds: Rounds::default(),
            trace: Trace::default(),
            wakes: Wakes::new(!has_faults),
            calls: 0,
            grants: 0,
            joins: 0,
            losses: 0,
            ended: 0,
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
        // A caller refused in the middle of a script may have lost its place silently.
        let passed_over = self.order.done(command, reply, keys);
        if let Some(what) = passed_over.filter(|_| !self.leaves_parts) {
            self.violate(what);
        }
        let tells = self.wakes.is_checked && !self.polls;
        let of_rounds = self.rounds.done(keys);
        let wrong = self.permits.done(keys, tells).or(of_rounds);
        if let Some(what) = wrong.filter(|_| !self.leaves_parts) {
            self.violate(what);
        }
        self.look_for_late_wakes(keys, |_| true);
    }

    /// A server has executed a command; its own locks are the ones with `is_here`.
    pub(super) fn look_for_late_wakes(&mut self, keys: &Store, is_here: impl Fn(&str) -> bool) {
        let polls = self.polls;
        let free_max = |name: &str, is_polled| free_max(name, polls || is_polled);
        if let Some(what) = self.wakes.done(keys, &self.excused, is_here, free_max) {
            self.violate(what);
        }
    }

    /// A guard was given out. Returns the number under which it is known.
    pub(super) fn granted(&mut self, name: &str, grant: Grant, deployment: &Deployment) -> u64 {
        self.next += 1;
        self.grants += 1;
        let number = self.next;
        let Grant { kind, process, .. } = grant;
        let is_shared = kind == Kind::Read;
        self.note(|| {
            let token = grant.token;
            format!("process {process} has {name} as {kind:?}, number {number}, token {token:?}")
        });
        if grant.loss.is_lost() {
            return number;
        }
        self.must_be_open(name, kind, process);
        if !is_shared {
            self.token_must_grow(name, &grant, deployment);
        }
        self.must_be_at_replicas(name, &grant, deployment);
        if self.is_forced(name) {
            return number;
        }
        self.must_be_let_in(name, &grant.holder, is_shared);
        let ours = Held {
            number,
            since: Instant::now(),
            is_shared,
            grant,
        };
        self.must_be_alone(name, &ours, deployment);
        self.held.entry(name.to_owned()).or_default().push(ours);
        self.look_at_overlaps();
        number
    }

    fn token_must_grow(&mut self, name: &str, grant: &Grant, deployment: &Deployment) {
        let Some(token) = grant.token else {
            return;
        };
        let is_forgotten =
            || self.forgotten.is_excused(name) && !deployment.has_holder(name, &grant.holder);
        let is_excused = self.is_forced(name) || is_forgotten();
        let of_holder = (token, grant.holder.clone());
        let last = self.tokens.entry(name.to_owned()).or_default();
        let (before, by) = last.clone();
        if token > before {
            *last = of_holder;
        }
        // An owner that enters again has the token of its hold.
        let is_again = token == before && grant.owner.is_some() && by == grant.holder;
        // Of a hold that was ended by force, or forgotten, what its client passes on has a token that was set
        // aside for it.
        if token <= before && !is_again && !is_excused {
            self.violate(format!(
                "{name} is granted with token {token} after {before}"
            ));
        }
    }

    /// Checks that the grant is at as many replicas as its call asked for.
    fn must_be_at_replicas(&mut self, name: &str, grant: &Grant, deployment: &Deployment) {
        let Layout::Primary { replicas } = deployment.layout else {
            return;
        };
        if self.is_forced(name) || self.forgotten.is_excused(name) {
            return;
        }
        let have = (1..=replicas).filter(|at| deployment.is_at_server(name, &grant.holder, *at));
        let have = have.count();
        let wanted = grant.replicas as usize;
        if have < wanted {
            self.violate(format!(
                "{name} is granted, and {have} replicas have it where {wanted} were asked for"
            ));
        }
    }

    /// Checks that no conflicting guard is valid.
    fn must_be_alone(&mut self, name: &str, ours: &Held, deployment: &Deployment) {
        let all = self.held.get(name).into_iter().flatten();
        let mut meets = all.filter(|held| !held.may_share_with(ours) && held.is_valid());
        let Some((other, by, both_stand)) = meets.next().map(|other| {
            let mut both = [other, ours].into_iter();
            let both_stand = both.all(|held| held.stands(name, deployment));
            (other.number, other.grant.process, both_stand)
        }) else {
            return;
        };
        let (number, process) = (ours.number, ours.grant.process);
        if self.forgotten.is_excused(name) && !both_stand {
            self.forgotten.begins(name, [other, number]);
            self.note(|| format!("{name} has two holders, as a grant of it was forgotten"));
        } else {
            self.violate(format!(
                "{name} is granted to process {process} (number {number}) while process {by} holds it (number {other})"
            ));
        }
    }

    /// Nothing was left at the server that keeps this one out.
    fn must_be_let_in(&mut self, name: &str, holder: &str, is_shared: bool) {
        if self.left.keeps_out(name, holder, is_shared) && !self.forgotten.is_excused(name) {
            self.violate(format!(
                "{name} is granted before the time is over for which it was to be left"
            ));
        }
    }

    fn must_be_open(&mut self, name: &str, kind: Kind, process: usize) {
        match self.closed.get(&process) {
            Some(true) => self.violate(format!(
                "{name} is granted to process {process}, whose client was shut down"
            )),
            // By a majority of servers whose clients are shut down one after the other, and not yet.
            Some(false) if kind == Kind::Redlock => self.leaves_leases = true,
            _ => {}
        }
    }

    pub(super) fn is_forced(&self, name: &str) -> bool {
        let now = Instant::now();
        self.excused.get(name).is_some_and(|until| now < *until)
    }

    /// Two holders of one lock, after a lost grant, exist for no longer than a lease.
    pub(super) fn look_at_overlaps(&mut self) {
        let held = &self.held;
        let overdue = self.forgotten.overdue(|name, both| {
            let all = held.get(name).into_iter().flatten();
            let valid = all.filter(|held| both.contains(&held.number) && held.is_valid());
            valid.count() == 2
        });
        if let Some(what) = overdue {
            self.violate(what);
        }
    }

    /// A replica has taken over, which lacks what was granted or renewed of these locks. It has all that every replica
    /// had confirmed.
    pub(super) fn promoted(&mut self, lacks: &[String], deployment: &Deployment, kept_up: bool) {
        lacks.iter().for_each(|name| self.forgotten.forgets(name));
        let missing = self.held.iter().find_map(|(name, all)| {
            let is_missing = |held: &&Held| {
                held.grant.replicas > 0 && held.is_valid() && !held.stands(name, deployment)
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

    /// Everybody who believes to hold a lock has it at the true primary. In a cluster, where clients get no message of
    /// a failover, and on one server, a lease that is not renewed may be over before its holder asks for anything.
    pub(super) fn look(&mut self, deployment: &Deployment) {
        let tells = matches!(deployment.layout, Layout::Sentinel { .. });
        let missing = self.held.iter().find_map(|(name, all)| {
            let is_missing = |held: &&Held| {
                (tells || held.grant.is_renewed())
                    && held.is_valid()
                    && !held.stands(name, deployment)
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

    /// A user lacks this right from now on.
    pub(super) fn denied(&mut self, right: Right) {
        self.is_still = false;
        self.leaves_parts |= right.is_required();
        self.leaves_leases |=
            self.leaves_parts || right.is_against_late_commands() && self.may_fail;
    }

    /// The only server is there again, and has forgotten everything.
    pub(super) fn loses_data(&mut self) {
        for name in lock_names() {
            self.forgotten.forgets(&name);
            self.left.ends(&name);
        }
        self.order = Order::default();
    }

    /// The guard is about to be released.
    pub(super) fn ends(&mut self, name: &str, number: u64, how: &str) {
        self.note(|| format!("number {number} of {name} ends: {how}"));
        // While it still counts: an overlap lasts until the end of one of the two.
        self.look_at_overlaps();
        let mut all = self.held.get(name).into_iter().flatten();
        let overdue = all.find(|held| held.is_overdue());
        if let Some(number) = overdue.map(|held| held.number) {
            self.violate(format!(
                "number {number} of {name} is valid for longer than its handle allows"
            ));
        }
        if let Some(all) = self.held.get_mut(name) {
            all.retain(|held| held.number != number);
        }
        self.forgotten.ends(number);
    }

    /// A hold of this lock may be ended by force from now on.
    pub(super) fn forces(&mut self, name: &str) {
        self.held.remove(name);
        self.left.ends(name);
        self.excused
            .insert(name.to_owned(), Instant::now() + FOREVER);
    }

    /// The lock was ended by force: its holder learns that within a lease.
    pub(super) fn forced(&mut self, name: &str) {
        self.excused.insert(name.to_owned(), Instant::now() + LEASE);
    }

    /// It is read from now on.
    pub(super) fn downgrades(&mut self, name: &str, number: u64) {
        for held in self.held.entry(name.to_owned()).or_default() {
            held.is_shared |= held.number == number;
        }
    }

    /// `is_forced`: it was ended from outside, itself or a hold bound to it.
    pub(super) fn lost(&mut self, name: &str, number: u64, reason: LostReason, is_forced: bool) {
        self.losses += 1;
        self.ended += u64::from(reason == LostReason::MaxHold);
        let may_fail = self.may_fail || is_forced;
        let mut all = self.held.get(name).into_iter().flatten();
        let wrongly = all.any(|held| {
            let is_closed = self.closed.contains_key(&held.grant.process);
            held.number == number && !held.may_be_lost(reason, is_closed, may_fail)
        });
        if wrongly {
            self.violate(format!(
                "number {number} of {name} is lost without cause: {reason}"
            ));
        }
        self.ends(name, number, "lost");
    }

    /// The clients of a process are about to be shut down: the locks that it has.
    pub(super) fn closes(&mut self, process: usize) -> BTreeSet<Name> {
        self.closed.insert(process, false);
        let has = |all: &[Held]| all.iter().any(|held| held.grant.process == process);
        let all = self.held.iter().filter(|(_, all)| has(all));
        let locks = all.map(|(name, _)| name.clone());
        locks
            .chain(self.permits.of(process).map(str::to_owned))
            .collect()
    }

    /// They were: its guards are lost.
    pub(super) fn closed(&mut self, process: usize) {
        self.closed.insert(process, true);
        let valid = |held: &&Held| held.grant.process == process && held.is_valid();
        let left = self.held.values().flatten().find(valid);
        if let Some(number) = left.map(|held| held.number) {
            self.violate(format!(
                "number {number} is valid, and its client was shut down"
            ));
        }
    }

    /// Whether a process has a valid guard.
    pub(super) fn has_guard(&self, process: usize) -> bool {
        let mut all = self.held.values().flatten();
        let has_hold = all.any(|held| held.grant.process == process && held.is_valid());
        has_hold || self.permits.of(process).next().is_some()
    }

    /// The holder id of one holder of a lock, if there is one.
    pub(super) fn holder_of(&self, name: &str) -> Option<String> {
        let held = self.held.get(name)?.first()?;
        Some(held.grant.holder.clone())
    }

    /// A guard was released whose hold stays for some time from its grant.
    pub(super) fn keeps(&mut self, name: &str, kept: &ToBeKept) {
        let all = self.held.get(name).into_iter().flatten();
        // An owner that has entered it again still has it, and may lose it.
        let is_had = all.clone().any(|held| held.grant.holder == kept.holder);
        let keeps_out = |held: &Held| held.is_valid() && !(held.is_shared && kept.is_shared);
        let others = all.filter(|held| keeps_out(held)).count();
        if is_had || self.is_forced(name) {
            return;
        }
        let stays = self.left.keeps(name, kept);
        if stays && others > 0 && !self.forgotten.is_excused(name) {
            self.violate(format!(
                "{name} is held by somebody else, and was to be left until later"
            ));
        }
    }

    /// A key was claimed in a call that began then.
    pub(super) fn claimed(
        &mut self,
        name: &str,
        process: usize,
        asked: Instant,
        window: Duration,
    ) -> u64 {
        let (number, stood) = self.left.claims(name, asked, window);
        self.note(|| format!("process {process} has claimed {name}, claim {number}"));
        if self.is_forced(name) {
            self.left.ends(name);
            return number;
        }
        if stood && !self.forgotten.is_excused(name) {
            self.violate(format!("{name} is claimed twice in its window"));
        }
        number
    }

    /// A dead process has no guards.
    pub(super) fn crashed(&mut self, process: usize) {
        for all in self.held.values_mut() {
            all.retain(|held| held.grant.process != process);
        }
        self.permits.crashed(process);
    }
}
