//! What this client knows of one lock: its own holds, its own waiters.
//!
//! Tasks of one client that want the same lock stand in [`Line`], and take over from each other for
//! a while. Nothing here is the truth about the lock: scripts decide.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;

use super::Hold;
use super::line::Line;
use super::listening::Listening;
use super::registry::LocalHolds;
use super::silence::Silence;
use crate::clock::Tick;
use crate::conn::EventHandler;
use crate::hint::Hint;
use crate::keys::within_braces;
use crate::owner::Owner;

/// A lock goes from task to task of one client at most this often in a row while another process
/// is known to wait for it.
pub(crate) const PASSES_MAX: u32 = 16;

/// And at most for this long in a row.
const PASSES_TIME_MAX: Duration = Duration::from_millis(5);

/// All locks this client has to do with just now, and the channels it listens to.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    locks: DashMap<LocalId, Namesakes>,
    channels: DashMap<Box<str>, Arc<Listening>>,
    /// How often every subscription was lost.
    gaps: AtomicU64,
    /// Given when a waiter leaves.
    pub(crate) departed: Hint,
    /// Given when what is held has to be looked at again.
    pub(crate) moved: Arc<Hint>,
}

/// The kind of a lock, and its key without braces around it.
type LocalId = (&'static str, Arc<str>);

/// Two locks that have one channel, by whether there are braces around their name: what is told to one
/// is told to the other, so one [`Listening`] serves both.
type Namesakes = [Weak<LocalLock>; 2];

pub(crate) struct LocalLock {
    id: LocalId,
    locals: Arc<Locals>,
    /// The tasks of this client that want it.
    pub(crate) line: Line,
    /// How those at its head fare.
    pub(crate) silence: Silence,
    /// For those who wait here: given when it is worth asking the server again.
    pub(crate) listening: Arc<Listening>,
    /// Given when a task of this client gets the lock: its owner can enter it now.
    pub(crate) entered: Hint,
    /// Of a lock on several servers, what this client holds.
    pub(crate) quorum_holds: LocalHolds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    holds: Vec<Weak<Hold>>,
    /// Releases and cancellations decided on but not sent yet.
    leaving: usize,
    passes: u32,
    passing_since: Option<Tick>,
    /// Whether the last release was heard by other processes.
    heard_elsewhere: bool,
}

impl Locals {
    pub(crate) fn enter(self: &Arc<Self>, kind: &'static str, key: &Arc<str>) -> Arc<LocalLock> {
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
            locals: Arc::clone(self),
            line: Line::default(),
            silence: Silence::default(),
            listening: other
                .as_ref()
                .map(|other| Arc::clone(&other.listening))
                .unwrap_or_default(),
            entered: Hint::default(),
            quorum_holds: LocalHolds::default(),
            state: Mutex::default(),
        });
        entry[this] = Arc::downgrade(&local);
        drop(entry);
        // It may be the last of the other, which looks at the entry when it goes.
        drop(other);
        local
    }

    pub(crate) fn all(&self) -> Vec<Arc<LocalLock>> {
        self.locks
            .iter()
            .flat_map(|entry| entry.value().clone())
            .filter_map(|local| local.upgrade())
            .collect()
    }

    /// How many wait, wherever they queue.
    pub(crate) fn waiters(&self) -> usize {
        let locks = self.all();
        let mut listening: Vec<_> = locks.iter().map(|lock| &lock.listening).collect();
        // Those with one channel count together.
        listening.sort_unstable_by_key(|listening| Arc::as_ptr(listening));
        listening.dedup_by(|a, b| Arc::ptr_eq(a, b));
        listening.iter().map(|listening| listening.waiters()).sum()
    }

    pub(crate) fn gaps(&self) -> u64 {
        self.gaps.load(Ordering::Acquire)
    }

    pub(crate) fn listen(&self, channel: &str, listening: &Arc<Listening>) {
        self.channels.insert(channel.into(), Arc::clone(listening));
    }

    /// Listens no more, if it is still this one that does. True if so.
    pub(crate) fn ignore(&self, channel: &str, this: &Arc<Listening>) -> bool {
        let removed = self
            .channels
            .remove_if(channel, |_, listening| Arc::ptr_eq(listening, this));
        removed.is_some()
    }

    pub(crate) fn channels(&self) -> usize {
        self.channels.len()
    }
}

