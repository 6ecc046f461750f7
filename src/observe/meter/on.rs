//! With the feature: what happens, to the recorder of the program.

use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::instruments::{Count, Instruments, OfGroup, is_recorded};
use super::names::{CANCELLED, ERROR, GRANTED, LANES, REFUSED};
use crate::api::error::Result;
use crate::api::lost::LostReason;
use crate::engine::clock::{Clock, Tick};
use crate::observe::group::Group;
use crate::observe::totals::{CountedKind, GrantedBy};

/// What is counted is told so long after that at most, while the runtime runs; and a call looks for a recorder
/// no more often.
const EVERY: Duration = Duration::from_millis(250);

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
    #[inline]
    fn mark(&self) {
        // In one order with the counts: who finds it marked was before the look at them.
        if !self.is_counted.load(Ordering::SeqCst) {
            self.mark_first();
        }
    }

    #[cold]
    fn mark_first(&self) {
        if !self.is_counted.swap(true, Ordering::SeqCst) {
            self.counted.notify_one();
        }
    }

    fn granted(&self, kind: CountedKind, by: GrantedBy, group: Group) {
        let on = self.instruments.of(group);
        on.grant(kind as usize, by as usize).add();
        self.mark();
    }

    /// A call has ended so now.
    fn called(&self, call: &Call<'_>, outcome: usize, now: Tick) {
        let on = self.instruments.of(call.group);
        on.calls(call.kind as usize, outcome)
            .times
            .add(call.began, now);
        self.mark();
    }

    /// A guard had its lock from then until now.
    fn held(&self, timer: HoldTimer, since: Tick, now: Tick) {
        let on = self.instruments.of(timer.group);
        on.holds(timer.kind as usize).times.add(since, now);
        self.mark();
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
    fn count(&self, which: impl FnOnce(&Instruments) -> &Count) {
        if let Some(found) = self.found.get().or_else(|| self.look()) {
            which(&found.instruments).add();
            found.mark();
        }
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

    /// For what a call leads to: that has looked for a recorder when it began.
    #[inline]
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

    /// `kind` is one whose grants are counted.
    #[inline]
    pub(crate) fn granted(&self, kind: CountedKind, by: GrantedBy, group: Group) {
        if let Some(found) = self.found() {
            found.granted(kind, by, group);
        }
    }

    pub(crate) fn refused(&self, group: Group) {
        if let Some(found) = self.found() {
            found.instruments.of(group).refusals.add();
            found.mark();
        }
    }

    /// A call that asks for a lock of this kind began then.
    #[inline]
    pub(crate) fn call(
        &self,
        kind: impl FnOnce() -> CountedKind,
        group: Group,
        began: Tick,
        clock: Clock,
    ) -> CallTimer<'_> {
        CallTimer(self.found_by(began).map(|found| Call {
            found,
            kind: kind(),
            group,
            clock,
            began,
        }))
    }

    /// A call has to wait.
    #[inline]
    pub(crate) fn waits(&self, group: Group) -> WaitCount<'_> {
        WaitCount(self.found().map(|found| {
            let on = found.instruments.of(group);
            on.waits.add();
            found.mark();
            (&**found, on)
        }))
    }

    pub(crate) fn lost(&self, reason: LostReason, group: Group) {
        self.count(|on| on.of(group).loss(reason as usize));
    }

    pub(crate) fn renewed(&self, left: Duration, is_late: bool) {
        self.count(|on| {
            on.margin.add(Tick::ZERO, Tick::ZERO.after(left));
            &on.renewals[usize::from(is_late)]
        });
    }

    pub(crate) fn renewal_failed(&self) {
        self.count(|on| &on.renewals[2]);
    }

    pub(crate) fn reconnected(&self, lane: &str) {
        let place = LANES.iter().position(|each| *each == lane);
        self.count(|on| &on.reconnects[place.unwrap_or_default()]);
    }

    pub(crate) fn background_failed(&self) {
        self.count(|on| &on.background_failures);
    }

    pub(crate) fn script_failed(&self) {
        self.count(|on| &on.script_errors);
    }

    pub(crate) fn event_dropped(&self) {
        self.count(|on| &on.events_dropped);
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
    kind: CountedKind,
    group: Group,
    clock: Clock,
    began: Tick,
}

