//! The counts of a client. Relaxed atomics: a count costs one add, and is read on demand.
//!
//! Invariant: counts only grow; each is exact, but two that are read together need not match. The totals and the
//! metrics are views of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::clock::Tick;
use crate::observe::events::Event;
use crate::observe::fact::{CallOutcome, CountedKind, Fact, GrantedBy, is_late};
use crate::observe::group::{ByGroup, Group};
use crate::observe::totals::{Grants, Losses, REASONS, Reconnects, Renewals, RoundTrips, Totals};

/// One round trip of a lane is timed in this time, because reading the clock costs more than all other counts.
const TIMED_EVERY: Duration = Duration::from_millis(1);

/// The longest time from a count until the recorder of metrics has it, while the runtime runs. Calls look for a
/// recorder at most this often, too.
pub(crate) const PUBLISHED_EVERY: Duration = Duration::from_millis(250);

/// No renewal leaves more of its lease than this.
const WHOLE: u32 = 100;

/// The ways of a grant.
pub(crate) const WAYS: usize = 4;

/// The place of a grant in [`Places`]: by kind, then by the way.
pub(crate) const GRANTS: usize = 0;
/// By reason.
pub(crate) const LOSSES: usize = GRANTS + 5 * WAYS;
pub(crate) const REFUSALS: usize = LOSSES + REASONS;
pub(crate) const WAITS: usize = REFUSALS + 1;
pub(crate) const WAITS_OVER: usize = WAITS + 1;
/// In time, late, failed. From here on, counts without a group: those of [`Group::NONE`] count.
pub(crate) const RENEWALS: usize = WAITS_OVER + 1;
/// By lane.
pub(crate) const RECONNECTS: usize = RENEWALS + 3;
pub(crate) const BACKGROUND_FAILURES: usize = RECONNECTS + LANES.len();
pub(crate) const SCRIPT_ERRORS: usize = BACKGROUND_FAILURES + 1;
pub(crate) const EVENTS_DROPPED: usize = SCRIPT_ERRORS + 1;
pub(crate) const PLACES: usize = EVENTS_DROPPED + 1;

/// The lanes by their places.
pub(crate) const LANES: [&str; 4] = ["command", "renewal", "push", "confirm"];

/// The counts of one group, by place.
#[derive(Debug)]
pub(crate) struct Places(pub(crate) [AtomicU64; PLACES]);

impl Default for Places {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::default()))
    }
}

/// The counts as they are kept.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) groups: ByGroup<Places>,
    /// The largest part of a lease that was used up at a renewal; only grows.
    most_used_percent: AtomicU32,
    /// By lane: when the next round trip is timed.
    timed_after: [AtomicU64; 4],
    round_trips: AtomicU64,
    round_trip_nanos: AtomicU64,
    longest_round_trip: AtomicU64,
}

/// Returns the place and the group of the count that a fact adds to.
#[inline]
fn place(fact: &Fact<'_>) -> Option<(usize, Group)> {
    Some(match *fact {
        Fact::Granted { kind, by, group } => (GRANTS + kind as usize * WAYS + by as usize, group),
        // A Redlock's refusals are not counted.
        Fact::CallEnded {
            kind,
            group,
            outcome: CallOutcome::Refused,
            ..
        } if kind != CountedKind::Redlock => (REFUSALS, group),
        Fact::WaitBegan(group) => (WAITS, group),
        Fact::WaitEnded(group) => (WAITS_OVER, group),
        Fact::Renewed { left, lease, .. } => {
            (RENEWALS + usize::from(is_late(left, lease)), Group::NONE)
        }
        Fact::RenewalFailed => (RENEWALS + 2, Group::NONE),
        Fact::ScriptFailed => (SCRIPT_ERRORS, Group::NONE),
        Fact::EventDropped => (EVENTS_DROPPED, Group::NONE),
        Fact::Event(Event::Lost { reason, .. }, group) => (LOSSES + reason as usize, group),
        Fact::Event(Event::ReleaseFailed { .. }, _) => (BACKGROUND_FAILURES, Group::NONE),
        Fact::Event(Event::Reconnected { lane, .. }, _) => {
            let at = LANES.iter().position(|each| *each == lane);
            (RECONNECTS + at.unwrap_or_default(), Group::NONE)
        }
        _ => return None,
    })
}

