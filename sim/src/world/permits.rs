//! The permits of semaphores: no more are valid than there are, none is lost, and no waiter waits while all are free.
//!
//! Only in worlds of one server, which sees every change.

use std::collections::BTreeMap;
use std::time::Duration;

use lockset::{Loss, LostReason};
use tokio::time::Instant;

use super::names::semaphore_names;
use super::plan::PERMITS;
use crate::store::{Data, Store};

/// All permits may be free for this long while a client waits for some: some round trips.
const FREE_MAX: Duration = Duration::from_millis(200);

/// Permits as they were given out.
pub(super) struct Taken {
    pub(super) process: usize,
    pub(super) count: u32,
    /// Their lease is not renewed.
    pub(super) is_fixed: bool,
    pub(super) loss: Loss,
}

#[derive(Default)]
struct Semaphore {
    /// By the number of their guard.
    held: BTreeMap<u64, Taken>,
    /// Since when each call waits.
    waiting: BTreeMap<u64, Instant>,
    /// Since when all permits are free at the server.
    free_since: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Permits {
    semaphores: BTreeMap<String, Semaphore>,
    next: u64,
    /// How many guards were given out.
    pub(super) grants: u64,
}

/// The counter of a semaphore, and how many permits are taken. `None` if nobody has declared it.
fn counted(keys: &Store, name: &str) -> Option<(i64, usize)> {
    let free = match keys.get(name.as_bytes())? {
        Data::Text(text) => std::str::from_utf8(text).ok()?.parse().ok()?,
        _ => return None,
    };
    let taken = match keys.get(format!("{{{name}}}:timeout").as_bytes()) {
        Some(Data::Sorted(members)) => members.len(),
        _ => 0,
    };
    Some((free, taken))
}

impl Permits {
    /// A call begins to wait; the number under which it is known.
    pub(super) fn begins(&mut self, name: &str) -> u64 {
        self.next += 1;
        let semaphore = self.semaphores.entry(name.to_owned()).or_default();
        semaphore.waiting.insert(self.next, Instant::now());
        self.next
    }

    /// It waits no longer.
    pub(super) fn waits_no_longer(&mut self, name: &str, number: u64) {
        if let Some(semaphore) = self.semaphores.get_mut(name) {
            semaphore.waiting.remove(&number);
        }
    }

    /// A guard was given out. Returns its number, and what is wrong.
    pub(super) fn granted(&mut self, name: &str, taken: Taken) -> (u64, Option<String>) {
        self.next += 1;
        self.grants += 1;
        let semaphore = self.semaphores.entry(name.to_owned()).or_default();
        semaphore.held.insert(self.next, taken);
        let valid = semaphore.held.values().filter(|held| !held.loss.is_lost());
        let valid: u32 = valid.map(|held| held.count).sum();
        let wrong = (valid > PERMITS)
            .then(|| format!("{name} has {valid} valid permits where there are {PERMITS}"));
        (self.next, wrong)
    }

    /// A guard is about to be released.
    pub(super) fn ends(&mut self, name: &str, number: u64) {
        if let Some(semaphore) = self.semaphores.get_mut(name) {
            semaphore.held.remove(&number);
        }
    }

    /// A guard was lost. Returns what is wrong with that. `may_fail`: something went wrong that may end any hold.
    pub(super) fn lost(
        &self,
        name: &str,
        number: u64,
        reason: LostReason,
        may_fail: bool,
        is_closed: impl Fn(usize) -> bool,
    ) -> Option<String> {
        let held = self.semaphores.get(name)?.held.get(&number)?;
        let may_be_lost = match reason {
            LostReason::Closed => is_closed(held.process),
            LostReason::Expired => held.is_fixed || may_fail,
            _ => may_fail,
        };
        (!may_be_lost).then(|| format!("{name} loses permits without cause: {reason}"))
    }

    /// The semaphores of which a process has permits.
    pub(super) fn of(&self, process: usize) -> impl Iterator<Item = &str> {
        let all = self.semaphores.iter();
        let has = move |held: &Taken| held.process == process;
        let all = all.filter(move |(_, semaphore)| semaphore.held.values().any(has));
        all.map(|(name, _)| &**name)
    }

    /// A dead process has no guards, and does not wait.
    pub(super) fn crashed(&mut self, process: usize) {
        for semaphore in self.semaphores.values_mut() {
            semaphore.held.retain(|_, held| held.process != process);
        }
    }

    /// A command was done. Returns what is wrong. `tells`: every notification arrives.
    pub(super) fn done(&mut self, keys: &Store, tells: bool) -> Option<String> {
        semaphore_names().find_map(|name| {
            let (free, taken) = counted(keys, &name)?;
            if free + taken as i64 != i64::from(PERMITS) {
                return Some(format!(
                    "{name} has {free} free and {taken} taken permits where there are {PERMITS}"
                ));
            }
            let semaphore = self.semaphores.get_mut(&name)?;
            let now = Instant::now();
            if taken == 0 {
                semaphore.free_since.get_or_insert(now);
                return None;
            }
            let free_since = semaphore.free_since.take()?;
            let longest = semaphore.waiting.values().min()?;
            let waited = now - free_since.max(*longest);
            (tells && waited > FREE_MAX).then(|| {
                format!("all permits of {name} were free for {waited:?} while somebody waited")
            })
        })
    }

    /// Whether permits are taken at the server.
    pub(super) fn are_taken(keys: &Store) -> Option<String> {
        semaphore_names().find_map(|name| {
            let (_, taken) = counted(keys, &name)?;
            (taken > 0).then(|| format!("{taken} permits of {name} are taken by nobody"))
        })
    }
}
