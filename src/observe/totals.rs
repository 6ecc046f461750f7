//! Counts of what a client has done. Relaxed atomics: a count costs one add, and is read on demand.
//!
//! Invariant: counts only grow; each is exact, but two that are read together need not match.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::api::lost::LostReason;
use crate::engine::clock::{Clock, Tick};

/// One round trip of a lane is timed in this time, because reading the clock costs more than all other counts.
const TIMED_EVERY: Duration = Duration::from_millis(1);

/// No renewal leaves more of its lease than this.
const WHOLE: u32 = 100;

/// The work of a client since it was built; from [`ClientStats`](crate::ClientStats).
///
/// A multi-lock counts once for each member, by the member's kind. A Redlock counts at each of its clients, as a
/// reentrant lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Reentrant locks that calls got.
    pub reentrant: Grants,
    /// Fair locks that calls got.
    pub fair: Grants,
    /// Read sides of read-write locks that calls got.
    pub read: Grants,
    /// Write sides of read-write locks that calls got.
    pub write: Grants,
    /// Permits of semaphores that calls got: one for each call, however many permits it took.
    pub semaphore: Grants,
    /// Calls that ended without a lock or permits, because others held them. Calls of a Redlock are not counted here.
    pub refusals: u64,
    /// Calls that had to wait: behind others of this client, or after the server had refused the lock.
    pub waits: u64,
    /// Holds and permits that were lost, each permit for itself.
    pub losses: Losses,
    /// Renewals of holds and permits.
    pub renewals: Renewals,
    /// Connections that replaced one that had broken.
    pub reconnects: Reconnects,
    /// How long the server took to answer.
    pub round_trips: RoundTrips,
    /// Releases and cancellations in the background that the server refused, or that were abandoned. Their holds end
    /// with their leases.
    pub background_failures: u64,
    /// Calls of scripts, renewals included, that ended with an error or without an answer.
    pub script_errors: u64,
    /// Events that the [`Observer`](crate::Observer) was too slow for.
    pub events_dropped: u64,
}

impl Totals {
    /// Locks of all kinds, and permits, that calls got.
    #[must_use]
    pub fn grants(&self) -> u64 {
        let all = [
            self.reentrant,
            self.fair,
            self.read,
            self.write,
            self.semaphore,
        ];
        all.iter().map(Grants::total).sum()
    }
}

/// How calls got their locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// The server granted it when it was asked.
    pub by_server: u64,
    /// The server handed it over with a notification.
    pub handed_over: u64,
    /// Another task of this client handed it off, or the call joined a reader.
    pub in_memory: u64,
    /// Its owner held it already.
    pub reentered: u64,
}

impl Grants {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_server + self.handed_over + self.in_memory + self.reentered
    }
}

/// How many holds were lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses([u64; REASONS]);

/// At least the number of reasons.
const REASONS: usize = 8;

impl Losses {
    /// For this reason.
    #[must_use]
    pub fn of(&self, reason: LostReason) -> u64 {
        self.0[reason as usize]
    }

    /// For any reason. The holds of a client that was shut down count too.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The outcomes of renewals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewals {
    /// Confirmed by the server, late ones included.
    pub renewed: u64,
    /// Confirmed when less than a third of the lease was left; in time, about two thirds are left.
    pub late: u64,
    /// Without an answer, or answered with an error. Each is repeated until the lease ends.
    pub failed: u64,
    /// The least that any renewal left of its lease, in percent; `None` if there was none.
    pub least_left_percent: Option<u8>,
}

/// Connections that replaced broken ones, by what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconnects {
    /// Commands of callers.
    pub command: u64,
    /// Renewals.
    pub renewal: u64,
    /// Notifications.
    pub push: u64,
    /// Waits for replicas.
    pub confirm: u64,
}

impl Reconnects {
    /// Of all connections.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.command + self.renewal + self.push + self.confirm
    }
}

/// The times of calls of scripts, or of plain commands in their place: from sending them to their replies.
///
/// Up to a thousand calls a second are timed on each connection, and no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// Calls that were timed.
    pub timed: u64,
    /// The sum of their times.
    pub total: Duration,
    /// The longest of their times.
    pub longest: Duration,
}

