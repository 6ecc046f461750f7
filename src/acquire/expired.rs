//! Grants whose lease was over when they could be handed out.
//!
//! A guard of one would be lost already. So it is given back, and asked for again: the network or this
//! process may have stood still for a moment. If that happens several times, the lease is too short for
//! the way to the server, and the call fails. Invariant: nobody is handed a lock that is lost by then.

use super::request::LockRequest;
use crate::error::{Error, Kind, Result};
use crate::hold::Share;
use crate::lost::LostReason;

/// So many in one call are no accident.
const EXPIRED_MAX: u32 = 3;

/// How many there were in one call.
#[derive(Debug, Default)]
pub(crate) struct ExpiredGrants(u32);

impl ExpiredGrants {
    /// Whether one of these is lost by now, so that all have to be asked for again.
    ///
    /// # Errors
    /// If the lease is too short.
    pub(crate) fn must_retry<'a>(
        &mut self,
        granted: impl IntoIterator<Item = (&'a LockRequest, &'a Share)>,
    ) -> Result<bool> {
        let lost = granted
            .into_iter()
            .find_map(|(request, share)| Some((request, share, share.loss()?)));
        let Some((request, share, reason)) = lost else {
            return Ok(false);
        };
        self.0 += u32::from(reason == LostReason::Expired);
        if self.0 < EXPIRED_MAX {
            return Ok(true);
        }
        let lease = request.policy.lease();
        let message = format!(
            "granted {EXPIRED_MAX} times, but its lease of {lease:?} was over each time before it could be \
             handed out, the last time {:.0?} after the request; use a lease several times as long as the \
             server takes to answer",
            share.age()
        );
        Err(Error::new(Kind::Io, request.operation, message).of_lock(request.name.as_str()))
    }
}
