//! With the feature: what happens, to the recorder of the program.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::instruments::{Instruments, is_recorded};
use super::names::{CANCELLED, ERROR, GRANTED, LANES, REFUSED};
use crate::clock::{Clock, Now, Tick};
use crate::error::Result;
use crate::group::Group;
use crate::lost::LostReason;
use crate::totals::GrantedBy;

/// What is counted is told so long after that at most, while the runtime runs; and a call looks for a recorder
/// no more often.
const EVERY: Duration = Duration::from_millis(250);

/// The place of a kind among their names.
fn place_of(kind: &str) -> u8 {
    match kind {
        "fair" => 1,
        "read" => 2,
        "write" => 3,
        "multi" => 4,
        "redlock" => 5,
        _ => 0,
    }
}

/// Tells the recorder. While there is none, a call for a lock looks for one now and then, and what happens in
/// the background does; the first that finds it registers the metrics, and the client keeps to that recorder.
#[derive(Default)]
pub(crate) struct Meter {
    found: OnceLock<Arc<Found>>,
    /// No call looks for a recorder before this tick.
    look_after: AtomicU64,
    /// Given when there is something to be told.
    counted: Arc<Notify>,
}

/// A recorder, and what it has not been told yet.
struct Found {
    instruments: Instruments,
    /// Whether it was said that there is something to be told.
    is_counted: AtomicBool,
    counted: Arc<Notify>,
    /// Kept from one time to the next; held by whoever tells.
    publishing: Mutex<Vec<(usize, u64)>>,
}

impl Found {
    /// To be called after something was counted.
    fn mark(&self) {
        // In one order with the counts: who finds it marked was before the look at them.
        if !self.is_counted.load(Ordering::SeqCst) && !self.is_counted.swap(true, Ordering::SeqCst)
        {
            self.counted.notify_one();
        }
    }

    fn publish(&self) {
        let mut found = self.publishing.lock();
        if self.is_counted.swap(false, Ordering::SeqCst) {
            self.instruments.publish(&mut found);
        }
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Meter");
        shown.field("is_on", &self.found.get().is_some()).finish()
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.publish();
    }
}

impl Meter {
    /// For what happens seldom.
    fn on(&self) -> Option<&Arc<Found>> {
        let found = self.found.get();
        found.or_else(|| self.look())
    }

    #[cold]
    fn look(&self) -> Option<&Arc<Found>> {
        is_recorded().then(|| {
            self.found.get_or_init(|| {
                Arc::new(Found {
                    instruments: Instruments::register(),
                    is_counted: AtomicBool::new(false),
                    counted: Arc::clone(&self.counted),
                    publishing: Mutex::default(),
                })
            })
        })
    }

    /// For a call at this time.
    #[inline]
    fn found_by(&self, now: Tick) -> Option<&Arc<Found>> {
        let found = self.found.get();
        if found.is_some() || now.nanos() < self.look_after.load(Ordering::Relaxed) {
            return found;
        }
        let next = now.after(EVERY).nanos();
        self.look_after.store(next, Ordering::Relaxed);
        self.look()
    }

    /// Whether a call at this time is measured.
    pub(crate) fn is_on(&self, now: Tick) -> bool {
        self.found_by(now).is_some()
    }

    /// For what a call leads to: that has looked for a recorder when it began.
    fn found(&self) -> Option<&Arc<Found>> {
        self.found.get()
    }

    /// Tells the recorder what was counted and not told yet.
    pub(crate) fn publish(&self) {
        if let Some(found) = self.found() {
            found.publish();
        }
    }

    /// Does so a while after anything was counted, for ever.
    pub(crate) async fn keep_publishing(&self, clock: Clock) -> Infallible {
        loop {
            self.counted.notified().await;
            clock.sleep_until(clock.now().after(EVERY)).await;
            self.publish();
        }
    }

    /// `kind` is a place in the table of totals.
    pub(crate) fn granted(&self, kind: usize, by: GrantedBy, group: Group) {
        if let Some(found) = self.found() {
            let on = found.instruments.of(group);
            on.grant(kind, by as usize).add();
            found.mark();
        }
    }

    pub(crate) fn refused(&self, group: Group) {
        if let Some(found) = self.found() {
            found.instruments.of(group).refusals.add();
            found.mark();
        }
    }

