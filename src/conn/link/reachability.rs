//! The reachability of one server, shared by all links to it: the time of the next connection attempt, and the length
//! of its steps.
//!
//! Invariant: while attempts fail, the links of a server together keep a pause between their attempts. The first that
//! succeeds ends all pauses. So does a signal that a server which was not in use is needed again. A connection that
//! ends before it has answered any call is a failed attempt, counted from its start.

use std::time::Duration;

use parking_lot::Mutex;

use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;

/// Back-off after failed attempts: doubled from the first to the last, plus or minus up to a quarter, so that clients
/// do not try at the same moment.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// A step may take as long as the last successful attempt took in total, at least `STEP_MIN`, and longer after each
/// failure. A new attempt is better than a longer wait, because packets sent into a partition are lost.
const STEP_MIN: Duration = Duration::from_secs(1);
const STEP_MORE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Reachability {
    state: Mutex<State>,
    /// Given when an attempt has succeeded, or may succeed now.
    reached: Hint,
}

#[derive(Debug, Default)]
struct State {
    /// Failed attempts since the last successful one.
    failures: u32,
    /// Failed attempts before the last successful one. They count again if the new connection answers no call.
    failures_before: u32,
    /// After a failure, no attempt begins before this.
    next: Tick,
    /// The duration of the last successful attempt.
    took: Option<Duration>,
}

