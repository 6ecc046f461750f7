//! Handles grants whose lease ends before they can be handed out.
//!
//! A guard of such a grant would be lost from the start. So the client releases the grant and asks again: the network
//! or the process may have paused for a moment. After several such grants the lease is too short for the way to the
//! server, and the call fails. Invariant: no caller receives a lock that is already known to be lost.

use super::request::LockRequest;
use crate::api::error::{Error, Kind, Result};
use crate::api::lost::LostReason;
use crate::engine::hold::Share;

/// This number of expired grants in one call is no accident.
const EXPIRED_MAX: u32 = 3;

/// The number of expired grants in one call.
#[derive(Debug, Default)]
pub(crate) struct ExpiredGrants(u32);

impl ExpiredGrants {
    /// Whether one of these shares is lost already, so that the call has to ask for all locks again.
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