impl EventHandler for Locals {
    fn message(&self, channel: &[u8], message: &[u8]) {
        if let Ok(channel) = std::str::from_utf8(channel)
            && let Some(listening) = self.channels.get(channel)
        {
            listening.hear(channel, message);
        }
    }

    fn gap(&self) {
        self.gaps.fetch_add(1, Ordering::AcqRel);
        for listening in &self.channels {
            listening.hint.give();
        }
    }

    fn moved(&self) {
        self.moved.give();
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
    /// The live holds of `owner`; the one that keeps out everybody else first.
    pub(crate) fn hold_of(&self, owner: &Owner) -> Option<Arc<Hold>> {
        let holds = self.live_holds().into_iter();
        holds
            .filter(|hold| hold.owner() == *owner)
            .max_by_key(|hold| hold.is_exclusive())
    }

    /// The latest local deadline of a hold of this client that keeps out everybody else.
    pub(crate) fn closed_until(&self) -> Option<Tick> {
        let holds = self.live_holds().into_iter();
        holds
            .filter(|hold| hold.is_exclusive())
            .map(|hold| hold.deadline())
            .max()
    }

    pub(crate) fn live_holds(&self) -> Vec<Arc<Hold>> {
        let holds: Vec<_> = {
            let state = self.state.lock();
            state.holds.iter().filter_map(Weak::upgrade).collect()
        };
        holds.into_iter().filter(|hold| hold.is_held()).collect()
    }

    /// All holds of this client but this one, whether or not they are over.
    pub(crate) fn others(&self, this: &Hold) -> Vec<Arc<Hold>> {
        let this: *const Hold = this;
        let state = self.state.lock();
        let others = state.holds.iter();
        others
            .filter(|hold| !std::ptr::eq(hold.as_ptr(), this))
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub(crate) fn add(&self, hold: &Arc<Hold>) {
        self.state.lock().holds.push(Arc::downgrade(hold));
        self.entered.give();
    }

    /// Forgets holds that ended.
    pub(crate) fn sweep(&self, ended: &Hold) {
        let ended: *const Hold = ended;
        self.state
            .lock()
            .holds
            .retain(|hold| !std::ptr::eq(hold.as_ptr(), ended));
    }

    /// A release or cancellation was decided on.
    pub(crate) fn begin_leaving(&self) {
        self.state.lock().leaving += 1;
    }

    /// It was sent: whoever asks now asks after it.
    pub(crate) fn end_leaving(&self) {
        self.state.lock().leaving -= 1;
        self.look_again();
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().leaving > 0
    }

    /// How many connections heard of a release; our own subscription is one of them.
    pub(crate) fn note_heard(&self, told: u64) {
        let own = u64::from(self.listening.listens());
        self.state.lock().heard_elsewhere = told > own;
    }

    /// Whether it may pass once more to another task of this client without being free in between.
    pub(super) fn may_hand_over(&self, now: Tick) -> bool {
        let mut state = self.state.lock();
        let since = *state.passing_since.get_or_insert(now);
        let may = state.passes < PASSES_MAX && since.until(now) <= PASSES_TIME_MAX;
        state.passes += u32::from(may);
        may
    }

    /// Whether the next waiter of this client may ask at once. If not, another process is given
    /// the time to ask first, and the count starts again.
    pub(crate) fn may_pass(&self, now: Tick) -> bool {
        let mut state = self.state.lock();
        let since = *state.passing_since.get_or_insert(now);
        state.passes += 1;
        let spent = state.passes > PASSES_MAX || since.until(now) > PASSES_TIME_MAX;
        if spent {
            state.passes = 0;
            state.passing_since = None;
        }
        !(spent && state.heard_elsewhere)
    }

    /// The lock was seen elsewhere: others had their turn.
    pub(crate) fn end_passing(&self) {
        let mut state = self.state.lock();
        state.passes = 0;
        state.passing_since = None;
    }

    /// How many wait for this lock, wherever they queue.
    pub(crate) fn waiters(&self) -> usize {
        self.listening.waiters()
    }

    /// The hint for those who wait here.
    pub(crate) fn hint(&self) -> &Hint {
        &self.listening.hint
    }

    /// It is worth asking the server again.
    pub(crate) fn look_again(&self) {
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
