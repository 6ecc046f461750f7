//! Lets a reader join the hold of another reader of its client.
//!
//! Invariant: a waiting writer of this client comes before the readers that arrived after it.

use super::request::LockRequest;
use crate::engine::hold::Share;
use crate::engine::hold::local::QueuePlace;

/// Takes a share of the client's read hold, if that hold admits this reader. `place` is the reader's place in the local
/// queue, if it has one.
pub(super) fn join(request: &LockRequest, place: Option<&QueuePlace<'_>>) -> Option<Share> {
    let wanted = request.join_request()?;
    let local = &request.local;
    let is_writer_first = match place {
        Some(place) => place.is_behind_alone(),
        None => local.queue.has_alone(),
    };
    if is_writer_first {
        return None;
    }
    Share::joined(local, &wanted)
}
