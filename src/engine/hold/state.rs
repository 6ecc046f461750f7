//! The state of one hold: a plain value, without locks, clocks or servers.
//!
//! A method that changes it returns what its shell has to do. Invariants: a hold goes from held to
//! released, forgotten or lost, once, and never back. Only a hold that is certain and consists of one exclusive share is
//! handed off, or left to its client.

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
    /// Whether the server handed it over. It was then granted later than it was requested, at a time that this client
    /// does not know.
    is_handover: bool,
    /// Whether an operation that changes it at the server is under way.
    is_changing: bool,
    /// The present owner. One task of this client may hand the hold off to another.
    owner: Owner,
    counts: HoldCounts,
    lease: HoldLease,
    /// A call about it ends after this time without an answer.
    give_up: Duration,
    stage: Stage,
    /// Whether the watchdog does not check the hold before its deadline, because it was unclaimed at the last check.
    is_check_put_off: bool,
    /// The time that released guards asked for: if its last share ends earlier, it is left at the server until then.
    /// [`Tick::ZERO`] if no guard asked, or if it must not be left.
    kept_until: Tick,
    /// The readers that joined it, and which others may.
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

    /// It is lost if its deadline has come.
    pub(super) fn expire_if_due(&mut self, now: Tick) -> Effects {
        if now < self.lease.deadline {
            return Effects::default();
        }
        self.expire(now)
    }

    /// It is lost for this reason, unless its deadline came before that.
    pub(super) fn lose(&mut self, now: Tick, reason: LostReason) -> Effects {
        if now >= self.lease.deadline {
            // Nobody took it away before, as far as this client knows.
            return self.expire(now);
        }
        let kept_until = match reason {
            // The server still has it, and has to keep it for a released guard.
            LostReason::Closed => self.kept_until,
            _ => Tick::ZERO,
        };
        self.end_lost(now, reason, kept_until)
    }

    /// Its deadline has passed: no renewal was answered in time, or its shares ended by themselves. In the second
    /// case the server still has it, and keeps it for as long as a released guard asked for.
    fn expire(&mut self, now: Tick) -> Effects {
        // By now its shares may have ended as well.
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

    /// A guard of this owner releases its share, and asks to keep the hold at the server until `kept_until`.
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

    /// A guard turns its exclusive share into a shared one.
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
            // Others may get in.
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
                // It may have been renewed for the sake of this share.
                self.put_off_check();
                effects.looks_again = true;
            }
        }
        effects
    }

    /// A guard forgets its share.
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

    /// A share has another lease from now on.
    pub(super) fn change_share_lease(&mut self, before: ShareLease, after: ShareLease) -> Effects {
        self.lease.replace(before, after);
        self.put_off_check();
        Effects::look_again(true)
    }

    /// The change at the server that its shares need.
    pub(super) fn needed_change(&self, now: Tick) -> ServerChange {
        // No share needs a hold that is kept.
        let target = self.target().filter(|_| !self.is_kept());
        if self.counts.at_server == target {
            ServerChange::Nothing
        } else if target.is_none() {
            match self.kept_for(now) {
                None => ServerChange::Release,
                // A writer would keep readers out.
                Some(_) if self.counts.is_read_as_written() => ServerChange::Downgrade,
                Some(remaining) => ServerChange::Keep(remaining),
            }
        } else if target == Some(Mode::Exclusive) {
            ServerChange::Nothing
        } else {
            ServerChange::Downgrade
        }
    }

    /// The request after which the server has the hold in this mode, or not at all, is sent.
    pub(super) fn change_sent(&mut self, mode: Option<Mode>) -> Effects {
        Effects {
            release: self.counts.sent(mode),
            ..Effects::default()
        }
    }

    /// A request that was sent then and has no answer may have released it.
    pub(super) fn may_be_released(&mut self, sent: Tick) {
        self.counts.maybe_released.get_or_insert(sent);
    }

    /// The server has answered a request that changes the hold.
    ///
    /// A hold that the server did not have was lost before. But an earlier request to end it, if it was sent in time and
    /// has no answer, has ended it as far as anyone can tell: a holder id is used for one hold only.
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
            // It was sent while the server should have had the hold.
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
        // It may have been lost before for another reason.
        let missing = missing.map(|reason| self.loss().unwrap_or(reason));
        Effects { missing, ..lost }
    }

    /// This owner, which has it, has one more share. The hold is valid at this time. `agreed` is `None` if the server
    /// was not asked.
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
            // It may have got one by now.
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

    /// The server's counter of tokens was raised to this one.
    pub(super) fn raise_token(&mut self, token: FencingToken) {
        self.extras.change().tokens = Tokens::granted(Some(token), 0);
    }

    /// The server may have lost it.
    pub(super) fn doubt(&mut self, now: Tick) {
        self.lease.doubted_since = Some(now);
    }

    /// A request for this lease is about to be sent. It is executed by `until` or never.
    pub(super) fn lease_sent(&mut self, until: Tick, lease: Duration) {
        self.lease.note_sent(until, lease);
    }

    /// The request for another lease was answered, and was sent once. `before` is until when the server had the hold at
    /// most, before that request.
    pub(super) fn lease_answered(&mut self, now: Tick, before: Tick) {
        self.lease.note_answered(now, before);
    }

    /// The server confirmed a renewal. Returns whether the deadline has moved.
    pub(super) fn renewed(&mut self, now: Tick, sent: Tick, lease: Duration) -> bool {
        let has_moved = self.extend(now, sent, lease);
        self.is_check_put_off = self.is_unclaimed();
        self.lease.doubted_since.take_if(|since| *since <= sent);
        // The share that needed this renewal may have ended since it was sent.
        self.lease.keep_to_shares();
        has_moved
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
            // It counts even while a renewal is on its way.
            deadline: self.lease.deadline.min(self.other_steps()),
        }
    }

    /// When the watchdog has to check the hold: after a third of its lease, at its end, when its downgrade is due, or at
    /// the end of its stay.
    pub(super) fn next_check(&self) -> Tick {
        self.next_check_of_lease().min(self.other_steps())
    }

    /// When it has a step to take that its lease does not need.
    fn other_steps(&self) -> Tick {
        self.downgrade_due().min(self.stays_until())
    }

    fn next_check_of_lease(&self) -> Tick {
        if let Some(since) = self.lease.doubted_since {
            // At once: an answer older than the doubt does not end it.
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

    /// Begins an operation that changes it at the server. False while another is under way.
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

    /// Whether it is held, and its deadline has not come.
    pub(super) fn is_valid(&self, now: Tick) -> bool {
        self.is_held() && now < self.lease.deadline
    }

    pub(super) fn loss(&self) -> Option<LostReason> {
        self.phase.loss()
    }

    /// Whether it is lost because its last shares have ended by themselves.
    pub(super) fn has_ended_by_itself(&self) -> bool {
        let ended = self.lease.shares.loss_at(self.lease.deadline);
        ended.is_some() && ended == self.loss()
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.target() == Some(Mode::Exclusive)
    }

    /// Whether the server may have lost it, as far as this client knows.
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

    /// No lease that was ever requested lasts longer at the server.
    pub(super) fn server_end(&self) -> Tick {
        self.lease.server_end
    }

    /// The place at the server that the present owner came from, of a hold with this holder id.
    pub(super) fn last_place(&self, holder: HolderId) -> HolderId {
        self.extras.places.last().copied().unwrap_or(holder)
    }

    /// The places at the server that end with it.
    pub(super) fn places(&self) -> &[HolderId] {
        &self.extras.places
    }

    /// Spends a hand-off in the queue at the server, if the hold may still go on from task to task.
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
