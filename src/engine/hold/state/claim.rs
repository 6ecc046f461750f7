//! Whether the task that a hold is for has taken it.
//!
//! Invariants: a hold that no task has taken is not renewed. A hold without a guard ends with its client.

/// The task that has a hold, and whether the watchdog takes it into account.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) stage: Stage,
    /// Whether the watchdog does not check the hold before its deadline, because it was unclaimed at the last check.
    pub(super) is_check_put_off: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It belongs to a call that has not returned, or was handed off to a task that has not taken it yet. Neither may
    /// ever be polled again, so no renewal is sent for it.
    Unclaimed,
    /// A task has taken it and has no guard yet, or it stays with its client.
    Claimed,
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
