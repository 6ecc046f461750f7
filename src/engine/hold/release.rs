//! The commands that end a hold at its server, or downgrade it, and what is known of those that have no answer. Plain
//! commands are used where they suffice.
//!
//! Invariants: each may be executed twice. An operation that others may wait for is driven by the client, not by a
//! caller's future. A request that no connection took, or that was refused as a whole, has released nothing; only for
//! the undoing by a client that is being shut down, it is not known whether it was sent. A later release, perhaps for
//! another guard of the hold, may find no hold after one without an answer, and that is not a loss.
//!
//! A hold whose last share ends before the time that a guard asked for is left at the server until then. One command
//! moves it to a new holder id that is used for nothing else, so a late renewal, re-entry or release of the hold cannot
//! find it. Its lease becomes the rest of the time by the local clock, rounded up. A repeated command finds that it was
//! moved and changes nothing. If the process dies earlier, the lock keeps the lease that it had.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::event::Event;
use super::registry::SharedHold;
use super::share_lease::ShareLease;
use super::shell::Hold;
use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::conn::Lane;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Counts;
use crate::engine::hint::Operation;
use crate::script::reply::{self, Released};
use crate::script::{Answer, Call, CallBudget, Executed, catalog, on_first_poll};

/// Releases these holds: at least one, all on one server.
pub(super) fn release_call<'a>(holds: impl Iterator<Item = &'a Hold>) -> Call {
    let holds: Few<&Hold> = holds.collect();
    if let [hold] = holds[..] {
        return match hold.tell_plain() {
            Some(tell) => Call::release_plain(hold.name.key(), &hold.holder, tell),
            None => hold.release_script(),
        };
    }
    let first = holds[0];
    if !first.core.scripts.transport.splits_slots() {
        let each = holds.iter();
        let each = each.map(|hold| Some((hold.name.key(), &hold.holder, hold.tell_plain()?)));
        if let Some(all) = each.collect::<Option<Vec<_>>>() {
            return Call::release_all_plain(all.into_iter());
        }
    }
    let members = holds.iter();
    let members = members.map(|hold| hold.protocol.release_as_member(&hold.holder_ref()));
    Call::of_parts(&catalog::MULTI_RELEASE, &[first.publish()], members)
}

/// Notes that a request that was sent then may have released these holds.
pub(super) fn note_maybe_released<'a>(holds: impl Iterator<Item = &'a Hold>, sent: Tick) {
    for hold in holds {
        hold.apply(Event::MayBeReleased { sent });
    }
}

