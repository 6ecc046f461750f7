//! The state of one hold: a plain value, without locks, clocks or servers.
//!
//! A method that changes the state returns the effects, which the shell has to carry out. Invariants: a hold goes from
//! held to released, forgotten or lost, once, and never back. A hold is handed off, or left to its client, only if it
//! is certain and consists of one exclusive share.

mod counts;
mod lease;
mod passing;
mod readers;
#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use self::counts::{HoldCounts, Stage};
use self::lease::{Extras, HoldLease};
use self::readers::Readers;
use super::effects::{Agreed, Answered, Effects, NewHold, Phase, ServerChange, Tokens};
use super::share_lease::ShareLease;
use super::turns::HANDOFFS_MAX;
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::api::loss::LostReason;
use crate::api::options::Replication;
use crate::engine::Seldom;
use crate::engine::clock::{Now, Tick};
use crate::engine::counts::{Counts, Mode};
use crate::watchdog::Due;

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct HoldState {
    phase: Phase,
    /// Whether the server handed the lock over. If so, this client does not know when it was granted, only that this
    /// was after the request.
    is_handover: bool,
    /// Whether an operation that changes the hold at the server is under way.
    is_changing: bool,
    /// The present owner. One task of this client may hand the hold off to another.
    owner: Owner,
    counts: HoldCounts,
    lease: HoldLease,
    /// A call about this hold ends after this time without an answer.
    give_up: Duration,
    stage: Stage,
    /// Whether the watchdog does not check the hold before its deadline, because it was unclaimed at the last check.
    is_check_put_off: bool,
    /// The latest time until which a released guard asked to keep the hold. If the last share ends earlier, the hold is
    /// left at the server until this time. [`Tick::ZERO`] if no guard asked, or if the hold must not be left.
    kept_until: Tick,
    /// The readers that joined the hold, and until when others may join.
    readers: Readers,
    extras: Seldom<Extras>,
}

impl HoldState {
    /// The state of a hold that was just granted, with one share, and the lease of that share.
    pub(super) fn new(now: Tick, new: &NewHold) -> (Self, ShareLease) {
        let (lease, share) = HoldLease::granted(now, new);
        let readers = if new.is_joinable {
            Readers::open(now)
        } else {
            Readers::default()
        };
        let state = Self {
            phase: Phase::Held,
            is_handover: new.handover.is_some(),
            is_changing: false,
            owner: new.owner.clone(),
            counts: HoldCounts::granted(new.mode),
            lease,
            give_up: new.give_up,
            stage: Stage::Granted,
            is_check_put_off: false,
            kept_until: Tick::ZERO,
            readers,
            extras: Extras::granted(new),
        };
        (state, share)
    }

    /// Loses the hold if its deadline has come.
    pub(super) fn expire_if_due(&mut self, now: Tick) -> Effects {
        if now < self.lease.deadline {
            return Effects::default();
        }
        self.expire(now)
    }

    /// Loses the hold for this reason. If its deadline has already come, the hold has expired instead.
    pub(super) fn lose(&mut self, now: Tick, reason: LostReason) -> Effects {
        if now >= self.lease.deadline {
            // As far as this client knows, the hold was not taken away before its deadline.
            return self.expire(now);
        }
        let kept_until = match reason {
            // The server still has the hold, and has to keep it if a released guard asked for that.
            LostReason::Closed => self.kept_until,
            _ => Tick::ZERO,
        };
        self.end_lost(now, reason, kept_until)
    }

    /// Ends a hold whose deadline has passed: no renewal was answered in time, or all shares ended by themselves. In
    /// the second case the server still has the hold, and keeps it for as long as a released guard asked for.
    fn expire(&mut self, now: Tick) -> Effects {
        // The deadline decides, not `now`: by now the shares may have ended as well.
        match self.lease.shares.loss_at(self.lease.deadline) {
            Some(reason) => self.end_lost(now, reason, self.kept_after(now)),
            None => self.end_lost(now, LostReason::Expired, Tick::ZERO),
        }
    }

