//! The spans of time that a client works with.

use std::time::Duration;

use crate::options::TOKEN_RETENTION;
use crate::script::millis;

/// The spans of time the engine works with, all but one derived from the client's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The lease of a hold unless its handle says otherwise.
    pub(crate) lease: Duration,
    /// No reply within this is taken as a broken connection.
    pub(crate) reply: Duration,
    /// A call that gets no answer goes on for this long, unless its handle says otherwise.
    pub(crate) give_up: Duration,
    /// What nobody waits for goes on for this long, if it is worth it no longer.
    pub(crate) linger: Duration,
    /// A waiter asks at least this often, message or no message.
    pub(crate) poll_cap: Duration,
    /// A waiter that has not asked for this long has lost its place at the server. At most 3 s:
    /// scripts take what lies further ahead for a clock that was set back.
    pub(crate) heartbeat: Duration,
    /// The counter of fencing tokens is kept for so many ms after a grant; 0: for ever.
    pub(crate) token_retention: u64,
}

impl Timing {
    pub(crate) fn of_lease(lease: Duration) -> Self {
        let reply = (lease / 6).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let poll_cap = (lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1));
        // Time for an answer on each of two lanes, and for one on a new connection if both were cut off.
        let linger = (lease / 3).max(reply * 3);
        Self {
            lease,
            reply,
            give_up: linger,
            linger,
            poll_cap,
            heartbeat: (poll_cap * 3).max(Duration::from_secs(1)),
            token_retention: millis(TOKEN_RETENTION),
        }
    }
}
