//! The shares of one hold as counts, in this client and at the server, and whether the task that the hold is for has
//! taken it.
//!
//! Invariants: the server counts one hold for all shares, alive or forgotten, in the strongest of their modes, or as a
//! writer while a downgrade is deferred. A hold that no task has taken is not renewed. A hold without a guard ends with
//! its client.

use crate::engine::clock::Tick;
use crate::engine::counts::{Counts, Mode};
use crate::engine::hold::effects::ReleaseStep;

#[derive(Clone, Debug, Hash)]
pub(super) struct HoldCounts {
    /// The shares of live guards.
    pub(super) alive: Counts,
    /// The strongest mode of the shares that were forgotten. They are never released.
    pub(super) forgotten: Option<Mode>,
    /// The mode of the last share of a hold that is kept, once it has ended.
    pub(super) last: Mode,
    /// If a writer has passed the hold on to readers, and the server still counts the writer: until when it may.
    pub(super) deferred_until: Option<Tick>,
    /// The server had the hold in this mode, or did not have it, when it last gave a clear answer. A request without a
    /// clear answer only makes the mode weaker, and is repeated.
    pub(super) at_server: Option<Mode>,
    /// Whether a release was decided on and is not sent yet.
    pub(super) is_release_unsent: bool,
    /// When a request that releases the hold was sent, if it may have been executed and has no answer: the first of
    /// them.
    pub(super) maybe_released: Option<Tick>,
}

impl HoldCounts {
    /// The counts of a hold that was just granted.
    pub(super) fn granted(mode: Mode) -> Self {
        Self {
            alive: Counts::one(mode),
            forgotten: None,
            last: mode,
            deferred_until: None,
            at_server: Some(mode),
            is_release_unsent: false,
            maybe_released: None,
        }
    }

    /// Returns the strongest mode of all shares, which the server should have. `None` if it should not have the hold.
    pub(super) fn target(&self) -> Option<Mode> {
        let strongest = self.alive.strongest().into_iter().chain(self.forgotten);
        let strongest = strongest.min()?;
        Some(if self.deferred_until.is_some() {
            Mode::Exclusive
        } else {
            strongest
        })
    }

    /// Whether the server counts a writer, and the last share read. Unknown while the hold may have ended at the server.
    pub(super) fn is_read_as_written(&self) -> bool {
        let last = self.alive.strongest().unwrap_or(self.last);
        let is_known = self.maybe_released.is_none();
        is_known && last == Mode::Shared && self.at_server == Some(Mode::Exclusive)
    }

    /// Whether the server is known to have it in that mode, or not at all.
    pub(super) fn is_settled(&self) -> bool {
        self.at_server == self.target()
    }

    /// Whether there is only one share, and the server is known to count it as a writer.
    pub(super) fn is_one_writer(&self) -> bool {
        self.alive.total() == 1
            && self.forgotten.is_none()
            && self.target() == Some(Mode::Exclusive)
            && self.is_settled()
            && !self.is_release_unsent
    }

    /// Its only share is a writer's from now on, or a reader's until that time. The server goes on to count a
    /// writer.
    pub(super) fn pass_on(&mut self, reads_until: Option<Tick>) {
        self.alive = Counts::one(match reads_until {
            Some(_) => Mode::Shared,
            None => Mode::Exclusive,
        });
        self.deferred_until = reads_until;
    }

    pub(super) fn forget(&mut self, mode: Mode) {
        self.alive.lower(mode);
        self.note_forgotten(mode);
    }

    pub(super) fn note_forgotten(&mut self, mode: Mode) {
        self.forgotten = self.forgotten.into_iter().chain([mode]).min();
    }

    /// The release of a hold in this mode is decided on. `None` if an earlier one is still to be sent.
    pub(super) fn decide_release(&mut self, mode: Mode) -> Option<ReleaseStep> {
        let is_first = !std::mem::replace(&mut self.is_release_unsent, true);
        is_first.then_some(ReleaseStep::Decided(mode))
    }

    /// The request after which the server has the hold in this mode is sent. If a release to this mode was decided on, it
    /// is sent. So is any with the end of the hold: one that is left may have guards.
    pub(super) fn sent(&mut self, mode: Option<Mode>) -> Option<ReleaseStep> {
        let is_sent = self.is_release_unsent && (mode.is_none() || self.target() == mode);
        self.is_release_unsent &= !is_sent;
        is_sent.then_some(ReleaseStep::Sent)
    }
}

/// The task that has a hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It was granted to a call that has no guard yet. As [`Unclaimed`](Self::Unclaimed), and no other enters it.
    Granted,
    /// It belongs to a call that has not returned, or was handed off to a task that has not taken it yet. Neither may
    /// ever be polled again, so no renewal is sent for it.
    Unclaimed,
    /// A task has taken it and has no guard yet.
    Claimed,
    /// It stays with its client, without a guard.
    Left,
    /// Its owner has a guard of it.
    Guarded,
}

impl Stage {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Granted | Self::Unclaimed)
    }
}
