//! Leases of others that were seen in the way of this process, which may be longer than its own.
//!
//! A lease that was used may be used again. So it counts until it is over and then for its own length again, but for at
//! most ten minutes (or a hundredth of the lease, by which clocks differ): a hold kept for a day would otherwise take
//! the votes of servers that restart later. A lease that is longer than all known ones may have begun long before it was
//! seen, so its whole length is unknown, and it is kept until when it may be alive. Invariants: the estimate of the longest lease is no shorter than the
//! longest lease that counts, and less than twice as long; there is one entry for each power of two.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::clock::Tick;

/// A lease that is over may be requested again. The votes of servers that restart wait at most this long for that.
const AGAIN_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Sightings {
    /// By the magnitude of the lease.
    leases: BTreeMap<Option<u32>, Sighting>,
    unknown_until: Tick,
}

#[derive(Clone, Copy, Debug)]
struct Sighting {
    lease: Duration,
    counts_until: Tick,
}

impl Sightings {
    /// Notes a lease of another holder with this time left. `known` is the longest lease of this process.
    pub(super) fn note(&mut self, remaining: Duration, known: Duration, now: Tick) {
        if remaining > self.longest(now).max(known) {
            // Clocks differ by up to a hundredth.
            let over = now.after(remaining.saturating_add(remaining / 100));
            self.unknown_until = self.unknown_until.max(over);
        }
        // Clocks differ by up to a hundredth.
        let again = remaining.min(AGAIN_MAX).max(remaining / 100);
        let seen = Sighting {
            lease: remaining,
            counts_until: now.after(remaining.saturating_add(again)),
        };
        let size = remaining.as_nanos().checked_ilog2();
        let known = self.leases.entry(size).or_insert(seen);
        *known = Sighting {
            lease: known.lease.max(seen.lease),
            counts_until: known.counts_until.max(seen.counts_until),
        };
    }

    /// Returns the longest lease that counts.
    pub(super) fn longest(&mut self, now: Tick) -> Duration {
        self.forget(now);
        let leases = self.leases.values().map(|seen| seen.lease);
        leases.max().unwrap_or_default()
    }

    fn forget(&mut self, now: Tick) {
        self.leases.retain(|_, seen| now < seen.counts_until);
    }

    /// Returns when all holds are over whose whole lease is not known.
    pub(super) fn unknown_until(&self) -> Tick {
        self.unknown_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(hours: u32) -> Tick {
        Tick::ZERO.after(HOUR * hours)
    }

    #[test]
    fn a_lease_counts_until_it_is_over_and_for_as_long_again_or_ten_minutes() {
        let mut seen = Sightings::default();
        assert_eq!(seen.longest(at(1)), Duration::ZERO);
        let minute = HOUR / 60;
        for (lease, again) in [(12 * HOUR, 10 * minute), (minute, minute)] {
            seen.note(lease, HOUR, at(1));
            let over = at(1).after(lease + again);
            assert_eq!(
                seen.longest(at(1).after(lease + again - minute / 60)),
                lease
            );
            assert_eq!(seen.longest(over), Duration::ZERO);
            seen = Sightings::default();
        }
    }

    #[test]
    fn a_longer_one_that_was_seen_before_counts_beside_a_shorter_one() {
        let mut seen = Sightings::default();
        seen.note(12 * HOUR, HOUR, at(1));
        seen.note(HOUR, HOUR, at(2));
        for hour in [2, 13] {
            assert_eq!(seen.longest(at(hour)), 12 * HOUR);
        }
        assert_eq!(seen.longest(at(14)), Duration::ZERO);
    }

    #[test]
    fn a_shorter_one_that_is_seen_later_does_not_make_a_longer_one_count_for_longer() {
        let mut seen = Sightings::default();
        seen.note(12 * HOUR, HOUR, at(1));
        seen.note(2 * HOUR, HOUR, at(13));
        assert_eq!(seen.longest(at(13)), 12 * HOUR);
        assert_eq!(seen.longest(at(15)), 2 * HOUR);
    }

    #[test]
    fn only_a_lease_longer_than_all_known_ones_has_an_unknown_length() {
        let mut seen = Sightings::default();
        seen.note(HOUR, HOUR, at(1));
        assert_eq!(seen.unknown_until(), Tick::ZERO);
        seen.note(2 * HOUR, HOUR, at(1));
        let over = at(3).after(2 * HOUR / 100);
        assert_eq!(seen.unknown_until(), over);
        // The rest of the same lease, and another of its length.
        seen.note(HOUR + HOUR / 2, HOUR, at(2));
        seen.note(2 * HOUR, HOUR, at(2));
        assert_eq!(seen.unknown_until(), over);
        seen.note(3 * HOUR, HOUR, at(2));
        assert_eq!(seen.unknown_until(), at(5).after(3 * HOUR / 100));
    }

    #[test]
    fn what_is_seen_for_years_takes_no_more_room() {
        let mut seen = Sightings::default();
        for hour in 0..1_000 {
            seen.note(HOUR * (hour % 100), HOUR, at(hour));
        }
        assert!(seen.leases.len() < 10, "{}", seen.leases.len());
        assert_eq!(seen.longest(at(1_000)), 99 * HOUR);
    }
}
