//! Metrics through the facade `metrics`: a view of the counts of a client, and tables of times.
//!
//! The recorder gets sums: a short time after a count, when the counts of the client are read, and when the client
//! ends. Metrics that alerts need exist from the beginning, at zero. Metrics that only show how locks are used exist
//! after their first event, so that a program does not serve hundreds of series that it does not use.
//!
//! Invariants: no metric has a label with values made up by a program, except for the bounded group, so the number of
//! series does not grow with the number of locks; no task but the watchdog's waits for a recorder; each event is
//! published once; no mutex and no cell is locked while the recorder runs, so it may ask the client anything. If the
//! recorder panics, it misses that call, and no lock suffers: the panic hook has reported the panic. The recorded value
//! of a time is wrong by a thirty-second part of it at most.

use std::array;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use metrics::{Key, Level, Metadata, Recorder, Unit, with_recorder};
use tokio::sync::Notify;

use crate::engine::clock::Tick;
use crate::observe::counts::{
    BACKGROUND_FAILURES, CallOutcome, Counts, EVENTS_DROPPED, Fact, GRANTS, KINDS, LANES, LOSSES,
    OUTCOMES, PLACES, PUBLISHED_EVERY, Places, RECONNECTS, REFUSALS, RENEWALS, SCRIPT_ERRORS,
    WAITS, WAITS_OVER, WAYS, place,
};
use crate::observe::group::{ByGroup, Group};

static METADATA: Metadata<'static> = Metadata::new("lockset", Level::INFO, Some("lockset"));

/// The metrics of a client. While there is no recorder, calls for locks and events in the background look for one now
/// and then. The first that finds one starts to count for it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Whether there is a recorder.
    is_on: AtomicBool,
    /// Whether a recorder was found. It gets the descriptions of the metrics before `is_on` is set.
    is_found: AtomicBool,
    /// No call looks for a recorder before this tick.
    look_after: AtomicU64,
    /// Whether the publisher was notified of counts that it has not read yet.
    is_counted: AtomicBool,
    margin: Times,
    round_trips: [Times; LANES.len()],
    groups: ByGroup<OfGroup>,
}

/// The counts of a group that the recorder has, and the times that it does not have yet.
#[derive(Debug, Default)]
struct OfGroup {
    is_registered: AtomicBool,
    /// How much of each count the recorder has.
    told: Places,
    /// By kind, then by outcome.
    calls: [[Times; OUTCOMES.len()]; KINDS.len()],
    holds: [Times; KINDS.len()],
}

/// Makes one call to the recorder.
fn tell(call: impl FnOnce(&dyn Recorder)) {
    let _ = catch_unwind(AssertUnwindSafe(|| with_recorder(call)));
}

fn add(metric: &'static str, labels: &[Label], count: u64) {
    tell(|recorder| {
        recorder
            .register_counter(&key(metric, labels), &METADATA)
            .increment(count);
    });
}

/// Moves a gauge by the events that began and ended. In steps, because several clients share one gauge.
fn shift(metric: &'static str, labels: &[Label], began: u64, ended: u64) {
    tell(|recorder| {
        let gauge = recorder.register_gauge(&key(metric, labels), &METADATA);
        if began > ended {
            gauge.increment((began - ended) as f64);
        } else if ended > began {
            gauge.decrement((ended - began) as f64);
        }
    });
}

/// Passes the times since the last call to the recorder. Returns how many there were.
fn pass(times: &Times, metric: &'static str, labels: &[Label]) -> u64 {
    let (values, total) = times.take();
    tell(|recorder| {
        let histogram = recorder.register_histogram(&key(metric, labels), &METADATA);
        for (seconds, count) in values {
            histogram.record_many(seconds, count);
        }
    });
    total
}

impl Meter {
    /// Looks for a recorder if there is none, unless the fact is part of a call, which has looked when it began.
    #[inline]
    pub(super) fn look_for(&self, fact: &Fact<'_>, counts: &Counts) {
        // Losses, and the counts without a group.
        let is_rare = |(place, _)| (LOSSES..REFUSALS).contains(&place) || place >= RENEWALS;
        if place(fact).is_some_and(is_rare) && !self.is_on.load(Ordering::Relaxed) {
            self.look(counts);
        }
    }

    /// Whether there is a recorder for a call that begins at this time. Looks for one if that is due.
    #[inline]
    pub(super) fn is_on_at(&self, now: Tick, counts: &Counts) -> bool {
        let is_on = self.is_on.load(Ordering::Relaxed);
        if is_on || now.nanos() < self.look_after.load(Ordering::Relaxed) {
            return is_on;
        }
        let next = now.after(PUBLISHED_EVERY).nanos();
        self.look_after.store(next, Ordering::Relaxed);
        self.look(counts);
        self.is_on.load(Ordering::Relaxed)
    }

