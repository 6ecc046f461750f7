//! Unrequested data on a connection: messages, and the end of subscriptions.
//!
//! Invariants. A gap is reported once for each connection. The end of a connection may be noticed twice, and the
//! second time the next connection may already have subscriptions, which must not be doubted. And no reply is taken
//! for the reply to another command. In a cluster, a server ends a subscription by itself when its slot moves away,
//! with the same message that confirms a command, and the client library assigns it to the oldest unanswered command.
//! Such a connection is desynchronized and not used again. The same applies to a connection that confirms
//! subscriptions without a request: each would take memory, here and in the client library.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, Value};

use super::transport::{Channels, EventHandler};

#[derive(Debug)]
pub(crate) struct PushState {
    /// `None` on a connection that takes no messages.
    events: Option<Arc<dyn EventHandler>>,
    gap_reported: AtomicBool,
    desynced: AtomicBool,
    flooded: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The subscriptions that the server has confirmed and not ended.
    channels: HashMap<Box<[u8]>, Channels>,
    /// Subscribe commands without a confirmation, including those of callers that no longer wait.
    subscribing: usize,
    /// Commands in flight that end the subscription of a sharded channel.
    unsubscribing: usize,
}

impl PushState {
    pub(super) fn new(events: Option<Arc<dyn EventHandler>>) -> Self {
        Self {
            events,
            gap_reported: AtomicBool::new(false),
            desynced: AtomicBool::new(false),
            flooded: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Reports that messages may have been missed, once for each connection.
    pub(super) fn report_gap(&self) {
        if let Some(events) = &self.events
            && !self.gap_reported.swap(true, Ordering::AcqRel)
        {
            events.gap();
        }
    }

    pub(super) fn is_desynced(&self) -> bool {
        self.desynced.load(Ordering::Acquire)
    }

    /// Whether the connection must not be read any further.
    pub(super) fn is_flooded(&self) -> bool {
        self.flooded.load(Ordering::Acquire)
    }

    /// Whether it has, or may still have, a sharded channel that `which` accepts.
    pub(super) fn has_sharded(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        let state = self.state.lock();
        let mut channels = state.channels.iter();
        channels.any(|(channel, kind)| *kind == Channels::Sharded && which(channel))
    }

    /// Handles a push. Returns whether it answers a command, so that the server counts as alive. Messages do not
    /// count.
    pub(super) fn receive(&self, push: &PushInfo) -> bool {
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
                false
            }
            PushKind::Subscribe | PushKind::SSubscribe => {
                let mut state = self.state.lock();
                match state.subscribing.checked_sub(1) {
                    Some(rest) => {
                        state.subscribing = rest;
                        let kind = match push.kind {
                            PushKind::SSubscribe => Channels::Sharded,
                            _ => Channels::Plain,
                        };
                        state.channels.insert(channel.into(), kind);
                        true
                    }
                    None => {
                        drop(state);
                        self.flooded.store(true, Ordering::Release);
                        self.mark_desynced();
                        false
                    }
                }
            }
            PushKind::Unsubscribe => self.state.lock().channels.remove(channel).is_some(),
            PushKind::SUnsubscribe => {
                let mut state = self.state.lock();
                state.channels.remove(channel);
                match state.unsubscribing.checked_sub(1) {
                    Some(rest) => {
                        state.unsubscribing = rest;
                        true
                    }
                    None => {
                        drop(state);
                        self.mark_desynced();
                        false
                    }
                }
            }
            PushKind::Disconnection => {
                self.report_gap();
                false
            }
            _ => false,
        }
    }

    fn mark_desynced(&self) {
        self.desynced.store(true, Ordering::Release);
        self.report_gap();
    }

    /// Registers a command before it is sent. The result is kept until the reply.
    pub(super) fn expect(&self, command: &Cmd) -> ExpectedReply<'_> {
        let confirms = self.events.as_ref().and_then(|_| match word(command, 0) {
            b"SUBSCRIBE" => Some(PushKind::Subscribe),
            b"UNSUBSCRIBE" => Some(PushKind::Unsubscribe),
            b"SSUBSCRIBE" => Some(PushKind::SSubscribe),
            b"SUNSUBSCRIBE" => Some(PushKind::SUnsubscribe),
            _ => None,
        });
        match confirms {
            Some(PushKind::SUnsubscribe) => self.state.lock().unsubscribing += 1,
            Some(PushKind::Subscribe | PushKind::SSubscribe) => self.state.lock().subscribing += 1,
            _ => {}
        }
        ExpectedReply {
            push: self,
            confirms,
        }
    }
}

