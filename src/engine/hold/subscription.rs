//! The channels that a client listens to: the number of listeners, whether the server sends the messages, and what the
//! messages mean.
//!
//! Waiters that queue in their client share one subscription for each lock. A waiter that queues at the server has
//! its own. A message that hands the lock over has a format of its own, which `lua/includes/fair_handover.lua` writes.
//! Any other message only means "look again". Invariant: a received message is only noted here. A recall is noted by
//! the number of its hold, and one task handles all recalls.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::bound::Silence;
use crate::api::fencing::FencingToken;
use crate::engine::hint::Hint;
use crate::engine::keys::RW_CHANNEL;

/// The second message of `lua/includes/tell.lua`, for waiters of Redisson that may have missed the first.
const FOR_REDISSON: &[u8] = b"00";

/// The message on the channel of a read-write lock whose last reader has left.
const READERS_LEFT: &[u8] = b"0";

#[derive(Debug, Default)]
pub(crate) struct Subscription {
    /// Signalled when another attempt may succeed.
    pub(crate) hint: Hint,
    /// Made by the first task that listens.
    listening: OnceLock<Box<Listening>>,
    /// Since when its waiters have asked without an answer.
    pub(crate) silence: Silence,
    /// The number of listeners, including tasks that subscribe on behalf of others.
    listeners: AtomicU32,
    /// Whether a subscription was made, and no task has been asked to end it.
    is_subscribed: AtomicBool,
    /// How many messages reported the end of a hold that kept out all others, or of a wait for one.
    ends: AtomicU64,
    /// How many signs have shown that readers have the lock.
    reads: AtomicU64,
}

#[derive(Debug, Default)]
struct Listening {
    /// The last grant. Boxed: most subscriptions never have one.
    grant: Mutex<Option<Box<ReceivedGrant>>>,
    state: Mutex<SubscriptionState>,
}

/// A grant, and the channel that it came on.
type ReceivedGrant = (Box<str>, GrantMessage);

/// Whether the server sends the client the messages of a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SubscriptionState {
    /// The channel that was requested last.
    pub(crate) channel: Option<Box<str>>,
    /// The number of gaps at the time when the subscription was sent, if the server has confirmed it. The next gap ends
    /// it.
    pub(crate) heard_since: Option<u64>,
    /// The channel that a task subscribes to on behalf of all listeners. `None` if no task subscribes.
    subscribing: Option<Box<str>>,
}

impl SubscriptionState {
    /// Whether messages on this channel reach the client, which has had this many gaps.
    pub(crate) fn is_heard(&self, channel: &str, gaps: u64) -> bool {
        self.heard_since == Some(gaps) && self.channel.as_deref() == Some(channel)
    }
}

/// Wakes its waiters.
impl Wake for Subscription {
    fn wake(self: Arc<Self>) {
        self.hint.notify();
    }
}

impl Subscription {
    fn listening(&self) -> &Listening {
        self.listening.get_or_init(Box::default)
    }

