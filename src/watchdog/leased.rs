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
    /// Returns the next step at `now`.
    fn due(self: Arc<Self>, now: Tick) -> Due;
    /// Returns the request that renews the hold with this lease.
    fn request(&self, lease: Duration) -> RenewalRequest;
    /// Returns the name of the hold's lock.
    fn lock(&self) -> &LockName;
    /// Notes that the server confirmed a lease of length `lease`, which counts from `sent`.
    fn renewed(&self, sent: Tick, lease: Duration);
    /// Returns the local deadline of the hold.
    fn deadline(&self) -> Tick;
    /// Returns the lease to compare the time left with, when a renewal asks for `lease`.
    fn measure(&self, lease: Duration) -> Duration {
        lease
    }
    /// Returns when the hold has to be checked next. Called while the schedule is locked, like [`Leased::due`], so that
    /// a later change of the hold moves its entry again.
    fn next_check(&self) -> Tick;
    /// Marks the hold lost: the server no longer has its holder, its local deadline has passed, or its client was shut
    /// down.
    fn lose(&self, reason: LostReason);
    /// Notes that a waiter wants the lock.
    fn wanted(self: Arc<Self>) {}
    /// Notes that nothing renews the hold from now on, because the task has ended.
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
    /// Work that is driven to its end.
    Drive(Work),
    /// Work that is driven only while a client, handle or guard is left. Its end is not awaited.
    DriveWhileNeeded(Work),
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) schedule: Mutex<Schedule<Weak<dyn Leased>>>,
    /// The number of pieces of work that were handed over and are not done.
    pub(super) pending: AtomicUsize,
    /// Signalled when no such work is left, and when the task ends.
    pub(super) idle: Hint,
}

impl Shared {
    /// Returns everything with a lease. The schedule is unlocked again when this returns.
    pub(super) fn all(&self) -> Vec<Arc<dyn Leased>> {
        let schedule = self.schedule.lock();
        schedule.items().filter_map(Weak::upgrade).collect()
    }
}
