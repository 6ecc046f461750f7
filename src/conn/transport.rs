//! The seam between the engine and a server: what the engine sends, what it gets back, and what calls it back.
//!
//! A [`Transport`] is a server, or a topology of servers, as the engine sees it. It says which link serves a key, and
//! what a fault means. The rest of the trait is here, once for all of them. `script` runs calls over it. Invariant:
//! everything that depends on sockets or topologies is behind [`Transport`], so a test can replace it as a whole.

use std::fmt::{self, Debug};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Arg, Cmd, RedisError, Value};
use smallvec::SmallVec;

use super::value::Process;
use crate::api::error::Kind;
use crate::engine::clock::Tick;

pub(crate) trait Transport: Debug + Send + Sync {
    /// Sends commands back to back over the link that serves `route`, and waits for all replies, for at most `limit`
    /// including the wait for a connection. A connection attempt continues after the limit. Commands whose limit ends
    /// before there is a connection are not sent. A redirection is followed if the keys share the slot of `route`.
    ///
    /// Commands of one lane and server are executed in the order in which these futures are first polled, as long as
    /// the connection stands. Those that wait for one are sent in any order, and behind others that come when there is
    /// one. Dropping a future does not take back what was sent.
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>>;

    /// Hands commands over to the connection that serves `route`, and tells their end to `to`, after the time of a
    /// reply at the latest. If the connection cannot take them at once, this sends nothing and returns false. Ordered
    /// as [`exchange`](Self::exchange) at its first poll. No redirection is followed.
    fn submit(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool;

    /// The state of the link that serves `route` now; `None` if there is none.
    fn link_state(&self, lane: Lane, route: &str) -> Option<LinkState>;

    /// The address of the server, without secrets. Clients that write it in the same way get equal addresses.
    fn address(&self) -> &str;

    /// Starts the client's task.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The slot of a key. One script may name keys with equal slots.
    fn slot(&self, _route: &str) -> u16 {
        0
    }

    /// Whether the keys of one slot may be on two servers for a while, because the slot is moving. Commands sent
    /// together for several of them may then be executed in part.
    fn splits_slots(&self) -> bool {
        false
    }

    /// An id of the server of a key, as far as is known now. Keys with equal ids have one server.
    fn server(&self, _route: &str) -> u64 {
        0
    }

    /// One key for each server that serves keys, as far as is known now. A command with this key as its route goes to
    /// that server.
    fn routes(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// How channels reach their subscribers here.
    fn channels(&self) -> Channels {
        Channels::Plain
    }

    /// Whether this is always one server, not a topology with failovers.
    fn is_single_server(&self) -> bool {
        false
    }

    /// Whether every command sent on a lane before its current connection, to the server of `route`, is known to be
    /// executed or dead. If so, none can arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool {
        let link = self.link_state(lane, route);
        link.is_some_and(|link| link.earlier_commands_settled)
    }

    /// Whether a lane has a connection to the server of `route`.
    fn is_open(&self, lane: Lane, route: &str) -> bool {
        let link = self.link_state(lane, route);
        link.is_some_and(|link| link.is_open)
    }

    /// The host and port of a key's server, for messages.
    fn endpoint(&self, route: &str) -> String {
        let link = self.link_state(Lane::Command, route);
        link.map_or_else(|| self.address().into(), |link| link.endpoint.to_string())
    }

    /// The time of the last reply from the server of `route` on a lane's current connection; [`Tick::ZERO`] if there
    /// was none, or there is no connection.
    fn last_reply_at(&self, lane: Lane, route: &str) -> Tick {
        let link = self.link_state(lane, route);
        link.map_or(Tick::ZERO, |link| link.last_reply_at)
    }

    /// The server process that was met last at the address of `route`; `None` if it does not say. After a reply, this
    /// is the process that sent it or a later one, because every connection asks before it is used.
    fn process(&self, lane: Lane, route: &str) -> Option<Process> {
        self.link_state(lane, route)?.process
    }
}

impl dyn Transport + '_ {
    /// Sends one command, as in [`exchange`](Transport::exchange). An error reply is a fault.
    pub(crate) async fn send(
        &self,
        lane: Lane,
        route: &str,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let command = [command];
        let replies = self.exchange(lane, route, &command, limit);
        only(replies.await?)
    }
}

