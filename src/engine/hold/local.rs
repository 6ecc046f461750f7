//! The state of one lock in one client: the [`LockState`] under its mutex, and beside it the hints that tasks wait for.
//!
//! Tasks of one client that want one lock wait in its queue and hand the lock off to each other for a while.
//! Invariants: nothing here is authoritative, because the scripts decide. No task is woken under the mutex.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Waker;
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use redis::Cmd;

use super::bound::Silence;
use super::handoff::Handoff;
use super::lock::{LockState, Seen};
use super::subscription::{Recalls, Subscription};
use crate::api::holder::Owner;
use crate::conn::EventHandler;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::{Hint, OwnerWaiters};
use crate::engine::keys::{RECALL_CHANNEL, within_braces};
use crate::observe::counts::Fact;
use crate::observe::events::Event;
use crate::observe::observer::Observed;

/// For this long after a refusal, another refusal is likely.
const REFUSED_LATELY: Duration = Duration::from_secs(1);

/// All locks that this client uses, and the channels it listens to.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    locks: DashMap<LocalId, Namesakes>,
    channels: DashMap<Box<str>, Arc<Subscription>>,
    /// How many times all subscriptions were lost.
    gaps: AtomicU64,
    /// Signalled when a waiter leaves.
    pub(crate) waiter_left: Hint,
    /// Signalled when all holds have to be verified at the server.
    pub(crate) moved: Arc<Hint>,
    /// The recalls that waiters elsewhere send to this client.
    pub(super) recalls: Recalls,
    pub(crate) observed: Arc<Observed>,
}

/// The kind of a lock, and its key without the braces around it. For a Redlock, its place on all its servers instead of
/// the key.
type LocalId = (&'static str, Arc<str>);

/// Two locks that share a channel because their names differ only in the braces around them. A message on it concerns
/// both, so one [`Subscription`] serves both.
type Namesakes = [Weak<LocalLock>; 2];

pub(crate) struct LocalLock {
    id: LocalId,
    /// Its key at the server.
    key: Arc<str>,
    locals: Arc<Locals>,
    /// Its hint wakes the waiters of this client.
    pub(crate) subscription: Arc<Subscription>,
    /// The plain command that notifies others of a release, or `None` if a release needs a script.
    pub(super) tell: OnceLock<Option<Arc<Cmd>>>,
    /// Made by the first task that needs it.
    rare: OnceLock<Box<Rare>>,
    /// Until when the lock counts as probably held elsewhere. Not under the mutex, because each call reads it.
    busy_until: AtomicU64,
    /// The number of waiters for this lock, in the local queue and at the server.
    pub(crate) waiting: AtomicU32,
    state: Mutex<LockState>,
}

/// The locked state. Tasks are woken only once the mutex is free, because a waker may run any code, and the task will
/// lock the state itself.
pub(crate) struct Locked<'a>(MutexGuard<'a, LockState>);

/// The part of a lock that most locks never need.
#[derive(Debug, Default)]
pub(crate) struct Rare {
    /// Wakes the waiters of an owner when another of its tasks gets the lock.
    pub(crate) acquired_here: OwnerWaiters,
    /// Signalled when a waiter, of this client or elsewhere, begins to wait for the lock.
    pub(crate) wanted: Hint,
}

impl Locals {
    pub(crate) fn observed_by(observed: Observed) -> Self {
        Self {
            observed: Arc::new(observed),
            ..Self::default()
        }
    }

    /// Returns the state of the lock with this key, made if there is none. `place` is the key, except for a kind whose
    /// locks at several places have the same key.
    pub(crate) fn get_or_insert(
        self: &Arc<Self>,
        kind: &'static str,
        place: &Arc<str>,
        key: &Arc<str>,
    ) -> Arc<LocalLock> {
        let inner = within_braces(place);
        let has_braces = inner.is_some();
        let id = (kind, inner.map_or_else(|| Arc::clone(place), Arc::from));
        let mut entry = self.locks.entry(id.clone()).or_default();
        let [this, other] = [has_braces, !has_braces].map(usize::from);
        if let Some(local) = entry[this].upgrade() {
            return local;
        }
        let other = entry[other].upgrade();
        let shared = other.as_ref().map(|other| &other.subscription);
        let local = Arc::new(LocalLock {
            id,
            key: Arc::clone(key),
            locals: Arc::clone(self),
            subscription: shared.map(Arc::clone).unwrap_or_default(),
            tell: OnceLock::new(),
            rare: OnceLock::new(),
            busy_until: AtomicU64::default(),
            waiting: AtomicU32::default(),
            state: Mutex::default(),
        });
        entry[this] = Arc::downgrade(&local);
        drop(entry);
        // This may be the last reference to the other lock, whose drop locks the map.
        drop(other);
        local
    }

