//! A place in the local queue of one lock, until it is one's turn.

use super::local::owned;
use super::request::{Outcome, Requests};
use crate::error::Result;
use crate::hold::handoff::HandoffRequest;
use crate::hold::head_watch;
use crate::hold::local::QueuePlace;
use crate::hold::protocol::Queue;
use crate::hold::silence::Over;

/// Takes a place in the local queue, unless the lock queues at the server. Who wants several locks takes
/// no hand-off: it gets them together.
pub(super) fn take_place<'a>(requests: Requests<'a>, at: usize) -> Option<QueuePlace<'a>> {
    let request = &requests.all[at];
    if request.protocol.queue() == Queue::Server {
        return None;
    }
    let handoff = (requests.all.len() == 1).then(|| HandoffRequest {
        owner: request.options.owner.clone(),
        policy: request.policy,
        fenced: request.options.fenced,
        replication: request.options.replication,
        give_up: request.give_up(),
    });
    Some(requests.locals[at].queue.push(request.mode, handoff))
}

/// Waits until it is at the head, unless the wait ends otherwise: then how. Who was passed over
/// meanwhile is the next one.
pub(super) async fn turn(
    requests: Requests<'_>,
    at: usize,
    place: &QueuePlace<'_>,
) -> Result<Option<Outcome>> {
    if place.is_head() {
        return Ok(None);
    }
    let (request, local) = (&requests.all[at], &requests.locals[at]);
    head_watch::watch_heads(&request.core, local);
    tokio::select! {
        biased;
        () = place.turn() => Ok(None),
        outcome = owner_gets_it(requests, at) => Ok(Some(outcome?)),
        over = local.silence.over(request.core.clock, &requests.bound) => match over {
            Over::NotInTime => Ok(Some(Outcome::refused(at, None))),
            Over::Silent(why) => Err(request.silent(why)),
        },
    }
}

/// Resolves when the owner who asks gets a lock through another of its tasks: then it enters at once,
/// wherever it stands in the queue.
async fn owner_gets_it(requests: Requests<'_>, at: usize) -> Result<Outcome> {
    let request = &requests.all[at];
    if request.options.owner.is_none() {
        return std::future::pending().await;
    }
    let (entered, closing) = (&requests.locals[at].gained, &requests.core().closing);
    loop {
        let marks = (entered.mark(), closing.mark());
        request.ensure_open()?;
        if let Some(outcome) = owned(requests, at).await? {
            return Ok(outcome);
        }
        tokio::select! {
            () = entered.past(marks.0) => {}
            () = closing.past(marks.1) => {}
        }
    }
}