impl State {
    fn pause(&self) -> Duration {
        let doubled = PAUSE_FIRST * (1 << self.failures.saturating_sub(1).min(8));
        doubled.min(PAUSE_MAX).mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

impl Reachability {
    /// Waits until the caller may begin an attempt.
    pub(super) async fn wait_turn(&self, clock: Clock) {
        let reached = self.reached.mark();
        let at = {
            let mut state = self.state.lock();
            if state.failures == 0 {
                return;
            }
            let at = state.next.max(clock.now());
            state.next = at.after(state.pause());
            at
        };
        tokio::select! {
            biased;
            () = clock.sleep_until(at) => {}
            () = self.reached.changed_since(reached) => {}
        }
    }

    /// Whether attempts have to wait after a failed one.
    pub(super) fn is_backing_off(&self, now: Tick) -> bool {
        let state = self.state.lock();
        state.failures > 0 && now < state.next
    }

    /// The time for a step of the next attempt, at most `limit`.
    pub(super) fn step_timeout(&self, limit: Duration) -> Duration {
        let state = self.state.lock();
        let Some(took) = state.took else {
            return limit;
        };
        let usual = STEP_MIN.max(took);
        limit.min(usual + STEP_MORE * state.failures.min(1000))
    }

    /// Whether any attempt has succeeded.
    pub(super) fn was_reached(&self) -> bool {
        self.state.lock().took.is_some()
    }

    pub(super) fn succeeded(&self, took: Duration) {
        let mut state = self.state.lock();
        state.failures_before = state.failures_before.max(state.failures);
        state.failures = 0;
        // The assigned turns lapse.
        state.next = Tick::ZERO;
        state.took = Some(took);
        drop(state);
        self.reached.notify();
    }

    /// The server is needed again after it was not in use. Earlier failures no longer count.
    pub(super) fn named_again(&self) {
        let mut state = self.state.lock();
        (state.failures, state.failures_before) = (0, 0);
        state.next = Tick::ZERO;
        drop(state);
        self.reached.notify();
    }

    /// A connection that had answered a call has ended.
    pub(super) fn served(&self) {
        self.state.lock().failures_before = 0;
    }

    /// A connection made at `made` has ended without an answer to any call.
    pub(super) fn failed_after(&self, made: Tick) {
        let mut state = self.state.lock();
        let failures = state.failures.max(state.failures_before);
        state.failures = failures.saturating_add(1);
        state.next = state.next.max(made.after(state.pause()));
    }

    pub(super) fn failed(&self, now: Tick) {
        let mut state = self.state.lock();
        state.failures = state.failures.saturating_add(1);
        state.next = state.next.max(now.after(state.pause()));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_attempts_are_apart_and_one_that_succeeds_ends_the_pauses() {
        let clock = Clock::of_runtime();
        let reach = Reachability::default();
        let began = clock.now();
        for _ in 0..20 {
            // Like three links of one server.
            let turns = [(); 3].map(|()| async {
                reach.wait_turn(clock).await;
                reach.failed(clock.now());
            });
            futures_util::future::join_all(turns).await;
        }
        let took = began.until(clock.now());
        assert!(took > Duration::from_secs(60 / 4), "60 in {took:?}");
        assert!(took < Duration::from_secs(60), "60 in {took:?}");
        let late = async {
            reach.wait_turn(clock).await;
            reach.wait_turn(clock).await;
            clock.now()
        };
        let through = async { reach.succeeded(Duration::from_millis(1)) };
        let (at, ()) = tokio::join!(late, through);
        assert_eq!(began.until(at), took, "both waits end at once");
        assert!(!reach.is_backing_off(clock.now()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_after_a_success_is_followed_by_the_first_pause() {
        let clock = Clock::of_runtime();
        let reach = Reachability::default();
        (0..10).for_each(|_| reach.failed(clock.now()));
        // Turns of links that do not use them.
        for _ in 0..10 {
            let turn = reach.wait_turn(clock).now_or_never();
            assert!(turn.is_none());
        }
        reach.succeeded(Duration::from_millis(1));
        reach.failed(clock.now());
        let began = clock.now();
        reach.wait_turn(clock).await;
        let waited = began.until(clock.now());
        assert!(waited < PAUSE_FIRST * 2, "{waited:?}");
    }

    /// A proxy without a server behind it may answer the handshake.
    #[tokio::test(start_paused = true)]
    async fn connections_that_answer_no_call_are_failed_attempts() {
        let clock = Clock::of_runtime();
        let reach = Reachability::default();
        let began = clock.now();
        for _ in 0..20 {
            reach.wait_turn(clock).await;
            reach.succeeded(Duration::from_millis(1));
            reach.failed_after(clock.now());
        }
        let took = began.until(clock.now());
        assert!(took > PAUSE_MAX * 19 / 2, "20 in {took:?}");
        // The next connection answers a call before it is cut.
        reach.succeeded(Duration::from_millis(1));
        reach.served();
        let cut = clock.now();
        reach.wait_turn(clock).await;
        assert_eq!(cut.until(clock.now()), Duration::ZERO);
        reach.failed_after(cut);
        reach.wait_turn(clock).await;
        assert!(cut.until(clock.now()) < PAUSE_FIRST * 2);
    }

    /// A server may close idle connections.
    #[tokio::test(start_paused = true)]
    async fn the_pause_begins_when_the_connection_was_made() {
        let clock = Clock::of_runtime();
        let reach = Reachability::default();
        let made = clock.now();
        reach.succeeded(Duration::from_millis(1));
        clock.sleep_until(made.after(PAUSE_FIRST * 2)).await;
        reach.failed_after(made);
        let before = clock.now();
        reach.wait_turn(clock).await;
        assert_eq!(before.until(clock.now()), Duration::ZERO);
    }

    #[test]
    fn a_server_that_was_reached_is_not_waited_for_as_long_as_a_new_one() {
        let limit = Duration::from_secs(5);
        let reach = Reachability::default();
        assert_eq!(reach.step_timeout(limit), limit);
        reach.succeeded(Duration::from_millis(2));
        assert_eq!(reach.step_timeout(limit), STEP_MIN);
        assert_eq!(reach.step_timeout(STEP_MIN / 2), STEP_MIN / 2);
        reach.failed(Tick::ZERO);
        assert_eq!(reach.step_timeout(limit), STEP_MIN + STEP_MORE);
        (0..100).for_each(|_| reach.failed(Tick::ZERO));
        assert_eq!(reach.step_timeout(limit), limit);
        reach.succeeded(Duration::from_millis(400));
        assert_eq!(reach.step_timeout(limit), STEP_MIN);
        reach.succeeded(STEP_MIN * 2);
        assert_eq!(reach.step_timeout(limit), STEP_MIN * 2);
    }

    /// Seed 2000477, behind sentinels. The server died, another took over, and later it became the primary again.
    /// Turns from the time when it was dead kept a client from it for 0.4 s.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_named_again_is_tried_at_once() {
        let clock = Clock::of_runtime();
        let reach = Reachability::default();
        reach.failed(clock.now());
        for _ in 0..3 {
            // Turns of links that are no longer in use when their turn comes.
            assert!(reach.wait_turn(clock).now_or_never().is_none());
        }
        let began = clock.now();
        let waits = reach.wait_turn(clock);
        let named = async { reach.named_again() };
        futures_util::future::join(waits, named).await;
        reach.wait_turn(clock).await;
        assert_eq!(began.until(clock.now()), Duration::ZERO);
        assert!(!reach.is_backing_off(clock.now()));
    }
}
