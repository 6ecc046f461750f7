//! The meter with the feature: it passes events to the recorder of the program.

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

/// The longest time from an event until the recorder has it, while the runtime runs. Calls look for a recorder at most
/// this often, too.
const EVERY: Duration = Duration::from_millis(250);

/// Counts events for the recorder. While there is none, calls for locks look for one now and then, and so do events in
/// the background. The first to find it registers the metrics, and the client keeps that recorder.
#[derive(Default)]
pub(crate) struct Meter {
    found: OnceLock<Arc<Found>>,
    /// No call looks for a recorder before this tick.
    look_after: AtomicU64,
    /// Notified when there is something to publish.
    counted: Arc<Notify>,
}

/// A recorder, and the counts that it does not have yet.
struct Found {
    instruments: Instruments,
    /// Whether the notification was given.
    is_counted: AtomicBool,
    counted: Arc<Notify>,
    /// A buffer that is kept from one time to the next. Its lock is held while publishing.
    publishing: Mutex<Vec<(usize, u64)>>,
}

impl Found {
    /// Notes that something was counted. Call it after the count.
    #[inline]
    fn mark(&self) {
        // In one order with the counts: if it is marked already, the publisher has not looked at them yet.
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

    /// Counts a call that ended now with this outcome.
    fn called(&self, call: &Call<'_>, outcome: usize, now: Tick) {
        let on = self.instruments.of(call.group);
        on.calls(call.kind as usize, outcome)
            .times
            .add(call.began, now);
        self.mark();
    }

    /// Counts a guard that had its lock from then until now.
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
    /// Counts a rare event, and looks for a recorder if there is none.
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

    /// Returns the recorder for a call at this time, and looks for one if that is due.
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

    /// Returns the recorder for events of a call, which has looked for one when it began.
    #[inline]
    fn found(&self) -> Option<&Arc<Found>> {
        self.found.get()
    }

    /// Passes all unpublished counts to the recorder.
    pub(crate) fn publish(&self) {
        if let Some(found) = self.found() {
            found.publish();
        }
    }

    /// Publishes a while after each first count, for ever.
    pub(crate) async fn keep_publishing(&self, clock: Clock) -> Infallible {
        loop {
            self.counted.notified().await;
            clock.sleep_until(clock.now().after(EVERY)).await;
            self.publish();
        }
    }

    /// Counts a grant. `kind` is a kind whose grants are counted.
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

    /// Starts the timer of a call for a lock of this kind that began then.
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

    /// Counts a call that has to wait.
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

    /// Counts a reply over the lane at this place that took this long.
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
    /// Counts the end of the call. `granted` says when it got the lock, if that is known. If it did, this returns the
    /// timer to keep beside the guard, and the time of the grant.
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

/// The labels for counting the end of a guard's hold. The owner of the guard ends it once. It has no recorder and is
/// small, because guards are moved often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTimer {
    kind: CountedKind,
    group: Group,
    is_on: bool,
}

impl HoldTimer {
    /// No timer, for a guard that no call for a lock has made.
    #[inline]
    pub(crate) fn none() -> Self {
        Self {
            kind: CountedKind::Reentrant,
            group: Group::NONE,
            is_on: false,
        }
    }

    /// Counts the hold of its guard, which ends now.
    #[inline]
    pub(crate) fn ends<'a>(self, meter: impl FnOnce() -> &'a Meter, since: Tick, now: Tick) {
        if self.is_on
            && let Some(found) = meter().found()
        {
            found.held(self, since, now);
        }
    }
}

/// Counts how long a guard holds its locks, when this is dropped.
pub(crate) struct GuardTimer(Option<(Arc<Found>, HoldTimer, Tick, Clock)>);

impl GuardTimer {
    /// No timer, for a guard that no call for a lock has made.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// The timer of a guard that a call has made.
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

/// A waiting call, until this is dropped.
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

    /// The places used for counting match the tables of names.
    #[test]
    fn every_place_has_its_name() {
        let kinds = [
            CountedKind::Reentrant,
            CountedKind::Fair,
            CountedKind::Read,
            CountedKind::Write,
            CountedKind::Semaphore,
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
