//! What this client knows of one lock: its own holds and its own waiters.
//!
//! Tasks of one client that want the same lock wait in a [`LocalQueue`], and hand it off to each other
//! for a while. Invariant: nothing here is the truth about the lock; scripts decide.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use redis::Cmd;

use super::handoff::{Handoff, HandoffRequest};
use super::open_read::OpenRead;
use super::queue::{LocalQueue, Place};
use super::recalls::Recalls;
use super::registry::{LocalHold, LocalHolds};
use super::silence::Silence;
use super::sticky_slot::StickySlot;
use super::subscription::Subscription;
use super::terms::JoinTerms;
use super::turns::Turns;
use crate::clock::{Clock, Tick};
use crate::conn::EventHandler;
use crate::events::Event;
use crate::hint::Hint;
use crate::keys::{RECALL_CHANNEL, within_braces};
use crate::observe::Observed;

/// For so long after a refusal, another one is likely.
const REFUSED_LATELY: Duration = Duration::from_secs(1);

/// A place in the local queue of a lock.
pub(crate) type QueuePlace<'a> = Place<'a, HandoffRequest, Handoff, JoinTerms>;

/// All locks that this client uses, and the channels it listens to.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    locks: DashMap<LocalId, Namesakes>,
    channels: DashMap<Box<str>, Arc<Subscription>>,
    /// How often all subscriptions were lost.
    gaps: AtomicU64,
    /// Given when a waiter leaves.
    pub(crate) waiter_left: Hint,
    /// Given when the server has to be asked again whether it has what is held.
    pub(crate) moved: Arc<Hint>,
    /// What waiters elsewhere ask of this client.
    pub(super) recalls: Recalls,
    pub(crate) observed: Arc<Observed>,
}

