//! How many shares a hold has, in this client and at the server, and whether the task that the hold is for has taken
//! it.
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
    /// The mode of the last share of a hold that is kept, once that share has ended.
    pub(super) last: Mode,
    /// If a writer has passed the hold on to readers: until when the server may go on counting a writer.
    pub(super) deferred_until: Option<Tick>,
    /// The mode of the hold at the server, as of its last clear answer. `None` if the server did not have the hold. A
    /// request without a clear answer can only have made the mode weaker, and is repeated.
    pub(super) at_server: Option<Mode>,
    /// Whether a release was decided on and is not sent yet.
    pub(super) is_release_unsent: bool,
    /// When the first request was sent that may have released the hold but has no answer.
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

    /// Whether the server counts a writer although the last share is, or was, a reader's. False while the hold may have
    /// ended at the server.
    pub(super) fn is_read_as_written(&self) -> bool {
        let last = self.alive.strongest().unwrap_or(self.last);
        let is_known = self.maybe_released.is_none();
        is_known && last == Mode::Shared && self.at_server == Some(Mode::Exclusive)
    }

    /// Whether the server is known to have the hold in the mode that the shares need, or to be without it if they need
    /// none.
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

    /// Passes the only share on: to a reader, whose downgrade is deferred until `reads_until`, or else to a writer. The
    /// server continues to count a writer.
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

    /// Notes the decision to release or downgrade a hold in this mode. `None` if an earlier one has not been sent yet.
    pub(super) fn decide_release(&mut self, mode: Mode) -> Option<ReleaseStep> {
        let is_first = !std::mem::replace(&mut self.is_release_unsent, true);
        is_first.then_some(ReleaseStep::Decided(mode))
    }

    /// Notes that a request was sent after which the server has the hold in this mode. A release that was decided on
    /// counts as sent if this is the mode that the shares need. It always does if the request ends the hold, because a
    /// hold that is kept may still have guards.
    pub(super) fn sent(&mut self, mode: Option<Mode>) -> Option<ReleaseStep> {
        let is_sent = self.is_release_unsent && (mode.is_none() || self.target() == mode);
        self.is_release_unsent &= !is_sent;
        is_sent.then_some(ReleaseStep::Sent)
    }
}

/// How far the task that a hold is for has got.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// The hold was granted to a call that has no guard yet. As [`Unclaimed`](Self::Unclaimed), and no other call
    /// enters the hold.
    Granted,
    /// The hold was handed off to a task that has not taken it yet. The task may never be polled again, so no renewal
    /// is sent.
    Unclaimed,
    /// A task has taken it and has no guard yet.
    Claimed,
    /// The hold stays with its client, without a guard.
    Left,
    /// The owner has a guard of the hold.
    Guarded,
}

impl Stage {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Granted | Self::Unclaimed)
    }
}
