//! Which holds pass from task to task of one client, at once or after a while, and what that changes.
//!
//! Invariants: a hold that no task has taken is not renewed. A hold without a guard ends with its client. The span for
//! which a hold stays with its client begins when it is first without a guard, and never begins again. Without a recall,
//! the lock is therefore released after one span at most, however often the client uses the hold in between. A recall
//! ends the span for good.

use std::time::Duration;

use super::HoldState;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::event::NextOwner;
use crate::engine::hold::share_lease::ShareLease;
use crate::engine::hold::state::readers::Readers;

/// The task that has a hold, and whether the watchdog takes it into account.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) stage: Stage,
    /// Whether the watchdog does not check the hold before its deadline, because it was unclaimed at the last check.
    pub(super) is_check_put_off: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It belongs to a call that has not returned, or was handed off to a task that has not taken it yet. Neither may
    /// ever be polled again, so no renewal is sent for it.
    Unclaimed,
    /// A task has taken it and has no guard yet, or it stays with its client.
    Claimed,
    /// Its owner has a guard of it.
    Guarded,
}

impl Claim {
    /// The claim of a task that has yet to take the hold.
    pub(super) fn pending(is_check_put_off: bool) -> Self {
        Self {
            stage: Stage::Unclaimed,
            is_check_put_off,
        }
    }

    /// A task has taken the hold.
    pub(super) fn begin(&mut self) {
        if self.stage == Stage::Unclaimed {
            self.stage = Stage::Claimed;
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StickySpan {
    /// The longest span that its guards ask for; zero if they ask for none.
    asked: Duration,
    /// The end of the span; `None` until it begins.
    end: Option<Tick>,
    is_recalled: bool,
}

impl StickySpan {
    /// Notes the span that a guard asks for.
    pub(super) fn ask(&mut self, span: Duration) {
        self.asked = self.asked.max(span);
    }

    /// When to release the hold if its last guard goes now. `None` means at once.
    pub(super) fn end_from(&self, now: Tick) -> Option<Tick> {
        if self.is_recalled || self.asked.is_zero() {
            return None;
        }
        let asked = now.after(self.asked);
        let end = self.end.map_or(asked, |end| end.min(asked));
        (now < end).then_some(end)
    }

    /// Begins the span, because the last guard has gone. The next guard has to ask again.
    pub(super) fn begin(&mut self, end: Tick) {
        self.end = Some(end);
        self.asked = Duration::ZERO;
    }

    /// Passes the hold to another task, whose guard has to ask again.
    pub(super) fn pass_on(&mut self) {
        self.asked = Duration::ZERO;
    }

    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_zero()
    }

    pub(super) fn recall(&mut self) {
        self.is_recalled = true;
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.is_recalled
    }
}

impl HoldState {
    /// Whether a waiter with this policy can take over the share that has `lease`: it is renewed for the waiter as it
    /// was before.
    pub(in crate::engine::hold) fn can_hand_off(
        &self,
        now: Tick,
        lease: ShareLease,
        policy: LeasePolicy,
        fenced: bool,
    ) -> bool {
        let wanted = policy.lease();
        policy.is_renewed()
            && lease.renewed() == Some(wanted)
            && self.lease.has_half_left(now, wanted)
            && (!fenced || !self.tokens.spare.is_empty())
            && self.is_one_certain_share(now)
    }

    /// The time until which the hold may stay with its client after its only guard, and its lease for that time.
    pub(in crate::engine::hold) fn can_be_left(
        &self,
        now: Tick,
        lease: ShareLease,
    ) -> Option<(Tick, ShareLease)> {
        let end = self.sticky.end_from(now)?;
        let after = ShareLease::Renewed(lease.renewed()?);
        // The next task also wants a token.
        let has_token = self.tokens.current.is_none() || !self.tokens.spare.is_empty();
        let is_writers = self.is_one_certain_share(now) && !self.is_downgrade_deferred();
        (is_writers && has_token).then_some((end, after))
    }

    /// Whether the hold is one exclusive share, the server is known to have it, and it can end now.
    pub(super) fn is_one_certain_share(&self, now: Tick) -> bool {
        self.is_held()
            && self.counts.is_one_writer()
            && !self.is_doubted()
            && self.readers.uncounted() == 0
            && now >= self.kept_until
    }

    /// Detaches the hold from its owner until a task takes it. It is renewed while it waits. Returns when the
    /// watchdog has to check it, if that has changed.
    pub(super) fn leave_to_client(
        &mut self,
        before: ShareLease,
        after: ShareLease,
    ) -> Option<Tick> {
        self.owner = Owner::new();
        self.claim.stage = Stage::Claimed;
        self.lease.replace(before, after);
        (before != after).then(|| self.next_check())
    }

    pub(super) fn change_owner(&mut self, next: NextOwner) {
        self.sticky.pass_on();
        self.lease.replace(next.before, next.after);
        // The watchdog might not check it before the end that it had.
        self.claim = Claim::pending(next.before != next.after);
        self.owner = next.owner;
        self.places.extend(next.place);
        self.readers = Readers::default();
        self.give_up = next.give_up;
        self.tokens.pass_on(next.fenced);
    }

    /// The next task has taken the hold. Returns when the watchdog has to check it, if that has changed.
    pub(super) fn accept_handoff(&mut self, now: Tick, mode: Mode) -> Option<Tick> {
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => self.readers.claim(),
        }
        let sooner = self.claim();
        let due = || Some(self.next_check()).filter(|check| *check <= now);
        sooner.or_else(due).map(|check| check.max(now))
    }

    /// A task has taken it. When the watchdog has to check it, if it has put that off.
    pub(super) fn claim(&mut self) -> Option<Tick> {
        self.claim.begin();
        let was_put_off = std::mem::take(&mut self.claim.is_check_put_off);
        was_put_off.then(|| self.next_check())
    }

    /// The watchdog checks it at its deadline, unless it is claimed before.
    pub(in crate::engine::hold) fn put_off_check(&mut self) {
        self.claim.is_check_put_off |= self.is_unclaimed();
    }

    pub(in crate::engine::hold) fn has_guard(&self) -> bool {
        self.claim.stage == Stage::Guarded && !self.readers.are_unclaimed()
    }

    /// Whether it belongs to tasks that have not taken it yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.claim.stage == Stage::Unclaimed || self.readers.are_unclaimed()
    }

    /// Whether its guard asks for the hold to stay with the client.
    pub(in crate::engine::hold) fn is_sticky(&self) -> bool {
        self.sticky.is_asked()
    }

    pub(in crate::engine::hold) fn is_recalled(&self) -> bool {
        self.sticky.is_recalled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    fn asked(millis: u64) -> StickySpan {
        let mut span = StickySpan::default();
        span.ask(Duration::from_millis(millis));
        span
    }

    #[test]
    fn nothing_stays_that_nobody_asked_for() {
        let mut span = StickySpan::default();
        assert_eq!(span.end_from(at(1)), None);
        span.ask(Duration::ZERO);
        assert_eq!(span.end_from(at(1)), None);
        assert!(!span.is_asked());
    }

    #[test]
    fn of_several_guards_the_longest_span_counts() {
        let mut span = asked(7);
        span.ask(Duration::from_millis(5));
        assert_eq!(span.end_from(at(1)), Some(at(8)));
        assert!(span.is_asked());
        span.pass_on();
        assert_eq!(span.end_from(at(1)), None);
        assert!(!span.is_asked());
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
        span.pass_on();
        assert!(
            span.is_recalled(),
            "the waiter also wants it from the next task"
        );
    }
}