/// The connection of a client that a command takes. Each lane is first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Requests of callers, and the commands that undo them.
    Command,
    /// Renewals, which must never queue behind anything else.
    Renewal,
    /// Subscriptions and their messages.
    Push,
    /// Waits for replicas, which block every later command on their connection.
    Confirm,
}

/// The reason why a command has no value as its reply.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The server replied with an error.
    Answered(RedisError),
    /// The server replied with an error during connecting, so the command was not sent.
    Declined(RedisError),
    /// The command was not sent, so it is not and will not be executed.
    Unsent(Reason),
    /// The command was sent, or may have been. It may be executed at any time, or never.
    Unknown(Reason),
}

impl Fault {
    /// The error that the server answered with, if it answered.
    pub(crate) fn answer(&self) -> Option<&RedisError> {
        match self {
            Self::Answered(error) | Self::Declined(error) => Some(error),
            Self::Unsent(_) | Self::Unknown(_) => None,
        }
    }

    /// Whether it may be over by itself, without a word of the server.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Unsent(why) | Self::Unknown(why) if why.kind == Kind::Io)
    }
}

/// The reason for a missing reply: a message, with the error of the socket if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    /// The kind of the error for a caller.
    pub(crate) kind: Kind,
    message: Box<str>,
    pub(crate) source: Option<RedisError>,
}

impl Reason {
    pub(crate) fn of(kind: Kind, message: String) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The reason with another message.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self {
            message: message.into(),
            ..self
        }
    }

    /// A time-out.
    pub(crate) fn timed_out(message: String) -> Self {
        Self::from(RedisError::from(io::Error::from(io::ErrorKind::TimedOut))).with_message(message)
    }
}

impl From<String> for Reason {
    fn from(message: String) -> Self {
        Self::of(Kind::Io, message)
    }
}

impl From<&str> for Reason {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl From<RedisError> for Reason {
    fn from(error: RedisError) -> Self {
        Self {
            kind: Kind::Io,
            message: error.to_string().into(),
            source: Some(error),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// No command from a lost connection is expected to arrive after this long.
pub(crate) const LATE_ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// A command of these words.
pub fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    command.arg(words);
    command
}

/// The words of a command. A cursor, which none of ours has, is an empty one.
pub(crate) fn words(command: &Cmd) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
    command.args_iter().map(|word| match word {
        Arg::Simple(word) => word,
        _ => b"",
    })
}

/// The replies to commands sent in one write, errors among them. Few writes have more than two commands.
pub(crate) type Replies = SmallVec<[Value; 2]>;

/// The errors among these replies.
pub(crate) fn errors_in(replies: &[Value]) -> impl Iterator<Item = RedisError> {
    replies.iter().filter_map(|value| match value {
        Value::ServerError(no) => Some(no.clone().into()),
        _ => None,
    })
}

/// The reply to the only command. An error reply is a fault.
pub(crate) fn only(mut replies: Replies) -> Result<Value, Fault> {
    match replies.pop() {
        Some(value) if replies.is_empty() => value.extract_error().map_err(Fault::Answered),
        _ => Err(Fault::Unknown("a reply is missing".into())),
    }
}

/// The state of one link.
#[derive(Debug)]
pub(crate) struct LinkState {
    /// The host and port of its server.
    pub(crate) endpoint: Arc<str>,
    /// Whether it has a connection.
    pub(crate) is_open: bool,
    pub(crate) earlier_commands_settled: bool,
    pub(crate) last_reply_at: Tick,
    pub(crate) process: Option<Process>,
}

/// How a channel reaches its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// By its name, through any node.
    Plain,
    /// By its slot, through the node that serves it.
    Sharded,
}

impl Channels {
    fn choose(self, plain: &'static str, sharded: &'static str) -> &'static str {
        match self {
            Self::Plain => plain,
            Self::Sharded => sharded,
        }
    }

