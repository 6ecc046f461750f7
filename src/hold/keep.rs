//! A hold whose last guard went before the time that its handle asks for: it is left at the server until
//! then.
//!
//! Invariants: the lease becomes what is left of that time, by the local clock and rounded up, with each
//! request anew, so that a repeat leaves it no longer than the first would have; only the holder's own lease
//! is touched; nobody renews it any more, and no guard of this client has it. Its request goes behind the renewals
//! that are on their way, which would lengthen what it leaves. A process that dies before leaves the lock to the
//! lease that it had.

use std::pin::pin;
use std::time::Duration;

use super::event::Event;
use super::shell::Hold;
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
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<Option<LostReason>> {
        let mut first_sent = None;
        loop {
            let now = self.core.clock.now();
            let remaining = self.state().kept_for(now);
            let publish = self.core.channels().publish();
            let holder = self.holder_ref(Counts::NONE);
            let (lane, call) = match remaining {
                Some(lease) => {
                    self.apply(Event::RenewalSent { lease });
                    let call = self.protocol.keep(&holder, lease, publish);
                    // What may be on its way on the other lane would lengthen the lease as well.
                    if self.state().may_be_set_late() {
                        (Lane::Command, call)
                    } else {
                        (Lane::Renewal, call)
                    }
                }
                // It need not be there any more, if an earlier request was executed.
                None => {
                    let call = self.protocol.release(&holder, Duration::ZERO, publish);
                    (Lane::Command, call)
                }
            };
            // One window for a reply: what is repeated in it is the same.
            let mut window = budget;
            window.deadline = budget.deadline.min(now.after(budget.reply_timeout));
            let run = self.core.scripts.run(lane, &call, window);
            let on_its_way = || {
                self.apply(Event::CountsSent(Counts::NONE));
            };
            match on_first_poll(pin!(run), on_its_way).await {
                Ok(answer) => {
                    let kept = self.protocol.released(&answer.value)?;
                    let is_repeated = answer.repeated || first_sent.is_some();
                    let first_sent = first_sent.unwrap_or(answer.first_sent);
                    let answer = Answer {
                        repeated: is_repeated,
                        first_sent,
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
            // An earlier attempt got no reply, and what it left is over by now.
            Released::NotHeld if answer.repeated && was_in_time => {}
            Released::NotHeld if was_in_time => return Some(LostReason::Revoked),
            Released::NotHeld => return Some(LostReason::Expired),
        }
        self.apply(Event::CountsSettled(Counts::NONE));
        None
    }
}
