//! Accepts a lock that the server handed over to a waiter without another attempt.
//!
//! The script that frees a fair lock makes the next waiter its holder, and notifies it with one message. Invariants:
//!
//! - the lease of the hold counts from the waiter's last request to keep its place, never from the arrival of the
//!   message;
//! - a message is used only if it names the lock and exactly the place in the last answer. A stale message does not,
//!   nor does a message forged without access to the keys;
//! - no attempt is under way when a message is used, so no late command can meet the hold.
//!
//! A lost, late or unused message costs one round trip: the next attempt finds that the waiter holds the lock.

use super::holders::Grant;
use super::request::Requests;
use crate::engine::hold::grant_message::GrantMessage;
use crate::engine::hold::local_deadline;

/// The place of a waiter in the server's queue, from the last answer about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerPlace {
    /// When the lease would start if the answered request had been granted.
    pub(super) poll: Grant,
    /// When the place expires, in ms of the server's clock.
    pub(super) until_ms: u64,
}

impl ServerPlace {
    /// The grant that this message reports, if it can be used.
    ///
    /// The script granted a lease as long as the rest of the place, `message.lease`. The place was asked for at
    /// `poll.sent`, and the lease was granted later. So the lease lasts at least until `poll.sent` plus
    /// `message.lease`.
    pub(super) fn grant(&self, requests: Requests<'_>, message: &GrantMessage) -> Option<Grant> {
        let request = &requests.all[0];
        // If less of the lease is left, the waiter asks instead, which gives it a full lease.
        let remaining_min = request.core.timing.heartbeat / 6;
        let end = local_deadline(self.poll.sent, message.lease);
        let is_usable = requests.accept_handover()
            && message.until_ms == self.until_ms
            && *message.key == **request.name.key()
            && request.core.clock.now().after(remaining_min) <= end
            && (message.token.is_some() || !request.options.fenced);
        is_usable.then_some(Grant {
            handover: Some(message.lease),
            spare_tokens: 0,
            ..self.poll
        })
    }
}
