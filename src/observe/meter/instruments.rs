//! The handles from a recorder, kept so that no event looks one up by its name, with the counts that the recorder does
//! not have yet.
//!
//! Metrics that alerts need exist from the beginning, at zero. Metrics that only show how locks are used exist after
//! their first event, so that a program does not serve hundreds of series that it does not use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, with_recorder};

use super::names::{
    ACQUIRE, BACKGROUND_FAILURES, CALLS, COUNTERS, EVENTS_DROPPED, GAUGES, GRANTED, GRANTS, HELD,
    HISTOGRAMS, HOLD, KINDS, LANES, LOST, Metric, OUTCOMES, PATHS, REASONS, RECONNECTS, REFUSALS,
    RENEWAL_MARGIN, RENEWAL_OUTCOMES, RENEWALS, ROUND_TRIP, SCRIPT_ERRORS, WAITING, WAITS,
    of_reason,
};
use super::recorder::{asked, tell};
use super::times::Times;
use crate::observe::group::{GROUPS, Group};

static METADATA: Metadata<'static> = Metadata::new("lockset", Level::INFO, Some("lockset"));

type Labels<'a> = &'a [(&'static str, &'static str)];

fn key(metric: &Metric, labels: Labels<'_>) -> Key {
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| Label::from_static_parts(name, value));
    Key::from_parts(metric.name, labels.collect::<Vec<_>>())
}

fn counter(metric: &Metric, labels: Labels<'_>) -> Counter {
    let asked = asked(|recorder| recorder.register_counter(&key(metric, labels), &METADATA));
    asked.unwrap_or_else(Counter::noop)
}

fn gauge(metric: &Metric, labels: Labels<'_>) -> Gauge {
    let asked = asked(|recorder| recorder.register_gauge(&key(metric, labels), &METADATA));
    asked.unwrap_or_else(Gauge::noop)
}

fn histogram(metric: &Metric, labels: Labels<'_>) -> Histogram {
    let asked = asked(|recorder| recorder.register_histogram(&key(metric, labels), &METADATA));
    asked.unwrap_or_else(Histogram::noop)
}

fn describe_all() {
    asked(|recorder| {
        for Metric { name, unit, help } in COUNTERS {
            recorder.describe_counter((*name).into(), Some(*unit), (*help).into());
        }
        for Metric { name, unit, help } in GAUGES {
            recorder.describe_gauge((*name).into(), Some(*unit), (*help).into());
        }
        for Metric { name, unit, help } in HISTOGRAMS {
            recorder.describe_histogram((*name).into(), Some(*unit), (*help).into());
        }
    });
}

/// Whether there is a recorder. The one that stands for none has no state.
pub(super) fn is_recorded() -> bool {
    with_recorder(|recorder| size_of_val(recorder) > 0)
}

/// A count of single events, which the recorder gets as sums.
pub(super) struct Count {
    untold: AtomicU64,
    counter: Counter,
}

fn count(metric: &Metric, labels: Labels<'_>) -> Count {
    Count {
        untold: AtomicU64::new(0),
        counter: counter(metric, labels),
    }
}

impl Count {
    pub(super) fn add(&self) {
        // In one order with the mark for unpublished counts.
        self.untold.fetch_add(1, Ordering::SeqCst);
    }

    /// Passes the count to the recorder. Returns how many were added since the last time.
    fn publish(&self) -> u64 {
        let count = self.untold.swap(0, Ordering::SeqCst);
        if count > 0 {
            tell(|| self.counter.increment(count));
        }
        count
    }
}

/// Moves a gauge by the events that began and ended. In steps, because several clients share one gauge.
fn shift(gauge: &Gauge, began: u64, ended: u64) {
    if began > ended {
        tell(|| gauge.increment((began - ended) as f64));
    } else if ended > began {
        tell(|| gauge.decrement((ended - began) as f64));
    }
}

pub(super) struct Instruments {
    pub(super) renewals: [Count; 3],
    pub(super) reconnects: [Count; 4],
    pub(super) background_failures: Count,
    pub(super) script_errors: Count,
    pub(super) events_dropped: Count,
    pub(super) margin: Times,
    round_trips: [OnceLock<Times>; 4],
    groups: [OnceLock<Box<OfGroup>>; GROUPS],
}

/// The metrics that have the group as a label.
pub(super) struct OfGroup {
    name: &'static str,
    pub(super) refusals: Count,
    pub(super) waits: Count,
    /// The waits that have ended.
    pub(super) waits_over: AtomicU64,
    waiting: Gauge,
    losses: [Count; REASONS.len()],
    grants: [[OnceLock<Count>; PATHS.len()]; KINDS.len()],
    calls: [[OnceLock<Calls>; OUTCOMES.len()]; KINDS.len()],
    holds: [OnceLock<Holds>; KINDS.len()],
}

/// Calls with one outcome.
pub(super) struct Calls {
    pub(super) times: Times,
    total: Counter,
}

/// The holds of guards, present and past.
pub(super) struct Holds {
    pub(super) times: Times,
    held: Gauge,
}

fn none_yet<T, const N: usize>() -> [OnceLock<T>; N] {
    std::array::from_fn(|_| OnceLock::new())
}

