//! Wake-ups by notifications: in worlds without faults, no waiter waits for a free lock until its own timer runs out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::plan::LEASE;
use crate::store::Store;

/// A lock may be free for this long while a client waits for it: some round trips, and the 100 ms of readers. A waiter asks by itself every sixth of a lease.
const FREE_MAX: Duration = Duration::from_millis(200);

/// A waiter asks by itself as often at least.
const POLL: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 6);

const _: () = assert!(FREE_MAX.as_millis() * 2 < POLL.as_millis());

/// For how long this lock may be free. `polls`: waiters may get no message, and ask by themselves; for a fair lock, so
/// do several waiters at the head, one after the other, when each loses its turn.
pub(super) fn free_max(name: &str, polls: bool) -> Duration {
    let polls = match polls {
        true if name.starts_with("fair:") => 4,
        polls => u32::from(polls),
    };
    FREE_MAX + POLL * polls
}

#[derive(Default)]
struct Lock {
    /// Since when each call waits for it.
    waiting: BTreeMap<u64, Instant>,
    /// Calls that have too little time to subscribe, and learn that they are next when they ask again.
    polling: BTreeSet<u64>,
    /// As the server was seen last.
    free_since: Option<Instant>,
}

pub(super) struct Wakes {
    pub(super) is_checked: bool,
    locks: BTreeMap<String, Lock>,
    next: u64,
    /// Locks whose slot has moved, and until when their waiters may still be finding out.
    moved: BTreeMap<String, Instant>,
}

/// This long after a slot has moved, waiters for its locks listen at the new node.
const FOUND_MAX: Duration = Duration::from_millis(500);

impl Wakes {
    pub(super) fn new(is_checked: bool) -> Self {
        Self {
            is_checked,
            locks: BTreeMap::new(),
            next: 0,
            moved: BTreeMap::new(),
        }
    }

    /// A call begins to wait for a lock; the number under which it is known.
    pub(super) fn begins(&mut self, name: &str, is_polling: bool) -> u64 {
        self.next += 1;
        let lock = self.locks.entry(name.to_owned()).or_default();
        if is_polling {
            lock.polling.insert(self.next);
        } else {
            lock.waiting.insert(self.next, Instant::now());
        }
        self.next
    }

    /// Its slot moves.
    pub(super) fn moves(&mut self, name: &str) {
        self.moved
            .insert(name.to_owned(), Instant::now() + FOUND_MAX);
    }

    pub(super) fn ends(&mut self, name: &str, number: u64) {
        if let Some(lock) = self.locks.get_mut(name) {
            lock.waiting.remove(&number);
            lock.polling.remove(&number);
        }
    }

    /// A command was done. Returns a holder that got a lock too late, if there is one. Locks that were freed by force
    /// do not count until the time given with each, because waiters in the holder's client learn of the release at that
    /// time.
    pub(super) fn done(
        &mut self,
        keys: &Store,
        forced: &BTreeMap<String, Instant>,
        is_here: impl Fn(&str) -> bool,
        free_max: impl Fn(&str, bool) -> Duration,
    ) -> Option<String> {
        if !self.is_checked {
            return None;
        }
        let now = Instant::now();
        let moved = &self.moved;
        let locks = self.locks.iter_mut().filter(|(name, _)| is_here(name));
        let looked = locks.map(|(name, lock)| {
            if keys.get(name.as_bytes()).is_none() {
                lock.free_since.get_or_insert(now);
                return None;
            }
            let free_since = lock.free_since.take()?;
            let longest = lock.waiting.values().min()?;
            let waited = now - free_since.max(*longest);
            let is_before = |until: &Instant| now < *until;
            let is_forced = [forced, moved]
                .iter()
                .any(|all| all.get(name).is_some_and(is_before));
            let is_late = waited > free_max(name, !lock.polling.is_empty()) && !is_forced;
            is_late.then(|| format!("{name} was free for {waited:?} while somebody waited for it"))
        });
        // All are looked at.
        looked.fold(None, Option::or)
    }
}
