//! How long the server may have one hold, including what late requests may still do: pure.
//!
//! Invariant: no requested lease, answered or not, lasts longer at the server than this says.

use std::time::Duration;

use crate::engine::clock::Tick;

#[derive(Debug)]
pub(super) struct ServerLease {
    /// No answered lease lasts longer, and no lease of a renewal.
    deadline: Tick,
    /// What late requests may still do, and what they could do before the operation under way.
    late: Late,
    late_before: Late,
}

/// What an unanswered request may still do at the server.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// No lease that it sets lasts longer.
    deadline: Tick,
    /// It may enter the hold once more.
    is_reentry: bool,
}

impl ServerLease {
    /// For a hold whose requests were all answered.
    pub(super) fn until(deadline: Tick) -> Self {
        let late = Late {
            deadline: Tick::ZERO,
            is_reentry: false,
        };
        Self {
            deadline,
            late,
            late_before: late,
        }
    }

    pub(super) fn end(&self) -> Tick {
        self.deadline.max(self.late.deadline)
    }

    /// Whether the server may still execute a request to enter it once more.
    pub(super) fn may_be_entered_late(&self) -> bool {
        self.late.is_reentry
    }

    /// A lease of this length is requested now.
    pub(super) fn note_sent(&mut self, now: Tick, lease: Duration) {
        self.deadline = self.deadline.max(now.after(lease));
    }

    /// A lease is requested that the server may set as late as `until`.
    pub(super) fn note_sent_until(&mut self, until: Tick, lease: Duration) {
        self.late_before = self.late;
        self.late.deadline = self.late.deadline.max(until.after(lease));
    }

    /// The lease was set by now. If it was requested only once, it cannot be set again.
    pub(super) fn note_answered(&mut self, now: Tick, lease: Duration, is_repeated: bool) {
        if !is_repeated {
            self.late.deadline = self.late_before.deadline;
            self.note_sent(now, lease);
        }
    }

    pub(super) fn reentry_sent(&mut self, until: Tick, lease: Duration) {
        self.note_sent_until(until, lease);
        self.late.is_reentry = true;
    }

    pub(super) fn reentry_failed(&mut self, may_be_executed: bool) {
        self.late.is_reentry = self.late_before.is_reentry || may_be_executed;
    }

    pub(super) fn reentry_answered(&mut self, now: Tick, lease: Duration, is_repeated: bool) {
        self.late.is_reentry = false;
        self.note_answered(now, lease, is_repeated);
    }
}