impl Instruments {
    /// Registers the metrics with the current recorder.
    pub(super) fn register() -> Self {
        describe_all();
        let this = Self {
            renewals: RENEWAL_OUTCOMES.map(|outcome| count(&RENEWALS, &[("outcome", outcome)])),
            reconnects: LANES.map(|lane| count(&RECONNECTS, &[("lane", lane)])),
            background_failures: count(&BACKGROUND_FAILURES, &[]),
            script_errors: count(&SCRIPT_ERRORS, &[]),
            events_dropped: count(&EVENTS_DROPPED, &[]),
            margin: Times::of(histogram(&RENEWAL_MARGIN, &[])),
            round_trips: none_yet(),
            groups: none_yet(),
        };
        this.of(Group::NONE);
        this
    }

    #[inline]
    pub(super) fn of(&self, group: Group) -> &OfGroup {
        match self.groups[group.index()].get() {
            Some(on) => on,
            None => self.first_of(group),
        }
    }

    #[cold]
    fn first_of(&self, group: Group) -> &OfGroup {
        let first = || Box::new(OfGroup::register(group.name()));
        self.groups[group.index()].get_or_init(first)
    }

    pub(super) fn round_trip(&self, lane: usize) -> &Times {
        let first = || Times::of(histogram(&ROUND_TRIP, &[("lane", LANES[lane])]));
        self.round_trips[lane].get_or_init(first)
    }

    /// Passes all counts since the last time to the recorder. Only one call at a time.
    pub(super) fn publish(&self, found: &mut Vec<(usize, u64)>) {
        let seldom = [
            &self.background_failures,
            &self.script_errors,
            &self.events_dropped,
        ];
        for count in self.renewals.iter().chain(&self.reconnects).chain(seldom) {
            count.publish();
        }
        self.margin.publish(found);
        for round_trips in self.round_trips.iter().filter_map(OnceLock::get) {
            round_trips.publish(found);
        }
        for group in self.groups.iter().filter_map(OnceLock::get) {
            group.publish(found);
        }
    }
}

impl OfGroup {
    fn register(name: &'static str) -> Self {
        let group = ("group", name);
        Self {
            name,
            refusals: count(&REFUSALS, &[group]),
            waits: count(&WAITS, &[group]),
            waits_over: AtomicU64::new(0),
            waiting: gauge(&WAITING, &[group]),
            losses: REASONS.map(|reason| count(&LOST, &[("reason", of_reason(reason)), group])),
            grants: std::array::from_fn(|_| none_yet()),
            calls: std::array::from_fn(|_| none_yet()),
            holds: none_yet(),
        }
    }

    pub(super) fn loss(&self, reason: usize) -> &Count {
        &self.losses[reason]
    }

    #[inline]
    pub(super) fn grant(&self, kind: usize, path: usize) -> &Count {
        match self.grants[kind][path].get() {
            Some(grants) => grants,
            None => self.first_grant(kind, path),
        }
    }

    #[cold]
    fn first_grant(&self, kind: usize, path: usize) -> &Count {
        self.grants[kind][path].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("path", PATHS[path])];
            count(&GRANTS, &[labels[0], labels[1], ("group", self.name)])
        })
    }

    #[inline]
    pub(super) fn calls(&self, kind: usize, outcome: usize) -> &Calls {
        match self.calls[kind][outcome].get() {
            Some(calls) => calls,
            None => self.first_call(kind, outcome),
        }
    }

    #[cold]
    fn first_call(&self, kind: usize, outcome: usize) -> &Calls {
        if outcome == GRANTED {
            // Before the call is counted, because the gauge needs its series.
            self.holds(kind);
        }
        self.calls[kind][outcome].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("outcome", OUTCOMES[outcome])];
            let labels = [labels[0], labels[1], ("group", self.name)];
            Calls {
                times: Times::of(histogram(&ACQUIRE, &labels)),
                total: counter(&CALLS, &labels),
            }
        })
    }

    #[inline]
    pub(super) fn holds(&self, kind: usize) -> &Holds {
        match self.holds[kind].get() {
            Some(holds) => holds,
            None => self.first_hold(kind),
        }
    }

    #[cold]
    fn first_hold(&self, kind: usize) -> &Holds {
        self.holds[kind].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("group", self.name)];
            Holds {
                times: Times::of(histogram(&HOLD, &labels)),
                held: gauge(&HELD, &labels),
            }
        })
    }

    /// Takes ends before beginnings, so that no event ends before it has begun.
    fn publish(&self, found: &mut Vec<(usize, u64)>) {
        let over = self.waits_over.swap(0, Ordering::SeqCst);
        shift(&self.waiting, self.waits.publish(), over);
        self.refusals.publish();
        for losses in &self.losses {
            losses.publish();
        }
        for grants in self.grants.iter().flatten().filter_map(OnceLock::get) {
            grants.publish();
        }
        for (holds, calls) in self.holds.iter().zip(&self.calls) {
            let holds = holds.get();
            let ended = holds.map_or(0, |holds| holds.times.publish(found));
            let counts = calls.each_ref().map(|calls| {
                let calls = calls.get()?;
                let count = calls.times.publish(found);
                if count > 0 {
                    tell(|| calls.total.increment(count));
                }
                Some(count)
            });
            if let Some(holds) = holds {
                shift(&holds.held, counts[GRANTED].unwrap_or(0), ended);
            }
        }
    }
}
