//! Decides which holds pass from task to task of one client, which holds readers share, and how long a released hold
//! stays at the server.

use std::time::Duration;

use super::HoldState;
use super::counts::Stage;
use super::readers::Readers;
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::api::options::LeasePolicy;
use crate::engine::clock::{Now, Tick};
use crate::engine::counts::Mode;
use crate::engine::hold::effects::{Effects, NextOwner, Phase};
use crate::engine::hold::share_lease::ShareLease;

impl HoldState {
    /// Whether a waiter with this policy can take over the share with this `lease`. The waiter must ask for the same
    /// renewed lease.
    pub(in crate::engine::hold) fn can_hand_off(
        &self,
        now: Tick,
        lease: ShareLease,
        policy: LeasePolicy,
        fenced: bool,
    ) -> bool {
        let wanted = policy.lease();
        policy.is_renewed()
            && lease.renewed == Some(wanted)
            && self.lease.has_half_left(now, wanted)
            && (!fenced || !self.extras.tokens.spare.is_empty())
            && self.is_one_certain_share(now)
    }

    /// Returns until when the hold may stay with its client after its only guard, and its lease for that time.
    pub(in crate::engine::hold) fn can_be_left(
        &self,
        now: Tick,
        lease: ShareLease,
    ) -> Option<(Tick, ShareLease)> {
        let end = self.extras.sticky.end_from(now)?;
        let after = ShareLease::renewed(lease.renewed?);
        // The next task wants a token if this one had a token.
        let tokens = &self.extras.tokens;
        let has_token = tokens.current.is_none() || !tokens.spare.is_empty();
        let is_writers = self.is_one_certain_share(now) && !self.is_downgrade_deferred();
        (is_writers && has_token).then_some((end, after))
    }

    /// Whether the hold is one exclusive share that the server is known to have, no operation is under way, and no
    /// guard asked to keep the hold for longer.
    pub(super) fn is_one_certain_share(&self, now: Tick) -> bool {
        self.is_valid(now)
            && !self.is_changing
            && self.counts.is_one_writer()
            && !self.is_doubted()
            && now >= self.kept_until
    }

    /// Leaves the hold to its client until `end`, because its only guard has gone. It has no owner until a task takes
    /// it, and is renewed until then.
    pub(in crate::engine::hold) fn leave_to_client(
        &mut self,
        before: ShareLease,
        after: ShareLease,
        end: Tick,
    ) {
        self.extras.change().sticky.begin(end);
        self.owner = Owner::new();
        self.stage = Stage::Left;
        self.lease.replace(before, after);
    }

    /// Ends the stay with the client.
    pub(in crate::engine::hold) fn end_stay(&mut self) {
        self.stage = Stage::Claimed;
    }

    /// Notes that a waiter elsewhere wants the hold.
    pub(in crate::engine::hold) fn recall(&mut self) {
        self.extras.change().sticky.recall();
    }

    /// Until when the hold stays with its client without a guard. `Tick::NEVER` if it does not stay.
    pub(in crate::engine::hold) fn stays_until(&self) -> Tick {
        match self.stage {
            Stage::Left => self.extras.sticky.end,
            _ => Tick::NEVER,
        }
    }

    /// Hands the hold off to another task of this client. A reader may take over a write hold: the downgrade is
    /// deferred.
    pub(in crate::engine::hold) fn hand_off(&mut self, next: NextOwner) {
        if let Some(extras) = self.extras.if_changed() {
            // The next guard has to ask again.
            extras.sticky.asked = Duration::ZERO;
            extras.tokens.pass_on(next.fenced);
        }
        if let Some(place) = next.place {
            self.extras.change().places.push(place);
        }
        self.lease.replace(next.before, next.after);
        self.stage = Stage::Unclaimed;
        // Otherwise the watchdog might not check the hold before its previous deadline.
        self.is_check_put_off |= next.before != next.after;
        self.give_up = next.give_up;
        self.owner = next.owner;
        self.counts.pass_on(next.reads_until);
        self.readers = match next.reads_until {
            Some(until) => Readers::after_writer(self.owner.clone(), until),
            None => Readers::default(),
        };
    }