    /// All locks, in an order that does not vary.
    pub(crate) fn all(&self) -> Vec<Arc<LocalLock>> {
        let all = self.locks.iter();
        let all = all.flat_map(|entry| entry.value().clone());
        // The caller drops the references, not this iterator, because the drop of the last one locks the map.
        let mut all: Vec<_> = all.filter_map(|local| local.upgrade()).collect();
        all.sort_unstable_by(|a, b| (&a.id, &a.key).cmp(&(&b.id, &b.key)));
        all
    }

    /// All locks that this client holds, waits for, or is still releasing.
    pub(crate) fn in_use(&self) -> Vec<Arc<LocalLock>> {
        let mut all = self.all();
        all.retain(|local| local.waiters() > 0 || local.lock().is_in_use());
        all
    }

    /// The number of waiters, in local queues and at the server.
    pub(crate) fn waiters(&self) -> usize {
        // Dropped below, not by this iterator, as in `all`.
        let each = self.locks.iter().flat_map(|entry| entry.value().clone());
        let each: Vec<_> = each.filter_map(|local| local.upgrade()).collect();
        each.iter().map(|local| local.waiters()).sum()
    }

    pub(crate) fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Acquire)
    }

    pub(crate) fn listen(&self, channel: &str, subscription: &Arc<Subscription>) {
        self.channels
            .insert(channel.into(), Arc::clone(subscription));
    }

    /// Counts one more listener of a channel. All of them share one subscription.
    pub(crate) fn add_listener(&self, channel: &str) -> Arc<Subscription> {
        let entry = self.channels.entry(channel.into()).or_default();
        // Counted under the lock of the map, so `forget` either sees the listener or has removed the entry before.
        entry.add_listener();
        Arc::clone(&entry)
    }

    /// Whether the messages of a channel go to this subscription.
    pub(crate) fn leads_to(&self, channel: &str, this: &Arc<Subscription>) -> bool {
        let listed = self.channels.get(channel);
        listed.is_some_and(|listed| Arc::ptr_eq(&listed, this))
    }

    /// Removes the subscription of a channel from the list. False if it stays, because it has a listener.
    pub(crate) fn forget(&self, channel: &str, this: &Arc<Subscription>) -> bool {
        let is_unused = |_: &_, listed: &_| Arc::ptr_eq(listed, this) && !this.is_used();
        self.channels.remove_if(channel, is_unused).is_some() || !self.leads_to(channel, this)
    }

    /// Removes the subscription of a channel from the list, if it is still this one. Returns whether it was.
    pub(crate) fn ignore(&self, channel: &str, this: &Arc<Subscription>) -> bool {
        let is_this = |_: &_, listed: &_| Arc::ptr_eq(listed, this);
        self.channels.remove_if(channel, is_this).is_some()
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels.len()
    }
}

impl EventHandler for Locals {
    fn message(&self, channel: &[u8], message: &[u8]) {
        if channel.starts_with(RECALL_CHANNEL.as_bytes()) {
            self.recalls.on_message(message);
        } else if let Ok(channel) = std::str::from_utf8(channel)
            && let Some(subscription) = self.channels.get(channel)
        {
            subscription.on_message(channel, message);
        }
    }

    fn gap(&self) {
        self.gaps.fetch_add(1, Ordering::AcqRel);
        let channels = self.channels.iter();
        let mut told: Vec<_> = channels
            .map(|entry| (entry.key().clone(), Arc::clone(entry.value())))
            .collect();
        // The waiter that is woken first asks first. A fixed order makes that repeatable.
        told.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (_, subscription) in told {
            subscription.hint.notify();
        }
        self.recalls.changed.notify();
    }

    fn moved(&self) {
        let locks = self.all();
        let holds = locks.iter().map(|local| local.lock().grants.live().count());
        let holds = holds.sum();
        self.observed.note(Fact::event(Event::Failover { holds }));
        self.moved.notify();
    }

    fn reconnected(&self, lane: &'static str, server: &str) {
        let server = server.into();
        let made = Event::Reconnected { server, lane };
        self.observed.note(Fact::event(made));
    }
}

impl Locked<'_> {
    #[cold]
    fn wake(&mut self) {
        let woken = self.0.woken().map(mem::take).unwrap_or_default();
        MutexGuard::unlocked(&mut self.0, || woken.into_iter().for_each(Waker::wake));
    }
}

impl Deref for Locked<'_> {
    type Target = LockState;

    #[inline]
    fn deref(&self) -> &LockState {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut LockState {
        &mut self.0
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.0.woken().is_some_and(|woken| !woken.is_empty()) {
            self.wake();
        }
    }
}

