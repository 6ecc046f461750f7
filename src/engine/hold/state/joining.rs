//! Readers of one client that have one hold together: a read hold, or a write hold with a deferred downgrade. Decides
//! which readers join, and how the server counts their shares.

use std::time::Duration;

use super::HoldState;
use super::claim::Stage;
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::event::{DeferredDowngrade, Effects};
use crate::engine::hold::readers::{Leave, Readers};
use crate::engine::hold::share_lease::ShareLease;

impl HoldState {
    /// Whether a reader that wants this lease may join now. The server is known to count at least one share of the
    /// hold and goes on to do so, no waiter elsewhere wants it, and at least half of its lease is left.
    pub(in crate::engine::hold) fn can_be_joined(
        &self,
        now: Tick,
        lease: Duration,
        give_up: Duration,
    ) -> bool {
        self.readers.takes(now, lease)
            && self.is_held()
            && !self.is_written()
            && self.lease.has_half_left(now, lease)
            && self
                .counts
                .at_server
                .is_some_and(|counts| !counts.is_none())
            && !self.is_doubted()
            && !self.is_recalled()
            && self.tokens.current.is_none()
            && self.give_up == give_up
    }

    pub(super) fn join(&mut self, owner: Owner, is_claimed: bool) {
        let (first, shares) = (&self.owner, self.counts.alive.shared);
        self.readers.join(owner, is_claimed, first, shares);
    }

    /// Whether its owner may write.
    pub(in crate::engine::hold) fn is_written(&self) -> bool {
        self.is_exclusive() && !self.readers.is_counted_as_writer()
    }

    /// Whether a writer can pass this share on to readers that want this lease.
    pub(in crate::engine::hold) fn can_pass_to_readers(
        &self,
        now: Tick,
        share: ShareLease,
        lease: Duration,
    ) -> bool {
        let is_recalled = self.is_recalled();
        !is_recalled
            && self.is_one_certain_share(now)
            && share == ShareLease::Renewed(lease)
            && self.lease.has_half_left(now, lease)
    }

    /// Whether its owner can have one more share without the server: with this lease of its own, where a lease is
    /// needed that the server gives in this length.
    pub(in crate::engine::hold) fn can_be_entered(
        &self,
        now: Tick,
        lease: Duration,
        share: ShareLease,
    ) -> bool {
        let is_long_enough = if share.is_renewed() {
            lease <= self.lease() && self.lease.has_half_left(now, lease)
        } else {
            share.end() <= self.lease.deadline
        };
        is_long_enough && !self.is_doubted()
    }

    /// A writer passes the hold on to readers, and the server hears of it later. Returns when the watchdog has to
    /// check the hold, if that has changed.
    pub(super) fn defer_downgrade(&mut self, deferred: DeferredDowngrade) -> Option<Tick> {
        self.readers =
            Readers::after_writer(deferred.first.clone(), deferred.until, deferred.lease);
        self.owner = deferred.first;
        self.claim.stage = Stage::Unclaimed;
        self.give_up = deferred.give_up;
        self.tokens.current = None;
        self.sticky.pass_on();
        let before = self.downgrade_due.replace(deferred.until);
        (before != Some(deferred.until)).then(|| self.next_check())
    }

    /// Until when its downgrade may be deferred. `Tick::NEVER` if it is not deferred.
    pub(in crate::engine::hold) fn downgrade_due(&self) -> Tick {
        self.downgrade_due.unwrap_or(Tick::NEVER)
    }

    /// Whether its downgrade can be deferred no longer.
    pub(in crate::engine::hold) fn is_downgrade_due(&self, now: Tick) -> bool {
        self.downgrade_due() <= now
    }

    pub(in crate::engine::hold) fn is_downgrade_deferred(&self) -> bool {
        self.is_held() && self.readers.is_counted_as_writer()
    }

    /// Whether a single reader has it, and the server counts an exclusive share for that reader.
    pub(in crate::engine::hold) fn is_last_of_deferred(&self) -> bool {
        self.readers.is_counted_as_writer() && self.readers.uncounted() == 0
    }

    /// Ends the deferral: the readers now have a read hold, and the server has yet to be asked for the downgrade.
    pub(super) fn end_deferral(&mut self) -> Effects {
        self.downgrade_due = None;
        self.put_off_check();
        let mut effects = Effects::default();
        if !self.is_downgrade_deferred() {
            return effects;
        }
        self.readers.count_as_reader();
        self.counts.alive = self.counts.alive.lowered(Mode::Exclusive);
        self.counts.alive = self.counts.alive.raised(Mode::Shared);
        effects.release = self.counts.decide_release(Mode::Exclusive);
        effects
    }

    /// Removes one share. True if the server counts it.
    pub(super) fn lower_counts(&mut self, mode: Mode, ends: Option<(&Owner, ShareLease)>) -> bool {
        if let (Mode::Shared, Some((owner, lease))) = (mode, ends)
            && self.readers.leave(owner, lease) == Leave::Uncounted
        {
            return false;
        }
        self.counts.lower(mode);
        if self.counts.alive.is_none() && self.readers.is_one_left() {
            // The last reader takes the place of the share that was forgotten.
            self.counts.forgotten = self.counts.forgotten.raised(Mode::Shared);
        }
        true
    }

    /// Forgets a share, which is never released. True if the server counts it.
    pub(super) fn is_counted_of_forgotten(
        &mut self,
        owner: &Owner,
        mode: Mode,
        lease: ShareLease,
    ) -> bool {
        mode == Mode::Exclusive || self.readers.forget(owner, lease) == Leave::Counted
    }

    /// Whether this owner has a share of it.
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
        self.readers.token_of(owner).unwrap_or(self.tokens.current)
    }
}
