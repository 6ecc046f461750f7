//! The trait of everything that the watchdog renews: it has a lease, and knows its own next step.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::holder::HolderId;
use crate::engine::clock::Tick;
use crate::engine::keys::LockName;
use crate::script::Script;

/// A value with a lease that is renewed until its end.
pub(crate) trait Leased: Send + Sync {
    /// Records that the server may no longer have the hold. Until the server answers, a renewal is due at once.
    fn doubt(&self, now: Tick);
    /// Wakes all tasks that sleep until a deadline of this hold, because the clock has jumped.
    fn wake(&self);
    /// The next step at `now`.
    fn due(self: Arc<Self>, now: Tick) -> Due;
    /// The name of its lock.
    fn lock(&self) -> &LockName;
    /// The server confirmed a lease of `lease`, which counts from `sent`.
    fn renewed(&self, sent: Tick, lease: Duration);
    /// When the hold's lease ends by the local clock.
    fn deadline(&self) -> Tick;
    /// When the hold has to be checked next. Like [`Leased::due`], called while the schedule is locked: a later change
    /// of the hold moves its entry again.
    fn next_check(&self) -> Tick;
    /// The server no longer has the hold under this holder.
    fn revoked(&self);
    /// The local deadline has passed.
    fn expired(&self);
    /// A waiter wants the lock.
    fn wanted(self: Arc<Self>) {}
}

impl fmt::Debug for dyn Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leased")
    }
}

#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing to do before this time.
    Later(Tick),
    /// Renew the hold, and wait up to `wait` for the reply. At `deadline` it is lost or has another step to take.
    Renew {
        request: RenewalRequest,
        deadline: Tick,
        wait: Duration,
    },
    /// The deadline has passed.
    Expired,
    /// The hold has ended.
    Gone,
}

/// The part of one hold in a renewal script.
#[derive(Debug)]
pub(crate) struct RenewalRequest {
    /// Renews any number of holds of this kind. Takes their keys, and a holder and a lease for each.
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: HolderId,
    pub(crate) lease: Duration,
}
