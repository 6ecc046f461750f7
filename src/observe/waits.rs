//! Waiting calls and their beginnings: one timer for all of them, as most end long before it fires.
//!
//! Invariants: a call is listed from its first wait until it ends or is dropped; while a listed call is not due, a task
//! watches; the waits for one lock are reported at most once in [`REPORT_EVERY`].

use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::engine::clock::{Clock, Tick};

/// The shortest time between two reports about one lock.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// Calls that come due within this time are handled together.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct LongWaits {
    state: Mutex<State>,
    /// Wakes the watch for a call that is due before all others.
    sooner: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By place; `None` at free places.
    calls: Vec<Option<Call>>,
    free: Vec<usize>,
    /// When the watch looks next, if a task watches.
    watched_until: Option<Tick>,
    /// The locks that were reported, and when they may be reported again.
    report_after: HashMap<LockHash, Tick>,
}

/// The hash of a lock's name. If two names share one, a report about one of them comes later.
type LockHash = u64;

#[derive(Debug)]
struct Call {
    lock: LockHash,
    began: Tick,
    /// When it has waited for long, or may be reported again.
    due: Tick,
    /// Whether it was woken for that.
    is_told: bool,
    waker: Waker,
}

impl LongWaits {
    /// Lists a call for this lock that began then and has to wait. It is woken at `due`. Returns true if no task
    /// watches: then the caller has to start [`watch`](Self::watch).
    #[must_use]
    pub(crate) fn enter(
        self: &Arc<Self>,
        lock: LockHash,
        began: Tick,
        due: Tick,
        waker: &Waker,
    ) -> (WaitToken, bool) {
        let call = Call {
            lock,
            began,
            due,
            is_told: false,
            waker: waker.clone(),
        };
        let mut state = self.state.lock();
        let place = match state.free.pop() {
            Some(place) => {
                state.calls[place] = Some(call);
                place
            }
            None => {
                state.calls.push(Some(call));
                state.calls.len() - 1
            }
        };
        let is_unwatched = state.watched_until.is_none();
        let until = *state.watched_until.get_or_insert(due);
        drop(state);
        if due < until {
            self.sooner.notify_one();
        }
        let waits = Arc::clone(self);
        (WaitToken { waits, place }, is_unwatched)
    }

    /// Wakes calls once they have waited for long, until none is left.
    pub(crate) async fn watch(self: Arc<Self>, clock: Clock) {
        let mut watch = Watch {
            waits: self,
            is_over: false,
        };
        while let Some(due) = watch.waits.next_due() {
            let pause = clock.now().after(LOOK_EVERY);
            tokio::select! {
                () = clock.sleep_until(due.max(pause)) => watch.waits.wake_due(clock.now()),
                () = watch.waits.sooner.notified() => {}
            }
        }
        // Another task may watch already.
        watch.is_over = true;
    }

    /// Returns the next time to wake a call. `None`: no call is left to watch for, and the watch is over.
    fn next_due(&self) -> Option<Tick> {
        let mut state = self.state.lock();
        let untold = state.calls.iter().flatten().filter(|call| !call.is_told);
        let due = untold.map(|call| call.due).min();
        state.watched_until = due;
        due
    }

    fn wake_due(&self, now: Tick) {
        let mut state = self.state.lock();
        let calls = state.calls.iter_mut().flatten();
        let mut due: Vec<Waker> = Vec::new();
        for call in calls.filter(|call| !call.is_told && call.due <= now) {
            call.is_told = true;
            due.push(call.waker.clone());
        }
        drop(state);
        due.into_iter().for_each(Waker::wake);
    }
}

/// A task's watch. If it ends too early, the next call has to start another.
struct Watch {
    waits: Arc<LongWaits>,
    is_over: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            self.waits.state.lock().watched_until = None;
        }
    }
}

/// A waiting call, until this is dropped.
#[derive(Debug)]
pub(crate) struct WaitToken {
    waits: Arc<LongWaits>,
    place: usize,
}

impl WaitToken {
    /// Whether it has waited for long. If not, `waker` is woken when it has.
    pub(crate) fn is_long(&self, waker: &Waker) -> bool {
        let mut state = self.waits.state.lock();
        let Some(call) = &mut state.calls[self.place] else {
            return false;
        };
        call.waker.clone_from(waker);
        call.is_told
    }

