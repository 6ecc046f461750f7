//! Which holds pass from task to task of one client, at once or after a while, and what that changes.

use super::HoldState;
use crate::api::fencing::FencingToken;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::{Counts, Mode};
use crate::engine::hold::event::{Effects, NextOwner, ReleaseStep};
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
            && self.has_half_left(now, wanted)
            && (!fenced || !self.spare_tokens.is_empty())
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
        let has_token = self.token.is_none() || !self.spare_tokens.is_empty();
        let is_writers = self.is_one_certain_share(now) && !self.is_downgrade_deferred();
        (is_writers && has_token).then_some((end, after))
    }

    /// Whether the hold is one exclusive share, the server is known to have it, and it can end now.
    pub(super) fn is_one_certain_share(&self, now: Tick) -> bool {
        let one = Counts::one(Mode::Exclusive);
        self.is_held()
            && self.counts == one
            && self.forgotten.is_none()
            && self.server_counts == Some(one)
            && self.doubted_since.is_none()
            && !self.is_release_unsent
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
        self.has_guard = false;
        if before == after {
            return None;
        }
        self.leases.add(after);
        self.remove_lease(before);
        Some(self.next_check())
    }

    pub(super) fn change_owner(&mut self, next: NextOwner) {
        self.sticky.pass_on();
        self.leases.add(next.after);
        self.remove_lease(next.before);
        // The watchdog might not check it before the end that it had.
        self.is_check_put_off = next.before != next.after;
        self.owner = next.owner;
        self.readers = Readers::default();
        self.is_unclaimed = true;
        self.has_guard = false;
        self.give_up = next.give_up;
        self.token = if next.fenced {
            self.spare_tokens.next().map(FencingToken::from)
        } else {
            None
        };
    }

    /// The next task has taken the hold. Returns when the watchdog has to check it, if that has changed.
    pub(super) fn accept_handoff(&mut self, now: Tick, mode: Mode) -> Effects {
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => self.readers.claim(),
        }
        self.is_unclaimed = false;
        let check = self.next_check();
        let is_sooner = std::mem::take(&mut self.is_check_put_off) || check <= now;
        Effects {
            check_at: is_sooner.then(|| check.max(now)),
            ..Effects::default()
        }
    }

    /// A task has taken it. When the watchdog has to check it, if it has put that off.
    pub(super) fn claim(&mut self) -> Option<Tick> {
        self.is_unclaimed = false;
        std::mem::take(&mut self.is_check_put_off).then(|| self.next_check())
    }

    /// The watchdog checks it at its deadline, unless it is claimed before.
    pub(in crate::engine::hold) fn put_off_check(&mut self) {
        self.is_check_put_off |= self.is_unclaimed();
    }

    pub(in crate::engine::hold) fn has_guard(&self) -> bool {
        self.has_guard && !self.readers.are_unclaimed()
    }

    /// Whether it belongs to tasks that have not taken it yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.is_unclaimed || self.readers.are_unclaimed()
    }

    /// The request that sets these counts is sent. If they are the counts of a decided release, the release is sent.
    pub(super) fn counts_sent(&mut self, counts: Counts) -> Effects {
        let is_sent = self.is_release_unsent && self.target_counts() == counts;
        self.is_release_unsent &= !is_sent;
        Effects {
            release: is_sent.then_some(ReleaseStep::Sent),
            ..Effects::default()
        }
    }

    /// Whether its guard asks for the hold to stay with the client.
    pub(in crate::engine::hold) fn is_sticky(&self) -> bool {
        self.sticky.is_asked()
    }

    pub(in crate::engine::hold) fn is_recalled(&self) -> bool {
        self.sticky.is_recalled()
    }
}
