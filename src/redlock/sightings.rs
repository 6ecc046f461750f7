//! Leases of others that were seen in the way of this process, which may be longer than its own.
//!
//! A lease that was used may be used again. So it counts until it is over and then for its own length again, but for at
//! most ten minutes (or a hundredth of the lease, by which clocks differ): a hold kept for a day would otherwise take
//! the votes of servers that restart later. Invariants: the estimate of the longest lease is no shorter than the
//! longest lease that counts, and less than twice as long; there is one entry for each power of two.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::engine::clock::Tick;

/// A lease that is over may be requested again. The votes of servers that restart wait at most this long for that.
const AGAIN_MAX: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Sightings(BTreeMap<Option<u32>, Sighting>);

#[derive(Clone, Copy, Debug)]
struct Sighting {
    lease: Duration,
    counts_until: Tick,
}

impl Sightings {
    /// Notes a lease of another holder with this time left.
    pub(super) fn note(&mut self, remaining: Duration, now: Tick) {
        self.forget(now);
        // Clocks differ by up to a hundredth.
        let again = remaining.min(AGAIN_MAX).max(remaining / 100);
        let seen = Sighting {
            lease: remaining,
            counts_until: now.after(remaining.saturating_add(again)),
        };
        let size = remaining.as_nanos().checked_ilog2();
        let known = self.0.entry(size).or_insert(seen);
        *known = Sighting {
            lease: known.lease.max(seen.lease),
            counts_until: known.counts_until.max(seen.counts_until),
        };
    }

    /// Returns the longest lease that counts.
    pub(super) fn longest(&mut self, now: Tick) -> Duration {
        self.forget(now);
        let leases = self.0.values().map(|seen| seen.lease);
        leases.max().unwrap_or_default()
    }

    fn forget(&mut self, now: Tick) {
        self.0.retain(|_, seen| now < seen.counts_until);
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
            seen.note(lease, at(1));
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
        seen.note(12 * HOUR, at(1));
        seen.note(HOUR, at(2));
        for hour in [2, 13] {
            assert_eq!(seen.longest(at(hour)), 12 * HOUR);
        }
        assert_eq!(seen.longest(at(14)), Duration::ZERO);
    }

    #[test]
    fn a_shorter_one_that_is_seen_later_does_not_make_a_longer_one_count_for_longer() {
        let mut seen = Sightings::default();
        seen.note(12 * HOUR, at(1));
        seen.note(2 * HOUR, at(13));
        assert_eq!(seen.longest(at(13)), 12 * HOUR);
        assert_eq!(seen.longest(at(15)), 2 * HOUR);
    }

    #[test]
    fn what_is_seen_for_years_takes_no_more_room() {
        let mut seen = Sightings::default();
        for hour in 0..1_000 {
            seen.note(HOUR * (hour % 100), at(hour));
        }
        assert!(seen.0.len() < 10, "{}", seen.0.len());
        assert_eq!(seen.longest(at(1_000)), 99 * HOUR);
    }
}
