//! What is known of reaching one server, shared by all links to it: when the next attempt may begin,
//! and how long one is given.
//!
//! Invariant: while a server refuses, attempts of all links together begin a pause apart; whoever gets
//! through ends the pauses of all.

use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Tick};
use crate::hint::Hint;

/// Pauses behind attempts in vain: doubled from the first to the last, and up to a quarter more or
/// less, so that not all clients ask at the same moment.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(400);

/// A step is given as long as the whole of the last attempt that got through has taken, at least this
/// long, and more after each attempt in vain: what was sent into a hole in the network is lost, and a
/// new attempt is not.
const STEP_MIN: Duration = Duration::from_secs(1);
const STEP_MORE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub(crate) struct Reach {
    state: Mutex<State>,
    /// Given when somebody got through.
    reached: Hint,
}

#[derive(Debug, Default)]
struct State {
    /// Attempts in vain since the last that was not.
    failures: u32,
    /// No attempt begins before, if there are any.
    next: Tick,
    /// How long the last attempt took that got through.
    took: Option<Duration>,
}

impl State {
    fn pause(&self) -> Duration {
        let doubled = PAUSE_FIRST * (1 << self.failures.saturating_sub(1).min(8));
        doubled.min(PAUSE_MAX).mul_f64(0.75 + fastrand::f64() / 2.0)
    }
}

impl Reach {
    /// Waits until it is the caller's turn to make an attempt.
    pub(super) async fn turn(&self, clock: Clock) {
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
            () = clock.sleep_until(at) => {}
            () = self.reached.past(reached) => {}
        }
    }

    /// Whether attempts have to wait after one that was in vain.
    pub(super) fn pauses(&self, now: Tick) -> bool {
        let state = self.state.lock();
        state.failures > 0 && now < state.next
    }

    /// How long a step of the next attempt may take, if `limit` is the most.
    pub(super) fn patience(&self, limit: Duration) -> Duration {
        let state = self.state.lock();
        let Some(took) = state.took else {
            return limit;
        };
        let usual = STEP_MIN.max(took);
        limit.min(usual + STEP_MORE * state.failures.min(1000))
    }

    /// Whether anybody ever got through.
    pub(super) fn is_known(&self) -> bool {
        self.state.lock().took.is_some()
    }

    pub(super) fn got_through(&self, took: Duration) {
        let mut state = self.state.lock();
        state.failures = 0;
        state.took = Some(took);
        drop(state);
        self.reached.give();
    }

    pub(super) fn failed(&self, now: Tick) {
        let mut state = self.state.lock();
        state.failures = state.failures.saturating_add(1);
        state.next = state.next.max(now.after(state.pause()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn attempts_in_vain_are_apart_and_one_that_gets_through_ends_the_pauses() {
        let clock = Clock::of_runtime();
        let reach = Reach::default();
        let began = clock.now();
        for _ in 0..20 {
            // As three links do.
            let turns = [(); 3].map(|()| async {
                reach.turn(clock).await;
                reach.failed(clock.now());
            });
            futures_util::future::join_all(turns).await;
        }
        let took = began.until(clock.now());
        assert!(took > Duration::from_secs(60 / 4), "60 in {took:?}");
        assert!(took < Duration::from_secs(60), "60 in {took:?}");
        let late = async {
            reach.turn(clock).await;
            reach.turn(clock).await;
            clock.now()
        };
        let through = async { reach.got_through(Duration::from_millis(1)) };
        let (at, ()) = tokio::join!(late, through);
        assert_eq!(began.until(at), took, "nobody waits any more");
        assert!(!reach.pauses(clock.now()));
    }

    #[test]
    fn a_server_that_was_near_is_not_waited_for_as_long_as_a_stranger() {
        let limit = Duration::from_secs(5);
        let reach = Reach::default();
        assert_eq!(reach.patience(limit), limit);
        reach.got_through(Duration::from_millis(2));
        assert_eq!(reach.patience(limit), STEP_MIN);
        assert_eq!(reach.patience(STEP_MIN / 2), STEP_MIN / 2);
        reach.failed(Tick::ZERO);
        assert_eq!(reach.patience(limit), STEP_MIN + STEP_MORE);
        (0..100).for_each(|_| reach.failed(Tick::ZERO));
        assert_eq!(reach.patience(limit), limit);
        reach.got_through(Duration::from_millis(400));
        assert_eq!(reach.patience(limit), STEP_MIN);
        reach.got_through(STEP_MIN * 2);
        assert_eq!(reach.patience(limit), STEP_MIN * 2);
    }
}