    /// Takes the report about the lock if it is due. Returns the beginning of the longest wait for it, if this call
    /// has to report, and when the lock may be reported again.
    pub(crate) fn take_report(&self, now: Tick) -> (Option<Tick>, Tick) {
        let mut state = self.waits.state.lock();
        let next = now.after(REPORT_EVERY);
        let Some(lock) = state.calls[self.place].as_ref().map(|call| call.lock) else {
            return (None, next);
        };
        if let Some(again) = state.report_after.get(&lock).filter(|again| **again > now) {
            return (None, *again);
        }
        state.report_after.retain(|_, again| *again > now);
        state.report_after.insert(lock, next);
        let calls = state.calls.iter().flatten();
        let same = calls.filter(|call| call.lock == lock);
        (same.map(|call| call.began).min(), next)
    }
}

impl Drop for WaitToken {
    fn drop(&mut self) {
        let mut state = self.waits.state.lock();
        let call = state.calls[self.place].take();
        state.free.push(self.place);
        drop(state);
        // Its waker may be the last reference to a task.
        drop(call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::options::LONG_WAIT;
    use std::future::poll_fn;
    use std::task::Poll;

    use futures_util::FutureExt;

    /// Waits until the wait is long, and returns how long it was.
    async fn wait_long(waits: &Arc<LongWaits>, clock: Clock) -> (Duration, bool) {
        let (began, mut entered) = (clock.now(), None);
        let is_unwatched = poll_fn(|context| {
            let (waiting, is_unwatched) = entered.get_or_insert_with(|| {
                waits.enter(0, began, began.after(LONG_WAIT), context.waker())
            });
            match waiting.is_long(context.waker()) {
                true => Poll::Ready(*is_unwatched),
                false => Poll::Pending,
            }
        });
        let is_unwatched = is_unwatched.await;
        (began.until(clock.now()), is_unwatched)
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_wait_for_long_are_woken_by_one_watch() {
        let (clock, waits) = (Clock::of_runtime(), Arc::<LongWaits>::default());
        let later = async {
            clock.sleep_until(clock.now().after(LONG_WAIT / 2)).await;
            wait_long(&waits, clock).await
        };
        let watched = async {
            tokio::task::yield_now().await;
            Arc::clone(&waits).watch(clock).await;
        };
        let (first, later, ()) = tokio::join!(wait_long(&waits, clock), later, watched);
        assert!(first.1 && !later.1, "the first has to see to a watch");
        for (waited, _) in [first, later] {
            assert!(
                waited >= LONG_WAIT && waited < LONG_WAIT + LOOK_EVERY * 2,
                "{waited:?}"
            );
        }
        let state = waits.state.lock();
        assert!(state.watched_until.is_none() && state.calls.iter().all(Option::is_none));
        assert_eq!(state.free.len(), state.calls.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_nobody_is_left_and_the_next_call_needs_another() {
        let (clock, waits) = (Clock::of_runtime(), Arc::<LongWaits>::default());
        let enter = || waits.enter(0, clock.now(), clock.now().after(LONG_WAIT), Waker::noop());
        let (short, is_unwatched) = enter();
        assert!(is_unwatched && !short.is_long(Waker::noop()));
        drop(short);
        Arc::clone(&waits).watch(clock).await;
        let (next, is_unwatched) = enter();
        assert!(is_unwatched);
        // The watch ends with its runtime, before its time.
        let mut watch = Box::pin(Arc::clone(&waits).watch(clock));
        assert!((&mut watch).now_or_never().is_none());
        assert!(!enter().1, "that one watches");
        drop(watch);
        assert!(enter().1);
        drop(next);
        assert!(waits.state.lock().calls.len() <= 2, "places are used again");
    }

    #[test]
    fn the_waits_for_one_lock_are_reported_once_in_a_while() {
        let waits = Arc::<LongWaits>::default();
        let at = |seconds| Tick::ZERO.after(Duration::from_secs(seconds));
        let enter = |lock, began| waits.enter(lock, at(began), at(began + 1), Waker::noop()).0;
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
        assert_eq!(waits.state.lock().report_after.len(), 2);
        assert_eq!(first.take_report(at(99)), (Some(at(2)), at(109)));
        assert_eq!(
            waits.state.lock().report_after.len(),
            1,
            "old ones are forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_due_before_the_others_is_woken_in_time() {
        let (clock, waits) = (Clock::of_runtime(), Arc::<LongWaits>::default());
        let began = clock.now();
        let patient = waits.enter(0, began, began.after(LONG_WAIT * 60), Waker::noop());
        assert!(patient.1);
        let watch = Arc::clone(&waits).watch(clock);
        let waited = tokio::select! {
            biased;
            () = watch => unreachable!("a call is left to watch for"),
            waited = async {
                tokio::task::yield_now().await;
                wait_long(&waits, clock).await
            } => waited,
        };
        assert!(waited.0 < LONG_WAIT + LOOK_EVERY * 2, "{waited:?}");
    }
}
