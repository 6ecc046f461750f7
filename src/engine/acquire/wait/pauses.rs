//! Lets others come first before a waiter asks: other clients after this client's turn, rivals that were refused less
//! often, and for a writer the readers of its own client.
//!
//! Invariant: each of these waits is bounded, and leaves half of the call's remaining time for attempts.

use std::time::Duration;

use super::WaitLoop;
use crate::engine::acquire::waiter::{Marks, Woken};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

/// After this number of refusals in a row, the waiter may pause before every second attempt. With a pause before each
/// attempt, this client would always come after its rivals.
const IN_A_ROW_MAX: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);

/// How long a writer waits for the readers of its own client before it asks. Behind their release the writer gets the
/// lock in one round trip. After this time the server has to learn that a writer waits.
const READERS_FOR: Duration = Duration::from_millis(1);

impl WaitLoop<'_> {
    /// Lets others ask first: other clients after this client's turn, or rivals that were refused less often. Returns
    /// the time at the end, and whether the client backed off.
    pub(super) async fn yield_turn(&self, now: Tick) -> (Tick, bool) {
        let is_exclusive = self.place.is_some() && self.request().mode == Mode::Exclusive;
        if is_exclusive && let Some(end) = self.back_off(now).await {
            return (end, true);
        }
        if self.must_pause() {
            let end = now.after(PAUSE).min(self.deadline());
            self.clock().sleep_until(end).await;
            return (self.clock().now(), false);
        }
        (now, false)
    }

    /// Whether to pause before this attempt. Not if others of this client wait behind: a pause would cost all of them
    /// the turn that other clients leave to this client.
    fn must_pause(&self) -> bool {
        let is_over = |refusals: u32| refusals > IN_A_ROW_MAX && refusals.is_multiple_of(2);
        if self.moves_in_a_row > 0 {
            return is_over(self.moves_in_a_row);
        }
        is_over(self.hints_in_a_row) && !self.local().lock().queue().has_more()
    }

    async fn back_off(&self, mut now: Tick) -> Option<Tick> {
        let (local, place) = (self.local(), self.place.as_ref());
        if !local.end_turn(now) {
            return None;
        }
        let limit = self.half_of_rest(now);
        let mut backed_off = None;
        loop {
            let marks = self.waiter.marks();
            let Some(until) = local.back_off_end(now) else {
                return backed_off;
            };
            let until = limit.min(until);
            self.waiter.rest(marks, place, until);
            let woken = self.waiter.wait(marks, place, until).await;
            now = self.clock().now();
            backed_off = Some(now);
            if !matches!(woken, Woken::Hint) {
                return backed_off;
            }
        }
    }

    /// Waits a moment for the readers of this client, which would cause a refusal. False if the server has to be asked.
    pub(super) async fn wait_for_readers(&mut self, marks: Marks) -> bool {
        let (request, now) = (self.request(), self.clock().now());
        if request.mode == Mode::Shared || !request.local.lock().grants.is_read(now) {
            return false;
        }
        if self.readers_until == Tick::ZERO {
            self.readers_until = self.half_of_rest(now).min(now.after(READERS_FOR));
        }
        let (place, until) = (self.place.as_ref(), self.readers_until);
        if place.is_none() || now >= until {
            return false;
        }
        self.silence().end();
        // The release of the last reader gives a hint, and so does a loss.
        self.waiter.rest(marks, place, until);
        self.waiter.wait(marks, place, until).await;
        self.count_wait();
        true
    }

    /// The longest time without asking.
    pub(super) fn poll_cap(&self) -> Duration {
        let cap = self.request().core.timing.poll_cap;
        let polled = self.request().options.polled;
        polled.map_or(cap, |backoff| {
            cap.min(backoff.pause(self.sleeps, fastrand::f64()))
        })
    }

    /// The middle of the call's remaining time. The second half is for asking.
    fn half_of_rest(&self, now: Tick) -> Tick {
        now.after(now.until(self.deadline()) / 2)
    }
}
