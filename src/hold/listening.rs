//! One channel that waiters listen to: who waits, and whether the server sends us its messages.
//!
//! Waiters that queue in their client share one for each lock; one that queues at the server has
//! its own.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::letter::Letter;
use crate::clock::Tick;
use crate::hint::Hint;

#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// Given when it is worth asking the server again.
    pub(crate) hint: Hint,
    /// The last letter, and the channel that it came on.
    letter: Mutex<Option<(Box<str>, Letter)>>,
    /// Locked while it is being changed.
    pub(crate) subscription: tokio::sync::Mutex<Subscription>,
    waiters: AtomicUsize,
    /// Those who listen for a waiter that queues elsewhere.
    ears: AtomicUsize,
    /// Whether a subscription was made that nobody has been told to take back.
    listens: AtomicBool,
    /// A subscription could not be made; it is not tried again before this.
    listen_after: AtomicU64,
}

/// Whether the server sends us the messages of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subscription {
    /// The channel that was asked for and not given up.
    pub(crate) channel: Option<String>,
    /// Confirmed after this many gaps; the next gap ended it. `None` until it is confirmed.
    pub(crate) since: Option<u64>,
}

impl Listening {
    /// A message came on this channel. Whatever it says otherwise, it means: look again.
    pub(crate) fn hear(&self, channel: &str, message: &[u8]) {
        if let Some(letter) = Letter::read(message) {
            *self.letter.lock() = Some((channel.into(), letter));
        }
        self.hint.tell();
    }

    /// The last letter, if it came on this channel. Nobody else gets it.
    pub(crate) fn take_letter(&self, channel: &str) -> Option<Letter> {
        let (on, letter) = self.letter.lock().take()?;
        (*on == *channel).then_some(letter)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// True if nobody waits or listens any more.
    pub(crate) fn leave(&self) -> bool {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        !self.is_used()
    }

    pub(crate) fn enter_as_ear(&self) {
        self.ears.fetch_add(1, Ordering::SeqCst);
    }

    /// True if nobody waits or listens any more.
    pub(crate) fn leave_as_ear(&self) -> bool {
        self.ears.fetch_sub(1, Ordering::SeqCst);
        !self.is_used()
    }

    /// Of two that leave at once, the later one finds the other gone.
    pub(crate) fn is_used(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) + self.ears.load(Ordering::SeqCst) > 0
    }

    /// A subscription is being made: the last waiter to leave is to have it taken back.
    pub(crate) fn note_listening(&self) {
        self.listens.store(true, Ordering::SeqCst);
    }

    /// True if there is a subscription to be taken back, and it is the caller who has to.
    pub(crate) fn take_listening(&self) -> bool {
        self.listens.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    pub(crate) fn listen_after(&self, at: Tick) {
        self.listen_after.store(at.nanos(), Ordering::Relaxed);
    }

    pub(crate) fn may_listen(&self, now: Tick) -> bool {
        now.nanos() >= self.listen_after.load(Ordering::Relaxed)
    }
}