impl Counts {
    #[inline]
    pub(crate) fn note(&self, fact: &Fact<'_>) {
        if let Some((place, group)) = place(fact) {
            self.groups.of(group).0[place].fetch_add(1, Ordering::Relaxed);
        }
        match *fact {
            Fact::Renewed { left, lease, .. } => {
                let share = left.as_nanos() * u128::from(WHOLE) / lease.as_nanos().max(1);
                let used = WHOLE - u32::try_from(share).unwrap_or(WHOLE).min(WHOLE);
                self.most_used_percent.fetch_max(used, Ordering::Relaxed);
            }
            Fact::Answered { took, .. } => {
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                self.round_trips.fetch_add(1, Ordering::Relaxed);
                self.round_trip_nanos.fetch_add(nanos, Ordering::Relaxed);
                self.longest_round_trip.fetch_max(nanos, Ordering::Relaxed);
            }
            // Its group has counts from now on.
            Fact::CallEnded { group, .. } => _ = self.groups.of(group),
            _ => {}
        }
    }

    /// Whether the round trip of a command that was sent then over the lane at this place is timed.
    #[inline]
    pub(crate) fn times(&self, lane: usize, sent: Tick) -> bool {
        let timed_after = &self.timed_after[lane];
        let is_timed = sent.nanos() >= timed_after.load(Ordering::Relaxed);
        if is_timed {
            let next = sent.after(TIMED_EVERY).nanos();
            timed_after.store(next, Ordering::Relaxed);
        }
        is_timed
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut sums = [0; PLACES];
        for (_, group) in self.groups.all() {
            for (sum, count) in sums.iter_mut().zip(&group.0) {
                *sum += count.load(Ordering::Relaxed);
            }
        }
        let grants = |kind: CountedKind| {
            let of = |by| sums[GRANTS + kind as usize * WAYS + by as usize];
            Grants {
                by_server: of(GrantedBy::Server),
                handed_over: of(GrantedBy::Handover),
                in_memory: of(GrantedBy::Handoff),
                reentered: of(GrantedBy::Reentry),
            }
        };
        let [in_time, late, failed] = std::array::from_fn(|at| sums[RENEWALS + at]);
        let [command, renewal, push, confirm] = std::array::from_fn(|at| sums[RECONNECTS + at]);
        let used = self.most_used_percent.load(Ordering::Relaxed);
        let left = u8::try_from(WHOLE.saturating_sub(used)).unwrap_or(0);
        let trips = self.round_trips.load(Ordering::Relaxed);
        let nanos = |of: &AtomicU64| Duration::from_nanos(of.load(Ordering::Relaxed));
        Totals {
            reentrant: grants(CountedKind::Reentrant),
            fair: grants(CountedKind::Fair),
            read: grants(CountedKind::Read),
            write: grants(CountedKind::Write),
            semaphore: grants(CountedKind::Semaphore),
            refusals: sums[REFUSALS],
            waits: sums[WAITS],
            losses: Losses(std::array::from_fn(|at| sums[LOSSES + at])),
            renewals: Renewals {
                renewed: in_time + late,
                late,
                failed,
                least_left_percent: (in_time + late > 0).then_some(left),
            },
            reconnects: Reconnects {
                command,
                renewal,
                push,
                confirm,
            },
            round_trips: RoundTrips {
                timed: trips,
                total: nanos(&self.round_trip_nanos),
                longest: nanos(&self.longest_round_trip),
            },
            background_failures: sums[BACKGROUND_FAILURES],
            script_errors: sums[SCRIPT_ERRORS],
            events_dropped: sums[EVENTS_DROPPED],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::error::{Error, Kind};
    use crate::api::loss::LostReason;

    #[test]
    fn a_grant_is_counted_where_it_belongs() {
        let counts = Counts::default();
        for (kind, by) in [
            (CountedKind::Reentrant, GrantedBy::Server),
            (CountedKind::Fair, GrantedBy::Handover),
            (CountedKind::Read, GrantedBy::Reentry),
            (CountedKind::Write, GrantedBy::Handoff),
            (CountedKind::Semaphore, GrantedBy::Server),
        ] {
            let group = Group::NONE;
            counts.note(&Fact::Granted { kind, by, group });
        }
        let totals = counts.totals();
        assert_eq!(totals.reentrant.by_server, 1);
        assert_eq!(totals.fair.handed_over, 1);
        assert_eq!(totals.read.reentered, 1);
        assert_eq!(totals.write.in_memory, 1);
        assert_eq!(totals.semaphore.by_server, 1);
        assert_eq!(totals.grants(), 5);
    }

    #[test]
    fn the_least_that_a_renewal_left_stays() {
        let counts = Counts::default();
        assert_eq!(counts.totals().renewals.least_left_percent, None);
        let lease = Duration::from_secs(30);
        for (left, late) in [(20, false), (6, true), (19, false), (10, false)] {
            let left = Duration::from_secs(left);
            assert_eq!(is_late(left, lease), late);
            let lock = "x";
            counts.note(&Fact::Renewed { lock, left, lease });
        }
        let renewals = counts.totals().renewals;
        assert_eq!((renewals.renewed, renewals.late), (4, 1));
        assert_eq!(renewals.least_left_percent, Some(20));
    }

    #[test]
    fn round_trips_are_timed_for_as_long_as_they_are_few() {
        let counts = Counts::default();
        assert_eq!(counts.totals().round_trips.mean(), None);
        let began = Tick::ZERO;
        let answered = |lane, later: u32| {
            let is_timed = counts.times(lane, began.after(TIMED_EVERY / 4 * later));
            let took = TIMED_EVERY / 4 * (12 - later);
            is_timed.then(|| counts.note(&Fact::Answered { lane, took }));
            is_timed.then_some(took)
        };
        assert_eq!(answered(0, 0), Some(TIMED_EVERY * 3));
        assert_eq!(answered(0, 3), None, "too soon");
        assert_eq!(answered(1, 3), Some(TIMED_EVERY / 4 * 9), "another lane");
        assert_eq!(answered(0, 4), Some(TIMED_EVERY * 2));
        let trips = counts.totals().round_trips;
        assert_eq!((trips.timed, trips.longest), (3, TIMED_EVERY * 3));
        assert_eq!(trips.total, TIMED_EVERY / 4 * 29);
        assert_eq!(trips.mean(), Some(TIMED_EVERY / 4 * 29 / 3));
    }

    #[test]
    fn every_reason_has_a_place() {
        let counts = Counts::default();
        for reason in [
            LostReason::Expired,
            LostReason::Revoked,
            LostReason::Closed,
            LostReason::MaxHold,
        ] {
            let lost = Event::Lost {
                lock: "x".into(),
                holder: "1".into(),
                reason,
                held: Duration::ZERO,
            };
            counts.note(&Fact::Event(lost, Group::NONE));
            assert_eq!(counts.totals().losses.of(reason), 1);
        }
        assert_eq!(counts.totals().losses.total(), 4);
    }

    #[test]
    fn what_goes_wrong_is_counted_by_its_event() {
        let counts = Counts::default();
        let server = "x".into();
        counts.note(&Fact::event(Event::Reconnected {
            server,
            lane: "push",
        }));
        let (lock, error) = (None, Error::new(Kind::Io, "release", "on purpose"));
        counts.note(&Fact::event(Event::ReleaseFailed { lock, error }));
        counts.note(&Fact::event(Event::Failover { holds: 1 }));
        let Totals {
            reconnects,
            background_failures,
            ..
        } = counts.totals();
        assert_eq!((reconnects.push, reconnects.total()), (1, 1));
        assert_eq!(background_failures, 1);
    }

    /// A group that a program names has counts of its own, and the totals are the sums.
    #[test]
    fn groups_are_counted_together_in_the_totals() {
        let counts = Counts::default();
        let (group, kind) = (Group::named("a group of a count").0, CountedKind::Fair);
        for (kind, group) in [
            (kind, group),
            (kind, Group::NONE),
            (CountedKind::Redlock, group),
        ] {
            counts.note(&Fact::CallEnded {
                kind,
                group,
                outcome: CallOutcome::Refused,
                took: None,
            });
        }
        assert_eq!(counts.totals().refusals, 2, "without the Redlock's");
        assert_eq!(counts.groups.all().count(), 2);
    }
}
