//! Metrics through the facade `metrics`: a view of the counts of a client, and tables of times.
//!
//! The recorder gets sums: a short time after a count, when the counts of the client are read, and when the client
//! ends. Metrics that alerts need exist from the beginning, at zero. Metrics that only show how locks are used exist
//! after their first event, so that a program does not serve hundreds of series that it does not use.
//!
//! Invariants: no metric has a label with values made up by a program, except for the bounded group, so the number of
//! series does not grow with the number of locks; no task but the watchdog's waits for a recorder; each event is
//! published once; no mutex and no cell is locked while the recorder runs, so it may ask the client anything. If the
//! recorder panics, it misses that call, and no lock suffers: the panic hook has reported the panic.

mod names;
mod times;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use metrics::{Level, Metadata, Recorder, with_recorder};
use tokio::sync::Notify;

use self::names::{
    ACQUIRE, CALLS, HELD, HOLD, Label, Metric, OUTCOMES, RENEWAL_MARGIN, ROUND_TRIP, WAITING,
    describe_all, key, series,
};
use self::times::Times;
use crate::engine::clock::Tick;
use crate::observe::counts::{
    Counts, LANES, LOSSES, PLACES, PUBLISHED_EVERY, Places, RENEWALS, WAITS, WAITS_OVER,
};
use crate::observe::events::Event;
use crate::observe::fact::{CallOutcome, Fact, KINDS};
use crate::observe::group::{ByGroup, Group};

static METADATA: Metadata<'static> = Metadata::new("lockset", Level::INFO, Some("lockset"));

/// While there is no recorder, calls for locks look for one now and then, and so do events in the background. The
/// first to find it begins to count for it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Whether there is a recorder.
    is_on: AtomicBool,
    /// Whether one was found, and is being told of the metrics.
    is_found: AtomicBool,
    /// No call looks for a recorder before this tick.
    look_after: AtomicU64,
    /// Whether it was notified that there is something to publish.
    is_counted: AtomicBool,
    margin: OnceLock<Times>,
    round_trips: [OnceLock<Times>; LANES.len()],
    groups: ByGroup<OfGroup>,
}

/// The counts of a group that the recorder has, and the times that it does not have yet.
#[derive(Debug, Default)]
struct OfGroup {
    is_registered: AtomicBool,
    /// How much of each count the recorder has.
    told: Places,
    /// By kind, then by outcome.
    calls: [[OnceLock<Times>; OUTCOMES.len()]; KINDS.len()],
    holds: [OnceLock<Times>; KINDS.len()],
}

/// Makes one call to the recorder.
fn tell(call: impl FnOnce(&dyn Recorder)) {
    let _ = catch_unwind(AssertUnwindSafe(|| with_recorder(call)));
}

fn add(metric: &Metric, labels: &[Label], count: u64) {
    tell(|recorder| {
        recorder
            .register_counter(&key(metric, labels), &METADATA)
            .increment(count);
    });
}

/// Moves a gauge by the events that began and ended. In steps, because several clients share one gauge.
fn shift(metric: &Metric, labels: &[Label], began: u64, ended: u64) {
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
fn pass(times: Option<&Times>, metric: &Metric, labels: &[Label]) -> u64 {
    let (values, total) = times.map(Times::take).unwrap_or_default();
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
        let is_rare = match fact {
            Fact::Event(event, _) => matches!(
                event,
                Event::Lost { .. } | Event::ReleaseFailed { .. } | Event::Reconnected { .. }
            ),
            Fact::Renewed { .. }
            | Fact::RenewalFailed
            | Fact::ScriptFailed
            | Fact::EventDropped => true,
            _ => false,
        };
        if is_rare && !self.is_on.load(Ordering::Relaxed) {
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
        // The recorder that stands for none has no state.
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
            } => {
                let of_kind = &self.groups.of(group).calls[kind as usize];
                of_kind[outcome as usize]
                    .get_or_init(Times::default)
                    .add(took);
            }
            Fact::GuardEnded { kind, group, held } => {
                let of_kind = &self.groups.of(group).holds[kind as usize];
                of_kind.get_or_init(Times::default).add(held);
            }
            Fact::Renewed { left, .. } => self.margin.get_or_init(Times::default).add(left),
            Fact::Answered { lane, took } => {
                self.round_trips[lane].get_or_init(Times::default).add(took);
            }
            _ => {}
        }
        // In one order with the counts: if it is marked already, the publisher has not looked at them yet.
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

    /// If `is_first`, the recorder misses what was counted before it came.
    fn publish_all(&self, counts: &Counts, is_first: bool) {
        pass(self.margin.get(), &RENEWAL_MARGIN, &[]);
        for (times, lane) in self.round_trips.iter().zip(LANES) {
            if times.get().is_some() {
                pass(times.get(), &ROUND_TRIP, &[("lane", lane)]);
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
        // Ends before beginnings, so that no event ends before it has begun.
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
                add(&metric, &labels, count);
            }
        }
        if is_new || more[WAITS] != more[WAITS_OVER] {
            shift(&WAITING, &[of_group], more[WAITS], more[WAITS_OVER]);
        }
        for ((calls, holds), kind) in self.calls.iter().zip(&self.holds).zip(KINDS) {
            let of_kind = [("kind", kind), of_group];
            let granted = &calls[CallOutcome::Granted as usize];
            let is_held = granted.get().is_some();
            let ended = if is_held {
                pass(holds.get(), &HOLD, &of_kind)
            } else {
                0
            };
            let mut began = 0;
            for (calls, outcome) in calls.iter().zip(OUTCOMES) {
                if calls.get().is_some() {
                    let labels = [("kind", kind), ("outcome", outcome), of_group];
                    let count = pass(calls.get(), &ACQUIRE, &labels);
                    add(&CALLS, &labels, count);
                    if outcome == OUTCOMES[CallOutcome::Granted as usize] {
                        began = count;
                    }
                }
            }
            if is_held {
                shift(&HELD, &of_kind, began, ended);
            }
        }
    }
}
