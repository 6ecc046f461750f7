//! The shares of one hold as counts, in this client and at the server, and whether the task that the hold is for has
//! taken it.
//!
//! Invariants: the server counts one hold for all shares, alive or forgotten, in the strongest of their modes. A hold
//! that no task has taken is not renewed. A hold without a guard ends with its client.

use crate::engine::clock::Tick;
use crate::engine::counts::{Counts, Mode};
use crate::engine::hold::event::ReleaseStep;

#[derive(Clone, Debug, Hash)]
pub(super) struct HoldCounts {
    /// The shares of live guards.
    pub(super) alive: Counts,
    /// The shares that were forgotten. They are never released.
    pub(super) forgotten: Counts,
    /// The counts that the server is known to have: one in one mode, or none. `None` if they are in doubt.
    pub(super) at_server: Option<Counts>,
    /// Whether a release was decided on and is not sent yet.
    pub(super) is_release_unsent: bool,
    /// When a request that releases the hold was sent, if it may have been executed and has no answer: the first of them.
    pub(super) maybe_released: Option<Tick>,
}

impl HoldCounts {
    /// The counts of a hold that was just granted.
    pub(super) fn granted(mode: Mode) -> Self {
        Self {
            alive: Counts::one(mode),
            forgotten: Counts::NONE,
            at_server: Some(Counts::one(mode)),
            is_release_unsent: false,
            maybe_released: None,
        }
    }

    /// The counts that the server should have: one, in the strongest mode of all shares.
    pub(super) fn target(&self) -> Counts {
        self.alive.plus(self.forgotten).at_server()
    }

    /// Whether the server is known to have the target counts.
    pub(super) fn is_settled(&self) -> bool {
        self.at_server == Some(self.target())
    }

    /// Whether there is only one exclusive share, and the server is known to count it.
    pub(super) fn is_one_writer(&self) -> bool {
        let one = Counts::one(Mode::Exclusive);
        self.alive == one
            && self.forgotten.is_none()
            && self.at_server == Some(one)
            && !self.is_release_unsent
    }

    /// The mode in which the server counts the last share of this mode. It counts readers as a writer while the
    /// downgrade is deferred.
    fn counted_as(&self, mode: Mode) -> Mode {
        match mode {
            Mode::Shared if self.alive.shared == 0 => Mode::Exclusive,
            mode => mode,
        }
    }

    /// Removes a share, and returns its mode at the server.
    pub(super) fn lower(&mut self, mode: Mode) -> Mode {
        let mode = self.counted_as(mode);
        self.alive = self.alive.lowered(mode);
        mode
    }

    /// Forgets a share that the server counts.
    pub(super) fn forget(&mut self, mode: Mode) {
        let mode = self.lower(mode);
        self.forgotten = self.forgotten.raised(mode);
    }

    /// The release of a hold in this mode is decided on. `None` if an earlier one is still to be sent.
    pub(super) fn decide_release(&mut self, mode: Mode) -> Option<ReleaseStep> {
        let is_first = !std::mem::replace(&mut self.is_release_unsent, true);
        is_first.then_some(ReleaseStep::Decided(mode))
    }

    /// The request that sets these counts is sent. If they are the counts of a decided release, the release is sent.
    pub(super) fn sent(&mut self, counts: Counts) -> Option<ReleaseStep> {
        let is_sent = self.is_release_unsent && self.target() == counts;
        self.is_release_unsent &= !is_sent;
        is_sent.then_some(ReleaseStep::Sent)
    }
}

/// The task that has a hold, and whether the watchdog takes it into account.
#[derive(Clone, Debug, Hash)]
pub(super) struct Claim {
    pub(super) stage: Stage,
    /// Whether the watchdog does not check the hold before its deadline, because it was unclaimed at the last check.
    pub(super) is_check_put_off: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
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

impl Claim {
    /// The claim of a task that has yet to take the hold.
    pub(super) fn pending(is_check_put_off: bool) -> Self {
        Self {
            stage: Stage::Unclaimed,
            is_check_put_off,
        }
    }

    /// A task has taken the hold.
    pub(super) fn begin(&mut self) {
        if self.stage == Stage::Unclaimed {
            self.stage = Stage::Claimed;
        }
    }
}
