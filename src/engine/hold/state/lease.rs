//! The lease of one hold: until when this client relies on it, when to renew it, how long the server may have it, and
//! how long it stays there after its last guard.
//!
//! Invariants: a lease counts only if its grant arrives before the local deadline. The deadline is counted from before
//! the request was sent, and never lies beyond the end of the longest share. No requested lease, answered or not, lasts
//! longer at the server than [`ServerLease`] says, what late requests may still do included.

use std::time::Duration;

use super::HoldState;
use crate::engine::clock::Tick;
use crate::engine::hold::event::{NewHold, NextStep, Phase};
use crate::engine::hold::share_lease::{ShareLease, ShareLeases, lease_until, local_deadline};

/// A lock that the server handed over comes with a short lease. Its holder can be done within this time, or within a
/// quarter of that lease, before a renewal sets the lease to its full length.
const HANDOVER_GRACE: Duration = Duration::from_millis(100);

/// Renewals may come early by this fraction of a lease, so that they can be sent together with others.
pub(super) const RENEWED_TOGETHER: u32 = 32;

#[derive(Debug)]
pub(super) struct HoldLease {
    /// The local deadline.
    pub(super) deadline: Tick,
    /// How long the server may have the hold.
    pub(super) at_server: ServerLease,
    /// The leases of live guards.
    pub(super) shares: ShareLeases,
    /// If the hold was handed over and has not had its full lease yet.
    handover: Option<Handover>,
    /// When doubt arose whether the server has the hold. The answer to a later renewal ends the doubt.
    pub(super) doubted_since: Option<Tick>,
}

#[derive(Debug)]
struct Handover {
    /// The lease that it came with.
    lease: Duration,
    /// No renewal is due before this time.
    grace_end: Tick,
}

impl HoldLease {
    /// The lease of a hold that was just granted, and the lease of its first share.
    pub(super) fn granted(now: Tick, new: &NewHold) -> (Self, ShareLease) {
        let longest = new.policy.lease();
        let given = new.handover.unwrap_or(longest);
        let deadline = local_deadline(new.sent, given);
        let grace_end = now.after(HANDOVER_GRACE.min(now.until(deadline) / 4));
        let share = if new.policy.is_renewed() {
            ShareLease::of(new.policy, new.sent, now)
        } else {
            ShareLease::Until(deadline)
        };
        let lease = Self {
            deadline: deadline.min(share.end()),
            // All requests so far were executed by now.
            at_server: ServerLease::granted(now, longest, given),
            shares: ShareLeases::of(share),
            handover: new.handover.map(|lease| Handover { lease, grace_end }),
            doubted_since: None,
        };
        (lease, share)
    }

    /// Accepts a lease that the server has confirmed, unless the answer came too late.
    pub(super) fn extend(&mut self, now: Tick, sent: Tick, lease: Duration) -> bool {
        if now >= self.deadline {
            return false;
        }
        self.deadline = self.deadline.max(local_deadline(sent, lease));
        self.handover = None;
        true
    }

    pub(super) fn add(&mut self, share: ShareLease) {
        self.shares.add(share);
        self.keep_to_shares();
    }

    pub(super) fn remove(&mut self, share: ShareLease) {
        self.shares.remove(share);
        self.keep_to_shares();
    }

    pub(super) fn replace(&mut self, before: ShareLease, after: ShareLease) {
        self.shares.add(after);
        self.remove(before);
    }

    /// Limits the deadline to the end of the longest share. The server may have it for longer.
    pub(super) fn keep_to_shares(&mut self) {
        self.deadline = self.deadline.min(self.shares.end());
    }

    pub(super) fn has_half_left(&self, now: Tick, lease: Duration) -> bool {
        let given = self.handover.as_ref().map_or(lease, |given| given.lease);
        now.until(self.deadline) >= given.min(lease) / 2
    }

    /// Returns when a renewal of a claimed hold is due.
    pub(super) fn renewal_due(&self) -> Tick {
        if let Some(lease) = self.shares.lease()
            // Otherwise a renewal would be of no use.
            && self.deadline < self.shares.end()
        {
            // Renewals that are due at about the same time go together, in one command.
            let check = self.deadline.before(lease * 2 / 3);
            let check = check.rounded_down(lease / RENEWED_TOGETHER);
            let handover = self.handover.as_ref();
            check.max(handover.map_or(Tick::ZERO, |given| given.grace_end))
        } else {
            self.deadline
        }
    }

    /// The renewal to send now. The server keeps the hold until `kept_until` at least.
    pub(super) fn renewal(&self, now: Tick, kept_until: Tick) -> NextStep {
        // The server is asked about a hold that is not renewed, without lengthening its lease.
        let lease = match self.shares.lease() {
            Some(lease) => lease_until(lease, now, self.shares.end().max(kept_until)),
            None => now.until(self.deadline),
        };
        let wait = if self.handover.is_some() {
            // Leave time for a second attempt.
            (lease / 6).min(now.until(self.deadline) / 2)
        } else {
            lease / 6
        };
        NextStep::Renew { lease, wait }
    }
}

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

impl HoldState {
    /// Notes that a released guard asked to keep the hold until then. Ignored if the hold is lost.
    pub(super) fn ask_to_keep(&mut self, until: Tick) {
        if self.phase == Phase::Held {
            self.kept_until = self.kept_until.max(until);
        }
    }

    /// The time until which to keep the hold if its last share ends now.
    pub(super) fn kept_after(&self, now: Tick) -> Tick {
        if now < self.kept_until {
            self.kept_until
        } else {
            Tick::ZERO
        }
    }

    /// Whether the hold is kept at the server after its end, or was.
    pub(in crate::engine::hold) fn is_kept(&self) -> bool {
        matches!(self.phase, Phase::Released | Phase::Lost(_)) && self.kept_until != Tick::ZERO
    }

    /// How much longer the server has to keep the hold, if it is kept.
    pub(in crate::engine::hold) fn kept_for(&self, now: Tick) -> Option<Duration> {
        let is_kept = self.is_kept() && now < self.kept_until;
        is_kept.then(|| now.until(self.kept_until))
    }
}