    /// Notes that a guard has the hold. When the guard is gone, the hold may stay with its client for up to `sticky`.
    pub(in crate::engine::hold) fn make_guard(
        &mut self,
        now: impl Now,
        sticky: Duration,
    ) -> Effects {
        if !sticky.is_zero() {
            self.extras.change().sticky.ask(sticky);
        }
        if !self.is_taken() && self.readers.are_open() {
            self.readers.opened(now.tick());
        }
        self.stage = Stage::Guarded;
        Effects::look_again(self.claim())
    }

    /// Notes that the next task has taken the hold, or that a reader has taken the share that was handed to it.
    pub(in crate::engine::hold) fn accept_handoff(&mut self, now: Tick, mode: Mode) -> Effects {
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => self.readers.claim(),
        }
        Effects::look_again(self.claim() || self.next_check() <= now)
    }

    /// Notes that a task has taken the hold. Returns whether its check by the watchdog was put off.
    pub(super) fn claim(&mut self) -> bool {
        if self.stage.is_pending() {
            self.stage = Stage::Claimed;
        }
        std::mem::take(&mut self.is_check_put_off)
    }

    /// Puts the watchdog's next check off to the deadline if no task has taken the hold yet.
    pub(in crate::engine::hold) fn put_off_check(&mut self) {
        self.is_check_put_off |= self.is_unclaimed();
    }

    pub(in crate::engine::hold) fn has_guard(&self) -> bool {
        self.stage == Stage::Guarded && !self.are_readers_unclaimed()
    }

    /// Whether none of the tasks that the hold is for has taken it yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.stage.is_pending() || self.are_readers_unclaimed()
    }

    fn are_readers_unclaimed(&self) -> bool {
        self.readers
            .are_unclaimed(self.counts.alive.of(Mode::Shared))
    }

    /// Whether the call that the hold was granted to has, or had, a guard of it.
    pub(in crate::engine::hold) fn is_taken(&self) -> bool {
        self.stage != Stage::Granted
    }

    /// Whether its guard asked for the hold to stay with the client.
    pub(in crate::engine::hold) fn is_sticky(&self) -> bool {
        !self.extras.sticky.asked.is_zero()
    }

    pub(in crate::engine::hold) fn is_recalled(&self) -> bool {
        self.extras.sticky.is_recalled()
    }
}

impl HoldState {
    /// Whether a reader that wants this lease may join now. The server must be known to have the hold, a share must
    /// have this lease, at least half of the lease must be left, and no waiter elsewhere may want the hold.
    pub(in crate::engine::hold) fn can_be_joined(
        &self,
        now: Tick,
        lease: Duration,
        give_up: Duration,
    ) -> bool {
        self.readers.may_join(now)
            && self.lease.shares.has(ShareLease::renewed(lease))
            && self.is_held()
            && self.is_taken()
            && !self.is_written()
            && self.lease.has_half_left(now, lease)
            && self.counts.at_server.is_some()
            && !self.is_doubted()
            && !self.is_recalled()
            && self.extras.tokens.current.is_none()
            && self.give_up == give_up
    }

    /// Adds a share for another reader of this client. If it is not `is_claimed`, the reader has yet to take it.
    pub(in crate::engine::hold) fn join(
        &mut self,
        owner: Owner,
        lease: Duration,
        is_claimed: bool,
    ) -> Effects {
        let (first, shares) = (&self.owner, self.counts.alive.of(Mode::Shared));
        self.readers.join(owner, is_claimed, first, shares);
        self.counts.alive.raise(Mode::Shared);
        self.lease.add(ShareLease::renewed(lease));
        Effects::look_again(is_claimed && self.claim())
    }

    /// Whether the owner may write.
    pub(in crate::engine::hold) fn is_written(&self) -> bool {
        self.is_exclusive() && self.counts.deferred_until.is_none()
    }

    /// Whether a writer can pass this share on to readers that want this lease.
    pub(in crate::engine::hold) fn can_pass_to_readers(
        &self,
        now: Tick,
        share: ShareLease,
        lease: Duration,
    ) -> bool {
        !self.is_recalled()
            && share == ShareLease::renewed(lease)
            && self.can_hand_off(now, share, LeasePolicy::Renewed(lease), false)
    }