/// The reply to one command in flight.
pub(super) struct ExpectedReply<'a> {
    push: &'a PushState,
    /// The push that confirms the command; `None` for a command with an ordinary reply.
    confirms: Option<PushKind>,
}

impl ExpectedReply<'_> {
    /// Whether this can be the reply to `command`. If not, the connection is desynchronized.
    pub(super) fn accepts(mut self, command: &Cmd, reply: &Value) -> bool {
        let Some(expected) = self.confirms.take() else {
            return true;
        };
        let fits = match reply {
            Value::Push { kind, data } => {
                *kind == expected
                    && matches!(data.first(), Some(Value::BulkString(channel))
                        if channel == word(command, 1))
            }
            Value::ServerError(_) => {
                let mut state = self.push.state.lock();
                let in_flight = match expected {
                    PushKind::SUnsubscribe => &mut state.unsubscribing,
                    PushKind::Subscribe | PushKind::SSubscribe => &mut state.subscribing,
                    _ => return true,
                };
                *in_flight = in_flight.saturating_sub(1);
                true
            }
            _ => false,
        };
        if !fits {
            self.push.mark_desynced();
        }
        fits
    }
}

impl Drop for ExpectedReply<'_> {
    fn drop(&mut self) {
        // The command may have been sent, so the next end of a subscription could belong to it.
        if self.confirms == Some(PushKind::SUnsubscribe) {
            self.push.mark_desynced();
        }
    }
}

