//! The requests that wait for replies on one connection, in the order of their commands. Callers and the driver share
//! them.
//!
//! Invariants: the bytes of a command and its place in the order are added together, so that both have one order. The
//! n-th reply belongs to the n-th command, even if its caller no longer waits; only its last reply removes a command
//! from this order. A sent command cannot be taken back. A push is the reply to a command about a subscription only if
//! it names the same channel, and nothing else but an error is.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use redis::{Arg, Cmd, PushInfo, PushKind, RedisError, Value};

use crate::engine::clock::Tick;

pub(super) type Shared = Mutex<WireState>;

#[derive(Debug, Default)]
pub(super) struct WireState {
    /// Commands that the driver has not taken yet.
    pub(super) bytes: Vec<u8>,
    pub(super) unanswered: Unanswered,
    /// Woken when there is something to send; `None` once it was woken.
    pub(super) driver: Option<Waker>,
}

/// One request in the table: one command, or several that are answered together.
pub(crate) type Number = usize;

#[derive(Debug)]
enum Wait {
    /// The place is free.
    Unused,
    /// `None`: the caller was woken.
    Waiting(Option<Waker>),
    /// The caller no longer waits for its sent commands.
    Left,
    Answered,
    /// The connection has been silent for too long. The answer may still arrive.
    Silent,
}

#[derive(Debug)]
struct Request {
    wait: Wait,
    /// Commands without a reply.
    missing: usize,
    replies: Vec<Value>,
    /// Whether a missing answer shows that the connection is silent.
    proves_silence: bool,
    /// The push that is its last reply, if it is about a subscription.
    confirmation: Option<Box<Confirmation>>,
}

/// The push that confirms a command about a subscription.
#[derive(Debug)]
pub(super) struct Confirmation {
    kind: PushKind,
    channel: Vec<u8>,
}

impl Confirmation {
    /// `None` for a command with an ordinary reply.
    pub(super) fn of(command: &Cmd) -> Option<Box<Self>> {
        let mut words = command.args_iter().filter_map(|word| match word {
            Arg::Simple(word) => Some(word),
            _ => None,
        });
        let kind = match words.next()? {
            b"SUBSCRIBE" => PushKind::Subscribe,
            b"UNSUBSCRIBE" => PushKind::Unsubscribe,
            b"SSUBSCRIBE" => PushKind::SSubscribe,
            b"SUNSUBSCRIBE" => PushKind::SUnsubscribe,
            _ => return None,
        };
        let channel = words.next()?.to_vec();
        Some(Box::new(Self { kind, channel }))
    }