    /// Locks the state of the subscription.
    pub(crate) fn state(&self) -> MutexGuard<'_, SubscriptionState> {
        self.listening().state.lock()
    }

    /// Notes a message on this channel, and wakes the waiters, which look again.
    pub(crate) fn on_message(&self, channel: &str, message: &[u8]) {
        if message == FOR_REDISSON {
            return;
        }
        if let Some(grant) = GrantMessage::parse(message) {
            let channel = channel.into();
            *self.listening().grant.lock() = Some(Box::new((channel, grant)));
        }
        if message == READERS_LEFT && channel.starts_with(RW_CHANNEL) {
            self.note_read();
        } else {
            self.ends.fetch_add(1, Ordering::Release);
        }
        self.hint.notify();
    }

    /// Notes a sign of readers: a read hold of this client, or the message of a last reader elsewhere.
    pub(crate) fn note_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ends(&self) -> u64 {
        self.ends.load(Ordering::Acquire)
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Takes the last grant, if it came on this channel.
    pub(crate) fn take_grant_message(&self, channel: &str) -> Option<GrantMessage> {
        let (of, grant) = *self.listening.get()?.grant.lock().take()?;
        (*of == *channel).then_some(grant)
    }

    pub(crate) fn add_listener(&self) {
        self.listeners.fetch_add(1, Ordering::SeqCst);
    }

    /// Removes a listener. True if no listener is left.
    pub(crate) fn remove_listener(&self) -> bool {
        self.listeners.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn is_used(&self) -> bool {
        self.listeners.load(Ordering::SeqCst) > 0
    }

    /// Notes that a subscription is being made, which the last listener to leave has to end.
    pub(crate) fn mark_subscribed(&self) {
        self.is_subscribed.store(true, Ordering::SeqCst);
    }

    /// True if there is a subscription, which the caller has to end from now on.
    pub(crate) fn take_subscribed(&self) -> bool {
        self.is_subscribed.swap(false, Ordering::SeqCst)
    }

    /// Ends an unused subscription. `forget` removes it from the client's list, or returns false if it has a listener
    /// again. False if the subscription stays. In that case its last listener finds the mark, and ends it.
    pub(crate) fn end_unused(&self, mut forget: impl FnMut() -> bool) -> bool {
        loop {
            // In this order: a listener that leaves after the check finds the mark.
            self.mark_subscribed();
            if self.is_used() || !self.take_subscribed() {
                return false;
            }
            if forget() {
                return true;
            }
        }
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.is_subscribed.load(Ordering::Relaxed)
    }

    /// See [`SubscriptionState::is_heard`].
    pub(crate) fn is_heard(&self, channel: &str, gaps: u64) -> bool {
        self.state().is_heard(channel, gaps)
    }

    /// Asks for a subscription to this channel. True if no task subscribes yet, so that the caller has to begin one.
    pub(crate) fn begin_subscribing(&self, channel: &str) -> bool {
        self.state().subscribing.replace(channel.into()).is_none()
    }

    /// The channel that the task that subscribes, which counts as a listener, has to subscribe to. `None` if that is
    /// done, or if all other listeners have left.
    pub(crate) fn to_subscribe(&self) -> Option<Box<str>> {
        let mut state = self.state();
        // Checked under the mutex, so that a later listener finds no task and begins one.
        (state.subscribing).take_if(|_| self.listeners.load(Ordering::SeqCst) == 1);
        state.subscribing.clone()
    }

    /// Notes that this channel has been subscribed to. False if another channel was asked for since.
    pub(crate) fn end_subscribing(&self, channel: &str) -> bool {
        let mut state = self.state();
        let done = (state.subscribing).take_if(|subscribing| **subscribing == *channel);
        done.is_some()
    }
}

/// The message that hands a lock over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantMessage {
    /// Identifies the place that got the grant: the time until which the server kept it, in ms of the server's clock.
    pub(crate) until_ms: u64,
    /// The lease: the rest of that time when the lock was granted.
    pub(crate) lease: Duration,
    pub(crate) token: Option<FencingToken>,
    /// The key of the lock, because several locks may share a channel.
    pub(crate) key: Box<str>,
}

impl GrantMessage {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.splitn(4, ' ');
        let (until_ms, left_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let token = match words.next()? {
            "-" => None,
            token => Some(token.parse().ok()?),
        };
        Some(Self {
            until_ms,
            lease: Duration::from_millis(left_ms),
            token,
            key: words.next()?.into(),
        })
    }
}

/// The most recalls that are noted at a time. Further ones can be dropped, because waiters repeat them.
const NOTED_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// Whether this client listens, or is about to.
    is_used: AtomicBool,
    /// The holds, by the number in their holder ids.
    noted: Mutex<BTreeSet<u64>>,
    /// Signalled when there is work: holds were recalled, a subscription was lost, or the client was closed.
    pub(super) changed: Hint,
}

impl Recalls {
    /// True for the first caller, which has to begin to listen.
    pub(super) fn begin(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// Notes a recall. The message contains the number of the hold.
    pub(super) fn on_message(&self, message: &[u8]) {
        let number = std::str::from_utf8(message).ok();
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            return;
        };
        let mut noted = self.noted.lock();
        if noted.len() < NOTED_MAX {
            noted.insert(number);
        }
        drop(noted);
        self.changed.notify();
    }