fn word(command: &Cmd, at: usize) -> &[u8] {
    match command.args_iter().nth(at) {
        Some(redis::Arg::Simple(word)) => word,
        _ => b"",
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

        /// Receives a push from the server, requested or not.
        fn says(&self, kind: PushKind, channel: &str) -> Value {
            let push = pushed(kind, channel);
            self.push.receive(&push);
            Value::Push {
                kind: push.kind,
                data: push.data,
            }
        }

        fn is_answered_by(&self, kind: PushKind, channel: &str) -> bool {
            self.push.receive(&pushed(kind, channel))
        }

        fn gaps(&self) -> usize {
            self.events.gaps.load(Ordering::Relaxed)
        }
    }

    fn pushed(kind: PushKind, channel: &str) -> PushInfo {
        let data = vec![Value::BulkString(channel.into()), Value::Int(0)];
        PushInfo { kind, data }
    }

    fn command(verb: &str, channel: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(channel);
        command
    }

    #[test]
    fn a_confirmed_subscription_is_in_sync() {
        let fixture = Fixture::new();
        let ask = command("SSUBSCRIBE", "a");
        let expected = fixture.push.expect(&ask);
        let answer = fixture.says(PushKind::SSubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        assert!(fixture.push.has_sharded(|channel| channel == b"a"));
        fixture.says(PushKind::SMessage, "a");
        assert_eq!(fixture.events.messages.load(Ordering::Relaxed), 1);

        let ask = command("SUNSUBSCRIBE", "a");
        let expected = fixture.push.expect(&ask);
        let answer = fixture.says(PushKind::SUnsubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        assert!(!fixture.push.has_sharded(|_| true));
        assert!(!fixture.push.is_desynced());
        assert_eq!(fixture.gaps(), 0);
    }

    /// The node does not matter, because messages on plain channels reach all nodes.
    #[test]
    fn a_plain_channel_belongs_to_no_slot() {
        let fixture = Fixture::new();
        drop(fixture.push.expect(&command("SUBSCRIBE", "a")));
        fixture.says(PushKind::Subscribe, "a");
        assert!(!fixture.push.has_sharded(|_| true));
    }

    #[test]
    fn a_subscription_that_the_server_ends_desyncs_it_once() {
        let fixture = Fixture::new();
        drop(fixture.push.expect(&command("SSUBSCRIBE", "a")));
        fixture.says(PushKind::SSubscribe, "a");
        fixture.says(PushKind::SUnsubscribe, "a");
        assert!(fixture.push.is_desynced() && !fixture.push.is_flooded());
        fixture.says(PushKind::SUnsubscribe, "b");
        fixture.push.report_gap();
        assert_eq!(fixture.gaps(), 1);
    }

    #[test]
    fn a_subscription_that_nobody_asked_for_is_not_noted() {
        for kind in [PushKind::Subscribe, PushKind::SSubscribe] {
            let fixture = Fixture::new();
            let refused = command("SUBSCRIBE", "a");
            let expected = fixture.push.expect(&refused);
            let no = redis::parse_redis_value(b"-NOPERM no\r\n").unwrap();
            assert!(expected.accepts(&refused, &no));
            fixture.says(kind.clone(), "a");
            assert!(fixture.push.state.lock().channels.is_empty(), "{kind:?}");
            assert!(fixture.push.is_flooded() && fixture.push.is_desynced());
            assert_eq!(fixture.gaps(), 1);
        }
    }

    #[test]
    fn an_end_that_nobody_asked_for_confirms_nothing() {
        for (verb, asked) in [("SSUBSCRIBE", "b"), ("SUNSUBSCRIBE", "b")] {
            let fixture = Fixture::new();
            let ask = command(verb, asked);
            let expected = fixture.push.expect(&ask);
            let answer = fixture.says(PushKind::SUnsubscribe, "a");
            assert!(!expected.accepts(&ask, &answer), "{verb}");
            assert!(fixture.push.is_desynced(), "{verb}");
            assert_eq!(fixture.gaps(), 1, "{verb}");
        }
    }

    #[test]
    fn an_end_that_was_asked_for_and_came_twice_is_noticed() {
        let fixture = Fixture::new();
        let ask = command("SUNSUBSCRIBE", "a");
        let expected = fixture.push.expect(&ask);
        let answer = fixture.says(PushKind::SUnsubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        fixture.says(PushKind::SUnsubscribe, "a");
        assert!(fixture.push.is_desynced());
    }

    #[test]
    fn an_end_that_was_given_up_or_refused_is_not_waited_for() {
        let fixture = Fixture::new();
        let ask = command("SUNSUBSCRIBE", "a");
        drop(fixture.push.expect(&ask));
        assert!(fixture.push.is_desynced());

        let fixture = Fixture::new();
        let expected = fixture.push.expect(&ask);
        let refused = redis::parse_redis_value(b"-MOVED 1 127.0.0.1:7\r\n").unwrap();
        assert!(expected.accepts(&ask, &refused));
        assert!(!fixture.push.is_desynced());
        fixture.says(PushKind::SUnsubscribe, "a");
        assert!(fixture.push.is_desynced());
    }

    /// Messages alone do not show that a server still answers.
    #[test]
    fn what_was_asked_for_is_an_answer_and_a_message_is_none() {
        let kinds = [
            ("SUBSCRIBE", PushKind::Subscribe, PushKind::Message),
            ("SSUBSCRIBE", PushKind::SSubscribe, PushKind::SMessage),
        ];
        let ends = [
            ("UNSUBSCRIBE", PushKind::Unsubscribe),
            ("SUNSUBSCRIBE", PushKind::SUnsubscribe),
        ];
        for ((subscribe, began, message), (unsubscribe, ended)) in kinds.into_iter().zip(ends) {
            let fixture = Fixture::new();
            // The caller may have stopped waiting since.
            drop(fixture.push.expect(&command(subscribe, "a")));
            assert!(!fixture.is_answered_by(message, "a"), "{subscribe}");
            assert!(fixture.is_answered_by(began.clone(), "a"), "{subscribe}");
            assert!(!fixture.is_answered_by(began, "a"), "{subscribe}");
            let ask = command(unsubscribe, "a");
            let _expected = fixture.push.expect(&ask);
            assert!(fixture.is_answered_by(ended.clone(), "a"), "{subscribe}");
            assert!(!fixture.is_answered_by(ended, "a"), "{subscribe}");
        }
    }

    #[test]
    fn other_commands_accept_any_reply() {
        let fixture = Fixture::new();
        let ask = command("EVALSHA", "a");
        let expected = fixture.push.expect(&ask);
        assert!(expected.accepts(&ask, &Value::Nil));
        assert!(!fixture.push.is_desynced());
    }
}
