//! Undoing an attempt that nobody waits for any more; known to the client before it is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::attempt::Attempt;
use crate::conn::Lane;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::undo::{PendingRelease, Undo};
use crate::hold::unguarded::Unguarded;
use crate::script::Call;

/// An attempt whose outcome is not known, or a place in a queue.
pub(super) struct Abandoned {
    pub(super) core: Arc<Core>,
    pub(super) locals: Vec<Arc<LocalLock>>,
    /// What gives up whatever the attempt may have.
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
        let until = core.clock.now().after(core.timing.linger).max(worth);
        let release = PendingRelease::of(self.locals);
        core.undo_later(Undo::new(
            self.call,
            self.lane,
            self.lease,
            until,
            Some(release),
        ));
    }
}

impl Attempt<'_> {
    /// From here on the server may have it.
    pub(super) fn loosen(&mut self) {
        if std::mem::replace(&mut self.is_loose, true) {
            return;
        }
        for (request, (number, holder)) in self.party.requests.iter().zip(&self.holders) {
            let unguarded = Unguarded {
                protocol: request.protocol,
                name: request.name.clone(),
                holder: Arc::clone(holder),
                fenced: request.options.fenced,
                lease: request.policy.lease(),
            };
            request.core.note_unguarded(*number, unguarded);
        }
    }

    pub(super) fn fasten(&mut self) {
        if std::mem::take(&mut self.is_loose) {
            for (number, _) in &self.holders {
                self.party.core().settle_unguarded(*number);
            }
        }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // What waits for a connection to this day is not executed by anybody.
        let unanswered = self.unanswered;
        let unanswered = unanswered.filter(|_| self.has_left.load(Ordering::Relaxed));
        if unanswered.is_none() && self.queued_at.is_none() {
            self.fasten();
            return;
        }
        let leases = self
            .party
            .requests
            .iter()
            .map(|request| request.policy.lease());
        Abandoned {
            core: Arc::clone(&self.party.requests[0].core),
            locals: self.party.locals.to_vec(),
            call: self.release(),
            lease: leases.max().unwrap_or_default(),
            lane: unanswered.unwrap_or(Lane::Command),
        }
        .undo_later();
        self.fasten();
    }
}
