//! Waiting calls, with when they began. One timer serves all of them, because most waits end long before it fires.
//!
//! Invariants: a call is listed from its first wait until it ends or is dropped; the client's background task looks at
//! the listed calls every [`PUBLISHED_EVERY`](super::counts::PUBLISHED_EVERY); in [`REPORT_EVERY`], the waits for one
//! lock are reported at most once, and those for [`REPORTED_MAX`] locks at most. The number of reports is bounded
//! because each is a question to a server that may be out of reach.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::clock::Tick;
use crate::engine::hint::set_waker;

/// The shortest time between two reports about one lock.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The most locks that are reported in that time.
const REPORTED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct LongWaits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<CallKey, Call>,
    last_call: u64,
    /// The locks that were reported, and when they may be reported again.
    report_after: HashMap<LockHash, Tick>,
}

/// The hash of a lock's name. If two names share one, a report about one of them comes later.
type LockHash = u64;

/// A call: its lock, and its number.
type CallKey = (LockHash, u64);

#[derive(Debug)]
struct Call {
    began: Tick,
    /// When the call has waited for long, or may be reported again.
    due: Tick,
    /// Whether the call was found to be due.
    is_told: bool,
    waker: Option<Waker>,
}

impl LongWaits {
    /// Lists a call that has to wait for this lock, and that began at `began`.
    #[must_use]
    pub(super) fn enter(&self, lock: LockHash, began: Tick, due: Tick) -> WaitToken<'_> {
        let call = Call {
            began,
            due,
            is_told: false,
            waker: None,
        };
        let mut state = self.0.lock();
        state.last_call += 1;
        let key = (lock, state.last_call);
        state.calls.insert(key, call);
        WaitToken { waits: self, key }
    }

    /// Whether no call is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().calls.is_empty()
    }

    /// Wakes the calls that have waited for long.
    pub(super) fn wake_due(&self, now: Tick) {
        let mut state = self.0.lock();
        let calls = state.calls.values_mut();
        let mut due: Vec<Waker> = Vec::new();
        for call in calls.filter(|call| !call.is_told && call.due <= now) {
            call.is_told = true;
            due.extend(call.waker.take());
        }
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }
}

/// A waiting call, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitToken<'a> {
    waits: &'a LongWaits,
    key: CallKey,
}

impl WaitToken<'_> {
    /// Resolves when the call is due.
    pub(crate) async fn until_long(&self) {
        poll_fn(|context| {
            let mut state = self.waits.0.lock();
            match state.calls.get_mut(&self.key) {
                Some(call) if call.is_told => Poll::Ready(()),
                Some(call) => {
                    set_waker(&mut call.waker, context);
                    Poll::Pending
                }
                None => Poll::Pending,
            }
        })
        .await;
    }

    /// Takes the report about the lock if it is due. Returns the beginning of the longest wait for it, if this call
    /// has to report, and when the lock may be reported again.
    pub(crate) fn take_report(&self, now: Tick) -> (Option<Tick>, Tick) {
        let mut state = self.waits.0.lock();
        let (next, (lock, _)) = (now.after(REPORT_EVERY), self.key);
        if let Some(again) = state.report_after.get(&lock).filter(|again| **again > now) {
            return (None, *again);
        }
        state.report_after.retain(|_, again| *again > now);
        if state.report_after.len() == REPORTED_MAX {
            return (None, next);
        }
        state.report_after.insert(lock, next);
        let same = state.calls.range((lock, 0)..=(lock, u64::MAX));
        (same.map(|(_, call)| call.began).min(), next)
    }
}

