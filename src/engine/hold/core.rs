//! The state that all handles, guards and tasks of one client share.
//!
//! Invariants: the core knows everything without a guard that a server may have, so closing the client leaves nothing
//! behind. State that the handles of one synchroniser share is kept alive by these handles alone. Unused entries are
//! removed when others are added.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::{Future, poll_fn};
use std::num::NonZero;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;

use super::bound::Timing;
use super::local::{LocalLock, Locals};
use super::protocol::HolderRef;
use super::undo::{Ends, Undo, UndoQueues};
use crate::api::error::{Error, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::conn::Channels;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;
use crate::engine::keys::LockName;
use crate::engine::replicas::Replicas;
use crate::observe::observer::Observed;
use crate::script::{Call, CallBudget, Scripts};
use crate::watchdog::Watchdog;

/// Something that may have left anything at a server without a guard, and is no hold.
pub(crate) trait AtClose: Send + Sync {
    /// Withdraws that in the background: the client was closed, and its calls may never be polled again. It may have
    /// ended before.
    fn close(self: Arc<Self>);
}

/// Keeps an entry in the list of what is closed with the client, until dropped.
#[derive(Debug)]
pub(crate) struct ClosedWith {
    core: Arc<Core>,
    number: u64,
}

impl ClosedWith {
    /// See [`Core::no_longer_closed`].
    pub(crate) fn number(&self) -> Option<NonZero<u64>> {
        NonZero::new(self.number)
    }
}

impl Drop for ClosedWith {
    fn drop(&mut self) {
        self.core.no_longer_closed(self.number);
    }
}

pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) timing: Timing,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) watchdog: Watchdog,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) locals: Arc<Locals>,
    /// State that the handles of one synchroniser share.
    pub(crate) shared: Shared,
    undo_queues: Arc<UndoQueues>,
    /// The entries that withdraw something when the client is closed, oldest first.
    at_close: Mutex<BTreeMap<u64, Weak<dyn AtClose>>>,
    /// The number of requests under way that take or release locks. Requests that the watchdog task drives do not
    /// count.
    requests: AtomicUsize,
    id: Box<str>,
    next_holder: AtomicU64,
    closed: AtomicBool,
    /// The number of polls under way of work that ends with the client.
    steps: AtomicUsize,
    /// Set at the end of a shutdown. A guard that outlives its client releases nothing.
    shut: AtomicBool,
    /// Signalled when the client is closed.
    pub(crate) closing: Hint,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Otherwise each guard's debug output would show all locks and scripts of the client.
        f.debug_struct("Core")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(
        id: &str,
        timing: Timing,
        scripts: Arc<Scripts>,
        locals: Arc<Locals>,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: scripts.clock,
            timing,
            watchdog: Watchdog::start(
                Arc::clone(&scripts),
                Arc::clone(&locals.moved),
                timing.reply,
            ),
            replicas: Arc::new(Replicas::new(Arc::clone(&scripts), timing.reply)),
            scripts,
            locals,
            shared: Shared::default(),
            undo_queues: Arc::default(),
            at_close: Mutex::default(),
            requests: AtomicUsize::new(0),
            id: id.into(),
            next_holder: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            steps: AtomicUsize::new(0),
            shut: AtomicBool::new(false),
            closing: Hint::default(),
        })
    }

    /// Where facts are noted.
    pub(crate) fn observed(&self) -> &Observed {
        &self.scripts.observed
    }

    /// The UUID of this client, as in Redisson.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// A new holder id, as in Redisson: `uuid:number`, with a new number for each hold. A late command can therefore
    /// never affect a later hold of any owner.
    pub(crate) fn new_holder(&self) -> (u64, HolderId) {
        let number = self.next_holder.fetch_add(1, Ordering::Relaxed);
        (number, HolderId::new(&self.id, number))
    }

    /// Whether one script can name this key of ours and a key of the other client, which may be this client.
    pub(crate) fn is_beside(&self, key: &str, other: &Self, others_key: &str) -> bool {
        let transport = &self.scripts.transport;
        std::ptr::eq(self, other) && transport.slot(key) == transport.slot(others_key)
    }

    /// Undoes an attempt with this lease in the background, behind the commands already sent. It is not abandoned while
    /// the attempt may still have its lease, or, without a lease, before the client is gone.
    pub(crate) fn undo_later(&self, call: Call, lease: impl Into<Option<Duration>>, ends: Ends) {
        let (now, linger) = (self.clock.now(), self.timing.linger);
        let undo = Undo::new(call, lease.into(), now, linger, ends);
        let reply = self.timing.reply;
        self.undo_queues
            .push(undo, &self.scripts, &self.watchdog, reply);
    }

    /// The number of pieces of work that go on without a caller, or may have to.
    pub(crate) fn in_background(&self) -> usize {
        self.watchdog.pending() + self.requests.load(Ordering::SeqCst)
    }

    /// Counts a request that takes or releases locks, until a connection has answered it, the watchdog task has it, or
    /// its undoing is queued. A release counts from before its share ends.
    pub(crate) fn request_begins(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// See [`request_begins`](Self::request_begins).
    pub(crate) fn request_ended(&self) {
        self.ended_in(&self.requests);
    }

    fn ended_in(&self, under_way: &AtomicUsize) {
        under_way.fetch_sub(1, Ordering::SeqCst);
        if self.is_closed() {
            self.locals.waiter_left.notify();
        }
    }

    /// A holder id of this client, for calls about it.
    pub(crate) fn holder_ref<'a>(
        &self,
        name: &'a LockName,
        id: &'a str,
        fenced: bool,
    ) -> HolderRef<'a> {
        HolderRef {
            name,
            id,
            fenced,
            token_retention: self.timing.token_retention,
            publish: self.channels().publish(),
        }
    }

    /// Has `entry` closed with the client. Nothing is left by an entry that asks only after this whether the client is
    /// closed.
    pub(crate) fn close_with<T: AtClose + 'static>(self: &Arc<Self>, entry: Weak<T>) -> ClosedWith {
        let number = self.next_holder.fetch_add(1, Ordering::Relaxed);
        self.at_close.lock().insert(number, entry);
        ClosedWith {
            core: Arc::clone(self),
            number,
        }
    }

    /// Nothing is left of this entry to close, though it is not dropped yet.
    pub(crate) fn no_longer_closed(&self, number: u64) {
        self.at_close.lock().remove(&number);
    }

    fn close_others(&self) {
        // Called and dropped without the mutex, which the drop of an entry takes.
        let entries: Vec<_> = {
            let entries = self.at_close.lock();
            entries.values().filter_map(Weak::upgrade).collect()
        };
        entries.into_iter().for_each(AtClose::close);
    }

    /// Watches the head of this local queue while waiters stand behind it, and the followers. A waiter that does not
    /// take its turn in time is passed over. A call that does not take its grant in time loses the grant. Their futures
    /// may be left unpolled, for example in a branch of a `select!` in a loop, or in a stream whose buffer is full.
    pub(crate) fn watch_heads(&self, local: &Arc<LocalLock>) {
        let begins = {
            let mut state = local.lock();
            let is_untaken = state.grants.are_any_untaken();
            state.with_queue(|queue| queue.begin_watch(is_untaken))
        };
        if !begins {
            return;
        }
        let (clock, every) = (self.clock, self.timing.reply);
        // A weak reference, so that the watch keeps no lock alive.
        let local = Arc::downgrade(local);
        let watch = async move {
            loop {
                clock.sleep_until(clock.now().after(every)).await;
                let Some(local) = local.upgrade() else { return };
                let seen = local.hint().mark();
                let mut state = local.lock();
                let untaken = state.grants.untaken();
                // Read under the mutex, so that a waiter that comes later finds no watch and begins one.
                let is_untaken = local.waiters() > 0 && !untaken.is_empty();
                let now = clock.now();
                let handoffs =
                    state.with_queue(|queue| queue.pass_over_missing(is_untaken, seen, now));
                drop(state);
                untaken.iter().for_each(|call| call.miss());
                // Dropped without the mutex. The shares go to the waiters behind, or back to the server.
                if handoffs.map(drop).is_none() {
                    return;
                }
            }
        };
        self.watchdog.drive_while_needed(watch.boxed());
    }

    /// How the server's channels are used.
    pub(crate) fn channels(&self) -> Channels {
        self.scripts.transport.channels()
    }

    /// The budget of a single operation that starts now.
    pub(crate) fn call_budget(&self, give_up: Duration) -> CallBudget {
        let until = self.clock.now().after(give_up);
        CallBudget::until(until, self.timing.reply)
    }

    pub(crate) fn is_closed(&self) -> bool {
        // Sequentially consistent with the counts of what is under way.
        self.closed.load(Ordering::SeqCst)
    }

    /// The error of an operation on a closed client.
    pub(crate) fn closed(&self, operation: &'static str) -> Error {
        Error::closed(operation).at(self.scripts.transport.address())
    }

    pub(crate) fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.is_closed() {
            return Err(self.closed(operation));
        }
        self.ensure_alive(operation)
    }

    /// Fails if the client's background task is gone.
    #[inline]
    pub(crate) fn ensure_alive(&self, operation: &'static str) -> Result<()> {
        if self.watchdog.is_gone() {
            let error = Error::orphaned(operation);
            return Err(error.at(self.scripts.transport.address()));
        }
        Ok(())
    }

    /// Whether the client was shut down, and has finished or abandoned everything that it had to release.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// Polls work of a caller that has no guard yet. Returns `None` once the client is closed. Nothing more is sent for
    /// the caller after that.
    pub(crate) async fn while_open<F: Future>(&self, mut work: Pin<&mut F>) -> Option<F::Output> {
        poll_fn(|context| {
            let _step = Step::begin(self);
            if self.is_closed() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// As [`while_open`](Self::while_open), but ends as soon as the client is closed, not at the next poll of the work.
    pub(crate) async fn until_closed<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (closing, work) = (self.closing.mark(), pin!(work));
        tokio::select! {
            biased;
            done = self.while_open(work) => done,
            () = self.closing.changed_since(closing) => None,
        }
    }

    /// Resolves when no caller waits for a lock, so that everything that callers leave behind is noted here, and when
    /// no step that found the client open may still send. Waits for one reply time at most, or half of the shutdown,
    /// because the callers may not be polled.
    async fn callers_gone(&self) {
        let gone = async {
            loop {
                let mark = self.locals.waiter_left.mark();
                if self.steps.load(Ordering::SeqCst) == 0 && self.locals.waiters() == 0 {
                    return;
                }
                self.locals.waiter_left.changed_since(mark).await;
            }
        };
        let limit = self.timing.reply.min(self.timing.give_up / 2);
        self.clock.within(limit, gone).await;
    }

    /// Closes the client: notifies guards, ends calls with an error, and releases everything without a guard. False if
    /// the server has not answered some of that by `end`.
    pub(crate) async fn close(self: &Arc<Self>, end: Tick) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        self.closing.notify();
        self.locals.recalls.changed.notify();
        self.undo_queues.end(self.clock.now());
        for local in self.locals.all() {
            local.lock().with_queue(|queue| queue.close());
            drop(local.take_sticky());
            for hold in local.holds() {
                hold.close();
            }
        }
        if self.watchdog.is_gone() {
            return false;
        }
        let own = Arc::clone(self);
        let left = async move {
            own.callers_gone().await;
            own.close_others();
            let all = own.watchdog.all();
            all.iter().for_each(|lease| lease.lose(LostReason::Closed));
        };
        let until = self.clock.now().after(self.timing.reply).min(end);
        // The work goes on if this future is dropped. If it does not end in time, the wait below fails too.
        drop(self.watchdog.finish("shutdown", until, left).await);
        let done = async {
            // Wait also for the releases that begin during the wait.
            loop {
                let mark = self.locals.waiter_left.mark();
                self.watchdog.drain().await;
                // Read in this order, because work goes from a connection to the watchdog task, never back.
                let requests = self.requests.load(Ordering::SeqCst);
                if self.watchdog.is_gone() {
                    return;
                }
                match (self.watchdog.pending(), requests) {
                    (0, 0) => return,
                    (0, _) => self.locals.waiter_left.changed_since(mark).await,
                    _ => {}
                }
            }
        };
        let limit = self.clock.now().until(end);
        let is_done = self.clock.within(limit, done).await.is_some();
        self.shut.store(true, Ordering::Release);
        self.observed().publish();
        is_done && !self.undo_queues.gave_up() && !self.watchdog.is_gone()
    }
}

