//! The spans of time that a client works with.

use std::time::Duration;

use crate::api::options::TOKEN_RETENTION;
use crate::script::millis;

/// How long a call that asks once waits for an answer at most, unless its client or handle says otherwise: time for one
/// reply, and for another over a new connection.
const AT_ONCE: Duration = Duration::from_secs(2);

/// The spans of time the engine works with, all but one derived from the client's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The lease of a hold, unless its handle sets another.
    pub(crate) lease: Duration,
    /// A connection without a reply for this long counts as broken.
    pub(crate) reply: Duration,
    /// A call without an answer ends after this time, unless its handle sets another.
    pub(crate) give_up: Duration,
    /// A call that asks once ends after this time without an answer, unless its handle sets another.
    pub(crate) give_up_at_once: Duration,
    /// Background work without an answer ends after this time, once its result no longer matters.
    pub(crate) linger: Duration,
    /// A waiter makes an attempt at least this often, with or without a notification.
    pub(crate) poll_cap: Duration,
    /// A waiter that makes no attempt for this long loses its place at the server. At most 3 s: if a place is kept
    /// for longer than that, the scripts conclude that the clock was set back.
    pub(crate) heartbeat: Duration,
    /// How long the counter of fencing tokens is kept after a grant, in ms; 0 keeps it for ever.
    pub(crate) token_retention: u64,
}

impl Timing {
    pub(crate) fn of_lease(lease: Duration) -> Self {
        let reply = (lease / 6).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let poll_cap = (lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1));
        // Time for an answer on each of two lanes, and for another on a new connection if both were cut off.
        let linger = (lease / 3).max(reply * 3);
        Self {
            lease,
            reply,
            give_up: linger,
            give_up_at_once: linger.min(AT_ONCE),
            linger,
            poll_cap,
            heartbeat: (poll_cap * 3).max(Duration::from_secs(1)),
            token_retention: millis(TOKEN_RETENTION),
        }
    }
}