    fn end_lost(&mut self, now: Tick, reason: LostReason, kept_until: Tick) -> Effects {
        if self.phase != Phase::Held {
            return Effects::default();
        }
        self.phase = Phase::Lost(reason);
        self.kept_until = kept_until;
        self.lease.deadline = self.lease.deadline.min(now);
        Effects {
            ended: Some(self.phase),
            was_taken: self.is_taken(),
            ..Effects::default()
        }
    }

    /// Ends the hold if no guard has a share of it.
    fn end_without_shares(&mut self) -> Option<Phase> {
        if self.phase != Phase::Held || !self.counts.alive.is_none() {
            return None;
        }
        self.phase = if self.counts.forgotten.is_none() {
            Phase::Released
        } else {
            Phase::Forgotten
        };
        Some(self.phase)
    }

    /// Ends the share of a guard of this owner. The guard asks to keep the hold at the server until `kept_until`.
    pub(super) fn release_share(
        &mut self,
        now: impl Now,
        owner: &Owner,
        mode: Mode,
        lease: ShareLease,
        kept_until: Tick,
    ) -> Effects {
        self.ask_to_keep(kept_until);
        self.end_share(now, mode, Some((owner, lease)))
    }

    /// Turns the exclusive share of a guard into a shared share.
    pub(super) fn downgrade_share(&mut self, now: Tick) -> Effects {
        self.end_share(now, Mode::Exclusive, None)
    }

    /// Ends a share. If `ends` is `None`, turns an exclusive share into a shared share.
    fn end_share(
        &mut self,
        now: impl Now,
        mode: Mode,
        ends: Option<(&Owner, ShareLease)>,
    ) -> Effects {
        let before = self.target();
        self.counts.alive.lower(mode);
        if self.counts.alive.is_none() && self.kept_until != Tick::ZERO {
            self.counts.last = mode;
        }
        if let (Mode::Shared, Some((owner, _))) = (mode, ends) {
            self.readers.leave(owner);
        }
        let mut effects = Effects::default();
        if self.loss().is_some() {
            return effects;
        }
        if ends.is_none() {
            self.counts.alive.raise(Mode::Shared);
        }
        effects.ended = self.end_without_shares();
        if effects.ended == Some(Phase::Forgotten) {
            return effects;
        }
        if let Some(before) = before.filter(|before| self.target() != Some(*before)) {
            // After this change the server may grant the lock to others.
            effects.release = self.counts.decide_release(before);
        } else {
            effects.is_local = true;
        }
        if effects.ended.is_some() {
            if self.kept_until != Tick::ZERO {
                self.kept_until = self.kept_after(now.tick());
            }
        } else if let Some((_, lease)) = ends {
            self.lease.remove(lease);
            if !self.lease.shares.has(lease) {
                // The watchdog may have planned its renewals for the lease of this share.
                self.put_off_check();
                effects.looks_again = true;
            }
        }
        effects
    }

    /// Ends a share that its guard forgets.
    pub(super) fn forget_share(&mut self, owner: &Owner, mode: Mode, lease: ShareLease) -> Effects {
        if mode == Mode::Shared {
            self.readers.close();
            self.readers.leave(owner);
        }
        self.lease.remove(lease);
        self.counts.forget(mode);
        Effects {
            ended: self.end_without_shares(),
            ..Effects::default()
        }
    }

    /// Gives a share another lease from now on.
    pub(super) fn change_share_lease(&mut self, before: ShareLease, after: ShareLease) -> Effects {
        self.lease.replace(before, after);
        self.put_off_check();
        Effects::look_again(true)
    }

    /// Returns the change at the server that the shares need.
    pub(super) fn needed_change(&self, now: Tick) -> ServerChange {
        // No share needs a hold that is kept.
        let target = self.target().filter(|_| !self.is_kept());
        if self.counts.at_server == target {
            ServerChange::Nothing
        } else if target.is_none() {
            match self.kept_for(now) {
                None => ServerChange::Release,
                // Kept as a writer, the hold would exclude readers.
                Some(_) if self.counts.is_read_as_written() => ServerChange::Downgrade,
                Some(remaining) => ServerChange::Keep(remaining),
            }
        } else if target == Some(Mode::Exclusive) {
            ServerChange::Nothing
        } else {
            ServerChange::Downgrade
        }
    }

