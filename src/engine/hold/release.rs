//! The commands that end a hold at its server, or downgrade it. Plain commands are used where they suffice.
//!
//! Invariants: each command may be executed twice. An operation that others may wait for is driven by the client, not
//! by a caller's future.
//!
//! A hold whose last share ends before the time that a guard asked for is left at the server until then. One command
//! moves it to a new holder id that is used for nothing else, so a late renewal, re-entry or release of the hold cannot
//! find it. Its lease becomes the rest of that time by the local clock, rounded up. A repeated command finds that the
//! hold was moved, and changes nothing. If the process dies before that, the lock keeps the lease that it had.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Cmd;

use super::effects::ServerChange;
use super::loss::SharedHold;
use super::share_lease::ShareLease;
use super::shell::Hold;
use super::state::HoldState;
use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::script::{Call, CallBudget, catalog};

/// Releases these holds on one server by one script.
pub(super) fn release_all_call(holds: &[Arc<Hold>]) -> Call {
    let publish = holds[0].core.channels().publish();
    let ids: Few<HolderId> = holds.iter().map(|hold| hold.holder()).collect();
    let each = holds.iter().zip(&ids);
    let each = each.map(|(hold, id)| hold.protocol.release_as_member(&hold.holder_ref(id)));
    Call::of_parts(&catalog::MULTI_RELEASE, &[publish], each)
}

/// An operation that changes a hold at the server. Dropping this ends the operation.
pub(super) struct Operation<'a>(&'a Hold);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.end_operation();
    }
}

impl Hold {
    /// Begins a release. False if the hold needs no release at the server, or while another operation is under way.
    pub(super) fn begin_release(&self, now: Tick) -> bool {
        let mut state = self.state();
        state.needed_change(now) == ServerChange::Release && state.begin_change()
    }

    /// Ends the operation that is under way.
    pub(super) fn end_operation(&self) {
        self.state().end_change();
        self.changed.notify();
    }

    /// Begins an operation, after the end of any operation that is under way.
    pub(super) async fn one_at_a_time(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Operation<'_>> {
        loop {
            let mark = self.changed.mark();
            if self.state().begin_change() {
                return Ok(Operation(self));
            }
            tokio::select! {
                biased;
                () = self.changed.changed_since(mark) => {}
                () = self.core.clock.sleep_until(budget.deadline) => {
                    let message = "an earlier operation on this hold has no answer yet; check that \
                                   the server is up and reachable";
                    return Err(Error::new(Kind::Io, operation, message).of_lock(self.name()));
                }
            }
        }
    }

    /// The command that notifies waiters after a plain command released the whole hold. `None` if a release needs a
    /// script.
    fn tell_plain(&self) -> Option<Arc<Cmd>> {
        let tell = || {
            let publish = self.core.channels().publish();
            self.protocol.tell_plain(&self.name, publish)
        };
        self.local.tell.get_or_init(|| tell().map(Arc::new)).clone()
    }

    /// Releases the whole hold, by plain commands if they suffice.
    pub(super) fn release_call(&self) -> Call {
        if let Some(tell) = self.tell_plain() {
            return Call::release_plain(self.name.key(), &self.holder(), tell);
        }
        self.release_by_script(&self.state())
    }

    /// Releases the whole hold with its used places, by a script.
    pub(super) fn release_by_script(&self, state: &HoldState) -> Call {
        let (id, fenced) = (self.holder(), state.token().is_some());
        let holder = self.core.holder_ref(&self.name, &id, fenced);
        self.protocol.release(&holder, state.places())
    }

    /// The request that makes this change. `None` if there is nothing to ask for.
    pub(super) fn call_for(&self, change: ServerChange) -> Option<Call> {
        let id = self.holder();
        match change {
            ServerChange::Nothing => None,
            ServerChange::Release => Some(self.release_call()),
            ServerChange::Downgrade => {
                // The hold keeps the lease that it has.
                let remaining = self.remaining_of(ShareLease::fixed(Tick::NEVER));
                let lease = remaining.max(Duration::from_millis(1));
                Some(self.protocol.downgrade(&self.holder_ref(&id), lease))
            }
            ServerChange::Keep(remaining) => {
                let kept_as = self.kept_as();
                let holder = self.holder_ref(&id);
                Some(self.protocol.keep(&holder, &kept_as, remaining))
            }
        }
    }

    /// The holder id under which the hold is kept: the same one for all repeats.
    fn kept_as(&self) -> HolderId {
        // No race: one operation at a time changes the hold.
        let mut number = self.kept_number.load(Ordering::Relaxed);
        if number == 0 {
            number = self.core.new_holder().0;
            self.kept_number.store(number, Ordering::Relaxed);
        }
        HolderId::new(self.core.id(), number)
    }
}