    #[cold]
    fn look(&self, counts: &Counts) {
        // Without a recorder, `metrics` supplies a placeholder that has no state.
        let is_there = with_recorder(|recorder| size_of_val(recorder) > 0);
        if is_there && !self.is_found.swap(true, Ordering::Relaxed) {
            tell(describe_all);
            self.publish_all(counts, true);
            self.is_on.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a fact that was counted.
    #[inline]
    pub(super) fn note(&self, fact: &Fact<'_>, counted: &Notify) {
        if !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        match *fact {
            Fact::CallEnded {
                kind,
                group,
                outcome,
                took: Some(took),
            } => self.groups.of(group).calls[kind as usize][outcome as usize].add(took),
            Fact::GuardEnded { kind, group, held } => {
                self.groups.of(group).holds[kind as usize].add(held);
            }
            Fact::Renewed { left, .. } => self.margin.add(left),
            Fact::Answered { lane, took } => self.round_trips[lane].add(took),
            _ => {}
        }
        // Orders the counts before the flag: if the flag is already set, the publisher has not read the counts yet.
        fence(Ordering::SeqCst);
        if !self.is_counted.load(Ordering::Relaxed)
            && !self.is_counted.swap(true, Ordering::Relaxed)
        {
            counted.notify_one();
        }
    }

    /// Passes everything since the last call to the recorder, if there is one.
    pub(super) fn publish(&self, counts: &Counts) {
        if self.is_on.load(Ordering::Relaxed) && self.is_counted.swap(false, Ordering::Relaxed) {
            fence(Ordering::SeqCst);
            self.publish_all(counts, false);
        }
    }

    /// Passes everything since the last call. If `is_first`, leaves out what was counted before the recorder came.
    fn publish_all(&self, counts: &Counts, is_first: bool) {
        pass(&self.margin, RENEWAL_MARGIN, &[]);
        for (times, lane) in self.round_trips.iter().zip(LANES) {
            if times.is_used() {
                pass(times, ROUND_TRIP, &[("lane", lane)]);
            }
        }
        for (group, counts) in counts.groups.all() {
            self.groups.of(group).publish(group, counts, is_first);
        }
    }
}

impl OfGroup {
    fn publish(&self, group: Group, counts: &Places, is_first: bool) {
        let of_group = ("group", group.name());
        let is_new = !self.is_registered.swap(true, Ordering::Relaxed);
        let mut more = [0; PLACES];
        // Reads the ends before the beginnings, so that no event seems to end before it has begun.
        for place in (0..PLACES).rev() {
            let count = counts.0[place].load(Ordering::Relaxed);
            more[place] =
                count.saturating_sub(self.told.0[place].fetch_max(count, Ordering::Relaxed));
        }
        for (place, &count) in more.iter().enumerate() {
            let exists = is_new && place >= LOSSES && (place < RENEWALS || group == Group::NONE);
            let count = if is_first { 0 } else { count };
            if (count > 0 || exists)
                && let Some((metric, labels)) = series(place, of_group)
            {
                add(metric, &labels, count);
            }
        }
        if is_new || more[WAITS] != more[WAITS_OVER] {
            shift(WAITING, &[of_group], more[WAITS], more[WAITS_OVER]);
        }
        for ((calls, holds), kind) in self.calls.iter().zip(&self.holds).zip(KINDS) {
            let of_kind = [("kind", kind), of_group];
            let is_held = calls[CallOutcome::Granted as usize].is_used();
            let ended = if is_held {
                pass(holds, HOLD, &of_kind)
            } else {
                0
            };
            let mut began = 0;
            for (calls, outcome) in calls.iter().zip(OUTCOMES) {
                if calls.is_used() {
                    let labels = [("kind", kind), ("outcome", outcome), of_group];
                    let count = pass(calls, ACQUIRE, &labels);
                    add(CALLS, &labels, count);
                    if outcome == OUTCOMES[CallOutcome::Granted as usize] {
                        began = count;
                    }
                }
            }
            // The first grant may have come after `is_held` was read.
            if is_held || began > 0 {
                shift(HELD, &of_kind, began, ended);
            }
        }
    }
}

/// The number of cells for each power of two of nanoseconds. They have one width, which is a power of two.
const PARTS: usize = 1 << PARTS_BITS;
const PARTS_BITS: u32 = 4;

/// The highest bit of a time that is recorded: up to thirteen days. Longer times count as that.
const HIGHEST_BIT: u32 = 49;

/// The number of cells. For times below `2 * PARTS` nanoseconds, cells are one nanosecond wide.
const CELLS: usize = (HIGHEST_BIT - PARTS_BITS + 2) as usize * PARTS;

/// The most values of one series that are recorded at a time. If there are more, this many stand for all of them. An
/// exporter keeps each value until it is read, and needs time for each.
const VALUES_MAX: u64 = 4_096;

/// The times of one series that the recorder does not have yet, counted in a table of our own with one add each. The
/// recorder needs far longer for a value, so it gets all of them together, later.
#[derive(Debug, Default)]
struct Times(OnceLock<Box<[AtomicU32; CELLS]>>);

/// Returns the cell of a time.
fn cell(nanos: u64) -> usize {
    let nanos = nanos.min((1 << (HIGHEST_BIT + 1)) - 1);
    let shift = nanos
        .checked_ilog2()
        .map_or(0, |bit| bit.saturating_sub(PARTS_BITS));
    // The highest bit of the rest counts as one part more, unless nothing was shifted out.
    (shift as usize * PARTS) + (nanos >> shift) as usize
}

/// Returns the time in the middle of a cell, in seconds.
fn seconds(cell: usize) -> f64 {
    let shift = (cell / PARTS).saturating_sub(1);
    let least = ((cell - shift * PARTS) as u64) << shift;
    let width = 1_u64 << shift;
    (least as f64 + (width - 1) as f64 / 2.0) / 1e9
}

impl Times {
    /// Whether a time was ever added.
    fn is_used(&self) -> bool {
        self.0.get().is_some()
    }

    fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let empty = || Box::new(array::from_fn(|_| AtomicU32::new(0)));
        self.0.get_or_init(empty)[cell(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the times since the last call, for the recorder: in seconds, and how often. Returns how many there were,
    /// too.
    fn take(&self) -> (Vec<(f64, usize)>, u64) {
        let cells = self.0.get().into_iter().flat_map(|cells| cells.iter());
        let used = cells
            .enumerate()
            .filter(|(_, cell)| cell.load(Ordering::Relaxed) > 0);
        let taken = used.map(|(at, cell)| (at, u64::from(cell.swap(0, Ordering::Relaxed))));
        let found: Vec<(usize, u64)> = taken.collect();
        let total = found.iter().map(|(_, count)| count).sum();
        let times = found.into_iter().map(|(at, count)| {
            let count = usize::try_from(thinned(count, total)).unwrap_or(usize::MAX);
            (seconds(at), count)
        });
        (times.collect(), total)
    }
}

/// Returns how many of `count` times in a cell are recorded: their share of `total`, and at least one unless it is
/// empty.
fn thinned(count: u64, total: u64) -> u64 {
    if total <= VALUES_MAX {
        return count;
    }
    (count * VALUES_MAX).div_ceil(total)
}

/// Metrics by their kinds and units, each with its name and its description.
macro_rules! metrics {
    ($($describe:ident $unit:ident: $($metric:ident $name:literal $help:literal)*;)*) => {
        $($(const $metric: &str = $name;)*)*

        /// Says what each metric is.
        fn describe_all(recorder: &dyn Recorder) {
            $($(recorder.$describe($name.into(), Some(Unit::$unit), $help.into());)*)*
        }
    };
}

metrics! {
    describe_counter Count:
    CALLS "lockset_calls_total" "Calls that asked for a lock or permits"
    GRANTED "lockset_grants_total" "Locks and permits that calls got"
    REFUSED "lockset_refusals_total" "Calls that got no lock, because others held it"
    WAITED "lockset_waits_total" "Calls that had to wait"
    LOST "lockset_lost_total" "Holds that were lost"
    RENEWED "lockset_renewals_total" "Renewals of holds"
    RECONNECTED "lockset_reconnects_total" "Connections made anew after they had broken"
    FAILED "lockset_background_failures_total"
        "Releases and cancellations in the background that were refused or given up"
    SCRIPTS_FAILED "lockset_script_errors_total"
        "Calls of scripts that ended with an error or without an answer"
    DROPPED "lockset_events_dropped_total" "Events that the observer was too slow for";
    describe_gauge Count:
    HELD "lockset_held" "Guards that hold a lock"
    WAITING "lockset_waiting" "Calls that wait for a lock";
    describe_histogram Seconds:
    ACQUIRE "lockset_acquire_seconds" "How long calls took to ask for a lock"
    HOLD "lockset_hold_seconds" "How long guards held their locks"
    ROUND_TRIP "lockset_round_trip_seconds"
        "From a call of a script, or of what does the same, to its reply"
    RENEWAL_MARGIN "lockset_renewal_margin_seconds"
        "What was left of a lease when its renewal was confirmed";
}

/// In the order of [`GrantedBy`](crate::observe::counts::GrantedBy).
const PATHS: [&str; WAYS] = ["server", "handover", "memory", "reentry"];

const RENEWAL_OUTCOMES: [&str; 3] = ["in_time", "late", "failed"];

/// In the order of [`LostReason`](crate::LostReason).
const REASONS: [&str; 4] = ["expired", "revoked", "closed", "max_hold"];

type Label = (&'static str, &'static str);

/// Returns the key of a series.
fn key(metric: &'static str, labels: &[Label]) -> Key {
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| metrics::Label::from_static_parts(name, value));
    Key::from_parts(metric, labels.collect::<Vec<_>>())
}

/// Returns the series of the count at this place, if it has one of its own.
fn series(place: usize, group: Label) -> Option<(&'static str, Vec<Label>)> {
    Some(match place {
        GRANTS..LOSSES => {
            let (kind, path) = (KINDS[place / WAYS], PATHS[place % WAYS]);
            (GRANTED, vec![("kind", kind), ("path", path), group])
        }
        LOSSES..REFUSALS => (LOST, vec![("reason", REASONS[place - LOSSES]), group]),
        REFUSALS => (REFUSED, vec![group]),
        WAITS => (WAITED, vec![group]),
        RENEWALS..RECONNECTS => {
            let outcome = RENEWAL_OUTCOMES[place - RENEWALS];
            (RENEWED, vec![("outcome", outcome)])
        }
        RECONNECTS..BACKGROUND_FAILURES => (RECONNECTED, vec![("lane", LANES[place - RECONNECTS])]),
        BACKGROUND_FAILURES => (FAILED, Vec::new()),
        SCRIPT_ERRORS => (SCRIPTS_FAILED, Vec::new()),
        EVENTS_DROPPED => (DROPPED, Vec::new()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::loss::LostReason;
    use crate::observe::counts::{CountedKind, GrantedBy};

    #[test]
    fn every_time_has_a_cell_that_tells_it_well() {
        let mut before = 0;
        let powers = (0..=HIGHEST_BIT).map(|bit| 1_u64 << bit);
        let times = powers.flat_map(|power| {
            let parts = (0..40).map(move |part| power + power / 40 * part);
            parts.chain([power * 2 - 1])
        });
        for nanos in times {
            let at = cell(nanos);
            assert!(at >= before && at < CELLS, "{nanos}: {at} after {before}");
            before = at;
            let (told, nanos) = (seconds(at) * 1e9, nanos as f64);
            assert!((told - nanos).abs() <= nanos / 32.0, "{nanos}: {told}");
        }
        assert_eq!(before, CELLS - 1, "no cell is left over");
        assert_eq!(cell(u64::MAX), CELLS - 1);
        assert_eq!((cell(0), seconds(0)), (0, 0.0));
    }

    #[test]
    fn of_too_many_some_stand_for_all_and_the_rare_ones_are_among_them() {
        assert_eq!(thinned(VALUES_MAX, VALUES_MAX), VALUES_MAX);
        assert_eq!(thinned(3, VALUES_MAX), 3);
        let total = VALUES_MAX * 10;
        assert_eq!(thinned(total / 2, total), VALUES_MAX / 2);
        assert_eq!(thinned(1, total), 1);
    }

    /// The places used for counting match the tables of names.
    #[test]
    fn every_place_has_its_name() {
        let kinds = [
            (CountedKind::Reentrant, "reentrant"),
            (CountedKind::Fair, "fair"),
            (CountedKind::Read, "read"),
            (CountedKind::Write, "write"),
            (CountedKind::Semaphore, "semaphore"),
            (CountedKind::Multi, "multi"),
            (CountedKind::Redlock, "redlock"),
        ];
        assert_eq!(
            kinds.map(|(kind, _)| kind.name()),
            kinds.map(|(_, name)| name)
        );
        assert_eq!(kinds.map(|(_, name)| name), KINDS);
        let outcomes = [
            CallOutcome::Granted,
            CallOutcome::Refused,
            CallOutcome::Error,
            CallOutcome::Cancelled,
        ];
        let outcomes = outcomes.map(|outcome| OUTCOMES[outcome as usize]);
        assert_eq!(outcomes, ["granted", "refused", "error", "cancelled"]);
        let paths = [
            GrantedBy::Server,
            GrantedBy::Handover,
            GrantedBy::Handoff,
            GrantedBy::Reentry,
        ];
        let paths = paths.map(|by| PATHS[by as usize]);
        assert_eq!(paths, ["server", "handover", "memory", "reentry"]);
        let reasons = [
            LostReason::Expired,
            LostReason::Revoked,
            LostReason::Closed,
            LostReason::MaxHold,
        ];
        let reasons = reasons.map(|reason| REASONS[reason as usize]);
        assert_eq!(reasons, ["expired", "revoked", "closed", "max_hold"]);
    }

    #[test]
    fn every_count_but_the_ended_waits_has_a_series() {
        let mut keys = Vec::new();
        for place in 0..PLACES {
            let series = series(place, ("group", "x"));
            assert_eq!(series.is_none(), place == WAITS_OVER, "{place}");
            keys.extend(series.map(|(metric, labels)| key(metric, &labels)));
        }
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all, "each has its own");
    }
}
