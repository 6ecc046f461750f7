//! A hold whose last guard went before the time that its handle asks for: it is left at the server until
//! then.
//!
//! Invariants: the lease becomes what is left of that time, by the local clock and rounded up, with each
//! request anew, so that a repeat leaves it no longer than the first would have; only the holder's own lease
//! is touched; nobody renews it any more, and no guard of this client has it. The last that the server executes of
//! this hold is a request to leave it. It goes behind whatever sets counts, over the command lane, where what this
//! client asks next is behind it too; and if a renewal may be on its way, which would lengthen what is left,
//! once more behind that, when it is answered or given up. A process that dies before leaves the lock to the lease that
//! it had.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::event::Event;
use super::releasing::Releasing;
use super::shell::Hold;
use super::told::tell_release_failed;
use crate::conn::Lane;
use crate::counts::Counts;
use crate::error::Result;
use crate::lost::LostReason;
use crate::script::reply::Released;
use crate::script::{Answer, CallBudget, Executed, on_first_poll};

impl Hold {
    /// Whether it was to be left at the server when its last guard went, and the server is not known to have
    /// heard of it.
    pub(super) fn is_to_be_kept(&self) -> bool {
        let state = self.state();
        state.is_kept() && !state.is_settled()
    }

    /// Has the server keep it for the rest of its time, or free it if that is over meanwhile. Why it was lost
    /// before, if the server had no such hold.
    pub(super) async fn keep(
        self: &Arc<Self>,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Option<LostReason>> {
        // No other begins from now on: nobody holds it.
        let may_be_renewed_late = self.state().may_be_renewed_late();
        let (kept, answer) = self.ask_to_keep(Lane::Command, budget, operation).await?;
        let lost = self.kept(kept, &answer);
        if may_be_renewed_late && lost.is_none() {
            self.keep_behind_renewals();
        }
        Ok(lost)
    }

    /// The renewals that were begun before may have come behind the request, and are over a lane of their own: once
    /// no more of them is sent, it is sent again over that lane.
    fn keep_behind_renewals(self: &Arc<Self>) {
        let hold = Arc::clone(self);
        let work = async move {
            hold.renewals_ended().await;
            let core = &hold.core;
            let mut budget = core.call_budget(core.timing.linger).retrying_refusals();
            budget.deadline = budget.deadline.max(hold.state().server_end());
            let kept = hold.ask_to_keep(Lane::Renewal, budget, "release").await;
            if let Err(error) = kept {
                tell_release_failed(&[hold], &error);
            }
        };
        self.core.watchdog.drive(work.boxed());
    }

    /// Resolves when no renewal of it is to be sent any more, and none is waited for.
    async fn renewals_ended(&self) {
        loop {
            let mark = self.changed.mark();
            if !self.state().is_being_renewed() {
                return;
            }
            self.changed.past(mark).await;
        }
    }

    /// Asks until there is an answer, or no time is left.
    async fn ask_to_keep(
        &self,
        lane: Lane,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<(Released, Answer)> {
        // For another guard, that may have been dropped before the answer.
        let may_be_gone = self.may_be_released();
        let mut first_sent = None;
        loop {
            let now = self.core.clock.now();
            // One window for a reply: what is repeated in it is the same.
            let mut window = budget;
            window.deadline = budget.deadline.min(now.after(budget.reply_timeout));
            let remaining = self.state().kept_for(now);
            let publish = self.core.channels().publish();
            let holder = self.holder_ref(Counts::NONE);
            let call = match remaining {
                Some(lease) => {
                    let until = window.deadline;
                    self.apply(Event::LeaseSent { lease, until });
                    self.protocol.keep(&holder, lease, publish)
                }
                // It need not be there any more, if an earlier request was executed.
                None => self.protocol.release(&holder, Duration::ZERO, publish),
            };
            let run = pin!(self.core.scripts.run(lane, &call, window));
            let releasing = Releasing::of(std::iter::once(self));
            let on_its_way = || {
                self.apply(Event::CountsSent(Counts::NONE));
            };
            match on_first_poll(pin!(releasing.drive(run)), on_its_way).await {
                Ok(answer) => {
                    let released = self.protocol.released(&answer.value)?;
                    let repeated = answer.repeated || first_sent.is_some() || may_be_gone;
                    let answer = Answer {
                        repeated,
                        first_sent: first_sent.unwrap_or(answer.first_sent),
                        ..answer
                    };
                    return Ok((released, answer));
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
            // An earlier attempt got no reply, and what it left is over by now.
            Released::NotHeld if answer.repeated && was_in_time => {}
            Released::NotHeld if was_in_time => return Some(LostReason::Revoked),
            Released::NotHeld => return Some(LostReason::Expired),
        }
        self.apply(Event::CountsSettled(Counts::NONE));
        None
    }
}
