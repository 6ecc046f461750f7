//! What comes over one connection without having been asked for: messages, and their end.
//!
//! Invariants. That messages may have been missed is told once for each connection: by then it may be
//! known twice over, and what was subscribed to on the next one must not be doubted. And no answer is
//! taken for that of another command: in a cluster a server ends a subscription by itself when its slot
//! moves away, with the very words that confirm a command, and the client library gives them to the
//! oldest command that is not answered. Such a connection is out of step, and is not used again.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, Value};

use super::EventHandler;

#[derive(Debug)]
pub(super) struct Hearing {
    /// Nobody listens on a connection that is not for messages.
    events: Option<Arc<dyn EventHandler>>,
    told: AtomicBool,
    out_of_step: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the server has confirmed, or not ended yet.
    channels: HashSet<Box<[u8]>>,
    /// Commands under way that end the subscription of a sharded channel.
    leaving: usize,
}

impl Hearing {
    pub(super) fn new(events: Option<Arc<dyn EventHandler>>) -> Self {
        Self {
            events,
            told: AtomicBool::new(false),
            out_of_step: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Messages may have been missed.
    pub(super) fn end(&self) {
        if let Some(events) = &self.events
            && !self.told.swap(true, Ordering::AcqRel)
        {
            events.gap();
        }
    }

    pub(super) fn is_out_of_step(&self) -> bool {
        self.out_of_step.load(Ordering::Acquire)
    }

    /// Whether it has, or may still have, a channel that `which` says.
    pub(super) fn has_channel(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        let state = self.state.lock();
        state.channels.iter().any(|channel| which(channel))
    }

    pub(super) fn heard(&self, push: &PushInfo) {
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
            PushKind::Subscribe | PushKind::SSubscribe => {
                self.state.lock().channels.insert(channel.into());
            }
            PushKind::Unsubscribe => {
                self.state.lock().channels.remove(channel);
            }
            PushKind::SUnsubscribe => {
                let mut state = self.state.lock();
                state.channels.remove(channel);
                match state.leaving.checked_sub(1) {
                    Some(rest) => state.leaving = rest,
                    None => {
                        drop(state);
                        self.stumble();
                    }
                }
            }
            PushKind::Disconnection => self.end(),
            _ => {}
        }
    }

    fn stumble(&self) {
        self.out_of_step.store(true, Ordering::Release);
        self.end();
    }

    /// To be called before a command is sent, and kept until it is answered.
    pub(super) fn expect(&self, command: &Cmd) -> Expected<'_> {
        let confirms = match (&self.events, word(command, 0)) {
            (None, _) => None,
            (_, b"SUBSCRIBE") => Some(PushKind::Subscribe),
            (_, b"UNSUBSCRIBE") => Some(PushKind::Unsubscribe),
            (_, b"SSUBSCRIBE") => Some(PushKind::SSubscribe),
            (_, b"SUNSUBSCRIBE") => Some(PushKind::SUnsubscribe),
            _ => None,
        };
        if confirms == Some(PushKind::SUnsubscribe) {
            self.state.lock().leaving += 1;
        }
        Expected {
            hearing: self,
            confirms,
        }
    }
}

/// The answer to one command that is under way.
pub(super) struct Expected<'a> {
    hearing: &'a Hearing,
    /// What confirms it, unless it is a command like any other.
    confirms: Option<PushKind>,
}