impl RoundTrips {
    /// Returns the mean time; `None` if no call was timed.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let total = u64::try_from(self.total.as_nanos()).unwrap_or(u64::MAX);
        total.checked_div(self.timed).map(Duration::from_nanos)
    }
}

/// How a call got its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedBy {
    Server,
    Handover,
    Handoff,
    Reentry,
}

/// The kinds that are counted. The kinds of one server come first, because their grants are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedKind {
    Reentrant,
    Fair,
    Read,
    Write,
    Semaphore,
    Multi,
    Redlock,
}

impl CountedKind {
    /// The name in spans, labels of metrics, and `Debug`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reentrant => "reentrant",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Semaphore => "semaphore",
            Self::Multi => "multi",
            Self::Redlock => "redlock",
        }
    }
}

/// The counts as they are kept.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// By kind, then by the way of the grant.
    grants: [[AtomicU64; 4]; 5],
    pub(crate) refusals: AtomicU64,
    pub(crate) waits: AtomicU64,
    losses: [AtomicU64; REASONS],
    renewed: AtomicU64,
    late: AtomicU64,
    pub(crate) renewals_failed: AtomicU64,
    /// The largest part of a lease that was used up at a renewal; only grows.
    most_used_percent: AtomicU32,
    reconnects: [AtomicU64; 4],
    /// By lane: when the next round trip is timed.
    timed_after: [AtomicU64; 4],
    round_trips: AtomicU64,
    round_trip_nanos: AtomicU64,
    longest_round_trip: AtomicU64,
    pub(crate) background_failures: AtomicU64,
    pub(crate) script_errors: AtomicU64,
    pub(crate) events_dropped: AtomicU64,
}

