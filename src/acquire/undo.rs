//! Undoing an attempt that nobody waits for any more.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::conn::{LATE_MAX, Lane};
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::script::{Call, on_first_poll};

/// Where nothing can make a late command impossible, an abandoned attempt is cancelled this often
/// in the time it may be late, so that an orphan lives for a fraction of it.
const CANCELS_WHILE_UNSETTLED: u32 = 8;

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
    /// Has the watchdog task undo it.
    pub(super) fn undo_later(mut self) {
        let leaving = Leaving::of(std::mem::take(&mut self.locals));
        let core = Arc::clone(&self.core);
        core.watchdog.later(self.undo(leaving).boxed());
    }

    async fn undo(self, leaving: Leaving) {
        let core = &self.core;
        let transport = &core.scripts.transport;
        let mut patience = core.patience(None).stubborn();
        patience.until = patience.until.max(core.clock.now().after(self.lease));
        let cancel = core.scripts.run(self.lane, &self.call, patience);
        // There is nobody to tell: what cannot be cancelled runs out with its lease.
        if self.lane == Lane::Command {
            let _ = on_first_poll(cancel, || drop(leaving)).await;
        } else {
            // What this client asks next goes another way, and might arrive first.
            let _ = cancel.await;
            drop(leaving);
        }
        let span = self.lease.min(LATE_MAX);
        for _ in 0..CANCELS_WHILE_UNSETTLED {
            let mark = core.closing.mark();
            // Nobody waits for the rest when the client is closed.
            if transport.past_is_settled(self.lane, self.call.route()) || core.is_closed() {
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(span / CANCELS_WHILE_UNSETTLED) => {}
                () = core.closing.past(mark) => break,
            }
            let _ = core.scripts.run(self.lane, &self.call, patience).await;
        }
    }
}

/// Counts as leaving these locks until dropped.
struct Leaving(Vec<Arc<LocalLock>>);

impl Leaving {
    fn of(locals: Vec<Arc<LocalLock>>) -> Self {
        for local in &locals {
            local.begin_leaving();
        }
        Self(locals)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        for local in &self.0 {
            local.end_leaving();
        }
    }
}