impl Expected<'_> {
    /// Whether this can be the answer to `command`. If not, the connection is out of step.
    pub(super) fn accepts(mut self, command: &Cmd, answer: &Value) -> bool {
        let Some(expected) = self.confirms.take() else {
            return true;
        };
        let fits = match answer {
            Value::Push { kind, data } => {
                *kind == expected
                    && matches!(data.first(), Some(Value::BulkString(channel))
                        if channel == word(command, 1))
            }
            Value::ServerError(_) => {
                if expected == PushKind::SUnsubscribe {
                    let mut state = self.hearing.state.lock();
                    state.leaving = state.leaving.saturating_sub(1);
                }
                true
            }
            _ => false,
        };
        if !fits {
            self.hearing.stumble();
        }
        fits
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        // Whether it was sent is not known, and so not which end of a subscription was asked for.
        if self.confirms == Some(PushKind::SUnsubscribe) {
            self.hearing.stumble();
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
    struct Heard {
        messages: AtomicUsize,
        gaps: AtomicUsize,
    }

    impl EventHandler for Heard {
        fn message(&self, _channel: &[u8], _message: &[u8]) {
            self.messages.fetch_add(1, Ordering::Relaxed);
        }

        fn gap(&self) {
            self.gaps.fetch_add(1, Ordering::Relaxed);
        }

        fn moved(&self) {}
    }

    struct Bench {
        heard: Arc<Heard>,
        hearing: Hearing,
    }

    impl Bench {
        fn new() -> Self {
            let heard = Arc::<Heard>::default();
            let hearing = Hearing::new(Some(Arc::clone(&heard) as _));
            Self { heard, hearing }
        }

        /// The server says this, whoever asked for it.
        fn says(&self, kind: PushKind, channel: &str) -> Value {
            let data = vec![Value::BulkString(channel.into()), Value::Int(0)];
            let push = PushInfo { kind, data };
            self.hearing.heard(&push);
            Value::Push {
                kind: push.kind,
                data: push.data,
            }
        }

        fn gaps(&self) -> usize {
            self.heard.gaps.load(Ordering::Relaxed)
        }
    }

    fn command(verb: &str, channel: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(channel);
        command
    }

    #[test]
    fn what_is_asked_for_and_confirmed_is_in_step() {
        let bench = Bench::new();
        let ask = command("SSUBSCRIBE", "a");
        let expected = bench.hearing.expect(&ask);
        let answer = bench.says(PushKind::SSubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        assert!(bench.hearing.has_channel(|channel| channel == b"a"));
        bench.says(PushKind::SMessage, "a");
        assert_eq!(bench.heard.messages.load(Ordering::Relaxed), 1);

        let ask = command("SUNSUBSCRIBE", "a");
        let expected = bench.hearing.expect(&ask);
        let answer = bench.says(PushKind::SUnsubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        assert!(!bench.hearing.has_channel(|_| true));
        assert!(!bench.hearing.is_out_of_step());
        assert_eq!(bench.gaps(), 0);
    }

    #[test]
    fn a_subscription_that_the_server_ends_puts_it_out_of_step_once() {
        let bench = Bench::new();
        bench.says(PushKind::SSubscribe, "a");
        bench.says(PushKind::SUnsubscribe, "a");
        assert!(bench.hearing.is_out_of_step());
        bench.says(PushKind::SUnsubscribe, "b");
        bench.hearing.end();
        assert_eq!(bench.gaps(), 1);
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_no_confirmation_of_anything() {
        for (verb, asked) in [("SSUBSCRIBE", "b"), ("SUNSUBSCRIBE", "b")] {
            let bench = Bench::new();
            let ask = command(verb, asked);
            let expected = bench.hearing.expect(&ask);
            let answer = bench.says(PushKind::SUnsubscribe, "a");
            assert!(!expected.accepts(&ask, &answer), "{verb}");
            assert!(bench.hearing.is_out_of_step(), "{verb}");
            assert_eq!(bench.gaps(), 1, "{verb}");
        }
    }

    #[test]
    fn an_end_that_was_asked_for_and_came_twice_is_noticed() {
        let bench = Bench::new();
        let ask = command("SUNSUBSCRIBE", "a");
        let expected = bench.hearing.expect(&ask);
        let answer = bench.says(PushKind::SUnsubscribe, "a");
        assert!(expected.accepts(&ask, &answer));
        bench.says(PushKind::SUnsubscribe, "a");
        assert!(bench.hearing.is_out_of_step());
    }

    #[test]
    fn an_end_that_was_given_up_or_refused_is_not_waited_for() {
        let bench = Bench::new();
        let ask = command("SUNSUBSCRIBE", "a");
        drop(bench.hearing.expect(&ask));
        assert!(bench.hearing.is_out_of_step());

        let bench = Bench::new();
        let expected = bench.hearing.expect(&ask);
        let refused = redis::parse_redis_value(b"-MOVED 1 127.0.0.1:7\r\n").unwrap();
        assert!(expected.accepts(&ask, &refused));
        assert!(!bench.hearing.is_out_of_step());
        bench.says(PushKind::SUnsubscribe, "a");
        assert!(bench.hearing.is_out_of_step());
    }

    #[test]
    fn other_commands_are_answered_by_anything() {
        let bench = Bench::new();
        let ask = command("EVALSHA", "a");
        let expected = bench.hearing.expect(&ask);
        assert!(expected.accepts(&ask, &Value::Nil));
        assert!(!bench.hearing.is_out_of_step());
    }
}