/// Adds one to a count.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Counts a grant of a lock of this kind, which is a kind of one server.
    pub(crate) fn granted(&self, kind: CountedKind, by: GrantedBy) {
        count(&self.grants[kind as usize][by as usize]);
    }

    pub(crate) fn lost(&self, reason: LostReason) {
        count(&self.losses[reason as usize]);
    }

    /// Counts a renewal that left this much of a lease. Returns true if it was late.
    pub(crate) fn renewed(&self, left: Duration, lease: Duration) -> bool {
        count(&self.renewed);
        let is_late = left < lease / 3;
        if is_late {
            count(&self.late);
        }
        let share = left.as_nanos() * u128::from(WHOLE) / lease.as_nanos().max(1);
        let used = WHOLE - u32::try_from(share).unwrap_or(WHOLE).min(WHOLE);
        self.most_used_percent.fetch_max(used, Ordering::Relaxed);
        is_late
    }

    /// Counts a connection of this lane that replaced a broken one.
    pub(crate) fn reconnected(&self, lane: &str) {
        let lane = match lane {
            "renewal" => 1,
            "push" => 2,
            "confirm" => 3,
            _ => 0,
        };
        count(&self.reconnects[lane]);
    }

    /// Measures the reply to a command that was sent then over the lane at this place. Returns its time, if it is
    /// timed.
    pub(crate) fn answered(&self, lane: usize, sent: Tick, clock: Clock) -> Option<Duration> {
        let timed_after = &self.timed_after[lane];
        if sent.nanos() < timed_after.load(Ordering::Relaxed) {
            return None;
        }
        let next = sent.after(TIMED_EVERY).nanos();
        timed_after.store(next, Ordering::Relaxed);
        let took = sent.until(clock.now());
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        count(&self.round_trips);
        self.round_trip_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.longest_round_trip.fetch_max(nanos, Ordering::Relaxed);
        Some(took)
    }

    pub(crate) fn totals(&self) -> Totals {
        let grants = |kind: usize| {
            let of_kind = &self.grants[kind];
            Grants {
                by_server: read(&of_kind[GrantedBy::Server as usize]),
                handed_over: read(&of_kind[GrantedBy::Handover as usize]),
                in_memory: read(&of_kind[GrantedBy::Handoff as usize]),
                reentered: read(&of_kind[GrantedBy::Reentry as usize]),
            }
        };
        let renewed = read(&self.renewed);
        let used = self.most_used_percent.load(Ordering::Relaxed);
        let left = u8::try_from(WHOLE.saturating_sub(used)).unwrap_or(0);
        let reconnects = self.reconnects.each_ref().map(read);
        Totals {
            reentrant: grants(0),
            fair: grants(1),
            read: grants(2),
            write: grants(3),
            semaphore: grants(4),
            refusals: read(&self.refusals),
            waits: read(&self.waits),
            losses: Losses(self.losses.each_ref().map(read)),
            renewals: Renewals {
                renewed,
                late: read(&self.late),
                failed: read(&self.renewals_failed),
                least_left_percent: (renewed > 0).then_some(left),
            },
            reconnects: Reconnects {
                command: reconnects[0],
                renewal: reconnects[1],
                push: reconnects[2],
                confirm: reconnects[3],
            },
            round_trips: RoundTrips {
                timed: read(&self.round_trips),
                total: Duration::from_nanos(read(&self.round_trip_nanos)),
                longest: Duration::from_nanos(read(&self.longest_round_trip)),
            },
            background_failures: read(&self.background_failures),
            script_errors: read(&self.script_errors),
            events_dropped: read(&self.events_dropped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_counted_where_it_belongs() {
        let counters = Counters::default();
        for (kind, by) in [
            (CountedKind::Reentrant, GrantedBy::Server),
            (CountedKind::Fair, GrantedBy::Handover),
            (CountedKind::Read, GrantedBy::Reentry),
            (CountedKind::Write, GrantedBy::Handoff),
            (CountedKind::Semaphore, GrantedBy::Server),
        ] {
            counters.granted(kind, by);
        }
        let totals = counters.totals();
        assert_eq!(totals.reentrant.by_server, 1);
        assert_eq!(totals.fair.handed_over, 1);
        assert_eq!(totals.read.reentered, 1);
        assert_eq!(totals.write.in_memory, 1);
        assert_eq!(totals.semaphore.by_server, 1);
        assert_eq!(totals.grants(), 5);
    }

    #[test]
    fn the_least_that_a_renewal_left_stays() {
        let counters = Counters::default();
        assert_eq!(counters.totals().renewals.least_left_percent, None);
        let lease = Duration::from_secs(30);
        for (left, is_late) in [(20, false), (6, true), (19, false), (10, false)] {
            let left = Duration::from_secs(left);
            assert_eq!(counters.renewed(left, lease), is_late);
        }
        let renewals = counters.totals().renewals;
        assert_eq!((renewals.renewed, renewals.late), (4, 1));
        assert_eq!(renewals.least_left_percent, Some(20));
    }

    #[tokio::test(start_paused = true)]
    async fn round_trips_are_timed_for_as_long_as_they_are_few() {
        let (clock, counters) = (Clock::of_runtime(), Counters::default());
        assert_eq!(counters.totals().round_trips.mean(), None);
        let began = clock.now();
        clock.sleep_until(began.after(TIMED_EVERY * 3)).await;
        let answered =
            |lane, later: u32| counters.answered(lane, began.after(TIMED_EVERY / 4 * later), clock);
        assert_eq!(answered(0, 0), Some(TIMED_EVERY * 3));
        assert_eq!(answered(0, 3), None, "too soon");
        assert_eq!(answered(1, 3), Some(TIMED_EVERY / 4 * 9), "another lane");
        assert_eq!(answered(0, 4), Some(TIMED_EVERY * 2));
        let trips = counters.totals().round_trips;
        assert_eq!((trips.timed, trips.longest), (3, TIMED_EVERY * 3));
        assert_eq!(trips.total, TIMED_EVERY / 4 * 29);
        assert_eq!(trips.mean(), Some(TIMED_EVERY / 4 * 29 / 3));
    }

    #[test]
    fn every_reason_has_a_place() {
        let counters = Counters::default();
        for reason in [
            LostReason::Expired,
            LostReason::Revoked,
            LostReason::Closed,
            LostReason::MaxHold,
        ] {
            counters.lost(reason);
            assert_eq!(counters.totals().losses.of(reason), 1);
        }
        assert_eq!(counters.totals().losses.total(), 4);
        counters.reconnected("push");
        let reconnects = counters.totals().reconnects;
        assert_eq!((reconnects.push, reconnects.total()), (1, 1));
    }
}
