//! Which holds pass from task to task of one client, at once or after a while, and what that changes.

use super::HoldState;
use super::claim::{Claim, Stage};
use crate::api::holder::Owner;
use crate::api::options::LeasePolicy;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::event::NextOwner;
use crate::engine::hold::readers::Readers;
use crate::engine::hold::share_lease::ShareLease;

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
