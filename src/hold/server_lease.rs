//! How long the server may have one hold, whatever it was asked and whenever it answers: pure.
//!
//! Invariant: no lease that was asked for, answered or not, lasts longer at the server than this says.

use std::time::Duration;

use crate::clock::Tick;

#[derive(Debug)]
pub(super) struct ServerLease {
    /// No lease that was asked for and answered lasts longer, nor one of a renewal.
    deadline: Tick,
    /// What the server may still execute, and what that was before the operation under way.
    late: Late,
    late_before: Late,
    /// Renewals that were decided on, and were neither answered nor given up.
    renewals: u32,
    /// When one was last given up, if none was answered that was sent after that.
    renewal_given_up: Option<Tick>,
}

/// What a request that has no answer may still do at the server.
#[derive(Clone, Copy, Debug)]
struct Late {
    /// No lease that it gives lasts longer.
    deadline: Tick,
    /// It may enter the hold once more.
    is_reentry: bool,
}

impl ServerLease {
    /// Of a hold of which all requests were answered.
    pub(super) fn until(deadline: Tick) -> Self {
        let late = Late {
            deadline: Tick::ZERO,
            is_reentry: false,
        };
        Self {
            deadline,
            late,
            late_before: late,
            renewals: 0,
            renewal_given_up: None,
        }
    }

    pub(super) fn end(&self) -> Tick {
        self.deadline.max(self.late.deadline)
    }

    /// Whether the server may still execute a request to enter it once more.
    pub(super) fn may_be_entered_late(&self) -> bool {
        self.late.is_reentry
    }

    /// A renewal is decided on, and is sent at once or a little later.
    pub(super) fn renewal_begun(&mut self, now: Tick, lease: Duration) {
        self.renewals += 1;
        self.note_sent(now, lease);
    }

    /// It was not sent, it was answered, or it was given up at this time.
    pub(super) fn renewal_ended(&mut self, given_up: Option<Tick>) {
        self.renewals = self.renewals.saturating_sub(1);
        self.renewal_given_up = self.renewal_given_up.max(given_up);
    }

    /// A renewal was answered that was sent then: those that had been given up were executed before, or are not any
    /// more.
    pub(super) fn renewal_answered(&mut self, sent: Tick) {
        self.renewal_given_up.take_if(|given_up| *given_up <= sent);
    }

    /// Whether a renewal may still be sent, or is waited for.
    pub(super) fn is_being_renewed(&self) -> bool {
        self.renewals > 0
    }

    /// Whether the server may still execute a renewal.
    pub(super) fn may_be_renewed_late(&self) -> bool {
        self.is_being_renewed() || self.renewal_given_up.is_some()
    }

    /// A lease of this length is asked for now.
    pub(super) fn note_sent(&mut self, now: Tick, lease: Duration) {
        self.deadline = self.deadline.max(now.after(lease));
    }

    /// A lease is asked for that the server may give as late as `until`.
    pub(super) fn note_sent_until(&mut self, until: Tick, lease: Duration) {
        self.late_before = self.late;
        self.late.deadline = self.late.deadline.max(until.after(lease));
    }

    /// That lease was given by now, and if it was asked for once, it is not given once more.
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

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Tick {
        Tick::ZERO.after(Duration::from_secs(seconds))
    }

    /// Whether one may still be sent or answered, and whether the server may still execute one.
    fn renewals(lease: &ServerLease) -> (bool, bool) {
        (lease.is_being_renewed(), lease.may_be_renewed_late())
    }

    #[test]
    fn a_renewal_that_is_answered_or_was_not_sent_does_not_come_later() {
        let mut lease = ServerLease::until(at(30));
        assert_eq!(renewals(&lease), (false, false));
        lease.renewal_begun(at(10), LEASE);
        lease.renewal_begun(at(11), LEASE);
        assert_eq!(lease.end(), at(41), "as soon as it may be sent");
        lease.renewal_ended(None);
        assert_eq!(renewals(&lease), (true, true), "there is another one");
        lease.renewal_ended(None);
        assert_eq!(renewals(&lease), (false, false));
    }

    #[test]
    fn one_that_was_given_up_may_come_until_a_later_one_is_answered() {
        let mut lease = ServerLease::until(at(30));
        for given_up in [12, 11] {
            lease.renewal_begun(at(10), LEASE);
            lease.renewal_ended(Some(at(given_up)));
        }
        assert_eq!(renewals(&lease), (false, true));
        lease.renewal_answered(at(11));
        assert_eq!(renewals(&lease), (false, true), "of two the later counts");
        lease.renewal_answered(at(12));
        assert_eq!(renewals(&lease), (false, false));
    }
}
