//! What the watchdog renews: anything with a lease, which says itself what is due.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::holder::HolderId;
use crate::engine::clock::Tick;
use crate::script::Script;

/// Something with a lease that has to be renewed until it is given up.
pub(crate) trait Leased: Send + Sync {
    /// It is in doubt whether the server still has it: until that is answered, it is due at once.
    fn doubt(&self, now: Tick);
    /// The clock has jumped: whoever sleeps until a time has to check it again.
    fn wake(&self);
    /// What to do with it now.
    fn due(self: Arc<Self>, now: Tick) -> Due;
    /// The server confirmed a lease of `lease`, counted from `sent`.
    fn renewed(&self, sent: Tick, lease: Duration);
    /// A renewal got no answer, or none about this hold.
    fn renewal_failed(&self);
    /// When it has to be checked next. Called under the lock of the schedule, as [`Leased::due`] is: what
    /// happens to it from then on moves its entry again.
    fn next_check(&self) -> Tick;
    /// The server says that this holder does not hold it.
    fn revoked(&self);
    /// The local deadline has passed.
    fn expired(&self);
    /// Somebody waits for it.
    fn wanted(self: Arc<Self>) {}
}

impl fmt::Debug for dyn Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leased")
    }
}

#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing before then.
    Later(Tick),
    /// Renew it; at `deadline` it is lost, or has something else to do. The reply is worth waiting for `wait`.
    Renew {
        request: RenewalRequest,
        deadline: Tick,
        wait: Duration,
    },
    /// Its deadline has passed.
    Expired,
    /// It was given up.
    Gone,
}

/// What one hold adds to a renewal script.
#[derive(Debug)]
pub(crate) struct RenewalRequest {
    /// Renews any number of holds of this kind: keys, and for each a holder and a lease.
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: HolderId,
    pub(crate) lease: Duration,
}
