//! The handles that a recorder gave, kept so that no event looks one up by its name.
//!
//! What an alert asks for is there from the beginning, at zero. What only shows how a lock is used is there
//! once it happens, so that a program does not serve hundreds of series of kinds that it does not use.

use std::sync::OnceLock;

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, with_recorder};

use super::names::{
    ACQUIRE, BACKGROUND_FAILURES, COUNTERS, EVENTS_DROPPED, GAUGES, GRANTS, HELD, HISTOGRAMS, HOLD,
    KINDS, LANES, LOST, Metric, OUTCOMES, PATHS, REASONS, RECONNECTS, REFUSALS, RENEWAL_MARGIN,
    RENEWAL_OUTCOMES, RENEWALS, ROUND_TRIP, SCRIPT_ERRORS, WAITING, WAITS, of_reason,
};
use crate::group::{GROUPS, Group};

static METADATA: Metadata<'static> = Metadata::new("lockset", Level::INFO, Some("lockset"));

type Labels<'a> = &'a [(&'static str, &'static str)];

fn key(metric: &Metric, labels: Labels<'_>) -> Key {
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| Label::from_static_parts(name, value));
    Key::from_parts(metric.name, labels.collect::<Vec<_>>())
}

fn counter(metric: &Metric, labels: Labels<'_>) -> Counter {
    with_recorder(|recorder| recorder.register_counter(&key(metric, labels), &METADATA))
}

fn gauge(metric: &Metric, labels: Labels<'_>) -> Gauge {
    with_recorder(|recorder| recorder.register_gauge(&key(metric, labels), &METADATA))
}

fn histogram(metric: &Metric, labels: Labels<'_>) -> Histogram {
    with_recorder(|recorder| recorder.register_histogram(&key(metric, labels), &METADATA))
}

fn describe_all() {
    with_recorder(|recorder| {
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

/// Whether anybody would be told of what is recorded. The recorder that stands for none has no state.
pub(super) fn is_recorded() -> bool {
    with_recorder(|recorder| size_of_val(recorder) > 0)
}

pub(super) struct Instruments {
    pub(super) renewals: [Counter; 3],
    pub(super) reconnects: [Counter; 4],
    pub(super) background_failures: Counter,
    pub(super) script_errors: Counter,
    pub(super) events_dropped: Counter,
    pub(super) margin: Histogram,
    round_trips: [OnceLock<Histogram>; 4],
    groups: [OnceLock<Box<OfGroup>>; GROUPS],
}

/// Those that have the group as a label.
pub(super) struct OfGroup {
    name: &'static str,
    pub(super) refusals: Counter,
    pub(super) waits: Counter,
    pub(super) waiting: Gauge,
    losses: [Counter; REASONS.len()],
    grants: [[OnceLock<Counter>; PATHS.len()]; KINDS.len()],
    acquires: [[OnceLock<Histogram>; OUTCOMES.len()]; KINDS.len()],
    holds: [OnceLock<(Histogram, Gauge)>; KINDS.len()],
}

fn none_yet<T, const N: usize>() -> [OnceLock<T>; N] {
    std::array::from_fn(|_| OnceLock::new())
}

impl Instruments {
    /// With the recorder that is there now.
    pub(super) fn register() -> Self {
        describe_all();
        let this = Self {
            renewals: RENEWAL_OUTCOMES.map(|outcome| counter(&RENEWALS, &[("outcome", outcome)])),
            reconnects: LANES.map(|lane| counter(&RECONNECTS, &[("lane", lane)])),
            background_failures: counter(&BACKGROUND_FAILURES, &[]),
            script_errors: counter(&SCRIPT_ERRORS, &[]),
            events_dropped: counter(&EVENTS_DROPPED, &[]),
            margin: histogram(&RENEWAL_MARGIN, &[]),
            round_trips: none_yet(),
            groups: none_yet(),
        };
        this.of(Group::NONE);
        this
    }

    pub(super) fn of(&self, group: Group) -> &OfGroup {
        self.groups[group.index()].get_or_init(|| Box::new(OfGroup::register(group.name())))
    }

    pub(super) fn round_trip(&self, lane: usize) -> &Histogram {
        let first = || histogram(&ROUND_TRIP, &[("lane", LANES[lane])]);
        self.round_trips[lane].get_or_init(first)
    }
}

impl OfGroup {
    fn register(name: &'static str) -> Self {
        let group = ("group", name);
        Self {
            name,
            refusals: counter(&REFUSALS, &[group]),
            waits: counter(&WAITS, &[group]),
            waiting: gauge(&WAITING, &[group]),
            losses: REASONS.map(|reason| counter(&LOST, &[("reason", of_reason(reason)), group])),
            grants: std::array::from_fn(|_| none_yet()),
            acquires: std::array::from_fn(|_| none_yet()),
            holds: none_yet(),
        }
    }

    pub(super) fn loss(&self, reason: usize) -> &Counter {
        &self.losses[reason]
    }

    pub(super) fn grant(&self, kind: usize, path: usize) -> &Counter {
        self.grants[kind][path].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("path", PATHS[path])];
            counter(&GRANTS, &[labels[0], labels[1], ("group", self.name)])
        })
    }

    pub(super) fn acquire(&self, kind: usize, outcome: usize) -> &Histogram {
        self.acquires[kind][outcome].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("outcome", OUTCOMES[outcome])];
            histogram(&ACQUIRE, &[labels[0], labels[1], ("group", self.name)])
        })
    }

    pub(super) fn hold(&self, kind: usize) -> &(Histogram, Gauge) {
        self.holds[kind].get_or_init(|| {
            let labels = [("kind", KINDS[kind]), ("group", self.name)];
            (histogram(&HOLD, &labels), gauge(&HELD, &labels))
        })
    }
}
