//! Latches and barriers: a waiter continues only if the latch was open, or if another party has come.
//!
//! Only in worlds of one server, which sees every change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::names::names;
use super::plan::{Kind, LEASE};
use crate::store::{Data, Store};

/// The server counts a party for at most this long after its process has died or its call was dropped.
const PARTY_MAX: Duration = LEASE.saturating_mul(2);

#[derive(Default)]
struct Latch {
    /// The count after the last command; `None` while the latch is open.
    left: Option<i64>,
    /// How often it was opened.
    openings: u64,
    /// How far it was counted down since it was closed, and how many calls may have done so.
    counted: u64,
    calls: u64,
    /// Calls without an answer, which may count at any time.
    unanswered: u64,
    /// The ids that have counted.
    ids: BTreeSet<String>,
}

/// A latch at the beginning of a wait.
#[derive(Clone, Copy)]
pub(super) struct LatchSeen {
    is_open: bool,
    openings: u64,
}

#[derive(Default)]
struct Barrier {
    /// Parties that wait, and all that have ever come.
    waiting: u64,
    came: u64,
    last_left: Option<Instant>,
}

/// A barrier when a party comes.
#[derive(Clone, Copy)]
pub(super) struct BarrierSeen {
    /// Whether another party may have been counted there.
    is_alone: bool,
    came: u64,
}

#[derive(Default)]
pub(super) struct Rounds {
    latches: BTreeMap<String, Latch>,
    barriers: BTreeMap<String, Barrier>,
    /// Waits that ended because the latch was open, or because all parties had come.
    pub(super) ended: u64,
}

impl Rounds {
    /// A call begins that counts a latch down.
    pub(super) fn counts_down(&mut self, name: &str) {
        let latch = self.latches.entry(name.to_owned()).or_default();
        latch.calls += 1;
        latch.unanswered += 1;
    }

    /// It was answered, with whether it has counted, for this id if it had one. Returns what is wrong.
    pub(super) fn counted_down(
        &mut self,
        name: &str,
        has_counted: bool,
        id: Option<String>,
    ) -> Option<String> {
        let latch = self.latches.entry(name.to_owned()).or_default();
        latch.calls -= u64::from(!has_counted);
        latch.unanswered -= 1;
        let id = id.filter(|_| has_counted)?;
        let is_repeat = !latch.ids.insert(id.clone());
        is_repeat.then(|| format!("{id} counted {name} down twice"))
    }

    /// A call begins to wait for a latch.
    pub(super) fn waits(&mut self, name: &str) -> LatchSeen {
        let latch = self.latches.entry(name.to_owned()).or_default();
        LatchSeen {
            is_open: latch.left.is_none(),
            openings: latch.openings,
        }
    }

    /// It found the latch open. Returns what is wrong.
    pub(super) fn found_open(&mut self, name: &str, seen: LatchSeen) -> Option<String> {
        self.ended += 1;
        let latch = self.latches.entry(name.to_owned()).or_default();
        let was_open = seen.is_open || latch.left.is_none() || latch.openings > seen.openings;
        (!was_open).then(|| format!("a wait for {name} ended, and it was never open"))
    }

    /// A party comes to a barrier.
    pub(super) fn comes(&mut self, name: &str) -> BarrierSeen {
        let barrier = self.barriers.entry(name.to_owned()).or_default();
        let left = barrier
            .last_left
            .is_some_and(|left| left.elapsed() < PARTY_MAX);
        let seen = BarrierSeen {
            is_alone: barrier.waiting == 0 && !left,
            came: barrier.came + 1,
        };
        barrier.waiting += 1;
        barrier.came += 1;
        seen
    }

    /// All parties had come, says its call. Returns what is wrong.
    pub(super) fn passes(&mut self, name: &str, seen: BarrierSeen) -> Option<String> {
        self.ended += 1;
        let came = self.barriers.get(name).map_or(0, |barrier| barrier.came);
        let is_wrong = seen.is_alone && came == seen.came;
        is_wrong.then(|| format!("a party of {name} passed alone"))
    }

    /// A party waits no longer.
    pub(super) fn leaves(&mut self, name: &str) {
        let barrier = self.barriers.entry(name.to_owned()).or_default();
        barrier.waiting -= 1;
        barrier.last_left = Some(Instant::now());
    }

    /// A command was done. Returns what is wrong.
    pub(super) fn done(&mut self, keys: &Store) -> Option<String> {
        for (name, latch) in &mut self.latches {
            let left = match keys.get(name.as_bytes()) {
                Some(Data::Text(text)) => std::str::from_utf8(text).ok()?.parse().ok(),
                _ => None,
            };
            let before = std::mem::replace(&mut latch.left, left);
            match (before, left) {
                (None, Some(_)) => (latch.counted, latch.calls) = (0, latch.unanswered),
                (Some(before), Some(left)) if left < before => {
                    latch.counted += before.abs_diff(left);
                }
                (Some(before), None) => {
                    latch.openings += 1;
                    latch.counted += u64::from(before == 1);
                }
                _ => {}
            }
            if latch.counted > latch.calls {
                let (counted, calls) = (latch.counted, latch.calls);
                return Some(format!("{calls} calls counted {name} down by {counted}"));
            }
        }
        None
    }
}

/// Whether a key is of a latch or of a barrier. They expire by themselves.
pub(super) fn is_of_rounds(key: &str) -> bool {
    let kinds = [Kind::Latch, Kind::Barrier].into_iter();
    let mut all = kinds.flat_map(|kind| (0..2).flat_map(move |lock| names(kind, lock)));
    all.any(|name| key == name || key.contains(&format!("{{{name}}}")))
}
