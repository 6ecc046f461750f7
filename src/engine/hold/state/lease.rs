//! The lease of one hold: until when this client relies on the hold, when to renew it, how long the server may have it,
//! and how long it stays with its client after its last guard.
//!
//! Invariants: a lease counts only if its grant arrives before the local deadline. The deadline is counted from before
//! the request was sent, and never lies beyond the end of the longest share. No requested lease, answered or not, lasts
//! longer at the server than `server_end`, even if a request arrives late. A hold stays with its client for one span at
//! most. The span begins when the hold is first without a guard, and it never begins again. So even without a recall
//! the lock is released after one span, however often the client uses the hold in between. A recall ends the span for
//! good.

use std::time::Duration;

use crate::api::holder::HolderId;
use crate::api::options::Replication;
use crate::engine::clock::Tick;
use crate::engine::hold::effects::{NewHold, Tokens};
use crate::engine::hold::share_lease::{ShareLease, ShareLeases, lease_until, local_deadline};
use crate::engine::hold::turns::HandoffBudget;
use crate::engine::{Seldom, Usual};

/// A lock that the server handed over comes with a short lease. The first renewal, which sets the lease to its full
/// length, waits for this time or for a quarter of the short lease, if that is less: the holder may be done before
/// that.
const HANDOVER_GRACE: Duration = Duration::from_millis(100);

/// A lease ends at the server later than its local deadline, but by less than the lease divided by this number.
const LEFT_OVER_PART: u32 = 4;

/// Renewals may come early by this fraction of a lease, so that they can be sent together with others.
pub(super) const RENEWED_TOGETHER: u32 = 32;

#[derive(Clone, Debug, Hash)]
pub(super) struct HoldLease {
    /// The local deadline. Once the hold is lost, no later than its loss.
    pub(super) deadline: Tick,
    /// The latest time at which any lease ever requested can end at the server.
    pub(super) server_end: Tick,
    /// The longest lease that was ever requested.
    pub(super) longest: Duration,
    /// The leases of live guards.
    pub(super) shares: ShareLeases,
    /// Set while a hold that was handed over has not had its full lease yet. Boxed: few holds are handed over.
    handover: Option<Box<Handover>>,
    /// When doubt arose whether the server has the hold. The answer to a later renewal ends the doubt.
    pub(super) doubted_since: Option<Tick>,
}

