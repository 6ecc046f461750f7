//! One task a client: renews what is held and carries out what `Drop` must not do itself.
//!
//! It knows leases and background work, no primitive. Invariants: it never keeps a hold or its
//! client alive; a hold that was withdrawn is in no later batch; work handed over is driven to its
//! end even when the client is gone; a server that is slow or silent delays the renewals of no other;
//! while anything is held, the clock is read every [`LOOK_MAX`](crate::clock::LOOK_MAX) at least.

mod round;
mod schedule;
mod task;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Tick;
use crate::hint::Hint;
use crate::script::{Script, Scripts};
use schedule::Schedule;

/// Holds renewed at once: bounds the time for which one script blocks the server.
pub(crate) const BATCH_HOLDS_MAX: usize = 100;

/// Something with a lease that has to be renewed until it is given up.
pub(crate) trait Leased: Send + Sync {
    /// Whether the server has it is in doubt: until that is answered, it is due at once.
    fn doubt(&self, now: Tick);
    /// The clock has jumped: whoever sleeps until a time looks again.
    fn look(&self);
    /// What to do with it now.
    fn due(&self, now: Tick) -> Due;
    /// The server confirmed a lease of `lease`, counted from `sent`. Says when to look again.
    fn renewed(&self, sent: Tick, lease: Duration) -> Tick;
    /// The server says that this holder does not hold it.
    fn revoked(&self);
    /// The local deadline has passed.
    fn expired(&self);
}

#[derive(Debug)]
pub(crate) enum Due {
    /// Nothing before then.
    Later(Tick),
    /// Renew it; at `deadline` at the latest it is lost. The reply is worth waiting for so long.
    Renew {
        item: Item,
        deadline: Tick,
        wait: Duration,
    },
    /// Its deadline has passed.
    Expired,
    /// It was given up.
    Gone,
}

/// One line of a renewal.
#[derive(Debug)]
pub(crate) struct Item {
    /// Renews any number of holds of this kind: keys, and for each a holder and a lease.
    pub(crate) script: &'static Script,
    pub(crate) key: Arc<str>,
    pub(crate) holder: Arc<str>,
    pub(crate) lease: Duration,
}

type Work = BoxFuture<'static, ()>;

enum Job {
    Drive(Work),
    /// As long as there is something to drive it for; nobody waits for its end.
    Beside(Work),
    /// To be told when everything handed over before is done.
    Finish(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    jobs: mpsc::UnboundedSender<Job>,
}

#[derive(Debug, Default)]
struct Shared {
    schedule: Mutex<Schedule<Weak<dyn Leased>>>,
    /// Given when something is due earlier than the task means to look.
    sooner: Hint,
    /// Work handed over and not done.
    pending: AtomicUsize,
}

impl Shared {
    /// Wakes those who sleep until a time.
    fn look_all(&self) {
        let schedule = self.schedule.lock();
        for lease in schedule.items().filter_map(Weak::upgrade) {
            lease.look();
        }
    }

    /// Has every hold looked at now.
    fn doubt_all(&self, now: Tick) {
        let mut schedule = self.schedule.lock();
        for lease in schedule.items().filter_map(Weak::upgrade) {
            lease.doubt(now);
        }
        schedule.hasten(now);
    }
}

impl std::fmt::Debug for dyn Leased {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Leased")
    }
}

impl Watchdog {
    /// Starts the task on the current runtime. `moved` is given when every hold is in doubt; `reply`
    /// is the longest wait for one renewal.
    pub(crate) fn start(scripts: Arc<Scripts>, moved: Arc<Hint>, reply: Duration) -> Self {
        let shared = Arc::new(Shared::default());
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(task::run(Arc::clone(&shared), scripts, moved, inbox, reply));
        Self { shared, jobs }
    }

    pub(crate) fn enrol(&self, id: u64, at: Tick, lease: Weak<dyn Leased>) {
        if self.shared.schedule.lock().insert(id, at, lease) {
            self.shared.sooner.give();
        }
    }

    /// Looks at `id` again at `at`, if it is still enrolled.
    pub(crate) fn shift(&self, id: u64, at: Tick) {
        if self.shared.schedule.lock().shift(id, at) {
            self.shared.sooner.give();
        }
    }

    pub(crate) fn withdraw(&self, id: u64) {
        self.shared.schedule.lock().remove(id);
    }

    /// Has `work` driven by the task. Neither blocks nor panics, wherever it is called from; once
    /// the task is gone the work is dropped, and leases run out by themselves.
    pub(crate) fn later(&self, work: Work) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        if self.jobs.send(Job::Drive(work)).is_err() {
            self.shared.pending.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has `work` driven by the task for as long as a client, handle or guard is left. Nobody waits for
    /// its end. Neither blocks nor panics.
    pub(crate) fn beside(&self, work: Work) {
        // Without the task there is nobody it could be for.
        let _ = self.jobs.send(Job::Beside(work));
    }

    /// Resolves when the work handed over so far is done.
    pub(crate) async fn finish(&self) {
        let (done, wait) = oneshot::channel();
        if self.jobs.send(Job::Finish(done)).is_ok() {
            // An error means that the task has ended, which is what is asked for.
            let _ = wait.await;
        }
    }

    /// Whether the task has ended before its client: with the runtime on which it was started.
    pub(crate) fn is_gone(&self) -> bool {
        self.jobs.is_closed()
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
