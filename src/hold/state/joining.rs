//! Readers of one client that have one hold together, a read hold or one that covers them: who joins, and what their shares are to the server.

use std::time::Duration;

use super::State;
use crate::clock::Tick;
use crate::counts::Mode;
use crate::fencing::FencingToken;
use crate::hold::event::{Cover, Effects, ReleaseStep};
use crate::hold::readers::{Leave, Readers};
use crate::hold::share_lease::ShareLease;
use crate::owner::Owner;

impl State {
    /// Whether a reader that wants this lease may join now: the server is known to have something of it, and will
    /// have; nobody waits for it, and half of its lease is left.
    pub(in crate::hold) fn can_be_joined(
        &self,
        now: Tick,
        lease: Duration,
        give_up: Duration,
    ) -> bool {
        self.readers.takes(now, lease)
            && self.is_held()
            && !self.is_written()
            && self.has_half_left(now, lease)
            && self.server_counts.is_some_and(|counts| !counts.is_none())
            && !self.is_doubted()
            && !self.is_recalled()
            && self.token.is_none()
            && self.give_up == give_up
    }

    pub(super) fn join(&mut self, owner: Owner, is_claimed: bool) {
        let (first, shares) = (&self.owner, self.counts.shared);
        self.readers.join(owner, is_claimed, first, shares);
    }

    /// Whether those who have it may write.
    pub(in crate::hold) fn is_written(&self) -> bool {
        self.is_exclusive() && !self.readers.is_cover()
    }

    /// Whether the writer who has this share of it can pass it on to readers who want this lease.
    pub(in crate::hold) fn can_cover(&self, now: Tick, share: ShareLease, lease: Duration) -> bool {
        let is_recalled = self.is_recalled();
        !is_recalled
            && self.is_one_certain_share(now)
            && share == ShareLease::Renewed(lease)
            && self.has_half_left(now, lease)
    }

    fn has_half_left(&self, now: Tick, lease: Duration) -> bool {
        now.until(self.deadline) >= lease / 2
    }

    /// A writer passes it on. When the watchdog has to check it, if that has changed.
    pub(super) fn begin_cover(&mut self, cover: Cover) -> Option<Tick> {
        self.readers = Readers::covered(cover.first.clone(), cover.until, cover.lease);
        self.owner = cover.first;
        self.has_guard = false;
        self.give_up = cover.give_up;
        self.token = None;
        self.sticky.pass_on();
        let before = self.cover_end.replace(cover.until);
        (before != Some(cover.until)).then(|| self.next_check())
    }

    /// Until when it may cover readers, if it did.
    pub(in crate::hold) fn cover_end(&self) -> Tick {
        self.cover_end.unwrap_or(Tick::NEVER)
    }

    /// Whether the time is over for which it may cover readers.
    pub(in crate::hold) fn is_cover_over(&self, now: Tick) -> bool {
        self.cover_end() <= now
    }

    pub(in crate::hold) fn is_cover(&self) -> bool {
        self.is_held() && self.readers.is_cover()
    }

    /// Whether only one reader has it, for whom the server counts a writer.
    pub(in crate::hold) fn is_last_covered(&self) -> bool {
        self.readers.is_cover() && self.readers.uncounted() == 0
    }

    /// The readers have a read hold from here on, of which the server has yet to hear.
    pub(super) fn end_cover(&mut self) -> Effects {
        self.cover_end = None;
        self.is_check_put_off |= self.is_unclaimed();
        let mut effects = Effects::default();
        if !self.is_cover() {
            return effects;
        }
        self.readers.end_cover();
        self.counts = self.counts.lowered(Mode::Exclusive).raised(Mode::Shared);
        if !std::mem::replace(&mut self.is_release_unsent, true) {
            effects.release = Some(ReleaseStep::Decided);
        }
        effects
    }

    /// One share less. True if the server counts it.
    pub(super) fn lower_counts(&mut self, mode: Mode, ends: Option<(&Owner, ShareLease)>) -> bool {
        if let (Mode::Shared, Some((owner, lease))) = (mode, ends)
            && self.readers.leave(owner, lease) == Leave::Uncounted
        {
            return false;
        }
        let mode = self.counted_as(mode);
        self.counts = self.counts.lowered(mode);
        if self.counts.is_none() && self.readers.is_one_left() {
            // In the place of the one that was forgotten.
            self.forgotten = self.forgotten.raised(Mode::Shared);
        }
        true
    }

    /// What the server counts for the last of those who have it in this mode: a writer, if it covers them.
    pub(super) fn counted_as(&self, mode: Mode) -> Mode {
        match mode {
            Mode::Shared if self.counts.shared == 0 => Mode::Exclusive,
            mode => mode,
        }
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
