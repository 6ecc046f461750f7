//! One task a client: renews what is held and carries out what `Drop` must not do itself.
//!
//! It knows leases and background work, no primitive. Invariants: it never keeps a hold or its
//! client alive; a hold that was withdrawn is in no later batch; work handed over is driven to its
//! end even when the client is gone; a server that is slow or silent delays the renewals of no other;
//! while anything is held, the clock is read every [`LOOK_MAX`](crate::engine::clock::LOOK_MAX) at least.

mod batches;
mod leased;
mod schedule;
mod shared;
mod task;
#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::script::Scripts;
pub(crate) use batches::BATCH_HOLDS_MAX;
pub(crate) use leased::{Due, Leased, RenewalRequest};
use shared::{Job, Shared, Work};

/// The handle of the task. The task ends when the last one is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
}

impl Watchdog {
    /// Starts the task on the current runtime. `moved` is given when every hold is in doubt; `reply`
    /// is the longest wait for one renewal.
    pub(crate) fn start(scripts: Arc<Scripts>, moved: Arc<Hint>, reply: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = mpsc::unbounded_channel();
        let transport = Arc::clone(&scripts.transport);
        let task = task::run(Arc::clone(&shared), scripts, moved, inbox, reply);
        transport.spawn(task.boxed());
        Self { shared, jobs }
    }

    /// Adds a hold, which is due at `at`.
    pub(crate) fn enrol(&self, id: u64, at: Tick, lease: Weak<dyn Leased>) {
        if self.shared.schedule.lock().insert(id, at, lease) {
            self.shared.sooner.give();
        }
    }

    /// Makes `id` due at `at`, if it is still enrolled.
    pub(crate) fn shift(&self, id: u64, at: Tick) {
        if self.shared.schedule.lock().shift(id, at) {
            self.shared.sooner.give();
        }
    }

    pub(crate) fn withdraw(&self, id: u64) {
        self.shared.schedule.lock().remove(id);
    }

    /// Tells `id` that somebody waits for it, if it is still enrolled.
    pub(crate) fn recall(&self, id: u64) {
        let lease = self.shared.schedule.lock().get(id).and_then(Weak::upgrade);
        if let Some(lease) = lease {
            lease.wanted();
        }
    }

    /// Has the task drive `work` to its end. Neither blocks nor panics, wherever it is called from;
    /// once the task is gone the work is dropped, and leases expire by themselves.
    pub(crate) fn drive(&self, work: Work) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job::Drive(work)).is_err() {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has the task drive `work` for as long as a client, handle or guard is left. Nobody waits for
    /// its end. Neither blocks nor panics.
    pub(crate) fn drive_while_needed(&self, work: Work) {
        // Without the task there is nobody it could be for.
        let _ = self.jobs.send(Job::DriveWhileNeeded(work));
    }

    /// Resolves when the work handed over so far is done.
    pub(crate) async fn drain(&self) {
        let (done, wait) = oneshot::channel();
        if self.jobs.send(Job::Drain(done)).is_ok() {
            // An error means that the task has ended, which is what is asked for.
            let _ = wait.await;
        }
    }

    /// Whether the task has ended before its client: with the runtime on which it was started.
    pub(crate) fn is_gone(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Given when a batch of renewals is on its way.
    pub(crate) fn renewals(&self) -> Arc<Hint> {
        Arc::clone(&self.shared.renewals)
    }

    /// Holds under watch.
    pub(crate) fn enrolled(&self) -> usize {
        self.shared.schedule.lock().len()
    }

    /// Work handed over and not done.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }
}
