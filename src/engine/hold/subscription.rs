//! A channel that waiters listen to: how many wait, and whether the server sends its messages.
//!
//! Waiters that queue in their client share one subscription for each lock. A waiter that queues at the server has
//! its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::grant_message::GrantMessage;
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::engine::keys::RW_CHANNEL;

/// The extra message of `lua/includes/tell.lua`, for waiters of Redisson that may have missed the first.
const FOR_REDISSON: &[u8] = b"00";

/// On the channel of a read-write lock: its last reader has left.
const READERS_LEFT: &[u8] = b"0";

#[derive(Debug, Default)]
pub(crate) struct Subscription {
    /// Signalled when another attempt may succeed.
    pub(crate) hint: Hint,
    /// The last grant. Boxed: most subscriptions never have one.
    grant: Mutex<Option<Box<ReceivedGrant>>>,
    pub(crate) state: Mutex<SubscriptionState>,
    waiters: AtomicUsize,
    /// Listeners on behalf of waiters that queue elsewhere.
    listeners: AtomicUsize,
    /// Whether a subscription was made that no task has been asked to end.
    is_subscribed: AtomicBool,
    /// Whether a task subscribes on behalf of all listeners.
    is_subscribing: AtomicBool,
    /// After a failed subscription, no other is tried before this time.
    retry_after: AtomicU64,
    /// How many signs there were that readers have the lock.
    reads: AtomicU64,
}

#[derive(Debug)]
struct ReceivedGrant {
    channel: Box<str>,
    grant: GrantMessage,
}

/// The work that subscribes on behalf of all listeners, until dropped.
#[derive(Debug)]
pub(crate) struct Subscribing(Arc<Subscription>);

impl Drop for Subscribing {
    fn drop(&mut self) {
        self.0.is_subscribing.store(false, Ordering::SeqCst);
        self.0.hint.notify();
    }
}

/// Whether the server sends us the messages of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubscriptionState {
    /// The channel that was requested and not ended.
    pub(crate) channel: Option<String>,
    /// Confirmed after this many gaps; the next gap ended it. `None` until it is confirmed.
    pub(crate) since: Option<u64>,
}

impl Subscription {
    /// A message came on this channel. Whatever it says otherwise, it means: look again.
    pub(crate) fn on_message(&self, channel: &str, message: &[u8]) {
        if message == FOR_REDISSON {
            return;
        }
        if let Some(grant) = GrantMessage::parse(message) {
            let channel = channel.into();
            *self.grant.lock() = Some(Box::new(ReceivedGrant { channel, grant }));
        }
        if message == READERS_LEFT && channel.starts_with(RW_CHANNEL) {
            self.note_read();
            self.hint.notify();
        } else {
            self.hint.notify_of_end();
        }
    }

    /// Notes a sign of readers: this client reads, or the last reader elsewhere has left.
    pub(crate) fn note_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Takes the last grant, if it came on this channel.
    pub(crate) fn take_grant_message(&self, channel: &str) -> Option<GrantMessage> {
        let received = self.grant.lock().take()?;
        (*received.channel == *channel).then_some(received.grant)
    }

    pub(crate) fn waiters(&self) -> usize {
        self.waiters.load(Ordering::SeqCst)
    }

    pub(crate) fn add_waiter(&self) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
    }

    /// True if no waiter or listener is left.
    pub(crate) fn remove_waiter(&self) -> bool {
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        !self.is_used()
    }

    pub(crate) fn add_listener(&self) {
        self.listeners.fetch_add(1, Ordering::SeqCst);
    }

    /// True if no waiter or listener is left.
    pub(crate) fn remove_listener(&self) -> bool {
        self.listeners.fetch_sub(1, Ordering::SeqCst);
        !self.is_used()
    }

    /// If two leave at once, the later one finds the other gone.
    pub(crate) fn is_used(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) + self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Notes that a subscription is being made. The last waiter to leave has to end it.
    pub(crate) fn mark_subscribed(&self) {
        self.is_subscribed.store(true, Ordering::SeqCst);
    }

    /// True if there is a subscription to end, and the caller has to end it.
    pub(crate) fn take_subscribed(&self) -> bool {
        self.is_subscribed.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.is_subscribed.load(Ordering::Relaxed)
    }

    /// `None` if a task does it already. Its end gives the hint.
    pub(crate) fn begin_subscribing(self: &Arc<Self>) -> Option<Subscribing> {
        let was_begun = self.is_subscribing.swap(true, Ordering::SeqCst);
        (!was_begun).then(|| Subscribing(Arc::clone(self)))
    }

    pub(crate) fn is_subscribing(&self) -> bool {
        self.is_subscribing.load(Ordering::SeqCst)
    }

    pub(crate) fn retry_after(&self, at: Tick) {
        self.retry_after.store(at.nanos(), Ordering::Relaxed);
    }

    pub(crate) fn may_subscribe(&self, now: Tick) -> bool {
        now.nanos() >= self.retry_after.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_redisson_wakes_nobody() {
        let subscription = Subscription::default();
        for (message, woken) in [("0", 1), ("1", 2), ("00", 2), ("", 3)] {
            subscription.on_message("channel", message.as_bytes());
            assert_eq!(subscription.hint.ends(), woken, "{message}");
        }
    }

    /// Its waiters are woken, but no writer has had its turn.
    #[test]
    fn of_a_read_write_lock_only_the_end_of_a_writer_counts() {
        let subscription = Subscription::default();
        for (message, ends) in [("0", 0), ("1", 1), ("00", 1), ("0", 1)] {
            let mark = subscription.hint.mark();
            subscription.on_message("redisson_rwlock:{x}", message.as_bytes());
            assert_eq!(subscription.hint.ends(), ends, "{message}");
            assert_eq!(subscription.hint.mark() != mark, message != "00");
        }
    }
}