impl Drop for WaitToken<'_> {
    fn drop(&mut self) {
        let call = self.waits.0.lock().calls.remove(&self.key);
        // Its waker may be the last reference to a task.
        drop(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::options::LONG_WAIT;
    use crate::engine::clock::Clock;
    use crate::observe::counts::PUBLISHED_EVERY;
    use crate::observe::observer::Observed;
    use futures_util::FutureExt;

    /// Waits until the wait is long, and returns how long it was.
    async fn wait_long(observed: &Observed, clock: Clock) -> Duration {
        let began = clock.now();
        let entered = observed.list_wait(0, began, began.after(LONG_WAIT));
        entered.until_long().await;
        began.until(clock.now())
    }

    /// Runs `calls` beside the watch.
    async fn watched<T>(observed: &Observed, clock: Clock, calls: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            never = observed.keep_publishing(clock) => match never {},
            ended = calls => ended,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_for_long_are_woken_by_one_watch() {
        let (clock, observed) = (Clock::of_runtime(), Observed::default());
        let later = async {
            clock.sleep_until(clock.now().after(LONG_WAIT / 2)).await;
            wait_long(&observed, clock).await
        };
        let calls = async { tokio::join!(wait_long(&observed, clock), later) };
        let (first, later) = watched(&observed, clock, calls).await;
        for waited in [first, later] {
            assert!(
                waited >= LONG_WAIT && waited < LONG_WAIT + PUBLISHED_EVERY * 2,
                "{waited:?}"
            );
        }
        assert!(observed.waits.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_rests_when_nobody_is_left_and_the_next_call_wakes_it() {
        let (clock, observed) = (Clock::of_runtime(), Observed::default());
        let calls = async {
            let due = clock.now().after(LONG_WAIT);
            let short = observed.list_wait(0, clock.now(), due);
            assert!(short.until_long().now_or_never().is_none());
            drop(short);
            clock.sleep_until(clock.now().after(LONG_WAIT * 2)).await;
            assert!(observed.waits.is_empty());
            wait_long(&observed, clock).await
        };
        let waited = watched(&observed, clock, calls).await;
        assert!(waited < LONG_WAIT + PUBLISHED_EVERY * 2, "{waited:?}");
    }

    #[test]
    fn the_waits_for_one_lock_are_reported_once_in_a_while() {
        let waits = LongWaits::default();
        let at = |seconds| Tick::ZERO.after(Duration::from_secs(seconds));
        let enter = |lock, began| waits.enter(lock, at(began), at(began + 1));
        let calls = [enter(7, 2), enter(7, 1), enter(8, 5)];
        assert_eq!(calls[0].take_report(at(6)), (Some(at(1)), at(16)));
        assert_eq!(calls[1].take_report(at(6)), (None, at(16)));
        assert_eq!(
            calls[2].take_report(at(7)),
            (Some(at(5)), at(17)),
            "another lock"
        );
        let [first, second, _] = calls;
        drop(second);
        assert_eq!(first.take_report(at(16)), (Some(at(2)), at(26)));
        assert_eq!(waits.0.lock().report_after.len(), 2);
        assert_eq!(first.take_report(at(99)), (Some(at(2)), at(109)));
        assert_eq!(
            waits.0.lock().report_after.len(),
            1,
            "old ones are forgotten"
        );
    }

    #[test]
    fn few_locks_are_reported_when_very_many_are_waited_for() {
        let waits = LongWaits::default();
        let at = |seconds| Tick::ZERO.after(Duration::from_secs(seconds));
        let calls: Vec<_> = (0..1_000)
            .map(|lock| waits.enter(lock, at(1), at(2)))
            .collect();
        for (now, most) in [(2, REPORTED_MAX), (11, 0), (12, REPORTED_MAX)] {
            let told = calls
                .iter()
                .filter(|call| call.take_report(at(now)).0.is_some());
            assert_eq!(told.count(), most, "after {now} s");
            assert_eq!(waits.0.lock().report_after.len(), REPORTED_MAX);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_due_before_the_others_is_woken_in_time() {
        let (clock, observed) = (Clock::of_runtime(), Observed::default());
        let began = clock.now();
        let _patient = observed.list_wait(0, began, began.after(LONG_WAIT * 60));
        let late = async {
            tokio::task::yield_now().await;
            wait_long(&observed, clock).await
        };
        let waited = watched(&observed, clock, late).await;
        assert!(waited < LONG_WAIT + PUBLISHED_EVERY * 2, "{waited:?}");
    }
}
