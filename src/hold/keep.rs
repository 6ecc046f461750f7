//! A hold whose last share ends before the time that a guard asked for: it is left at the server until then.
//!
//! Invariants: one command moves it to a holder id of its own, which is used for nothing else, so no renewal, entry or
//! release of the hold that arrives late finds it; the lease becomes what is left of the time, by the local clock and
//! rounded up. A repeat finds it moved and changes nothing. A process that dies before leaves the lock to the lease
//! that it had.

use std::pin::pin;
use std::time::Duration;

use super::event::Event;
use super::releasing::Releasing;
use super::shell::Hold;
use super::undo::Undo;
use crate::conn::Lane;
use crate::counts::Counts;
use crate::error::Result;
use crate::holder::HolderId;
use crate::lost::LostReason;
use crate::script::reply::Released;
use crate::script::{Answer, Call, CallBudget, Executed, on_first_poll};

impl Hold {
    /// Whether it was to be left at the server when its last share ended, and the server is not known to have
    /// heard of it.
    pub(super) fn is_to_be_kept(&self) -> bool {
        let state = self.state();
        state.is_kept() && !state.is_settled()
    }

    /// Leaves it for this long, under the same holder id each time.
    fn keep_call(&self, remaining: Duration) -> Call {
        let number = self.kept_number.get_or_init(|| self.core.new_holder().0);
        let kept_as = HolderId::new(self.core.id(), *number);
        let publish = self.core.channels().publish();
        let holder = self.holder_ref(Counts::NONE);
        self.protocol.keep(&holder, &kept_as, remaining, publish)
    }

    /// Ends a lost hold at the server. If its shares ended by themselves, their tasks know, and others need not wait for
    /// the lease: the hold is left for the time that a released guard asked for, or is released.
    pub(super) fn end_at_server(&self, reason: LostReason) {
        let core = &self.core;
        let now = core.clock.now();
        let (remaining, unguarded) = {
            let state = self.state();
            (state.kept_for(now), self.unguarded(&state))
        };
        match remaining {
            Some(remaining) => {
                let call = self.keep_call(remaining);
                let until = now.after(core.timing.linger.max(unguarded.lease));
                core.undo_later(Undo::new(call, Lane::Command, unguarded.lease, until, None));
            }
            None if reason == LostReason::MaxHold => {
                core.undo_unguarded(&unguarded, Lane::Command);
            }
            None => {}
        }
    }

    /// Has the server keep it for the rest of its time, or free it if that time ends first. Asks until there is an
    /// answer, or no time is left. Returns why it was lost before, if the server had no such hold.
    pub(super) async fn keep(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Option<LostReason>> {
        // For another guard, that may have been dropped before the answer.
        let may_be_gone = self.may_be_released();
        let mut first_sent = None;
        loop {
            let now = self.core.clock.now();
            // One window for a reply: what is repeated in it has the same arguments.
            let mut window = budget;
            window.deadline = budget.deadline.min(now.after(budget.reply_timeout));
            let remaining = self.state().kept_for(now);
            let call = match remaining {
                Some(remaining) => self.keep_call(remaining),
                // It need not be there any more, if an earlier request was executed.
                None => {
                    let publish = self.core.channels().publish();
                    let holder = self.holder_ref(Counts::NONE);
                    self.protocol.release(&holder, Duration::ZERO, publish)
                }
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
            // An earlier attempt got no reply, and what it left has ended.
            Released::NotHeld if answer.repeated && was_in_time => {}
            Released::NotHeld if was_in_time => return Some(LostReason::Revoked),
            Released::NotHeld => return Some(LostReason::Expired),
        }
        self.apply(Event::CountsSettled(Counts::NONE));
        None
    }
}