    /// Notes that a request was sent after which the server has the hold in this mode, or does not have it.
    pub(super) fn change_sent(&mut self, mode: Option<Mode>) -> Effects {
        Effects {
            release: self.counts.sent(mode),
            ..Effects::default()
        }
    }

    /// Notes that the request sent at `sent`, which has no answer, may have released the hold.
    pub(super) fn may_be_released(&mut self, sent: Tick) {
        self.counts.maybe_released.get_or_insert(sent);
    }

    /// Applies the server's answer to a request that changes the hold.
    ///
    /// If the server did not have the hold, it was lost before. The exception: if an earlier request to end the hold
    /// was sent in time and has no answer, that request counts as executed, because a holder id is used for one hold
    /// only.
    pub(super) fn answered(&mut self, now: impl Now, answered: Answered) -> Effects {
        let Answered {
            mode,
            is_found,
            mut first_sent,
            mut is_repeated,
        } = answered;
        let ends = mode.is_none();
        if ends && let Some(sent) = self.counts.maybe_released {
            first_sent = sent.min(first_sent);
            is_repeated = true;
        }
        let was_in_time = first_sent < self.lease.deadline;
        let missing = match is_found || (ends && is_repeated && was_in_time) {
            true => None,
            // The request was sent while the server should have had the hold.
            false if was_in_time => Some(LostReason::Revoked),
            false => Some(LostReason::Expired),
        };
        let lost = match missing {
            None => {
                self.counts.at_server = mode;
                Effects::default()
            }
            Some(_) if ends => Effects::default(),
            Some(LostReason::Expired) => self.expire(now.tick()),
            Some(reason) => self.end_lost(now.tick(), reason, Tick::ZERO),
        };
        // The hold may have been lost earlier, for another reason.
        let missing = missing.map(|reason| self.loss().unwrap_or(reason));
        Effects { missing, ..lost }
    }

    /// Adds one more share for this owner, which has the hold. The hold is valid at `now`. `agreed` is `None` if the
    /// server was not asked.
    pub(super) fn add_share(
        &mut self,
        now: Tick,
        owner: &Owner,
        mode: Mode,
        share: ShareLease,
        agreed: Option<Agreed>,
    ) -> Effects {
        let mut token = None;
        if let Some(agreed) = agreed {
            self.extend(now, agreed.sent, agreed.lease);
            // The owner may have got a token since the request.
            let has_one = self.token_of(owner).is_some();
            token = agreed.token.filter(|_| !has_one);
        }
        self.counts.alive.raise(mode);
        self.claim();
        self.readers.enter(owner, token);
        if let Some(token) = token {
            self.raise_token(token);
        }
        self.lease.add(share);
        Effects::look_again(true)
    }

    /// Sets this token, because the server's counter was raised to it.
    pub(super) fn raise_token(&mut self, token: FencingToken) {
        self.extras.change().tokens = Tokens::granted(Some(token), 0);
    }

    /// Notes that the server may have lost the hold.
    pub(super) fn doubt(&mut self, now: Tick) {
        self.lease.doubted_since = Some(now);
    }

    /// Notes that a request for this lease is about to be sent. The server executes it by `until` or never.
    pub(super) fn lease_sent(&mut self, until: Tick, lease: Duration) {
        self.lease.note_sent(until, lease);
    }

    /// Notes the answer to a request for another lease that was sent once. `before` is the latest time until which the
    /// server could have the hold before that request.
    pub(super) fn lease_answered(&mut self, now: Tick, before: Tick) {
        self.lease.note_answered(now, before);
    }

    /// Applies a renewal that the server has confirmed. Returns whether the deadline has moved.
    pub(super) fn renewed(&mut self, now: Tick, sent: Tick, lease: Duration) -> bool {
        let has_moved = self.extend(now, sent, lease);
        self.is_check_put_off = self.is_unclaimed();
        self.lease.doubted_since.take_if(|since| *since <= sent);
        // The share that needed this renewal may have ended since it was sent.
        self.lease.keep_to_shares();
        has_moved
    }

    /// See [`HoldLease::measure`].
    pub(super) fn measure(&self, lease: Duration) -> Duration {
        self.lease.measure(lease)
    }

