//! Undoes what abandoned calls left at the servers: attempts, queue places, and holds without a guard.
//!
//! Each server has one queue of small entries, which one task empties. While the server answers, the
//! task sends all of them at once. While the server is silent, it tries one entry now and then, and the others wait.
//! So a server that is away costs next to nothing, no matter how many attempts are unanswered. An entry that the server
//! cannot undo now goes behind the others, which are tried in turn. A missing right may be granted later, so an entry that
//! is denied is sent again after longer and longer pauses.
//!
//! Invariant: an entry leaves its queue when the server has answered it. A server that stood still for longer than
//! the lease may execute the attempt only afterwards. Its undoing comes behind the attempt, on the same connection,
//! or on a later connection after the first was killed. An entry whose time is over is abandoned only in two cases:
//! the server answers with refusals, or the client is gone and has tried for a little longer, in case the server is
//! just coming back. The time of an entry without a lease is not over before the client is gone: it would be left for
//! ever.

use std::any::Any;
use std::collections::{BTreeMap, HashMap, VecDeque, btree_map};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;

use super::local::LocalLock;
use crate::api::error::{Error, Kind};
use crate::conn::{LATE_ARRIVAL_MAX, Lane};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::observe::counts::Fact;
use crate::observe::events::Event;
use crate::script::{Call, CallBudget, Scripts, once_sent};
use crate::watchdog::Watchdog;

/// Where an earlier command may still arrive, an abandoned attempt is cancelled this many more times, spread over its
/// lease, but over [`LATE_ARRIVAL_MAX`] at most. An orphaned grant then lasts for a fraction of its lease, unless the
/// command arrives later than that.
const CANCELS_WHILE_UNSETTLED: u32 = 8;

/// The most entries under way at once while the server answers.
const UNDER_WAY_MAX: usize = 1024;

/// The most entries that wait for one silent server, some hundred bytes each. If there are more, the first is
/// abandoned. No guard has the hold that it would have undone, so that hold excludes others for one lease at most after
/// the server executes the attempt.
pub(crate) const QUEUE_MAX: usize = 16_384;

/// Once the client is gone, overdue entries are still tried for this number of reply times.
const LAST_TRIES: u32 = 2;

/// An entry without a lease is tried until the client is gone, and for this long after that.
const WITHOUT_LEASE: Duration = Duration::from_secs(10 * 60);

/// The pauses while a server is silent: doubled from the first to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// One thing to undo.
#[derive(Debug)]
pub(super) struct Undo {
    /// Releases the hold or the place, if there is one. May be executed twice.
    call: Call,
    /// The pause between two cancellations while a late command is possible, or before a denied entry is sent again.
    span: Duration,
    /// See [`until`](Self::until).
    until: Tick,
    has_lease: bool,
    cancels: u32,
    is_denied: bool,
    release: Option<PendingRelease>,
    /// Dropped with the entry.
    _kept: Option<Kept>,
}

/// Whoever has a weak reference to it knows whether an entry is left.
type Kept = Arc<dyn Any + Send + Sync>;

/// The first is dropped when the entry is sent, the second with the entry: once the server has answered, or is asked no
/// more.
pub(crate) type Ends = (Option<PendingRelease>, Option<Kept>);

/// The queues, by server. A queue exists while a task empties it.
#[derive(Debug, Default)]
pub(crate) struct UndoQueues {
    queues: Mutex<HashMap<u64, Queue>>,
    /// Signalled when an entry is added or the client is gone.
    changed: Hint,
    /// When the client was closed.
    ending: Mutex<Option<Tick>>,
    /// Whether an entry was abandoned without an answer.
    gave_up: AtomicBool,
    number: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    ready: VecDeque<Undo>,
    /// Entries to send again, by time.
    later: BTreeMap<(Tick, u64), Undo>,
    is_silent: bool,
    /// How many entries were abandoned without an answer and are not reported yet.
    abandoned: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Answered,
    /// The server refuses it for good.
    Refused,
    /// The user lacks a right.
    Denied,
    /// The server cannot do it now.
    NotNow,
    Silent,
}

/// Counts as an unsent release of these locks until it is dropped.
#[derive(Debug)]
pub(crate) struct PendingRelease(Vec<Arc<LocalLock>>);

impl PendingRelease {
    pub(crate) fn of(locals: Vec<Arc<LocalLock>>) -> Self {
        locals.iter().for_each(|local| local.begin_release());
        Self(locals)
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        self.0.iter().for_each(|local| local.release_sent());
    }
}

impl Undo {
    /// Undoes an attempt with this lease, if it has one. Not abandoned before that, or `linger`, is over.
    pub(super) fn new(
        call: Call,
        lease: Option<Duration>,
        now: Tick,
        linger: Duration,
        (release, kept): Ends,
    ) -> Self {
        let (has_lease, lease) = (lease.is_some(), lease.unwrap_or(WITHOUT_LEASE));
        Self {
            call,
            span: lease.min(LATE_ARRIVAL_MAX) / CANCELS_WHILE_UNSETTLED,
            until: now.after(linger.max(lease)),
            has_lease,
            cancels: CANCELS_WHILE_UNSETTLED,
            is_denied: false,
            release,
            _kept: kept,
        }
    }