    pub(super) fn take(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.noted.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// It comes after the check and before the subscription is off the list, so it does not subscribe by itself.
    #[test]
    fn a_listener_that_comes_at_the_end_finds_the_mark() {
        let subscription = Subscription::default();
        let mut tries = 0;
        let ended = subscription.end_unused(|| {
            tries += 1;
            subscription.add_listener();
            false
        });
        assert_eq!((ended, tries), (false, 1));
        assert!(subscription.remove_listener() && subscription.take_subscribed());
        // If it has left again before the next check, the caller ends the subscription.
        let ended = subscription.end_unused(|| {
            tries += 1;
            tries > 2
        });
        assert_eq!((ended, tries), (true, 3));
        assert!(!subscription.is_subscribed());
    }

    #[test]
    fn what_is_for_redisson_wakes_nobody() {
        let subscription = Subscription::default();
        for (message, woken) in [("0", 1), ("1", 2), ("00", 2), ("", 3)] {
            subscription.on_message("channel", message.as_bytes());
            assert_eq!(subscription.ends(), woken, "{message}");
        }
    }

    /// The message of a last reader wakes the waiters, but does not count as the turn of a writer.
    #[test]
    fn of_a_read_write_lock_only_the_end_of_a_writer_counts() {
        let subscription = Subscription::default();
        for (message, ends) in [("0", 0), ("1", 1), ("00", 1), ("0", 1)] {
            let mark = subscription.hint.mark();
            subscription.on_message("redisson_rwlock:{x}", message.as_bytes());
            assert_eq!(subscription.ends(), ends, "{message}");
            assert_eq!(subscription.hint.mark() != mark, message != "00");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(until_ms: u64, left_ms: u64, token: Option<u64>, key in "(?s).{1,12}") {
            let written = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
            let message = format!("{until_ms} {left_ms} {written} {key}");
            let read = GrantMessage::parse(message.as_bytes());
            prop_assert_eq!(read, Some(GrantMessage {
                until_ms,
                lease: Duration::from_millis(left_ms),
                token: token.map(FencingToken::from),
                key: key.into(),
            }));
        }

        /// Each grant has exactly one written form, so a parsed grant equals the written one.
        #[test]
        fn nothing_else_is_a_grant(message in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            "[0-9 -]{0,24}".prop_map(String::into_bytes),
        ]) {
            if let Some(grant) = GrantMessage::parse(&message) {
                let words: Vec<&str> = std::str::from_utf8(&message).unwrap().split(' ').collect();
                prop_assert_eq!(words[0].parse(), Ok(grant.until_ms));
                prop_assert_eq!(words[1].parse().map(Duration::from_millis), Ok(grant.lease));
                prop_assert_eq!(words[2] == "-", grant.token.is_none());
                prop_assert_eq!(words[3..].join(" "), &*grant.key);
            }
        }
    }

    #[test]
    fn only_what_is_written_as_a_grant_is_one() {
        let message = GrantMessage {
            until_ms: 1_763_000_000_123,
            lease: Duration::from_millis(2_900),
            token: None,
            key: "a - b".into(),
        };
        let read = GrantMessage::parse(b"1763000000123 2900 - a - b");
        assert_eq!(read.as_ref(), Some(&message));
        let fenced = GrantMessage {
            token: Some(FencingToken::from(77)),
            ..message
        };
        assert_eq!(
            GrantMessage::parse(b"1763000000123 2900 77 a - b"),
            Some(fenced)
        );
        for other in [
            &b"0"[..],
            b"1",
            b"",
            b"5 ",
            b" 5",
            b"5 6",
            b"5 6 -",
            b"5 6 7",
            b"5 x - a",
            b"5 -1 - a",
            b"5 6 x a",
            b"5 6  a",
            b"5.5 6 - a",
            b"\xff 6 - a",
            b"18446744073709551616 1 - a",
        ] {
            assert_eq!(GrantMessage::parse(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_a_number_or_nothing(messages in proptest::collection::vec(
            prop_oneof!["[0-9]{1,20}".prop_map(String::into_bytes), any::<Vec<u8>>()],
            0..20,
        )) {
            let recalls = Recalls::default();
            let mut expected = BTreeSet::new();
            for message in &messages {
                recalls.on_message(message);
                let number = std::str::from_utf8(message).ok();
                expected.extend(number.and_then(|number| number.parse::<u64>().ok()));
            }
            prop_assert_eq!(recalls.take(), expected);
        }
    }

    #[test]
    fn a_message_names_a_hold_and_anything_else_is_nothing() {
        let recalls = Recalls::default();
        for message in ["7", "", "x", "-3", "8:write", "7", "12"] {
            recalls.on_message(message.as_bytes());
        }
        recalls.on_message(b"\xff");
        assert_eq!(recalls.take(), BTreeSet::from([7, 12]));
        assert_eq!(recalls.take(), BTreeSet::new());
    }

    #[test]
    fn what_is_noted_is_bounded() {
        let recalls = Recalls::default();
        for number in 0..2 * NOTED_MAX {
            recalls.on_message(number.to_string().as_bytes());
        }
        assert_eq!(recalls.take().len(), NOTED_MAX);
    }

    #[test]
    fn one_sees_to_it_that_recalls_come() {
        let recalls = Recalls::default();
        assert!(recalls.begin());
        assert!(!recalls.begin());
    }
}