    /// A call that asks for a lock began then.
    pub(crate) fn call(
        &self,
        kind: &'static str,
        group: Group,
        began: Tick,
        clock: Clock,
    ) -> CallTimer<'_> {
        CallTimer(self.found_by(began).map(|found| Call {
            found,
            kind,
            group,
            clock,
            began,
        }))
    }

    /// A call has to wait.
    pub(crate) fn waits(&self, group: Group) -> WaitCount {
        WaitCount(self.found().map(|found| {
            found.instruments.of(group).waits.add();
            found.mark();
            (Arc::clone(found), group)
        }))
    }

    pub(crate) fn lost(&self, reason: LostReason, group: Group) {
        if let Some(on) = self.on() {
            let on = on.instruments.of(group);
            on.loss(reason as usize).increment(1);
        }
    }

    pub(crate) fn renewed(&self, left: Duration, is_late: bool) {
        if let Some(on) = self.on() {
            on.instruments.renewals[usize::from(is_late)].increment(1);
            on.instruments
                .margin
                .add(Tick::ZERO, Tick::ZERO.after(left));
            on.mark();
        }
    }

    pub(crate) fn renewal_failed(&self) {
        if let Some(on) = self.on() {
            on.instruments.renewals[2].increment(1);
        }
    }

    pub(crate) fn reconnected(&self, lane: &str) {
        if let Some(on) = self.on() {
            let place = LANES.iter().position(|each| *each == lane);
            on.instruments.reconnects[place.unwrap_or_default()].increment(1);
        }
    }

    pub(crate) fn background_failed(&self) {
        if let Some(on) = self.on() {
            on.instruments.background_failures.increment(1);
        }
    }

    pub(crate) fn script_failed(&self) {
        if let Some(on) = self.on() {
            on.instruments.script_errors.increment(1);
        }
    }

    pub(crate) fn event_dropped(&self) {
        if let Some(on) = self.on() {
            on.instruments.events_dropped.increment(1);
        }
    }

    /// A reply over the lane at this place took so long.
    pub(crate) fn answered(&self, lane: usize, took: Duration) {
        if let Some(on) = self.found() {
            let until = Tick::ZERO.after(took);
            on.instruments.round_trip(lane).add(Tick::ZERO, until);
            on.mark();
        }
    }
}

/// A call that asks for a lock, until it ends or is dropped.
pub(crate) struct CallTimer<'a>(Option<Call<'a>>);

struct Call<'a> {
    found: &'a Arc<Found>,
    kind: &'static str,
    group: Group,
    clock: Clock,
    began: Tick,
}

impl Call<'_> {
    fn record(&self, outcome: usize, now: Tick) -> u8 {
        let kind = place_of(self.kind);
        let on = self.found.instruments.of(self.group);
        if outcome == GRANTED {
            // Before it is counted: what is counted without its series is not told to the gauge.
            on.holds(kind.into());
        }
        on.calls(kind.into(), outcome).times.add(self.began, now);
        self.found.mark();
        kind
    }
}

impl CallTimer<'_> {
    /// It has ended so; `granted` says when, if that is known. With what is to be kept beside the guard, if it
    /// got the lock.
    pub(crate) fn ends<T>(
        mut self,
        ended: &Result<Option<T>>,
        granted: impl FnOnce(&T) -> Option<Tick>,
    ) -> HoldTimer {
        let Some(call) = self.0.take() else {
            return HoldTimer::none();
        };
        let (outcome, at) = match ended {
            Ok(Some(got)) => (GRANTED, granted(got)),
            Ok(None) => (REFUSED, None),
            Err(_) => (ERROR, None),
        };
        let since = at.unwrap_or_else(|| call.clock.now());
        let kind = call.record(outcome, since);
        if outcome != GRANTED {
            return HoldTimer::none();
        }
        HoldTimer(Some(Held {
            found: Arc::clone(call.found),
            since,
            kind,
            group: call.group,
            clock: call.clock,
        }))
    }
}

impl Drop for CallTimer<'_> {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.record(CANCELLED, call.clock.now());
        }
    }
}

/// The time for which a guard has its lock, until it is said to be over or this is dropped.
pub(crate) struct HoldTimer(Option<Held>);

struct Held {
    found: Arc<Found>,
    since: Tick,
    kind: u8,
    group: Group,
    clock: Clock,
}

impl HoldTimer {
    /// Of a guard that no call for a lock has made.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Its guard gives the lock back.
    pub(crate) fn ends(&mut self, now: impl Now) {
        if let Some(held) = self.0.take() {
            let on = held.found.instruments.of(held.group);
            on.holds(held.kind.into()).times.add(held.since, now.tick());
            held.found.mark();
        }
    }
}

impl Drop for HoldTimer {
    fn drop(&mut self) {
        if let Some(clock) = self.0.as_ref().map(|held| held.clock) {
            self.ends(clock);
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
pub(crate) struct WaitCount(Option<(Arc<Found>, Group)>);

impl Drop for WaitCount {
    fn drop(&mut self) {
        if let Some((found, group)) = &self.0 {
            let on = found.instruments.of(*group);
            on.waits_over.fetch_add(1, Ordering::SeqCst);
            found.mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::names::{KINDS, OUTCOMES, PATHS, REASONS, RENEWAL_OUTCOMES};

    /// The places that are counted by are those in the tables of names.
    #[test]
    fn every_place_has_its_name() {
        for (at, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(usize::from(place_of(kind)), at, "{kind}");
        }
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
