//! The requests that wait for replies on one connection, in the order of their commands. Callers and the driver share
//! them.
//!
//! Invariants: the bytes of a command and its place in the order are added together, so that both have one order. The
//! n-th reply belongs to the n-th command, even if its caller no longer waits; only its last reply removes a command
//! from this order. A sent command cannot be taken back. A push is the reply to a command about a subscription only if
//! it names the same channel, and nothing else but an error is. The end of a request is told once, without the mutex.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, RedisError, Value};

use crate::conn::error_reply::nonsense;
use crate::conn::transport::{Fault, Recipient, Replies, words};
use crate::engine::clock::Tick;
use crate::engine::hint::Arrival;

const UNASKED: &str = "a reply to no command";

pub(super) type Shared = Mutex<WireState>;

/// The replies to a request, or why its connection broke. `None`: some reply is missing after its time.
pub(crate) type Exchanged = Option<Result<Replies, RedisError>>;

#[derive(Debug, Default)]
pub(super) struct WireState {
    /// Commands that the driver has not taken yet.
    pub(super) bytes: Vec<u8>,
    pub(super) unanswered: Unanswered,
    /// Woken when there is something to send; `None` once it was woken.
    pub(super) driver: Option<Waker>,
}

/// One command, or several that are answered together.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` once it was told that the connection is silent.
    pub(super) to: Option<To>,
    /// Commands without a reply.
    pub(super) missing: usize,
    /// The first of them, which load scripts. Their replies are dropped.
    pub(super) loads: usize,
    pub(super) replies: Replies,
    /// Whether a missing answer shows that the connection is silent.
    pub(super) proves_silence: bool,
    /// It is silent without a reply until then. Zero until the driver has seen it.
    pub(super) silent_at: Tick,
    /// The push that is its last reply, if it is about a subscription.
    pub(super) confirmation: Option<Box<Confirmation>>,
}

/// The receiver of the end of a request.
#[derive(Debug)]
pub(super) enum To {
    Caller(Arc<Arrival<Exchanged>>),
    Recipient {
        over: Arc<dyn Carrier>,
        to: Arc<dyn Recipient>,
        commands: usize,
    },
}

impl To {
    fn tell(self, ended: Exchanged) {
        match self {
            Self::Caller(caller) => caller.put(ended),
            Self::Recipient { over, to, commands } => {
                let outcome = over.outcome(commands, ended);
                to.received(outcome);
            }
        }
    }
}

/// The connection of a request. It knows what the end of the request means.
pub(crate) trait Carrier: Debug + Send + Sync {
    /// A request of this number of commands has ended.
    fn outcome(self: Arc<Self>, commands: usize, ended: Exchanged) -> Result<Replies, Fault>;
}

/// The requests that have ended, and were not told so yet. Kept for its capacity.
#[derive(Debug, Default)]
pub(super) struct NewlyEnded(VecDeque<(To, Exchanged)>);

impl NewlyEnded {
    fn add(&mut self, to: Option<To>, ended: Exchanged) {
        self.0.extend(to.map(|to| (to, ended)));
    }

    /// Tells all of them. Call it without the mutex. If one panics, the others are left for the next call.
    pub(super) fn tell(&mut self) {
        while let Some((to, ended)) = self.0.pop_front() {
            to.tell(ended);
        }
    }
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
        let mut words = words(command);
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

#[derive(Debug, Default)]
pub(super) struct Unanswered {
    /// In the order of their commands.
    requests: VecDeque<Request>,
    /// The number of requests at the front whose time is over.
    silent: usize,
    end: Option<RedisError>,
}

impl Unanswered {
    /// Adds a request to the end of the order.
    pub(super) fn push(&mut self, request: Request) {
        self.requests.push_back(request);
    }

    /// The push that has to be the next reply; `None` if an ordinary reply has to be.
    fn next_confirmation(&self) -> Option<&Confirmation> {
        let next = self.requests.front()?;
        next.confirmation.as_deref().filter(|_| next.missing == 1)
    }

    /// Assigns a push, if it is the next reply. Returns whether it is.
    pub(super) fn confirm(&mut self, push: &PushInfo, ended: &mut NewlyEnded) -> bool {
        let is_next = self.next_confirmation().is_some_and(|next| next.is(push));
        is_next && self.answer(Value::Okay, ended).is_ok()
    }

    /// The number of requests without an answer.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// The new requests are now on their way. Without a reply until `then`, the connection is silent.
    pub(super) fn sent(&mut self, then: Tick) {
        let requests = self.requests.iter_mut().rev();
        for request in requests.take_while(|request| request.silent_at == Tick::ZERO) {
            request.silent_at = if request.proves_silence {
                then
            } else {
                Tick::NEVER
            };
        }
    }

    /// Assigns an ordinary reply. If that ends a request, adds it to `ended`. Returns whether it does.
    ///
    /// # Errors
    /// If it answers no command. A server that refuses a connection says why without being asked.
    pub(super) fn reply(
        &mut self,
        value: Value,
        ended: &mut NewlyEnded,
    ) -> Result<bool, RedisError> {
        let is_error = matches!(value, Value::ServerError(_));
        if self.next_confirmation().is_some() && !is_error {
            return Err(nonsense(UNASKED));
        }
        self.answer(value, ended)
    }

    fn answer(&mut self, value: Value, ended: &mut NewlyEnded) -> Result<bool, RedisError> {
        let Some(request) = self.requests.front_mut() else {
            value.extract_error()?;
            return Err(nonsense(UNASKED));
        };
        request.missing -= 1;
        if request.loads == 0 {
            request.replies.push(value);
        } else {
            request.loads -= 1;
            if !is_of_load(&value) {
                let error = nonsense("a reply to SCRIPT LOAD that is no text");
                ended.add(request.to.take(), Some(Err(error)));
            }
        }
        if request.missing > 0 {
            return Ok(false);
        }
        let (to, replies) = (request.to.take(), mem::take(&mut request.replies));
        self.requests.pop_front();
        self.silent = self.silent.saturating_sub(1);
        ended.add(to, Some(Ok(replies)));
        Ok(true)
    }

    /// The time at which the oldest request becomes silent. Those that already are have ended for their callers.
    pub(super) fn next_silence(&mut self, now: Tick, ended: &mut NewlyEnded) -> Option<Tick> {
        while let Some(request) = self.requests.get_mut(self.silent) {
            match request.silent_at {
                Tick::ZERO => return None,
                Tick::NEVER => {}
                at if at > now => return Some(at),
                _ => ended.add(request.to.take(), None),
            }
            self.silent += 1;
        }
        None
    }

    /// Ends the connection: no further reply will arrive.
    pub(super) fn end(&mut self, why: RedisError, ended: &mut NewlyEnded) {
        for request in self.requests.drain(..) {
            ended.add(request.to, Some(Err(why.clone())));
        }
        self.silent = 0;
        self.end.get_or_insert(why);
    }

    pub(super) fn ended(&self) -> Option<&RedisError> {
        self.end.as_ref()
    }
}

/// Whether a server replies to `SCRIPT LOAD` like this. One that refuses it refuses the call, too, which is then
/// repeated with the text of its script.
fn is_of_load(reply: &Value) -> bool {
    let is_text = matches!(reply, Value::BulkString(_) | Value::SimpleString(_));
    is_text || matches!(reply, Value::ServerError(_))
}