impl Hold {
    /// Begins an operation. `None` while another is under way.
    pub(super) fn begin_operation(&self) -> Option<Operation<'_>> {
        self.operations.begin()
    }

    /// Waits for the operations that began before.
    pub(super) async fn one_at_a_time(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Operation<'_>> {
        loop {
            if let Some(begun) = self.begin_operation() {
                return Ok(begun);
            }
            tokio::select! {
                biased;
                () = self.operations.ended() => {}
                () = self.core.clock.sleep_until(budget.deadline) => {
                    let message = "an earlier operation on this hold has no answer yet; check that \
                                   the server is up and reachable";
                    return Err(Error::new(Kind::Io, operation, message).of_lock(self.name()));
                }
            }
        }
    }

    /// Makes the client drive an operation on this hold to its end. The caller only waits for the outcome, so a
    /// future that is not polled delays no other.
    pub(super) fn driven<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> {
        // Handed over before the caller waits, so that its future stays small.
        let finished = self.core.watchdog.finish(work);
        async move {
            finished.await.unwrap_or_else(|| {
                let error = Error::orphaned(operation).of_lock(self.name());
                Err(error.at(self.core.scripts.transport.address()))
            })
        }
    }

    fn publish(&self) -> &'static str {
        self.core.channels().publish()
    }

    /// The command that notifies waiters after a plain command released the whole hold, if a release needs no more.
    fn tell_plain(&self) -> Option<Arc<Cmd>> {
        let tell = || self.protocol.tell_plain(&self.name, self.publish());
        self.local.tell.get_or_init(|| tell().map(Arc::new)).clone()
    }

    /// Releases the whole hold by a script.
    pub(super) fn release_script(&self) -> Call {
        let unguarded = self.unguarded(&self.state());
        self.core.release_call(&unguarded)
    }

    /// Turns this write hold into a read hold with the lease that it has.
    pub(super) fn downgrade_call(&self) -> Call {
        let remaining = self.remaining_of(ShareLease::Until(Tick::NEVER));
        let lease = remaining.max(Duration::from_millis(1));
        let holder = self.holder_ref();
        self.protocol.downgrade(&holder, lease, self.publish())
    }

    /// Whether the hold has to be kept at the server after its last share, and the server has not confirmed that.
    pub(super) fn is_to_be_kept(&self) -> bool {
        let state = self.state();
        state.is_kept() && !state.is_settled()
    }

    /// The call that keeps the hold for this long, under one holder id for all repeats.
    fn keep_call(&self, remaining: Duration) -> Call {
        let number = self.kept_number.get_or_init(|| self.core.new_holder().0);
        let kept_as = HolderId::new(self.core.id(), *number);
        let publish = self.core.channels().publish();
        let holder = self.holder_ref();
        self.protocol.keep(&holder, &kept_as, remaining, publish)
    }

    /// Ends a lost hold at the server. If its shares ended by themselves, their tasks know that, and other holders
    /// need not wait for the lease: the hold is kept for the time that a released guard asked for, or else released.
    pub(super) fn end_at_server(&self, reason: LostReason) {
        let (core, lane) = (&self.core, Lane::Command);
        let (remaining, unguarded) = {
            let state = self.state();
            (state.kept_for(core.clock.now()), self.unguarded(&state))
        };
        match remaining {
            Some(remaining) => {
                core.undo_later(self.keep_call(remaining), lane, unguarded.lease, None);
            }
            None if reason == LostReason::MaxHold => core.undo_unguarded(&unguarded, lane),
            None => {}
        }
    }

    /// Has the server keep the hold for the rest of its time, or release it if that time ends first. Repeats until
    /// there is an answer or the budget ends. If the server no longer had the hold, returns why it was lost.
    pub(super) async fn keep(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Option<LostReason>> {
        loop {
            let now = self.core.clock.now();
            // One window for a reply: repeats within it have equal arguments.
            let mut window = budget;
            window.deadline = budget.deadline.min(now.after(budget.reply_timeout));
            let remaining = self.state().kept_for(now);
            let call = match remaining {
                Some(remaining) => self.keep_call(remaining),
                // The hold may be gone, if an earlier request was executed.
                None => self.release_script(),
            };
            let run = pin!(self.core.scripts.run_at(now, Lane::Command, &call, window));
            let on_its_way = || {
                self.apply(Event::CountsSent(Counts::NONE));
            };
            let in_doubt = || note_maybe_released(std::iter::once(self), now);
            let failure = match on_first_poll(run, on_its_way).await {
                Ok(answer) => {
                    let kept = reply::released(&answer.value).inspect_err(|_| in_doubt())?;
                    return Ok(self.kept(kept, &answer));
                }
                Err(failure) => failure,
            };
            if failure.executed == Executed::Maybe {
                in_doubt();
            }
            if budget.ends_with(&failure) || self.core.clock.now() >= budget.deadline {
                return Err(failure.into_error(operation).of_lock(self.name()));
            }
        }
    }

    fn kept(&self, kept: Released, answer: &Answer) -> Option<LostReason> {
        // Another guard's release may have been executed.
        let maybe = self.state().maybe_released();
        let first_sent = maybe.unwrap_or(answer.first_sent).min(answer.first_sent);
        let was_in_time = first_sent < self.deadline();
        match kept {
            Released::Done { .. } => {}
            // An earlier request without a reply was executed, and the time that it set is over.
            Released::NotHeld if (answer.repeated || maybe.is_some()) && was_in_time => {}
            Released::NotHeld if was_in_time => return Some(LostReason::Revoked),
            Released::NotHeld => return Some(LostReason::Expired),
        }
        self.apply(Event::CountsSettled(Counts::NONE));
        None
    }
}
