//! The background task of a client: it renews leases, and does the work that `Drop` must not do itself.
//!
//! It knows leases and work, but no primitive. Invariants:
//!
//! - it never keeps a hold or its client alive;
//! - a hold that was withdrawn is in no later batch;
//! - work handed to it is driven to its end even when the client is gone;
//! - a slow or silent server delays the renewals of no other server;
//! - while the client holds anything, the task reads the clock every
//!   [`LOOK_MAX`](crate::engine::clock::LOOK_MAX) or more often.
//!
//! ```text
//! leased.rs       the trait of everything with a lease; what the handle and the task share
//! schedule.rs     pure: when each hold is due
//! batches.rs      due renewals in batches by server, and those that wait for room there
//! task.rs         the loop, and background work; which holds fail at which server, and when that is reported
//! ```

mod batches;
mod leased;
mod schedule;
mod task;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{mpsc, oneshot};

use crate::api::error::{Error, Kind, Result};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::script::Scripts;
pub(crate) use batches::BATCH_HOLDS_MAX;
pub(crate) use leased::Work;
use leased::{Job, Shared};
pub(crate) use leased::{Leased, RenewalRequest};
pub(crate) use schedule::Due;

/// The handle of the task. The task ends when the last handle is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
    scripts: Arc<Scripts>,
    reply: Duration,
}

impl Watchdog {
    /// Starts the task on the current runtime. `moved` is signalled when every hold is in doubt. `reply` is the longest
    /// wait for one renewal.
    pub(crate) fn start(scripts: Arc<Scripts>, moved: Arc<Hint>, reply: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = mpsc::unbounded_channel();
        let transport = Arc::clone(&scripts.transport);
        // Read before the task has its first turn, so that no signal is missed.
        let doubted = moved.mark();
        let task = task::run(
            Arc::clone(&shared),
            Arc::clone(&scripts),
            moved,
            doubted,
            inbox,
            reply,
        );
        transport.spawn(task.boxed());
        Self {
            shared,
            jobs,
            scripts,
            reply,
        }
    }

    /// Adds a hold, which is due at `at`.
    pub(crate) fn enrol(&self, id: u64, at: Tick, lease: Weak<dyn Leased>) {
        self.shared.schedule.lock().insert(id, at, lease);
    }

    /// Moves `id` to the time at which its lease has to be checked now, if it is still enrolled.
    pub(crate) fn look_again(&self, id: u64) {
        let mut schedule = self.shared.schedule.lock();
        let Some(lease) = schedule.get(id).and_then(Weak::upgrade) else {
            return;
        };
        // The lease is asked while the schedule is locked, so that no other task can shift the entry in between.
        schedule.shift(id, lease.next_check());
        // Unlocked first, because `lease` may be the last reference to its hold.
        drop(schedule);
    }

    pub(crate) fn withdraw(&self, id: u64) {
        self.shared.schedule.lock().remove(id);
    }

    /// Notifies `id` that a waiter wants its lock, if it is still enrolled.
    pub(crate) fn recall(&self, id: u64) {
        let lease = self.shared.schedule.lock().get(id).and_then(Weak::upgrade);
        if let Some(lease) = lease {
            lease.wanted();
        }
    }

    /// Makes the task drive `work` to its end. Neither blocks nor panics, in any context. Once the task is gone the
    /// work is dropped, and the leases expire by themselves.
    pub(crate) fn drive(&self, work: Work) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job::Drive(work)).is_err() {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// As [`drive`](Self::drive), for a caller that waits: polls `work` at once, so that its first command is sent
    /// before the task has its turn.
    pub(crate) fn begin(&self, mut work: Work) {
        let mut context = Context::from_waker(Waker::noop());
        // A timer belongs to the runtime on which it was made, and another runtime may end. The task polls the work
        // again, so it misses no wake-up.
        if self.scripts.is_here() && !self.is_gone() && work.as_mut().poll(&mut context).is_ready()
        {
            return;
        }
        self.drive(work);
    }

    /// Makes the task drive `work` to its end, and resolves to its outcome, which is expected by `until`. The work goes on
    /// if the returned future is dropped.
    ///
    /// # Errors
    /// As for [`in_time`](Self::in_time), and if the task is gone.
    pub(crate) fn finish<T, W>(
        &self,
        operation: &'static str,
        until: Tick,
        work: W,
    ) -> impl Future<Output = Result<T>> + use<'_, T, W>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let (done, outcome) = oneshot::channel();
        let work = async move {
            // The caller may be gone.
            let _ = done.send(work.await);
        };
        self.drive(work.boxed());
        async move {
            let outcome = self.in_time(operation, until, outcome).await?;
            outcome.map_err(|_| Error::orphaned(operation).at(self.scripts.transport.address()))
        }
    }

    /// Waits for `done`, which the task or its runtime completes by `until`.
    ///
    /// # Errors
    /// The task's runtime may stand still while the caller's does not. So a caller on another runtime waits for one
    /// reply time longer, and then gets an error.
    pub(crate) fn in_time<F: Future>(
        &self,
        operation: &'static str,
        until: Tick,
        done: F,
    ) -> impl Future<Output = Result<F::Output>> {
        let until = until.after(self.reply);
        // Not an `async fn`, which would store its arguments twice.
        async move {
            let clock = self.scripts.clock;
            if self.scripts.is_here() {
                return Ok(done.await);
            }
            let span = clock.now().until(until);
            // Boxed because few calls need a timer.
            let done = Box::pin(clock.within(span, done)).await;
            done.ok_or_else(|| {
                let message = "no answer in time; check that the server is up and reachable, and that the runtime of the \
                               client is not blocked";
                Error::new(Kind::Io, operation, message).at(self.scripts.transport.address())
            })
        }
    }

    /// Makes the task drive `work` while a client, handle or guard is left. Its end is not awaited. Neither blocks nor
    /// panics.
    pub(crate) fn drive_while_needed(&self, work: Work) {
        // Without the task there is no client that needs the work.
        let _ = self.jobs.send(Job::DriveWhileNeeded(work));
    }

    /// Waits until no work that was handed over is left, or the task has ended, and its work with it.
    pub(crate) async fn drain(&self) {
        loop {
            let mark = self.shared.idle.mark();
            if self.pending() == 0 || self.is_gone() {
                return;
            }
            self.shared.idle.changed_since(mark).await;
        }
    }

    /// Whether the task has ended before its client, because the runtime it was started on has ended.
    pub(crate) fn is_gone(&self) -> bool {
        self.jobs.is_closed()
    }

    /// Returns everything with a lease.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Leased>> {
        self.shared.all()
    }

    /// Returns the number of enrolled holds.
    pub(crate) fn enrolled(&self) -> usize {
        self.shared.schedule.lock().len()
    }

    /// Returns the number of pieces of work that were handed over and are not done.
    pub(crate) fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }
}