impl CallTimer<'_> {
    /// It has ended so; `granted` says when, if that is known. If it got the lock, what is to be kept beside the
    /// guard, and since when it has it.
    #[inline]
    pub(crate) fn ends<T>(
        mut self,
        ended: &Result<Option<T>>,
        granted: impl FnOnce(&T) -> Option<Tick>,
    ) -> Option<(HoldTimer, Tick)> {
        let call = self.0.take()?;
        let (outcome, at) = match ended {
            Ok(Some(got)) => (GRANTED, granted(got)),
            Ok(None) => (REFUSED, None),
            Err(_) => (ERROR, None),
        };
        let since = at.unwrap_or_else(|| call.clock.now());
        call.found.called(&call, outcome, since);
        let timer = HoldTimer {
            kind: call.kind,
            group: call.group,
            is_on: true,
        };
        (outcome == GRANTED).then_some((timer, since))
    }
}

impl Drop for CallTimer<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.found.called(call, CANCELLED, call.clock.now());
        }
    }
}

/// What is counted when a guard gives its lock back: to be ended once, by what the guard is made of. It knows of no
/// recorder, and is small: guards go from hand to hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTimer {
    kind: CountedKind,
    group: Group,
    is_on: bool,
}

impl HoldTimer {
    /// Of a guard that no call for a lock has made.
    #[inline]
    pub(crate) fn none() -> Self {
        Self {
            kind: CountedKind::Reentrant,
            group: Group::NONE,
            is_on: false,
        }
    }

    /// Its guard gives the lock back.
    #[inline]
    pub(crate) fn ends<'a>(self, meter: impl FnOnce() -> &'a Meter, since: Tick, now: Tick) {
        if self.is_on
            && let Some(found) = meter().found()
        {
            found.held(self, since, now);
        }
    }
}

/// The time for which a guard has its locks, until this is dropped.
pub(crate) struct GuardTimer(Option<(Arc<Found>, HoldTimer, Tick, Clock)>);

impl GuardTimer {
    /// Of a guard that no call for a lock has made.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// Of one that a call has made.
    pub(crate) fn of(timed: Option<(HoldTimer, Tick)>, meter: &Meter, clock: Clock) -> Self {
        let timer = |(timer, since)| Some((Arc::clone(meter.found()?), timer, since, clock));
        Self(timed.and_then(timer))
    }
}

impl Drop for GuardTimer {
    fn drop(&mut self) {
        if let Some((found, timer, since, clock)) = &self.0 {
            found.held(*timer, *since, clock.now());
        }
    }
}

impl fmt::Debug for GuardTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timer = self.0.as_ref().map(|(_, timer, ..)| timer);
        f.debug_tuple("GuardTimer").field(&timer).finish()
    }
}

/// A call that waits, until this is dropped.
pub(crate) struct WaitCount<'a>(Option<(&'a Found, &'a OfGroup)>);

impl Drop for WaitCount<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some((found, on)) = self.0 {
            on.waits_over.fetch_add(1, Ordering::SeqCst);
            found.mark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::meter::names::{KINDS, OUTCOMES, PATHS, REASONS, RENEWAL_OUTCOMES};

    /// The places that are counted by are those in the tables of names.
    #[test]
    fn every_place_has_its_name() {
        let kinds = [
            CountedKind::Reentrant,
            CountedKind::Fair,
            CountedKind::Read,
            CountedKind::Write,
            CountedKind::Multi,
            CountedKind::Redlock,
        ];
        assert_eq!(kinds.map(CountedKind::name), KINDS);
        assert_eq!(kinds.map(|kind| KINDS[kind as usize]), KINDS);
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
