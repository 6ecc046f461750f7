//! A reader joins what another reader of its client has.
//!
//! Invariant: a writer of this client that waits comes before the readers that came after it.

use super::request::LockRequest;
use crate::hold::Share;
use crate::hold::local::QueuePlace;

/// A share of the read hold that is there, if it takes this reader; by its place in the queue, or without one.
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
