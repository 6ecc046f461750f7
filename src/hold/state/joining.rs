//! Readers of one client that have one hold together: who joins, and what their shares are to the server.

use std::time::Duration;

use super::State;
use crate::clock::Tick;
use crate::counts::Mode;
use crate::fencing::FencingToken;
use crate::hold::readers::Leave;
use crate::hold::share_lease::ShareLease;
use crate::owner::Owner;

impl State {
    /// Whether a reader that wants this lease may join now: the server is known to have what it should have of
    /// it, nobody waits for it, and half of its lease is left.
    pub(in crate::hold) fn can_be_joined(
        &self,
        now: Tick,
        lease: Duration,
        give_up: Duration,
    ) -> bool {
        self.readers.takes(now, lease)
            && self.is_held()
            && !self.is_exclusive()
            && now.until(self.deadline) >= lease / 2
            && self.is_settled()
            && !self.is_doubted()
            && !self.is_recalled()
            && self.token.is_none()
            && self.give_up == give_up
    }

    pub(super) fn join(&mut self, owner: Owner) {
        self.readers.join(owner, &self.owner, self.counts.shared);
    }

    /// One share less. True if the server counts it.
    pub(super) fn lower_counts(&mut self, mode: Mode, ends: Option<(&Owner, ShareLease)>) -> bool {
        if let (Mode::Shared, Some((owner, lease))) = (mode, ends)
            && self.readers.leave(owner, lease) == Leave::Uncounted
        {
            return false;
        }
        self.counts = self.counts.lowered(mode);
        if self.counts.is_none() && self.readers.is_one_left() {
            // In the place of the one that was forgotten.
            self.forgotten = self.forgotten.raised(Mode::Shared);
        }
        true
    }

    /// A share is never given back. Whether it is one that the server counts.
    pub(super) fn is_counted_of_forgotten(
        &mut self,
        owner: &Owner,
        mode: Mode,
        lease: ShareLease,
    ) -> bool {
        mode == Mode::Exclusive || self.readers.forget(owner, lease) == Leave::Counted
    }

    /// Whether this owner has a share of it.
    pub(in crate::hold) fn is_of(&self, owner: &Owner) -> bool {
        match self.readers.shares_of(owner) {
            Some(shares) => shares > 0,
            None => self.owner == *owner,
        }
    }

    /// How many shares this owner has, who has one.
    pub(in crate::hold) fn shares_of(&self, owner: &Owner, mode: Mode) -> u32 {
        let joined = self.readers.shares_of(owner);
        joined.unwrap_or_else(|| self.counts.of(mode))
    }

    pub(in crate::hold) fn token_of(&self, owner: &Owner) -> Option<FencingToken> {
        self.readers.token_of(owner).unwrap_or(self.token)
    }
}