#[derive(Clone, Debug, Hash)]
struct Handover {
    /// The lease that the handover gave.
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
        let share = ShareLease::of(new.policy, new.sent, now);
        let lease = Self {
            deadline: deadline.min(share.end),
            // The request was executed before `now`.
            server_end: now.after(given),
            longest,
            shares: ShareLeases::of(share),
            handover: new
                .handover
                .map(|lease| Box::new(Handover { lease, grace_end })),
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

    /// Returns the lease to compare the time left with, when a renewal asks for `lease`. After a handover this is the
    /// short lease, from when its renewal is due.
    pub(super) fn measure(&self, lease: Duration) -> Duration {
        let given = self.handover.as_ref();
        let given = given.map(|given| given.grace_end.until(self.deadline));
        lease.min(given.unwrap_or(lease))
    }

    /// Whether the server may have the hold for much longer than until now, because a share that has ended asked for a
    /// longer lease.
    pub(super) fn is_left_over(&self, now: Tick) -> bool {
        now.after(self.longest / LEFT_OVER_PART) < self.server_end
    }

    /// Notes that a lease of this length is requested. The server sets it by `until` or never.
    pub(super) fn note_sent(&mut self, until: Tick, lease: Duration) {
        self.server_end = self.server_end.max(until.after(lease));
        self.longest = self.longest.max(lease);
    }

    /// Notes that the last request has been executed, and is not executed again.
    pub(super) fn note_answered(&mut self, now: Tick, before: Tick) {
        self.server_end = self.server_end.min(before.max(now.after(self.longest)));
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
        if before != after {
            self.shares.add(after);
            self.remove(before);
        }
    }

    /// Limits the deadline to the end of the longest share. The server may have the hold for longer.
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
            // Otherwise the deadline cannot move, and a renewal would be useless.
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

    /// Returns the lease that a renewal asks for now, and how long to wait for its answer. The lease has to cover
    /// `kept_until`.
    pub(super) fn renewal(&self, now: Tick, kept_until: Tick) -> (Duration, Duration) {
        // For a hold that is not renewed, this only asks the server whether it has the hold. It does not lengthen the
        // lease.
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
        (lease, wait)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StickySpan {
    /// The longest span that its guards ask for; zero if they ask for none.
    pub(super) asked: Duration,
    /// The end of the span: [`Tick::NEVER`] until it begins, [`Tick::ZERO`] after a recall.
    pub(super) end: Tick,
}

impl StickySpan {
    pub(super) const NONE: Self = Self {
        asked: Duration::ZERO,
        end: Tick::NEVER,
    };

    /// Notes the span that a guard asks for.
    pub(super) fn ask(&mut self, span: Duration) {
        self.asked = self.asked.max(span);
    }

    /// Returns when to release the hold if its last guard goes now. `None` means at once.
    pub(super) fn end_from(&self, now: Tick) -> Option<Tick> {
        let end = self.end.min(now.after(self.asked));
        (now < end).then_some(end)
    }

    /// Begins the span, because the last guard has gone. The next guard has to ask again.
    pub(super) fn begin(&mut self, end: Tick) {
        self.end = end;
        self.asked = Duration::ZERO;
    }

    pub(super) fn recall(&mut self) {
        self.end = Tick::ZERO;
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.end == Tick::ZERO
    }
}

/// The part of the state that most holds never need.
#[derive(Clone, Debug, Hash)]
pub(super) struct Extras {
    /// How long the hold stays with its client without a guard.
    pub(super) sticky: StickySpan,
    /// The places at the server of the tasks that the hold was handed on to, in order. They end with the hold.
    pub(super) places: Vec<HolderId>,
    /// How often the hold was handed on in the queue at the server, and since when.
    pub(super) passes: HandoffBudget,
    pub(super) tokens: Tokens,
    /// The replication that was confirmed for the hold.
    pub(super) replication: Option<Replication>,
}

impl Usual for Extras {
    const USUAL: &'static Self = &Self {
        sticky: StickySpan::NONE,
        places: Vec::new(),
        passes: HandoffBudget::WHOLE,
        tokens: Tokens::NONE,
        replication: None,
    };
}

impl Extras {
    /// The extras of a hold that was just granted.
    pub(super) fn granted(new: &NewHold) -> Seldom<Self> {
        let mut extras = Seldom::<Self>::default();
        if new.tokens != Tokens::NONE || new.replication.is_some() {
            let changed = extras.change();
            (changed.tokens, changed.replication) = (new.tokens.clone(), new.replication);
        }
        extras
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    fn asked(millis: u64) -> StickySpan {
        let mut span = StickySpan::NONE;
        span.ask(Duration::from_millis(millis));
        span
    }

    #[test]
    fn nothing_stays_that_nobody_asked_for() {
        let mut span = StickySpan::NONE;
        assert_eq!(span.end_from(at(1)), None);
        span.ask(Duration::ZERO);
        assert_eq!(span.end_from(at(1)), None);
        assert!(span.asked.is_zero());
    }

    #[test]
    fn of_several_guards_the_longest_span_counts() {
        let mut span = asked(7);
        span.ask(Duration::from_millis(5));
        assert_eq!(span.end_from(at(1)), Some(at(8)));
        assert!(!span.asked.is_zero());
        span.asked = Duration::ZERO;
        assert_eq!(span.end_from(at(1)), None);
        assert!(span.asked.is_zero());
    }

    #[test]
    fn the_span_begins_once() {
        let mut span = asked(10);
        span.begin(at(10));
        assert_eq!(span.end_from(at(3)), None, "the next guard asks again");
        for (millis, end) in [(60, Some(at(10))), (2, Some(at(5))), (10, Some(at(10)))] {
            let mut again = span;
            again.ask(Duration::from_millis(millis));
            assert_eq!(again.end_from(at(3)), end, "{millis}");
            assert_eq!(again.end_from(at(10)), None, "{millis}: it is over");
        }
    }

    #[test]
    fn a_recall_ends_it_for_good() {
        let mut span = asked(10);
        span.recall();
        assert!(span.is_recalled());
        span.ask(Duration::from_secs(9));
        assert_eq!(span.end_from(at(1)), None);
        span.asked = Duration::ZERO;
        assert!(
            span.is_recalled(),
            "the waiter also wants it from the next task"
        );
    }
}
