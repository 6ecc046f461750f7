//! The facts that a client notes of itself, the counts of them, and the totals that programs read.
//!
//! Each fact is noted once, with [`Observed::note`](super::observer::Observed::note). A count is a relaxed atomic: it
//! costs one add, and is read on demand. Invariant: counts only grow; each is exact, but two that are read together need
//! not match. The totals and the metrics are views of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::observe::events::Event;
use crate::observe::group::{ByGroup, Group};

/// A fact that is counted, told to the observer, or both. It is noted while no mutex is held, because it leads to code
/// of the program: a subscriber of `tracing`, a recorder of metrics.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "times are for metrics alone")
)]
pub(crate) enum Fact<'a> {
    /// A call got a lock, of a kind that has one server.
    Granted {
        kind: CountedKind,
        by: GrantedBy,
        group: Group,
    },
    /// A call that asked for a lock ended. `took` is known if calls are timed.
    CallEnded {
        kind: CountedKind,
        group: Group,
        outcome: CallOutcome,
        took: Option<Duration>,
    },
    /// A guard that a call got has ended its share.
    GuardEnded {
        kind: CountedKind,
        group: Group,
        held: Duration,
    },
    /// A call has to wait.
    WaitBegan(Group),
    WaitEnded(Group),
    /// The server confirmed a renewal when this much of a lease was left.
    Renewed {
        left: Duration,
        lease: Duration,
    },
    /// A renewal got no answer, or an error.
    RenewalFailed,
    /// A reply on the lane with this index was timed.
    Answered {
        lane: usize,
        took: Duration,
    },
    /// A call of a script ended with an error or without an answer.
    ScriptFailed,
    /// An undoing was abandoned, one of several that a single event is about.
    UndoAbandoned,
    /// The observer was too slow for an event.
    EventDropped,
    /// Something that no caller learns of, so that it is an event, too. A loss counts in the group of its lock.
    Event(Event<'a>, Group),
}

impl<'a> Fact<'a> {
    /// Returns the fact of an event that counts in no group.
    pub(crate) fn event(event: Event<'a>) -> Self {
        Self::Event(event, Group::NONE)
    }
}

/// Whether a renewal left less than a third of its lease.
pub(crate) fn is_late(left: Duration, lease: Duration) -> bool {
    left < lease / 3
}

/// How a call got its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantedBy {
    Server,
    Handover,
    Handoff,
    Reentry,
}

/// How a call for a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Granted,
    Refused,
    Error,
    Cancelled,
}

/// The names of the outcomes in spans and labels of metrics, in their order.
#[cfg(any(feature = "metrics", feature = "tracing"))]
pub(crate) const OUTCOMES: [&str; 4] = ["granted", "refused", "error", "cancelled"];

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

/// The names of the kinds, in their order.
pub(crate) const KINDS: [&str; 7] = [
    "reentrant",
    "fair",
    "read",
    "write",
    "semaphore",
    "multi",
    "redlock",
];

impl CountedKind {
    /// The name in spans, labels of metrics, and `Debug`.
    pub(crate) fn name(self) -> &'static str {
        KINDS[self as usize]
    }
}

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

/// The number of reasons.
const REASONS: usize = 4;

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

/// In this time at most one round trip of a lane is timed, because reading the clock costs more than all other counts.
const TIMED_EVERY: Duration = Duration::from_millis(1);

/// The longest time from a count until the recorder of metrics has it, and from the moment when a wait is long until its
/// call is woken, while the runtime runs. Calls look for a recorder at most this often, too.
pub(crate) const PUBLISHED_EVERY: Duration = Duration::from_millis(250);

/// A whole lease, in percent.
const WHOLE: u32 = 100;

/// The number of ways to get a lock.
pub(crate) const WAYS: usize = 4;

/// The first place of grants in [`Places`]: by kind, then by way.
pub(crate) const GRANTS: usize = 0;
/// By reason.
pub(crate) const LOSSES: usize = GRANTS + 5 * WAYS;
pub(crate) const REFUSALS: usize = LOSSES + REASONS;
pub(crate) const WAITS: usize = REFUSALS + 1;
pub(crate) const WAITS_OVER: usize = WAITS + 1;
/// In time, late, failed. This place and all later ones have no groups: only the counts of [`Group::NONE`] are used.
pub(crate) const RENEWALS: usize = WAITS_OVER + 1;
/// By lane.
pub(crate) const RECONNECTS: usize = RENEWALS + 3;
pub(crate) const BACKGROUND_FAILURES: usize = RECONNECTS + LANES.len();
pub(crate) const SCRIPT_ERRORS: usize = BACKGROUND_FAILURES + 1;
pub(crate) const EVENTS_DROPPED: usize = SCRIPT_ERRORS + 1;
pub(crate) const PLACES: usize = EVENTS_DROPPED + 1;

/// The names of the lanes, in the order of [`Lane`](crate::conn::Lane).
pub(crate) const LANES: [&str; 4] = ["command", "renewal", "push", "confirm"];

/// The counts of one group, by place.
#[derive(Debug)]
pub(crate) struct Places(pub(crate) [AtomicU64; PLACES]);

impl Default for Places {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::default()))
    }
}

/// The counts of a client.
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
pub(super) fn place(fact: &Fact<'_>) -> Option<(usize, Group)> {
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
        Fact::Renewed { left, lease } => {
            (RENEWALS + usize::from(is_late(left, lease)), Group::NONE)
        }
        Fact::RenewalFailed => (RENEWALS + 2, Group::NONE),
        Fact::ScriptFailed => (SCRIPT_ERRORS, Group::NONE),
        Fact::EventDropped => (EVENTS_DROPPED, Group::NONE),
        Fact::Event(Event::Lost { reason, .. }, group) => (LOSSES + reason as usize, group),
        Fact::UndoAbandoned | Fact::Event(Event::ReleaseFailed { .. }, _) => {
            (BACKGROUND_FAILURES, Group::NONE)
        }
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
            Fact::Renewed { left, lease } => {
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
            // The counts of the group exist from the first call on, at zero.
            Fact::CallEnded { group, .. } => _ = self.groups.of(group),
            _ => {}
        }
    }

    /// Whether to time the round trip of a command that was sent at `sent` on this lane.
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
            counts.note(&Fact::Renewed { left, lease });
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
