//! A sticky hold that no guard of this client has is taken by its next task, or ended for the sake of another.
//!
//! Invariant: who wants something else than such a hold can be, asks the server behind its release.

use super::local::{handoff_request, take_over};
use super::request::{Outcome, Requests};
use crate::counts::Mode;
use crate::error::Result;
use crate::hold::protocol::Queue;

/// The sticky hold that is there, if that is all that is asked for. `None`: the server has to be
/// asked, and nothing of it is in the way any more. Unless `is_next`, those in the queue of the lock come first.
pub(super) async fn take_sticky(requests: Requests<'_>, is_next: bool) -> Result<Option<Outcome>> {
    if !requests.may_be_sticky() {
        return Ok(None);
    }
    let [request] = requests.all else {
        let locals = requests.all.iter().map(|request| &request.local);
        locals.for_each(|local| drop(local.sticky.take()));
        return Ok(None);
    };
    let local = &request.local;
    if !is_next && local.queue.is_wanted(Mode::Exclusive) {
        return Ok(None);
    }
    let Some(sticky) = local.sticky.take() else {
        return Ok(None);
    };
    if request.mode == Mode::Shared || request.protocol.queue() == Queue::Server {
        drop(sticky);
        return Ok(None);
    }
    let Some(handoff) = sticky.pass_on(&handoff_request(request)) else {
        return Ok(None);
    };
    let share = take_over(request, handoff, requests.bound).await?;
    Ok(share.map(Outcome::granted))
}
