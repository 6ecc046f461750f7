//! The state that the watchdog's handle and its task share: the leases in the schedule, and the jobs that the handle
//! sends. Everything with a lease implements the trait [`Leased`], and knows its own next step.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::schedule::{Due, Schedule};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
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
    /// The request that renews it with this lease.
    fn request(&self, lease: Duration) -> RenewalRequest;
    /// The name of its lock.
    fn lock(&self) -> &LockName;
    /// The server confirmed a lease of `lease`, which counts from `sent`.
    fn renewed(&self, sent: Tick, lease: Duration);
    /// When the hold's lease ends by the local clock.
    fn deadline(&self) -> Tick;
    /// When the hold has to be checked next. Like [`Leased::due`], called while the schedule is locked: a later change
    /// of the hold moves its entry again.
    fn next_check(&self) -> Tick;
    /// The hold is lost: the server no longer has it under this holder, its local deadline has passed, or its client was
    /// shut down.
    fn lose(&self, reason: LostReason);
    /// A waiter wants the lock.
    fn wanted(self: Arc<Self>) {}
    /// Nothing renews the hold any more, because the task has ended.
    fn orphaned(&self) {}
}

impl fmt::Debug for dyn Leased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Leased")
    }
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

pub(crate) type Work = BoxFuture<'static, ()>;

pub(super) enum Job {
    /// Drive this to its end.
    Drive(Work),
    /// Drive this while a client, handle or guard is left. Its end is not awaited.
    DriveWhileNeeded(Work),
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) schedule: Mutex<Schedule<Weak<dyn Leased>>>,
    /// The number of pieces of work that are handed over and not done.
    pub(super) pending: AtomicUsize,
    /// Given when none is left, and when the task ends.
    pub(super) idle: Hint,
}

impl Shared {
    /// Everything with a lease. The schedule is not locked afterwards.
    pub(super) fn all(&self) -> Vec<Arc<dyn Leased>> {
        let schedule = self.schedule.lock();
        schedule.items().filter_map(Weak::upgrade).collect()
    }
}