    fn is(&self, push: &PushInfo) -> bool {
        let channel = push.data.first();
        self.kind == push.kind
            && matches!(channel, Some(Value::BulkString(channel)) if *channel == self.channel)
    }
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Ended<T> {
    /// The value read from the replies.
    Answered(T),
    Silent,
    Broken(RedisError),
}

impl<T> Ended<T> {
    /// The value or why the connection is broken; `None` if it is silent.
    pub(crate) fn outcome(self) -> Option<Result<T, RedisError>> {
        match self {
            Self::Answered(value) => Some(Ok(value)),
            Self::Silent => None,
            Self::Broken(why) => Some(Err(why)),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: Vec<Request>,
    unused: Vec<Number>,
    order: VecDeque<(Number, Tick)>,
    /// The number of requests at the front of the order whose time is over.
    silent: usize,
    /// The number of requests at its end that the driver has not seen.
    fresh: usize,
    end: Option<RedisError>,
}

impl Unanswered {
    /// Adds a request of this many commands to the end of the order.
    pub(super) fn push(&mut self, commands: usize, proves_silence: bool, waker: Waker) -> Number {
        let number = self.unused.pop().unwrap_or_else(|| {
            self.requests.push(Request {
                wait: Wait::Unused,
                missing: 0,
                replies: Vec::new(),
                proves_silence,
                confirmation: None,
            });
            self.requests.len() - 1
        });
        let request = &mut self.requests[number];
        // Room for a command or a pair, as either may come next.
        request.replies.reserve_exact(commands.max(2));
        request.wait = Wait::Waiting(Some(waker));
        request.missing = commands;
        request.proves_silence = proves_silence;
        self.order.push_back((number, Tick::NEVER));
        self.fresh += 1;
        number
    }

    /// Sets the push that is the last reply of a request.
    pub(super) fn expect(&mut self, number: Number, confirmation: Option<Box<Confirmation>>) {
        self.requests[number].confirmation = confirmation;
    }

    /// The push that has to be the next reply; `None` if an ordinary reply has to be.
    fn next_confirmation(&self) -> Option<&Confirmation> {
        let (number, _) = self.order.front()?;
        let next = &self.requests[*number];
        next.confirmation.as_deref().filter(|_| next.missing == 1)
    }

    /// Assigns a push, if it is the next reply. Returns whether it is.
    pub(super) fn confirm(&mut self, push: &PushInfo, woken: &mut Vec<Waker>) -> bool {
        let is_next = self.next_confirmation().is_some_and(|next| next.is(push));
        is_next && self.answer(Value::Okay, woken).is_some()
    }

    /// The number of requests without an answer.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The new requests are now on their way. Without a reply until `then`, the connection is silent.
    pub(super) fn sent(&mut self, then: Tick) {
        let seen = self.order.len() - self.fresh;
        for (number, until) in self.order.range_mut(seen..) {
            if self.requests[*number].proves_silence {
                *until = then;
            }
        }
        self.fresh = 0;
    }

    /// Assigns an ordinary reply. If that ends a request, adds its caller to `woken`. Returns whether it does; `None`
    /// if it answers no command.
    pub(super) fn reply(&mut self, value: Value, woken: &mut Vec<Waker>) -> Option<bool> {
        let is_error = matches!(value, Value::ServerError(_));
        if self.next_confirmation().is_some() && !is_error {
            return None;
        }
        self.answer(value, woken)
    }

    fn answer(&mut self, value: Value, woken: &mut Vec<Waker>) -> Option<bool> {
        let &(number, _) = self.order.front()?;
        let request = &mut self.requests[number];
        request.replies.push(value);
        request.missing -= 1;
        if request.missing > 0 {
            return Some(false);
        }
        self.order.pop_front();
        self.silent = self.silent.saturating_sub(1);
        self.fresh = self.fresh.min(self.order.len());
        let request = &mut self.requests[number];
        match std::mem::replace(&mut request.wait, Wait::Answered) {
            Wait::Waiting(waker) => woken.extend(waker),
            Wait::Left => self.free(number),
            Wait::Silent | Wait::Answered | Wait::Unused => {}
        }
        Some(true)
    }

    /// The time at which the oldest request becomes silent. Wakes the callers of requests that already are.
    pub(super) fn next_silence(&mut self, now: Tick, woken: &mut Vec<Waker>) -> Option<Tick> {
        while let Some(&(number, until)) = self.order.get(self.silent) {
            if until != Tick::NEVER && until > now {
                return Some(until);
            }
            if self.silent >= self.order.len() - self.fresh {
                return None;
            }
            self.silent += 1;
            let request = &mut self.requests[number];
            if until != Tick::NEVER
                && let Wait::Waiting(waker) = &mut request.wait
            {
                woken.extend(waker.take());
                request.wait = Wait::Silent;
            }
        }
        None
    }

    /// Ends the connection: no further reply will arrive.
    pub(super) fn end(&mut self, why: RedisError, woken: &mut Vec<Waker>) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(why);
        for request in &mut self.requests {
            if let Wait::Waiting(waker) = &mut request.wait {
                woken.extend(waker.take());
            }
        }
    }

    pub(super) fn ended(&self) -> Option<&RedisError> {
        self.end.as_ref()
    }

    /// The state of a request. Reading its replies frees its place.
    pub(super) fn poll<T>(
        &mut self,
        number: Number,
        read: fn(&mut Vec<Value>) -> T,
        context: &Context<'_>,
    ) -> Poll<Ended<T>> {
        let request = &mut self.requests[number];
        match &mut request.wait {
            Wait::Answered => {
                let replies = read(&mut request.replies);
                self.free(number);
                Poll::Ready(Ended::Answered(replies))
            }
            Wait::Silent => Poll::Ready(Ended::Silent),
            Wait::Waiting(waker) => {
                if let Some(why) = &self.end {
                    return Poll::Ready(Ended::Broken(why.clone()));
                }
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            Wait::Unused | Wait::Left => unreachable!("the place belongs to its caller"),
        }
    }

    /// The caller has left.
    pub(super) fn leave(&mut self, number: Number) {
        let request = &mut self.requests[number];
        if request.missing == 0 || self.end.is_some() {
            self.free(number);
        } else {
            request.wait = Wait::Left;
        }
    }

    fn free(&mut self, number: Number) {
        let request = &mut self.requests[number];
        request.wait = Wait::Unused;
        request.replies.clear();
        // Shrinks a place that held many replies.
        request.replies.shrink_to(2);
        request.confirmation = None;
        self.unused.push(number);
    }
}