    /// Accepts a lease that the server has confirmed, unless the answer came too late.
    fn extend(&mut self, now: Tick, sent: Tick, lease: Duration) -> bool {
        self.is_held() && self.lease.extend(now, sent, lease)
    }

    /// The watchdog's next step for this hold.
    pub(super) fn next_step(&self, now: Tick) -> Due {
        if self.phase != Phase::Held {
            return Due::Gone;
        }
        if now >= self.lease.deadline {
            return Due::Expired;
        }
        if self.next_check_of_lease() > now && !self.is_doubted() {
            return Due::Later(self.next_check());
        }
        let (lease, wait) = self.lease.renewal(now, self.kept_until);
        Due::Renew {
            lease,
            wait,
            // The other steps are due even while a renewal is under way.
            deadline: self.lease.deadline.min(self.other_steps()),
        }
    }

    /// When the watchdog has to check the hold: after a third of its lease, at its end, when its downgrade is due, or at
    /// the end of its stay.
    pub(super) fn next_check(&self) -> Tick {
        self.next_check_of_lease().min(self.other_steps())
    }

    /// When a step other than a renewal is due.
    fn other_steps(&self) -> Tick {
        self.downgrade_due().min(self.stays_until())
    }

    fn next_check_of_lease(&self) -> Tick {
        if let Some(since) = self.lease.doubted_since {
            // At once: the answer to a request from before the doubt does not end the doubt.
            since
        } else if self.is_unclaimed() {
            self.lease.deadline
        } else {
            self.renewal_due()
        }
    }

    /// Returns when a renewal of a claimed hold is due.
    pub(super) fn renewal_due(&self) -> Tick {
        self.lease.renewal_due()
    }

    /// Begins an operation that changes the hold at the server. False while another is under way.
    pub(super) fn begin_change(&mut self) -> bool {
        !std::mem::replace(&mut self.is_changing, true)
    }

    pub(super) fn end_change(&mut self) {
        self.is_changing = false;
    }

    pub(super) fn is_handover(&self) -> bool {
        self.is_handover
    }

    pub(super) fn is_held(&self) -> bool {
        self.phase == Phase::Held
    }

    /// Whether the hold is held, and its deadline has not come.
    pub(super) fn is_valid(&self, now: Tick) -> bool {
        self.is_held() && now < self.lease.deadline
    }

    pub(super) fn loss(&self) -> Option<LostReason> {
        self.phase.loss()
    }

    /// Whether the hold is lost because its last shares have ended by themselves.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        let ended = self.lease.shares.loss_at(self.lease.deadline);
        ended.is_some() && ended == self.loss()
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.target() == Some(Mode::Exclusive)
    }

    /// Whether the server may have lost the hold, as far as this client knows.
    pub(super) fn is_doubted(&self) -> bool {
        self.lease.doubted_since.is_some()
    }

    /// Returns the mode that the server should have. `None` if it should not have the hold.
    pub(super) fn target(&self) -> Option<Mode> {
        self.counts.target()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.alive
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.extras.tokens.current
    }

    pub(super) fn deadline(&self) -> Tick {
        self.lease.deadline
    }

    /// The latest time at which any lease ever requested can end at the server.
    pub(super) fn server_end(&self) -> Tick {
        self.lease.server_end
    }

    /// The last place in the queue at the server that this hold used. `holder` is its holder id, which was its first
    /// place.
    pub(super) fn last_place(&self, holder: HolderId) -> HolderId {
        self.extras.places.last().copied().unwrap_or(holder)
    }

    /// The places in the queue at the server that end with the hold.
    pub(super) fn places(&self) -> &[HolderId] {
        &self.extras.places
    }

    /// Spends a hand-off to a waiter in the queue at the server. False if the hold may not be handed on again.
    pub(super) fn try_spend_pass(&mut self, now: Tick) -> bool {
        let passes = &mut self.extras.change().passes;
        passes.try_spend(now, Duration::ZERO, HANDOFFS_MAX)
    }

    pub(super) fn replication(&self) -> Option<Replication> {
        self.extras.replication
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease.longest
    }

    pub(super) fn is_left_over(&self, now: Tick) -> bool {
        self.lease.is_left_over(now)
    }

    pub(super) fn give_up(&self) -> Duration {
        self.give_up
    }
}
