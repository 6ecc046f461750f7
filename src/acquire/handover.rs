//! A lock that the server handed over to a waiter, without having been asked once more.
//!
//! Whoever frees a fair lock makes the next waiter the holder in the same script, and says so in one
//! message to it. Invariants:
//!
//! * the lease of the hold is counted from when the waiter last asked to be kept in the queue, never from
//!   when the message came;
//! * a message is used only if it names the lock and the very place that the last answer reported: a stale
//!   one does not, nor does one that was forged without reading the keys;
//! * no attempt is under way when a message is used, so nothing late can meet the hold.
//!
//! A message that is lost, late or not used costs a round trip: the next attempt finds the lock held.

use std::time::Duration;

use super::holders::Grant;
use super::request::Requests;
use crate::hold::grant_message::GrantMessage;
use crate::hold::local_deadline;

/// With less of the lease left than this it is better to ask, which gets a full one.
const REMAINING_MIN: Duration = Duration::from_millis(50);

/// The place of a waiter in the queue at the server, by the last answer about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerPlace {
    /// From when on a grant of the request that was answered would count.
    pub(super) poll: Grant,
    /// Until when it is kept, in ms of the server's clock.
    pub(super) until_ms: u64,
}

impl ServerPlace {
    /// The grant that this message reports, if it can be used.
    ///
    /// The lease was given when `message.lease` was left of a place that was asked for at `poll.sent` at the
    /// earliest. So it was given after that, and lasts from there for at least as long.
    pub(super) fn grant(&self, requests: Requests<'_>, message: &GrantMessage) -> Option<Grant> {
        let request = &requests.all[0];
        let end = local_deadline(self.poll.sent, message.lease);
        let is_usable = requests.accept_handover()
            && message.until_ms == self.until_ms
            && *message.key == **request.name.key()
            && request.core.clock.now().after(REMAINING_MIN) <= end
            && (message.token.is_some() || !request.options.fenced);
        is_usable.then_some(Grant {
            handover: Some(message.lease),
            spare_tokens: 0,
            ..self.poll
        })
    }
}
