//! Unrequested data on a connection: messages, and the end of subscriptions.
//!
//! Invariants. A gap is reported once for each connection. The end of a connection may be noticed twice. By the second
//! time the next connection may already have subscriptions, which must not be doubted. In a cluster, a server ends a
//! subscription by itself when its slot moves away. Such a connection is not used again, because its gap was reported
//! and a second gap would not be. A connection that confirms subscriptions without a request is not read any further,
//! because each of them would take memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::{PushInfo, PushKind, RedisError, Value};

use super::error_reply::nonsense;
use super::transport::EventHandler;

#[derive(Debug, Default)]
pub(crate) struct PushState {
    /// `None` on a connection that takes no messages.
    events: Option<Arc<dyn EventHandler>>,
    gap_reported: AtomicBool,
    /// Whether the server ended a subscription by itself.
    has_lost_subscription: AtomicBool,
    /// The sharded channels whose subscriptions the server has confirmed and not ended.
    sharded: Mutex<HashSet<Box<[u8]>>>,
}

impl PushState {
    pub(super) fn new(events: Option<Arc<dyn EventHandler>>) -> Self {
        Self {
            events,
            ..Self::default()
        }
    }

    /// Reports that messages may have been missed, once for each connection.
    pub(super) fn report_gap(&self) {
        if !self.gap_reported.swap(true, Ordering::AcqRel)
            && let Some(events) = &self.events
        {
            events.gap();
        }
    }

    /// Whether the server ended a subscription by itself, so that the connection is not used again.
    pub(super) fn has_lost_subscription(&self) -> bool {
        self.has_lost_subscription.load(Ordering::Acquire)
    }

    /// Whether the connection has a sharded channel that `which` accepts.
    pub(super) fn has_sharded(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        self.sharded.lock().iter().any(|channel| which(channel))
    }

    /// Handles a push. `is_asked` says whether it confirms a command. After an error the connection must not be read
    /// further.
    pub(super) fn receive(&self, push: &PushInfo, is_asked: bool) -> Result<(), RedisError> {
        let word = |at: usize| match push.data.get(at) {
            Some(Value::BulkString(word)) => word.as_slice(),
            _ => b"",
        };
        let channel = word(0);
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(events) = &self.events {
                    events.message(channel, word(1));
                }
            }
            PushKind::Subscribe | PushKind::SSubscribe if !is_asked => {
                self.report_gap();
                let what = "confirmations of subscriptions that nobody asked for";
                return Err(nonsense(what));
            }
            PushKind::SSubscribe => {
                self.sharded.lock().insert(channel.into());
            }
            PushKind::SUnsubscribe => {
                self.sharded.lock().remove(channel);
                if !is_asked {
                    self.has_lost_subscription.store(true, Ordering::Release);
                    self.report_gap();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Debug, Default)]
    struct Events {
        messages: AtomicUsize,
        gaps: AtomicUsize,
    }

    impl EventHandler for Events {
        fn message(&self, _channel: &[u8], _message: &[u8]) {
            self.messages.fetch_add(1, Ordering::Relaxed);
        }

        fn gap(&self) {
            self.gaps.fetch_add(1, Ordering::Relaxed);
        }

        fn moved(&self) {}
    }

    struct Fixture {
        events: Arc<Events>,
        push: PushState,
    }

    impl Fixture {
        fn new() -> Self {
            let events = Arc::<Events>::default();
            let push = PushState::new(Some(Arc::clone(&events) as _));
            Self { events, push }
        }

        fn receives(&self, kind: PushKind, channel: &str, is_asked: bool) -> bool {
            let data = vec![Value::BulkString(channel.into()), Value::Int(0)];
            self.push
                .receive(&PushInfo { kind, data }, is_asked)
                .is_ok()
        }

        fn gaps(&self) -> usize {
            self.events.gaps.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn a_subscription_is_known_until_it_was_ended() {
        let fixture = Fixture::new();
        assert!(fixture.receives(PushKind::SSubscribe, "a", true));
        assert!(fixture.push.has_sharded(|channel| channel == b"a"));
        assert!(fixture.receives(PushKind::SMessage, "a", false));
        assert_eq!(fixture.events.messages.load(Ordering::Relaxed), 1);
        assert!(fixture.receives(PushKind::SUnsubscribe, "a", true));
        assert!(!fixture.push.has_sharded(|_| true));
        assert!(!fixture.push.has_lost_subscription());
        assert_eq!(fixture.gaps(), 0);
    }

    /// The node does not matter, because messages on plain channels reach all nodes.
    #[test]
    fn a_plain_channel_belongs_to_no_slot() {
        let fixture = Fixture::new();
        assert!(fixture.receives(PushKind::Subscribe, "a", true));
        assert!(!fixture.push.has_sharded(|_| true));
        assert!(fixture.receives(PushKind::Unsubscribe, "a", false));
        assert!(!fixture.push.has_lost_subscription());
        assert_eq!(fixture.gaps(), 0);
    }

    #[test]
    fn a_subscription_that_the_server_ends_is_one_gap() {
        let fixture = Fixture::new();
        assert!(fixture.receives(PushKind::SSubscribe, "a", true));
        for channel in ["a", "b"] {
            assert!(fixture.receives(PushKind::SUnsubscribe, channel, false));
            assert!(fixture.push.has_lost_subscription());
        }
        fixture.push.report_gap();
        assert_eq!(fixture.gaps(), 1);
    }

    #[test]
    fn a_subscription_that_nobody_asked_for_ends_the_connection() {
        for kind in [PushKind::Subscribe, PushKind::SSubscribe] {
            let fixture = Fixture::new();
            assert!(!fixture.receives(kind.clone(), "a", false), "{kind:?}");
            assert!(fixture.push.sharded.lock().is_empty(), "{kind:?}");
            assert_eq!(fixture.gaps(), 1);
        }
    }
}