    /// After this time it is abandoned if the client is gone or the server refuses it.
    fn until(&self, queues: &UndoQueues) -> Tick {
        match self.has_lease {
            true => self.until,
            false => self.until.max(queues.ending().after(WITHOUT_LEASE)),
        }
    }

    async fn send(mut self, scripts: Arc<Scripts>, reply: Duration) -> (Self, End) {
        let release = self.release.take();
        // On the lane of the attempt, so that it cannot overtake the attempt.
        let cancel = scripts.run(Lane::Command, &self.call, CallBudget::once(reply));
        let answer = once_sent(pin!(cancel), || drop(release)).await;
        let end = match answer {
            Ok(_) => {
                self.is_denied = false;
                End::Answered
            }
            Err(failure) if failure.is_hopeless() => {
                let was_denied = std::mem::replace(&mut self.is_denied, failure.is_denied());
                if !was_denied {
                    tell_failed(&scripts, failure.into_error("undo"));
                }
                if self.is_denied {
                    End::Denied
                } else {
                    End::Refused
                }
            }
            Err(failure) if failure.is_answer() => End::NotNow,
            Err(_) => End::Silent,
        };
        (self, end)
    }
}

/// Reports a failure to the client's observer, because no caller learns of it.
fn tell_failed(scripts: &Scripts, error: Error) {
    let failed = Event::ReleaseFailed { lock: None, error };
    scripts.observed.note(Fact::event(failed));
}

/// Reports entries that were abandoned without an answer. Each is counted, but there is one event for all, because they
/// may be many. Must be called without a mutex.
fn tell_abandoned(scripts: &Scripts, count: u64) {
    (1..count).for_each(|_| scripts.observed.note(Fact::UndoAbandoned));
    if count > 0 {
        let message = format!(
            "no answer; {count} calls were not undone: what they took ends with its lease, permits of plain \
             semaphores stay taken"
        );
        let error = Error::new(Kind::Io, "undo", message);
        tell_failed(scripts, error.at(scripts.transport.address()));
    }
}

impl Queue {
    /// Takes out one entry if the server is silent and the queue is full. Entries of `later` go first, because they
    /// were sent once already. A denied one was not executed, so it counts as abandoned.
    fn make_room(&mut self) -> Option<Undo> {
        if !self.is_silent || self.ready.len() + self.later.len() < QUEUE_MAX {
            return None;
        }
        if let Some((_, undo)) = self.later.pop_first() {
            self.abandoned += u64::from(undo.is_denied);
            return Some(undo);
        }
        self.abandoned += 1;
        self.ready.pop_front()
    }
}

impl UndoQueues {
    /// Adds an entry to the queue of its server, and starts the task of the queue if there is none. Never blocks or
    /// panics.
    pub(super) fn push(
        self: &Arc<Self>,
        mut undo: Undo,
        scripts: &Arc<Scripts>,
        watchdog: &Watchdog,
        reply: Duration,
    ) {
        let server = scripts.transport.server(undo.call.route());
        let (is_new, given_up, release) = {
            let mut queues = self.queues.lock();
            let is_new = !queues.contains_key(&server);
            let queue = queues.entry(server).or_default();
            let given_up = queue.make_room();
            if queue.abandoned > 0 {
                self.gave_up.store(true, Ordering::Release);
            }
            // The entry is not sent soon, so requests of this client do not wait to go behind it.
            let release = undo.release.take_if(|_| queue.is_silent);
            queue.ready.push_back(undo);
            (is_new, given_up, release)
        };
        // Dropped outside the mutex, because both drops notify locks of this client.
        drop((release, given_up));
        if is_new {
            let task = Arc::clone(self).empty(server, Arc::clone(scripts), reply);
            watchdog.drive(task.boxed());
        } else {
            self.changed.notify();
        }
    }

    /// When the client was closed.
    fn ending(&self) -> Tick {
        self.ending.lock().unwrap_or(Tick::NEVER)
    }

    /// Notes that the client is closed or gone.
    pub(crate) fn end(&self, now: Tick) {
        self.ending.lock().get_or_insert(now);
        for queue in self.queues.lock().values_mut() {
            // A missing right may have been granted by now.
            let later = std::mem::take(&mut queue.later).into_values();
            queue.ready.extend(later.filter(|undo| undo.is_denied));
        }
        self.changed.notify();
    }

    /// Whether an entry was abandoned without an answer, so that its attempt may be left at a server that stood still.
    pub(crate) fn gave_up(&self) -> bool {
        self.gave_up.load(Ordering::Acquire)
    }

