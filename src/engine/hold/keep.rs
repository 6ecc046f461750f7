//! Keeping a hold whose last share ends before the time that a guard asked for: it is left at the server until then.
//!
//! Invariants: one command moves it to a new holder id that is used for nothing else, so a late renewal, re-entry or
//! release of the hold cannot find it. Its lease becomes the rest of the time by the local clock, rounded up. A
//! repeated command finds that it was moved and changes nothing. If the process dies earlier, the lock keeps the
//! lease that it had.

use std::pin::pin;
use std::time::Duration;

use super::event::Event;
use super::releasing::Releasing;
use super::shell::Hold;
use crate::api::error::Result;
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::conn::Lane;
use crate::engine::counts::Counts;
use crate::script::reply::Released;
use crate::script::{Answer, Call, CallBudget, Executed, on_first_poll};

impl Hold {
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
        // Another guard's release may have been executed, if its future was dropped before the answer.
        let may_be_gone = self.may_be_released();
        let mut first_sent = None;
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
            let run = pin!(self.core.scripts.run(Lane::Command, &call, window));
            let releasing = Releasing::of(std::iter::once(self));
            let on_its_way = || {
                self.apply(Event::CountsSent(Counts::NONE));
            };
            match on_first_poll(pin!(releasing.drive(run)), on_its_way).await {
                Ok(answer) => {
                    let kept = self.protocol.released(&answer.value)?;
                    let repeated = answer.repeated || first_sent.is_some() || may_be_gone;
                    let answer = Answer {
                        repeated,
                        first_sent: first_sent.unwrap_or(answer.first_sent),
                        ..answer
                    };
                    return Ok(self.kept(kept, &answer));
                }
                Err(failure)
                    if budget.ends_with(&failure) || self.core.clock.now() >= budget.deadline =>
                {
                    return Err(failure.into_error(operation).of_lock(self.name()));
                }
                Err(failure) if failure.executed == Executed::Maybe => {
                    first_sent.get_or_insert(now);
                }
                Err(_) => {}
            }
        }
    }

    fn kept(&self, kept: Released, answer: &Answer) -> Option<LostReason> {
        let was_in_time = answer.first_sent < self.deadline();
        match kept {
            Released::Done { .. } => {}
            // An earlier request without a reply was executed, and the time that it set is over.
            Released::NotHeld if answer.repeated && was_in_time => {}
            Released::NotHeld if was_in_time => return Some(LostReason::Revoked),
            Released::NotHeld => return Some(LostReason::Expired),
        }
        self.apply(Event::CountsSettled(Counts::NONE));
        None
    }
}
