//! A lock that the server handed to a waiter without having been asked once more.
//!
//! Whoever frees a fair lock makes the next waiter the holder in the same script, and tells it in a
//! letter. Invariants: the lease of the hold is counted from when the waiter last asked to be kept in
//! the queue, and never from when the letter came; a letter is used only if it is about the very lock
//! and the very place that the last answer told of, so not an old one, nor one that somebody made up
//! without a look at the keys; no attempt is under way when one is, so that nothing late can meet the hold. A letter that is
//! not used, lost or late costs a round trip: the next attempt finds the lock held already.

use std::time::Duration;

use super::attempt::{Attempt, Grant};
use crate::clock::Tick;
use crate::hint::Mark;
use crate::hold::grant_message::GrantMessage;
use crate::hold::{Share, local_deadline};

/// With less of the lease left than this, it is better to ask, which gets a whole one.
const LEFT_MIN: Duration = Duration::from_millis(50);

/// How its place in the queue at the server is kept, by the last answer about that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// When what was answered was sent.
    pub(super) sent: Tick,
    /// A mark of moves, taken before that.
    pub(super) moved: Mark,
    /// Until when it is kept, in ms of the server's clock.
    pub(super) until_ms: u64,
}

impl Attempt<'_> {
    /// Whether the server may make it the holder without being asked again. Not where more is needed
    /// than the lock: other locks, replicas that confirm it, or its lease in full, as no renewal
    /// lengthens it.
    pub(super) fn may_be_handed(&self) -> bool {
        match self.party.requests {
            [request] => request.policy.is_renewed() && request.options.replication.is_none(),
            _ => false,
        }
    }

    /// Takes over the lock that this letter is about; released again if nobody takes it. `None`:
    /// the server has to be asked.
    ///
    /// The lease was given when `letter.lease` was left of a place that was asked for at `kept.sent`
    /// at the earliest. So it was given after that, and lasts from there for at least as long.
    pub(super) fn accept(&mut self, letter: GrantMessage) -> Option<Vec<Share>> {
        let core = self.party.core();
        let kept = self.kept?;
        let is_fenced = self.party.requests[0].options.fenced;
        let end = local_deadline(kept.sent, letter.lease);
        let is_usable = self.may_be_handed()
            && letter.until_ms == kept.until_ms
            && *letter.key == **self.party.requests[0].name.key()
            && core.clock.now().after(LEFT_MIN) <= end
            && (letter.token.is_some() || !is_fenced)
            && !self.is_in_doubt()
            && !core.is_closed();
        if !is_usable {
            return None;
        }
        let grant = Grant {
            sent: kept.sent,
            moved: kept.moved,
            handed: Some(letter.lease),
            spare: 0,
        };
        let token = letter.token.filter(|_| is_fenced);
        Some(self.granted(grant, &[token]))
    }
}