    /// The command that publishes.
    pub fn publish(self) -> &'static str {
        self.choose("PUBLISH", "SPUBLISH")
    }

    /// The command that subscribes.
    pub fn subscribe(self) -> &'static str {
        self.choose("SUBSCRIBE", "SSUBSCRIBE")
    }

    /// The command that unsubscribes.
    pub fn unsubscribe(self) -> &'static str {
        self.choose("UNSUBSCRIBE", "SUNSUBSCRIBE")
    }
}

/// Receives the end of submitted commands.
pub(crate) trait Recipient: Debug + Send + Sync {
    /// The commands have ended. Called once, without any mutex. A connection's task calls it, so it must not block.
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>);
}

/// For commands whose end makes no difference.
impl Recipient for () {
    fn received(self: Arc<Self>, _outcome: Result<Replies, Fault>) {}
}

/// Callbacks of a transport. Connection tasks call them, so they must not block.
pub(crate) trait EventHandler: Debug + Send + Sync + 'static {
    /// A message came on a channel.
    fn message(&self, channel: &[u8], message: &[u8]);

    /// Messages may have been missed, and every subscription is gone.
    fn gap(&self);

    /// A connection of this lane to this server replaced an earlier one.
    fn reconnected(&self, _lane: &'static str, _server: &str) {}

    /// Another server now serves some keys, and may lack writes of the previous one. Every hold has to be checked.
    fn moved(&self);
}

/// Records whether a command was sent. A sent command may be executed, even if its caller no longer waits.
///
/// A dropped future returns nothing, so a caller that needs to know drives the future through [`track`](sent::track).
/// Links call [`mark`](sent::mark) on the thread that polls them when they hand a command to a connection.
pub(crate) mod sent {
    use std::cell::Cell;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    thread_local! {
        static WAS_SENT: Cell<bool> = const { Cell::new(false) };
    }

    /// Records that a command was handed to a connection.
    pub(crate) fn mark() {
        WAS_SENT.set(true);
    }

    /// Drives `work`, and sets `sent` as soon as a command may have been sent. Takes `work` by reference, because a
    /// future that is moved into another one takes space twice.
    pub(crate) async fn track<F: Future>(sent: &AtomicBool, mut work: Pin<&mut F>) -> F::Output {
        std::future::poll_fn(|context| {
            let before = WAS_SENT.replace(false);
            let polled = work.as_mut().poll(context);
            if WAS_SENT.replace(before) {
                sent.store(true, Ordering::Relaxed);
                // For an enclosing `track`.
                mark();
            }
            polled
        })
        .await
    }

    #[cfg(test)]
    mod tests {
        use std::pin::pin;
        use std::task::{Context, Waker};

        use super::*;

        #[test]
        fn a_sent_command_is_seen_by_all_that_drive_it_and_by_no_other() {
            let [outer, inner, other] = [(); 3].map(|()| AtomicBool::new(false));
            let mut context = Context::from_waker(Waker::noop());
            let mut nothing = pin!(std::future::pending::<()>());
            let waits = track(&other, nothing.as_mut());
            assert!(pin!(waits).poll(&mut context).is_pending());
            let sends = pin!(async { mark() });
            let work = pin!(track(&inner, sends));
            assert!(pin!(track(&outer, work)).poll(&mut context).is_ready());
            let waits = track(&other, nothing);
            assert!(pin!(waits).poll(&mut context).is_pending());
            let sent = [&outer, &inner, &other].map(|sent| sent.load(Ordering::Relaxed));
            assert_eq!(sent, [true, true, false]);
            WAS_SENT.set(false);
        }
    }
}
