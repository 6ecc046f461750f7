//! How long the server may have one hold, including what late requests may still do: pure.
//!
//! Invariant: no requested lease, answered or not, lasts longer at the server than this says.

use std::time::Duration;

use crate::engine::clock::Tick;

#[derive(Debug)]
pub(super) struct ServerLease {
    /// The longest of all leases that were answered.
    longest: Duration,
    /// No answered lease lasts longer, and no lease of a renewal.
    deadline: Tick,
    /// No requested lease without an answer lasts longer.
    late: Tick,
    /// `late` before the present operation.
    late_before: Tick,
}

impl ServerLease {
    /// For a hold whose requests were all answered by now: the longest of them, and the last.
    pub(super) fn granted(now: Tick, longest: Duration, given: Duration) -> Self {
        Self {
            longest,
            deadline: now.after(given),
            late: Tick::ZERO,
            late_before: Tick::ZERO,
        }
    }

    pub(super) fn longest(&self) -> Duration {
        self.longest
    }

    pub(super) fn end(&self) -> Tick {
        self.deadline.max(self.late)
    }

    /// A lease of this length is requested now.
    pub(super) fn note_sent(&mut self, now: Tick, lease: Duration) {
        self.deadline = self.deadline.max(now.after(lease));
    }

    /// A lease is requested that the server may set as late as `until`.
    pub(super) fn note_sent_until(&mut self, until: Tick, lease: Duration) {
        self.late_before = self.late;
        self.late = self.late.max(until.after(lease));
    }

    /// The lease was set by now. If it was requested only once, it cannot be set again.
    pub(super) fn note_answered(&mut self, now: Tick, lease: Duration, is_repeated: bool) {
        self.longest = self.longest.max(lease);
        if !is_repeated {
            self.late = self.late_before;
            self.note_sent(now, lease);
        }
    }
}
