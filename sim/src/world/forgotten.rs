//! Grants that a failover has forgotten, and the two holders that may follow.
//!
//! Replication is asynchronous: a replica that takes over lacks what it had not received, and its old primary grants
//! until it learns of that. So a lock may have two holders, but only such a lock, only if one of the two is not known
//! to the true primary, and for no longer than a lease: docs/topology.md says so. All else is a broken promise.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::plan::LEASE;

#[derive(Default)]
pub(super) struct Forgotten {
    /// By lock: until when a holder may exist that the true primary does not know.
    until: BTreeMap<String, Instant>,
    /// Two current holders: their numbers, and since when.
    overlaps: Vec<(String, [u64; 2], Instant)>,
    /// How many there were, and the longest.
    pub(super) count: u64,
    pub(super) longest: Duration,
}

impl Forgotten {
    /// A grant of this lock may have been lost now, or was made by a deposed server.
    pub(super) fn forgets(&mut self, name: &str) {
        self.until.insert(name.to_owned(), Instant::now() + LEASE);
    }

    pub(super) fn is_excused(&self, name: &str) -> bool {
        let now = Instant::now();
        self.until.get(name).is_some_and(|until| now <= *until)
    }

    /// Two have it, for a reason.
    pub(super) fn begins(&mut self, name: &str, both: [u64; 2]) {
        self.count += 1;
        self.overlaps.push((name.to_owned(), both, Instant::now()));
    }

    /// One of them has it no longer.
    pub(super) fn ends(&mut self, number: u64) {
        self.overlaps.retain(|(_, both, _)| !both.contains(&number));
    }

    /// One that goes on for longer than it may. It is over when not `both_valid`, though both may have guards still.
    pub(super) fn overdue(
        &mut self,
        both_valid: impl Fn(&str, [u64; 2]) -> bool,
    ) -> Option<String> {
        let longest = &mut self.longest;
        self.overlaps.retain(|(name, both, since)| {
            let goes_on = both_valid(name, *both);
            if goes_on {
                *longest = (*longest).max(since.elapsed());
            }
            goes_on
        });
        let mut overlaps = self.overlaps.iter();
        let (name, both, since) = overlaps.find(|(name, ..)| !self.is_excused(name))?;
        let went_on = since.elapsed();
        Some(format!(
            "{name} has two holders (numbers {both:?}) since {went_on:?}, for longer than a lease"
        ))
    }
}
