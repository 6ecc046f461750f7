//! Undoing an attempt that nobody waits for any more.

use std::sync::Arc;
use std::time::Duration;

use crate::conn::Lane;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::undos::{Leaving, Undo};
use crate::script::Call;

/// An attempt whose outcome is not known, or a place in a queue.
pub(super) struct Abandoned {
    pub(super) core: Arc<Core>,
    pub(super) locals: Vec<Arc<LocalLock>>,
    /// What gives up whatever the candidate may have.
    pub(super) call: Call,
    pub(super) lease: Duration,
    /// The lane of the attempt. The cancellation takes the same, so that it cannot overtake it.
    pub(super) lane: Lane,
}

impl Abandoned {
    /// Has it undone in the background, for as long as that takes.
    pub(super) fn undo_later(self) {
        let core = &self.core;
        let worth = core.clock.now().after(self.lease);
        let until = core.patience(None).until.max(worth);
        let leaving = Leaving::of(self.locals);
        core.undo_later(Undo::new(
            self.call,
            self.lane,
            self.lease,
            until,
            Some(leaving),
        ));
    }
}
