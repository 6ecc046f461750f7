//! A place in the local queue of one lock, until it is one's turn.

use super::{LockRequest, Outcome, Party, ensure_open};
use crate::error::Result;
use crate::hold::handoff::HandoffRequest;
use crate::hold::head_watch;
use crate::hold::local::QueuePlace;
use crate::hold::protocol::Queue;
use crate::hold::silence::Over;

impl<'a> Party<'a> {
    /// Takes a place in the local queue, unless the lock queues at the server. Who wants several locks
    /// takes nothing over: it gets them together.
    pub(super) fn enter_line(self, at: usize) -> Option<QueuePlace<'a>> {
        let request: &LockRequest = &self.requests[at];
        if request.protocol.queue() == Queue::Server {
            return None;
        }
        let handoff = (self.requests.len() == 1).then(|| HandoffRequest {
            owner: request.options.owner.clone(),
            policy: request.policy,
            fenced: request.options.fenced,
            replication: request.options.replication,
            give_up: request.give_up(),
        });
        Some(self.locals[at].queue.push(request.mode, handoff))
    }

    /// Waits until it is at the head, unless the wait ends otherwise: then how. Who was passed over
    /// meanwhile is the next one.
    pub(super) async fn turn(self, at: usize, place: &QueuePlace<'_>) -> Result<Option<Outcome>> {
        if place.is_head() {
            return Ok(None);
        }
        let (request, local) = (&self.requests[at], &self.locals[at]);
        head_watch::watch_heads(&request.core, local);
        tokio::select! {
            biased;
            () = place.turn() => Ok(None),
            outcome = self.owner_gets_it(at) => Ok(Some(outcome?)),
            over = local.silence.over(request.core.clock, &self.bound) => match over {
                Over::NotInTime => Ok(Some(Outcome::refused(at, None))),
                Over::Silent(why) => Err(request.silent(why)),
            },
        }
    }

    /// Resolves when the owner who asks gets a lock through another of its tasks: then it enters at
    /// once, wherever it stands in the queue.
    async fn owner_gets_it(self, at: usize) -> Result<Outcome> {
        if self.requests[at].options.owner.is_none() {
            return std::future::pending().await;
        }
        loop {
            let (entered, closing) = (&self.locals[at].gained, &self.core().closing);
            let marks = (entered.mark(), closing.mark());
            ensure_open(&self.requests[at])?;
            if let Some(outcome) = self.owned(at).await? {
                return Ok(outcome);
            }
            tokio::select! {
                () = entered.past(marks.0) => {}
                () = closing.past(marks.1) => {}
            }
        }
    }
}
