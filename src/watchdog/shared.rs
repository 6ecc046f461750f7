//! The state that the watchdog's handle and its task share, and the jobs that the handle sends.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::leased::Leased;
use super::schedule::Schedule;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

pub(crate) type Work = BoxFuture<'static, ()>;

pub(super) enum Job {
    /// Drive this to its end.
    Drive(Work),
    /// Drive this while a client, handle or guard is left. Its end is not awaited.
    DriveWhileNeeded(Work),
    /// Answer when everything handed over before is done.
    Drain(oneshot::Sender<()>),
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Given when a batch of renewals begins.
    pub(super) renewals: Arc<Hint>,
    pub(super) schedule: Mutex<Schedule<Weak<dyn Leased>>>,
    /// Given when an entry is due before the task's planned wake-up.
    pub(super) sooner: Hint,
    /// The number of pieces of work that are handed over and not done.
    pub(super) pending: AtomicUsize,
}

impl Shared {
    /// Wakes all tasks that sleep until a deadline.
    pub(super) fn wake_all(&self) {
        let schedule = self.schedule.lock();
        for lease in schedule.items().filter_map(Weak::upgrade) {
            lease.wake();
        }
    }

    /// Makes every hold due now.
    pub(super) fn doubt_all(&self, now: Tick) {
        let mut schedule = self.schedule.lock();
        for lease in schedule.items().filter_map(Weak::upgrade) {
            lease.doubt(now);
        }
        schedule.make_all_due(now);
    }
}
