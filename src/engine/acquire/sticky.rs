//! Takes a sticky hold that no guard of this client has, or ends it because a call needs something else.
//!
//! Invariant: a call that cannot use the sticky hold as it is asks the server behind the release of that hold.

use super::local::{handoff_request, take_over};
use super::request::{Outcome, Requests};
use crate::api::error::Result;
use crate::engine::counts::Mode;
use crate::engine::hold::protocol::Queue;

/// Takes the sticky hold if the call asks for exactly that. `None` means that the server has to be asked, and the
/// sticky hold is no longer in the way. Unless `is_next` is set, the waiters in the local queue come first.
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