impl fmt::Debug for LocalLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Otherwise each guard's debug output would show all waiters of the lock.
        f.debug_struct("LocalLock")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl LocalLock {
    /// Locks the state.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked(self.state.lock())
    }

    /// The facts that a change of the state needs.
    pub(super) fn seen(&self) -> Seen {
        Seen {
            ends: self.subscription.ends(),
            waiters: self.waiters(),
        }
    }

    /// Returns the part that most locks never need, made if there is none.
    pub(crate) fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// Wakes the waiters of an owner that has just got the lock.
    pub(crate) fn wake_waiters_of(&self, owner: &Owner) {
        if let Some(rare) = self.rare.get() {
            rare.acquired_here.notify(owner);
        }
    }

    /// Notes that a waiter, here or elsewhere, begins to wait for the lock.
    pub(crate) fn note_wanted(&self) {
        if let Some(rare) = self.rare.get() {
            rare.wanted.notify();
        }
    }

    /// Takes the sticky hold, if there is one.
    pub(crate) fn take_sticky(&self) -> Option<Box<Handoff>> {
        self.lock().sticky.take()
    }

    /// Notes that a release or an undoing was decided on.
    pub(crate) fn begin_release(&self) {
        self.lock().unsent_releases += 1;
    }

    /// Notes that the release or undoing was sent, so that requests from now on go behind it.
    pub(crate) fn release_sent(&self) {
        self.lock().unsent_releases -= 1;
        self.wake_waiters();
    }

    /// Waits until the releases that were decided on are sent, or until `limit`. Returns the time at its end, which is
    /// `now` if there was nothing to wait for.
    pub(crate) async fn releases_sent_by(&self, clock: Clock, limit: Tick, now: Tick) -> Tick {
        let mut later = now;
        loop {
            let mark = self.hint().mark();
            if self.lock().unsent_releases == 0 || later >= limit {
                return later;
            }
            // Boxed because it is rare and large.
            Box::pin(async {
                tokio::select! {
                    biased;
                    () = self.hint().changed_since(mark) => {}
                    () = clock.sleep_until(limit) => {}
                }
            })
            .await;
            later = clock.now();
        }
    }

    /// Counts a turn before an attempt. Returns whether this client backs off now.
    pub(crate) fn end_turn(&self, now: Tick) -> bool {
        let (ends, reads) = (self.subscription.ends(), self.subscription.reads());
        let was_refused = self.was_refused_lately(now);
        let turns = &mut self.lock().turns;
        if turns.has_had_readers(reads, now) {
            turns.end_among_readers(ends, was_refused, fastrand::f64(), now)
        } else {
            turns.end(now)
        }
    }

    /// Notes a refusal. It shows that others had their turn, unless readers may have caused it.
    pub(crate) fn seen_elsewhere(&self, now: Tick) {
        let reads = self.subscription.reads();
        let turns = &mut self.lock().turns;
        let among_readers = turns.has_had_readers(reads, now);
        turns.seen_elsewhere(among_readers);
    }

    /// Returns until when to wait for the next message while this client backs off for others. `None` if it does not
    /// back off.
    pub(crate) fn back_off_end(&self, now: Tick) -> Option<Tick> {
        let ends = self.subscription.ends();
        self.lock().turns.back_off_end(ends, now)
    }

    /// Begins a turn, because this client backed off and now has the lock.
    pub(crate) fn begin_turn(&self, now: Tick) {
        let ends = self.subscription.ends();
        let mut state = self.lock();
        let waiting = state.queue().len().saturating_sub(1);
        state.turns.begin(ends, waiting, now);
    }

    /// Notes that the server refused the lock.
    pub(crate) fn note_refusal(&self, now: Tick) {
        let until = now.after(REFUSED_LATELY).nanos();
        self.busy_until.store(until, Ordering::Relaxed);
    }

    pub(crate) fn was_refused_lately(&self, now: Tick) -> bool {
        now.nanos() < self.busy_until.load(Ordering::Relaxed)
    }

    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    pub(crate) fn waiters(&self) -> usize {
        self.waiting.load(Ordering::SeqCst) as usize
    }

    /// Since when the heads of the queue have had no answer.
    pub(crate) fn silence(&self) -> &Silence {
        &self.subscription.silence
    }

    /// The hint that wakes the waiters of this client.
    pub(crate) fn hint(&self) -> &Hint {
        &self.subscription.hint
    }

    /// Wakes the waiters, because another attempt may succeed.
    pub(crate) fn wake_waiters(&self) {
        self.hint().notify();
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        self.locals.locks.remove_if(&self.id, |_, locks| {
            locks.iter().all(|lock| lock.strong_count() == 0)
        });
    }
}