/// Counts as a step until dropped.
struct Step<'a>(&'a Core);

impl<'a> Step<'a> {
    fn begin(core: &'a Core) -> Self {
        core.steps.fetch_add(1, Ordering::SeqCst);
        Self(core)
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.ended_in(&self.0.steps);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.undo_queues.end(self.clock.now());
    }
}

type Entry = Weak<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
pub(crate) struct Shared(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<(&'static str, Arc<str>), Entry>,
    /// Unused entries are removed when the map has more entries than this.
    sweep_at: usize,
}

impl Shared {
    /// Returns the value of this kind and key, made if no handle or guard uses one. Kinds with different types of
    /// values have different names.
    pub(crate) fn get_or_insert<T: Send + Sync + 'static>(
        &self,
        kind: &'static str,
        key: &Arc<str>,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut entries = self.0.lock();
        let id = (kind, Arc::clone(key));
        let known = entries.by_key.get(&id).and_then(Weak::upgrade);
        if let Some(Ok(value)) = known.map(Arc::downcast::<T>) {
            return value;
        }
        let value = make();
        let entry: Arc<dyn Any + Send + Sync> = Arc::clone(&value) as _;
        entries.by_key.insert(id, Arc::downgrade(&entry));
        if entries.by_key.len() > entries.sweep_at {
            entries.by_key.retain(|_, entry| entry.strong_count() > 0);
            entries.sweep_at = 64 + entries.by_key.len() * 2;
        }
        value
    }
}
