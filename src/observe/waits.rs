//! Waiting calls and their beginnings: one timer for all of them, as most end long before it fires.
//!
//! Invariants: a call is listed from its first wait until it ends, has waited for long, or is dropped; while a listed
//! call has not waited for long, a task watches.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::clock::{Clock, Tick};

/// A longer wait is reported.
pub(crate) const LONG_WAIT: Duration = Duration::from_secs(1);

/// Calls that come due within this time are handled together.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By place; `None` at free places.
    calls: Vec<Option<Call>>,
    free: Vec<usize>,
    is_watched: bool,
}

#[derive(Debug)]
struct Call {
    /// When it has waited for long.
    due: Tick,
    /// Whether it was woken for that.
    is_told: bool,
    waker: Waker,
}

impl Waits {
    /// Lists a call that began then and has to wait. It is woken once it has waited for long. Returns true if no task
    /// watches: then the caller has to start [`watch`](Self::watch).
    #[must_use]
    pub(crate) fn enter(self: &Arc<Self>, began: Tick, waker: &Waker) -> (NotedWait, bool) {
        let call = Call {
            due: began.after(LONG_WAIT),
            is_told: false,
            waker: waker.clone(),
        };
        let mut state = self.0.lock();
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
        let is_unwatched = !std::mem::replace(&mut state.is_watched, true);
        drop(state);
        let waits = Arc::clone(self);
        (NotedWait { waits, place }, is_unwatched)
    }

    /// Wakes calls once they have waited for long, until none is left.
    pub(crate) async fn watch(self: Arc<Self>, clock: Clock) {
        let mut watch = Watch {
            waits: self,
            is_over: false,
        };
        while let Some(due) = watch.waits.next_due() {
            let pause = clock.now().after(LOOK_EVERY);
            clock.sleep_until(due.max(pause)).await;
            watch.waits.wake_due(clock.now());
        }
        // Another task may watch already.
        watch.is_over = true;
    }

    /// Returns the next time to wake a call. `None`: no call is left to watch for, and the watch is over.
    fn next_due(&self) -> Option<Tick> {
        let mut state = self.0.lock();
        let untold = state.calls.iter().flatten().filter(|call| !call.is_told);
        let due = untold.map(|call| call.due).min();
        state.is_watched = due.is_some();
        due
    }

    fn wake_due(&self, now: Tick) {
        let mut state = self.0.lock();
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
    waits: Arc<Waits>,
    is_over: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            self.waits.0.lock().is_watched = false;
        }
    }
}

/// A waiting call, until this is dropped.
#[derive(Debug)]
pub(crate) struct NotedWait {
    waits: Arc<Waits>,
    place: usize,
}

impl NotedWait {
    /// Whether it has waited for long. If not, `waker` is woken when it has.
    pub(crate) fn is_long(&self, waker: &Waker) -> bool {
        let mut state = self.waits.0.lock();
        let Some(call) = &mut state.calls[self.place] else {
            return false;
        };
        call.waker.clone_from(waker);
        call.is_told
    }
}

impl Drop for NotedWait {
    fn drop(&mut self) {
        let mut state = self.waits.0.lock();
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
    use std::future::poll_fn;
    use std::task::Poll;

    use futures_util::FutureExt;

    /// Waits until the wait is long, and returns how long it was.
    async fn wait_long(waits: &Arc<Waits>, clock: Clock) -> (Duration, bool) {
        let (began, mut entered) = (clock.now(), None);
        let is_unwatched = poll_fn(|context| {
            let (waiting, is_unwatched) =
                entered.get_or_insert_with(|| waits.enter(began, context.waker()));
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
        let (clock, waits) = (Clock::of_runtime(), Arc::<Waits>::default());
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
        let state = waits.0.lock();
        assert!(!state.is_watched && state.calls.iter().all(Option::is_none));
        assert_eq!(state.free.len(), state.calls.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_ends_when_nobody_is_left_and_the_next_call_needs_another() {
        let (clock, waits) = (Clock::of_runtime(), Arc::<Waits>::default());
        let enter = || waits.enter(clock.now(), Waker::noop());
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
        assert!(waits.0.lock().calls.len() <= 2, "places are used again");
    }
}