    /// Whether the owner can get one more share without asking the server. `share` is the lease of that share, and
    /// `lease` is the lease that the server would have to give for it.
    pub(in crate::engine::hold) fn can_be_entered(
        &self,
        now: Tick,
        lease: Duration,
        share: ShareLease,
    ) -> bool {
        let is_long_enough = if share.renewed.is_some() {
            lease <= self.lease() && self.lease.has_half_left(now, lease)
        } else {
            share.end <= self.lease.deadline
        };
        is_long_enough && !self.is_doubted()
    }

    /// Until when the downgrade may be deferred. `Tick::NEVER` if no downgrade is deferred.
    pub(in crate::engine::hold) fn downgrade_due(&self) -> Tick {
        let until = self.counts.deferred_until.filter(|_| self.is_held());
        until.unwrap_or(Tick::NEVER)
    }

    pub(in crate::engine::hold) fn is_downgrade_deferred(&self) -> bool {
        self.downgrade_due() != Tick::NEVER
    }

    /// Ends the deferral of the downgrade. The readers have a read hold from now on, and the server has yet to be asked
    /// for it.
    pub(in crate::engine::hold) fn end_deferral(&mut self) -> Effects {
        self.put_off_check();
        let mut effects = Effects::default();
        if !self.is_downgrade_deferred() {
            return effects;
        }
        self.counts.deferred_until = None;
        effects.release = self.counts.decide_release(Mode::Exclusive);
        effects
    }

    /// Whether this owner has a share of the hold.
    pub(in crate::engine::hold) fn is_of(&self, owner: &Owner) -> bool {
        match self.readers.shares_of(owner) {
            Some(shares) => shares > 0,
            None => self.owner == *owner,
        }
    }

    /// The number of shares of this owner, which has at least one.
    pub(in crate::engine::hold) fn shares_of(&self, owner: &Owner, mode: Mode) -> u32 {
        let joined = self.readers.shares_of(owner);
        joined.unwrap_or_else(|| self.counts.alive.of(mode))
    }

    pub(in crate::engine::hold) fn token_of(&self, owner: &Owner) -> Option<FencingToken> {
        self.readers.token_of(owner).unwrap_or(self.token())
    }
}

impl HoldState {
    /// Notes that a released guard asked to keep the hold until this time. Ignored if the hold has ended.
    pub(in crate::engine::hold) fn ask_to_keep(&mut self, until: Tick) {
        if self.phase == Phase::Held {
            self.kept_until = self.kept_until.max(until);
        }
    }

    /// Notes that a share in this mode was forgotten.
    pub(in crate::engine::hold) fn note_forgotten(&mut self, mode: Mode) {
        self.counts.note_forgotten(mode);
    }

    /// The time until which to keep the hold if its last share ends now. A hold with a forgotten share is not kept: it
    /// ends with its lease.
    pub(super) fn kept_after(&self, now: Tick) -> Tick {
        if now < self.kept_until && !self.is_forgotten() {
            self.kept_until
        } else {
            Tick::ZERO
        }
    }

    /// Whether a share was forgotten, so that nothing releases the hold.
    pub(in crate::engine::hold) fn is_forgotten(&self) -> bool {
        self.counts.forgotten.is_some()
    }

    /// Whether the hold is, or was, kept at the server after its end. After a shutdown, live guards have to end first,
    /// but tasks that have not taken the hold do not count.
    pub(in crate::engine::hold) fn is_kept(&self) -> bool {
        let has_ended = match self.phase {
            Phase::Held | Phase::Forgotten => false,
            Phase::Lost(LostReason::Closed) => self.target().is_none() || !self.has_guard(),
            Phase::Released | Phase::Lost(_) => true,
        };
        has_ended && self.kept_until != Tick::ZERO
    }

    /// For how much longer the server has to keep the hold, if it is kept.
    pub(in crate::engine::hold) fn kept_for(&self, now: Tick) -> Option<Duration> {
        let is_kept = self.is_kept() && now < self.kept_until;
        is_kept.then(|| now.until(self.kept_until))
    }
}