    /// Empties one queue.
    async fn empty(self: Arc<Self>, server: u64, scripts: Arc<Scripts>, reply: Duration) {
        let clock = scripts.clock;
        let mut under_way = FuturesUnordered::new();
        let (mut pause, mut rests_until) = (PAUSE_FIRST, Tick::ZERO);
        let mut room = UNDER_WAY_MAX;
        loop {
            let mark = self.changed.mark();
            let now = clock.now();
            while under_way.len() < room && now >= rests_until {
                let Some(undo) = self.next(server, now, reply, &scripts) else {
                    break;
                };
                under_way.push(undo.send(Arc::clone(&scripts), reply));
            }
            let Some(look) = self.look(server, rests_until, under_way.is_empty()) else {
                return;
            };
            tokio::select! {
                biased;
                Some((undo, end)) = under_way.next(), if !under_way.is_empty() => {
                    let is_silent = matches!(end, End::Silent | End::NotNow);
                    if is_silent {
                        rests_until = clock.now().after(pause.mul_f64(0.5 + 0.5 * fastrand::f64()));
                        pause = PAUSE_MAX.min(pause * 2);
                        room = 1;
                    } else {
                        (pause, rests_until, room) = (PAUSE_FIRST, Tick::ZERO, UNDER_WAY_MAX);
                    }
                    let is_settled = scripts.transport.earlier_commands_settled(Lane::Command, undo.call.route());
                    let now = clock.now();
                    if matches!(end, End::NotNow) && now >= undo.until(&self) {
                        let message = "the server refused for as long as it mattered";
                        tell_failed(&scripts, Error::new(Kind::Refused, "undo", message));
                    }
                    let abandoned = self.ended(server, undo, end, is_settled, now);
                    tell_abandoned(&scripts, abandoned);
                }
                () = self.changed.changed_since(mark), if under_way.len() < room => {}
                () = clock.sleep_until(look), if under_way.len() < room && look != Tick::NEVER => {}
            }
        }
    }

    /// Takes out the entry to send next.
    fn next(&self, server: u64, now: Tick, reply: Duration, scripts: &Scripts) -> Option<Undo> {
        let ending = self.ending();
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&server)?;
        if ending <= now {
            // The client is gone, and these entries were sent once more since, or end with their leases. They have no
            // pending release, so they can be dropped under the mutex.
            (queue.later).retain(|_, undo| undo.is_denied && !undo.has_lease);
        }
        let mut abandoned = 0;
        if ending.after(reply * LAST_TRIES) <= now {
            while (queue.ready.front()).is_some_and(|undo| now >= undo.until(self)) {
                queue.ready.pop_front();
                abandoned += 1;
                self.gave_up.store(true, Ordering::Release);
            }
        }
        let due = queue.later.first_entry().filter(|due| due.key().0 <= now);
        let due = due.map(btree_map::OccupiedEntry::remove);
        let next = due.or_else(|| queue.ready.pop_front());
        drop(queues);
        tell_abandoned(scripts, abandoned);
        next
    }

    /// When to look again. `None` if nothing is left and the queue was removed.
    fn look(&self, server: u64, rests_until: Tick, is_idle: bool) -> Option<Tick> {
        let mut queues = self.queues.lock();
        let queue = queues.get_mut(&server)?;
        let later = queue.later.keys().next().map(|(at, _)| *at);
        match (queue.ready.is_empty(), later) {
            (true, None) if is_idle => {
                queues.remove(&server);
                None
            }
            (true, None) => Some(Tick::NEVER),
            (true, Some(at)) => Some(at.max(rests_until)),
            (false, _) => Some(rests_until),
        }
    }

    /// Applies the end of an entry. Returns how many entries were abandoned since the last call.
    fn ended(&self, server: u64, mut undo: Undo, end: End, is_settled: bool, now: Tick) -> u64 {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&server) else {
            return 0;
        };
        let abandoned = std::mem::take(&mut queue.abandoned);
        queue.is_silent = matches!(end, End::Silent | End::NotNow);
        match end {
            End::Answered if is_settled || undo.cancels == 0 => {}
            End::Denied if now >= undo.until(self) || queue.later.len() >= QUEUE_MAX => {
                self.gave_up.fetch_or(!undo.has_lease, Ordering::Release);
            }
            End::Answered | End::Denied => {
                let at = now.after(undo.span);
                match end {
                    End::Denied => undo.span = LATE_ARRIVAL_MAX.min(undo.span * 2),
                    _ => undo.cancels -= 1,
                }
                let number = self.number.fetch_add(1, Ordering::Relaxed);
                queue.later.insert((at, number), undo);
            }
            End::Refused => {}
            End::NotNow if now >= undo.until(self) => {}
            // The others need not wait for it: this may concern only its keys.
            End::NotNow | End::Silent => queue.ready.push_back(undo),
        }
        if queue.is_silent {
            let undos = queue.ready.iter_mut();
            let held: Vec<_> = undos.map(|undo| undo.release.take()).collect();
            drop(queues);
            // From now on, requests of this client do not wait for these releases to be sent.
            drop(held);
        }
        abandoned
    }
}
