//! With the feature: what happens, to the recorder of the program.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::instruments::{Instruments, is_recorded};
use super::names::{KINDS, LANES};
use crate::clock::{Clock, Tick};
use crate::error::Result;
use crate::group::Group;
use crate::lost::LostReason;
use crate::totals::GrantedBy;

/// What became of a call: places among the names of outcomes.
const GRANTED: usize = 0;
const REFUSED: usize = 1;
const ERROR: usize = 2;
const CANCELLED: usize = 3;

fn place(of: &[&str], value: &str) -> usize {
    of.iter()
        .position(|each| *each == value)
        .unwrap_or_default()
}

/// Tells the recorder. While there is none, each call for a lock looks for one, and what happens in the
/// background does; the first that finds it registers the metrics, and the client keeps to that recorder.
#[derive(Default)]
pub(crate) struct Meter(OnceLock<Arc<Instruments>>);

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Meter");
        shown.field("is_on", &self.0.get().is_some()).finish()
    }
}

impl Meter {
    fn on(&self) -> Option<&Arc<Instruments>> {
        let found = self.0.get();
        found.or_else(|| is_recorded().then(|| self.register()))
    }

    #[cold]
    fn register(&self) -> &Arc<Instruments> {
        self.0.get_or_init(|| Arc::new(Instruments::register()))
    }

    /// For what a call leads to: that has looked for a recorder when it began.
    fn found(&self) -> Option<&Arc<Instruments>> {
        self.0.get()
    }

    /// `kind` is a place in the table of totals.
    pub(crate) fn granted(&self, kind: usize, by: GrantedBy, group: Group) {
        if let Some(on) = self.found().map(|found| found.of(group)) {
            on.grant(kind, by as usize).increment(1);
        }
    }

    pub(crate) fn refused(&self, group: Group) {
        if let Some(on) = self.found().map(|found| found.of(group)) {
            on.refusals.increment(1);
        }
    }

    /// A call that asks for a lock begins.
    pub(crate) fn call(&self, kind: &str, group: Group, clock: Clock) -> CallTimer<'_> {
        CallTimer(self.on().map(|instruments| Call {
            instruments,
            kind: place(&KINDS, kind),
            group,
            clock,
            began: clock.now(),
        }))
    }

    /// A call has to wait.
    pub(crate) fn waits(&self, group: Group) -> WaitCount {
        WaitCount(self.found().map(|instruments| {
            let on = instruments.of(group);
            on.waits.increment(1);
            on.waiting.increment(1);
            (Arc::clone(instruments), group)
        }))
    }

    pub(crate) fn lost(&self, reason: LostReason, group: Group) {
        if let Some(on) = self.on().map(|found| found.of(group)) {
            on.loss(reason as usize).increment(1);
        }
    }

    pub(crate) fn renewed(&self, left: Duration, is_late: bool) {
        if let Some(on) = self.on() {
            on.renewals[usize::from(is_late)].increment(1);
            on.margin.record(left);
        }
    }

    pub(crate) fn renewal_failed(&self) {
        if let Some(on) = self.on() {
            on.renewals[2].increment(1);
        }
    }

    pub(crate) fn reconnected(&self, lane: &str) {
        if let Some(on) = self.on() {
            on.reconnects[place(&LANES, lane)].increment(1);
        }
    }

    pub(crate) fn background_failed(&self) {
        if let Some(on) = self.on() {
            on.background_failures.increment(1);
        }
    }

    pub(crate) fn script_failed(&self) {
        if let Some(on) = self.on() {
            on.script_errors.increment(1);
        }
    }

    pub(crate) fn event_dropped(&self) {
        if let Some(on) = self.on() {
            on.events_dropped.increment(1);
        }
    }

    /// What was sent then over the lane at this place has its reply.
    pub(crate) fn answered(&self, lane: usize, sent: Tick, clock: Clock) {
        if let Some(on) = self.found() {
            on.round_trip(lane).record(sent.until(clock.now()));
        }
    }
}

/// A call that asks for a lock, until it ends or is dropped.
pub(crate) struct CallTimer<'a>(Option<Call<'a>>);

struct Call<'a> {
    instruments: &'a Arc<Instruments>,
    kind: usize,
    group: Group,
    clock: Clock,
    began: Tick,
}

impl Call<'_> {
    fn record(&self, outcome: usize) -> Tick {
        let now = self.clock.now();
        let on = self.instruments.of(self.group);
        on.acquire(self.kind, outcome).record(self.began.until(now));
        now
    }
}

impl CallTimer<'_> {
    /// It has ended so. With what is to be kept beside the guard, if it got the lock.
    pub(crate) fn ends<T>(mut self, ended: &Result<Option<T>>) -> HoldTimer {
        let Some(call) = self.0.take() else {
            return HoldTimer::none();
        };
        let outcome = match ended {
            Ok(Some(_)) => GRANTED,
            Ok(None) => REFUSED,
            Err(_) => ERROR,
        };
        let since = call.record(outcome);
        if outcome != GRANTED {
            return HoldTimer::none();
        }
        let instruments = Arc::clone(call.instruments);
        instruments.of(call.group).hold(call.kind).1.increment(1);
        HoldTimer(Some(Held {
            instruments,
            kind: call.kind,
            group: call.group,
            clock: call.clock,
            since,
        }))
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.record(CANCELLED);
        }
    }
}

/// The time for which a guard has its lock, until this is dropped.
pub(crate) struct HoldTimer(Option<Held>);

struct Held {
    instruments: Arc<Instruments>,
    kind: usize,
    group: Group,
    clock: Clock,
    since: Tick,
}

impl HoldTimer {
    /// Of a guard that no call for a lock has made.
    pub(crate) fn none() -> Self {
        Self(None)
    }
}

impl Drop for HoldTimer {
    fn drop(&mut self) {
        if let Some(held) = &self.0 {
            let (seconds, gauge) = held.instruments.of(held.group).hold(held.kind);
            seconds.record(held.since.until(held.clock.now()));
            gauge.decrement(1);
        }
    }
}

impl fmt::Debug for HoldTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = self.0.as_ref().map(|held| held.since);
        f.debug_tuple("HoldTimer").field(&since).finish()
    }
}

/// A call that waits, until this is dropped.
pub(crate) struct WaitCount(Option<(Arc<Instruments>, Group)>);

impl Drop for WaitCount {
    fn drop(&mut self) {
        if let Some((instruments, group)) = &self.0 {
            instruments.of(*group).waiting.decrement(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::names::{OUTCOMES, PATHS, REASONS, RENEWAL_OUTCOMES};

    /// The places that are counted by are those in the tables of names.
    #[test]
    fn every_place_has_its_name() {
        let outcomes = [GRANTED, REFUSED, ERROR, CANCELLED].map(|at| OUTCOMES[at]);
        assert_eq!(outcomes, ["granted", "refused", "error", "cancelled"]);
        let paths = [
            GrantedBy::Server,
            GrantedBy::Handover,
            GrantedBy::Handoff,
            GrantedBy::Reentry,
        ];
        let paths = paths.map(|by| PATHS[by as usize]);
        assert_eq!(paths, ["server", "handover", "memory", "reentry"]);
        for (at, reason) in REASONS.into_iter().enumerate() {
            assert_eq!(reason as usize, at, "{reason}");
        }
        assert_eq!(RENEWAL_OUTCOMES[usize::from(true)], "late");
    }
}