/// The kind of a lock, and its key without braces around it.
type LocalId = (&'static str, Arc<str>);

/// Two locks that have one channel, by whether there are braces around their name. A message to one is a
/// message to the other, so one [`Subscription`] serves both.
type Namesakes = [Weak<LocalLock>; 2];

pub(crate) struct LocalLock {
    id: LocalId,
    /// Whether braces stand around its whole key.
    has_braces: bool,
    locals: Arc<Locals>,
    /// The tasks of this client that want it.
    pub(crate) queue: LocalQueue<HandoffRequest, Handoff, JoinTerms>,
    /// Since when those at its head have had no answer.
    pub(crate) silence: Silence,
    /// Its hint is for those who wait here.
    pub(crate) subscription: Arc<Subscription>,
    /// Given when a task of this client gets the lock: other tasks of its owner can enter it now.
    pub(crate) gained: Hint,
    /// What this client holds of it.
    pub(crate) holds: LocalHolds,
    /// So many handles keep it for the next call.
    kept: AtomicUsize,
    /// What tells others that it is free, if a plain command can.
    pub(super) tell: OnceLock<Option<Arc<Cmd>>>,
    /// What of that the next readers may join.
    pub(crate) open_read: OpenRead,
    /// What of that no guard has, and the next task can take.
    pub(crate) sticky: Arc<StickySlot>,
    /// Given when somebody begins to wait for it, here or elsewhere.
    pub(crate) wanted: Hint,
    /// Until when it counts as a lock that may be held elsewhere; read by each call.
    busy_until: AtomicU64,
    state: Mutex<State>,
}

/// What a handle keeps of its lock between two calls, which is no use of the lock.
#[derive(Debug)]
pub(crate) struct KeptLocal(Arc<LocalLock>);

impl KeptLocal {
    pub(crate) fn new(local: Arc<LocalLock>) -> Self {
        local.kept.fetch_add(1, Ordering::AcqRel);
        Self(local)
    }

    pub(crate) fn get(&self) -> &Arc<LocalLock> {
        &self.0
    }
}

impl Clone for KeptLocal {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for KeptLocal {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug, Default)]
struct State {
    /// Releases and cancellations decided on but not sent yet.
    unsent_releases: usize,
    turns: Turns,
    /// Whoever holds it elsewhere is not recalled before this.
    recall_after: Tick,
}

impl Locals {
    pub(crate) fn observed_by(observed: Observed) -> Self {
        Self {
            observed: Arc::new(observed),
            ..Self::default()
        }
    }

    /// What this client knows of the lock with this key; made if need be.
    pub(crate) fn get_or_insert(
        self: &Arc<Self>,
        kind: &'static str,
        key: &Arc<str>,
    ) -> Arc<LocalLock> {
        let inner = within_braces(key);
        let has_braces = inner.is_some();
        let id = (kind, inner.map_or_else(|| Arc::clone(key), Arc::from));
        let mut entry = self.locks.entry(id.clone()).or_default();
        let [this, other] = [has_braces, !has_braces].map(usize::from);
        if let Some(local) = entry[this].upgrade() {
            return local;
        }
        let other = entry[other].upgrade();
        let local = Arc::new(LocalLock {
            id,
            has_braces,
            locals: Arc::clone(self),
            queue: LocalQueue::default(),
            silence: Silence::default(),
            subscription: other
                .as_ref()
                .map(|other| Arc::clone(&other.subscription))
                .unwrap_or_default(),
            gained: Hint::default(),
            holds: LocalHolds::default(),
            open_read: OpenRead::default(),
            kept: AtomicUsize::new(0),
            tell: OnceLock::new(),
            sticky: Arc::default(),
            wanted: Hint::default(),
            busy_until: AtomicU64::default(),
            state: Mutex::default(),
        });
        entry[this] = Arc::downgrade(&local);
        drop(entry);
        // It may be the last of the other, which looks at the entry when it goes.
        drop(other);
        local
    }

    /// In the order of their names: what is done with all of them is done in the same order each time.
    pub(crate) fn all(&self) -> Vec<Arc<LocalLock>> {
        let all = self.locks.iter();
        let all = all.flat_map(|entry| entry.value().clone());
        // Dropped by the caller, not here: the last one to let go of a lock takes it out of the map.
        let mut all: Vec<_> = all.filter_map(|local| local.upgrade()).collect();
        all.sort_unstable_by(|a, b| (&a.id, a.has_braces).cmp(&(&b.id, b.has_braces)));
        all
    }

    /// Without those that are but kept for the next call. To be shown, not to be relied on: a handle that is
    /// cloned or dropped meanwhile may hide one.
    pub(crate) fn in_use(&self) -> Vec<Arc<LocalLock>> {
        let mut all = self.all();
        all.retain(|local| Arc::strong_count(local) > 1 + local.kept.load(Ordering::Acquire));
        all
    }

    /// How many wait, wherever they queue.
    pub(crate) fn waiters(&self) -> usize {
        let locks = self.all();
        let mut subscriptions: Vec<_> = locks.iter().map(|lock| &lock.subscription).collect();
        // Those with one channel count together.
        subscriptions.sort_unstable_by_key(|subscription| Arc::as_ptr(subscription));
        subscriptions.dedup_by(|a, b| Arc::ptr_eq(a, b));
        subscriptions
            .iter()
            .map(|subscription| subscription.waiters())
            .sum()
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
        // Counted under the lock of the map: `forget_listener` sees the listener or removes the entry before.
        entry.add_listener();
        Arc::clone(&entry)
    }

    /// Removes the subscription of a channel if it has no listener. Returns whether it was removed.
    pub(crate) fn forget_listener(&self, channel: &str, this: &Arc<Subscription>) -> bool {
        let removed = self.channels.remove_if(channel, |_, subscription| {
            Arc::ptr_eq(subscription, this) && !subscription.is_used()
        });
        removed.is_some()
    }

    /// Ends that, if it is still this subscription that listens. True if so.
    pub(crate) fn ignore(&self, channel: &str, this: &Arc<Subscription>) -> bool {
        let removed = self
            .channels
            .remove_if(channel, |_, subscription| Arc::ptr_eq(subscription, this));
        removed.is_some()
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
        // Whoever wakes first asks first: the same each time.
        told.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (_, subscription) in told {
            subscription.hint.give();
        }
        self.recalls.changed.give();
    }

    fn moved(&self) {
        self.observed.tell(|| {
            let locks = self.all();
            let holds = locks.iter().map(|local| local.holds.live().len());
            Event::Failover { holds: holds.sum() }
        });
        self.moved.give();
    }

    fn reconnected(&self, lane: &'static str, server: &str) {
        self.observed.reconnected(lane);
        self.observed.tell(|| Event::Reconnected {
            server: server.into(),
            lane,
        });
    }
}

impl fmt::Debug for LocalLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All who wait for it would come with each guard that is shown.
        f.debug_struct("LocalLock")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl LocalLock {
    /// The latest local deadline of an exclusive hold of this client.
    pub(crate) fn exclusive_until(&self) -> Option<Tick> {
        self.holds.exclusive_until()
    }

    /// A task of this client has got the lock.
    pub(super) fn add_hold(&self, hold: Weak<dyn LocalHold>) {
        self.holds.add(hold);
        self.gained.give();
    }

    /// A task of this client has it no more.
    pub(super) fn remove_hold<H: LocalHold>(&self, hold: &H) {
        self.open_read.remove(hold);
        let is_last = self.holds.remove(hold);
        if is_last && self.waiters() == 0 {
            self.state.lock().turns.nobody_waits_here();
        }
    }

    /// A cancellation was decided on.
    pub(crate) fn begin_release(&self) {
        self.state.lock().unsent_releases += 1;
    }

    /// A release was decided on.
    pub(crate) fn decide_release(&self, now: Tick) {
        let mut state = self.state.lock();
        state.unsent_releases += 1;
        state.turns.note_release(now, self.hint().messages());
    }

    /// It was sent: whoever asks from now on asks behind it.
    pub(crate) fn release_sent(&self) {
        self.state.lock().unsent_releases -= 1;
        self.wake_waiters();
    }

    fn has_unsent_release(&self) -> bool {
        self.state.lock().unsent_releases > 0
    }

    /// Resolves once the releases that were decided on were sent, or at a time. Since when, at a time that was
    /// read just now.
    pub(crate) async fn releases_sent_by(&self, clock: Clock, limit: Tick, now: Tick) -> Tick {
        let mut later = now;
        loop {
            let mark = self.hint().mark();
            if !self.has_unsent_release() || later >= limit {
                return later;
            }
            tokio::select! {
                biased;
                () = self.hint().past(mark) => {}
                () = clock.sleep_until(limit) => {}
            }
            later = clock.now();
        }
    }

    /// How many connections received the message of a release; our own subscription is one of them.
    pub(crate) fn note_receivers(&self, receivers: u64) {
        let own = u64::from(self.subscription.is_subscribed());
        self.state
            .lock()
            .turns
            .note_others(receivers.saturating_sub(own));
    }

    /// Whether it may be handed off once more to another task of this client. Counts it, if so.
    pub(super) fn try_spend_handoff(&self, now: Tick) -> bool {
        self.state.lock().turns.try_spend_handoff(now)
    }

    /// The same for the readers of this client, and until when they have it; not while others listen.
    pub(super) fn try_defer_downgrade(&self, now: Tick) -> Option<Tick> {
        self.state.lock().turns.try_defer_downgrade(now)
    }

    /// Counts a turn of this client. True if it has had enough in a row and others listen: then another
    /// process is given the time to ask first.
    pub(crate) fn must_yield(&self, now: Tick) -> bool {
        self.state.lock().turns.count_turn(now)
    }

    /// The same, after which this client stands back. Whether it does now, for this turn or an earlier one.
    pub(crate) fn end_turn(&self, now: Tick) -> bool {
        let mut state = self.state.lock();
        state.turns.end(now);
        state.turns.is_back()
    }

    /// Whether others are to have their turn yet; then, until when to wait for the next message.
    pub(crate) fn stands_back(&self, now: Tick) -> Option<Tick> {
        let messages = self.hint().messages();
        self.state.lock().turns.stands_back(messages, now)
    }

    /// This client, which stood back, has the lock; whoever asked for it still has its place.
    pub(crate) fn begin_turn(&self, now: Tick) {
        let messages = self.hint().messages();
        let waiting = self.queue.len().saturating_sub(1);
        self.state.lock().turns.begin(messages, waiting, now);
    }

    /// How long the server took to answer one who waits.
    pub(crate) fn note_trip(&self, trip: Duration) {
        self.state.lock().turns.note_trip(trip);
    }

    /// The server has refused it.
    pub(crate) fn note_refusal(&self, now: Tick) {
        let until = now.after(REFUSED_LATELY).nanos();
        self.busy_until.store(until, Ordering::Relaxed);
    }

    pub(crate) fn was_refused_lately(&self, now: Tick) -> bool {
        now.nanos() < self.busy_until.load(Ordering::Relaxed)
    }

    /// Whether whoever holds it elsewhere is to be recalled.
    pub(crate) fn may_recall(&self, now: Tick) -> bool {
        now >= self.state.lock().recall_after
    }

    pub(crate) fn recall_after(&self, at: Tick) {
        self.state.lock().recall_after = at;
    }

    /// The lock was seen elsewhere: others had their turn.
    pub(crate) fn reset_handoffs(&self) {
        self.state.lock().turns.seen_elsewhere();
    }

    /// Its key at the server.
    pub(crate) fn key(&self) -> String {
        if self.has_braces {
            format!("{{{}}}", self.id.1)
        } else {
            self.id.1.as_ref().to_owned()
        }
    }

    /// How many wait for this lock, wherever they queue.
    pub(crate) fn waiters(&self) -> usize {
        self.subscription.waiters()
    }

    /// The hint for those who wait here.
    pub(crate) fn hint(&self) -> &Hint {
        &self.subscription.hint
    }

    /// It is worth asking the server again.
    pub(crate) fn wake_waiters(&self) {
        self.hint().give();
    }
}

impl Drop for LocalLock {
    fn drop(&mut self) {
        self.locals.locks.remove_if(&self.id, |_, locks| {
            locks.iter().all(|lock| lock.strong_count() == 0)
        });
    }
}
