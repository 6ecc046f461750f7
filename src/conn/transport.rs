//! The seam between the engine and a server: what can be asked, how it can fail, what is called back.
//!
//! Invariant: everything that depends on sockets or topologies is behind [`Transport`], so that a test
//! can replace it as a whole. Used by `script`, which runs calls over it, and by every kind of server
//! here.

use std::fmt::{self, Debug};
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, Value};

use super::process::Process;
use crate::clock::Tick;

/// Which of a client's connections a command takes. Each lane is first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What callers ask for, and what undoes it.
    Command,
    /// Renewals, so that they never queue behind anything else.
    Renewal,
    /// Subscriptions, and the attempts that must come after them.
    Push,
    /// Waits for replicas, during which the server holds up everything behind them.
    Confirm,
}

/// Why a command has no value as its reply.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The server replied with an error.
    Answered(RedisError),
    /// The server replied with an error while a connection was being made: the command was not sent.
    Declined(RedisError),
    /// It was not sent: it is not and will not be executed.
    Unsent(Reason),
    /// It was or may have been sent: it was executed, will be, or never will.
    Unknown(Reason),
}

/// Why there was no reply: a message, and the error of the socket if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    message: String,
    pub(crate) source: Option<RedisError>,
}

impl Reason {
    /// The same failure in other words.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// It took too long.
    pub(crate) fn timed_out(message: String) -> Self {
        Self::from(RedisError::from(io::Error::from(io::ErrorKind::TimedOut))).with_message(message)
    }
}

impl From<String> for Reason {
    fn from(message: String) -> Self {
        Self {
            message,
            source: None,
        }
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
            message: error.to_string(),
            source: Some(error),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// After this long, nothing that was sent on a connection that is gone is expected to arrive any more.
pub(crate) const LATE_ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// A server, or a topology of servers, as the engine sees it.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// Sends one command and waits for its reply: at most `limit` in all, the wait for a connection
    /// included. A connection that is being made goes on being made when the time is over; a command
    /// whose time is over before there is one is not sent.
    ///
    /// Commands of one lane and server are executed in the order in which these futures are first
    /// polled, as long as the connection stands. Dropping a future does not take its command back.
    fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Fault>>;

    /// Sends these commands right behind each other over one connection, and waits for all replies: at
    /// most `limit` in all, the wait for a connection included. An error reply is the value in its
    /// place. All go to the server of `route`; a redirection is followed if the keys have the slot of
    /// `route`.
    fn send_together<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<Value>, Fault>>;

    /// Whether everything sent on a lane, to the server of `route` and before its current connection,
    /// is known to be executed or dead, so that none of it can still arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool;

    /// Keys with equal slots may be named in one script.
    fn slot(&self, route: &str) -> u16;

    /// Whether keys of one slot may be on two servers for a while, as the slot moves from one to the other.
    /// Commands for some of them that are sent together may then be executed in part.
    fn splits_slots(&self) -> bool {
        false
    }

    /// Keys with equal servers are served by one server, as far as is known now.
    fn server(&self, route: &str) -> u64;

    /// Where the server is, without secrets: equal for clients of one server, if they write its
    /// address the same way.
    fn address(&self) -> &str;

    /// Host and port of the server of a key, for messages.
    fn endpoint(&self, _route: &str) -> String {
        self.address().to_owned()
    }

    /// When the server of `route` last replied on the current connection of a lane;
    /// [`Tick::ZERO`] if it has not, or there is none.
    fn last_reply_at(&self, _lane: Lane, _route: &str) -> Tick {
        Tick::ZERO
    }

    /// A key of each server that serves keys, as far as is known now: a command with it as its route goes
    /// to that server.
    fn routes(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// How channels are used here.
    fn channels(&self) -> Channels;

    /// Whether it is one server for good, not a topology in which others take over.
    fn is_single_server(&self) -> bool {
        false
    }

    /// The process that replied on a lane; `None` if it does not say. Asked after a reply, it is the
    /// process that gave it or a later one: every connection asks before it is used.
    fn process(&self, _lane: Lane, _route: &str) -> Option<Process> {
        None
    }

    /// Starts the task that a client has.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// How a channel finds its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// By its name, on any node.
    Plain,
    /// By its slot, on the node that serves it alone.
    Sharded,
}

impl Channels {
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    pub(crate) fn subscribe(self) -> &'static str {
        match self {
            Self::Plain => "SUBSCRIBE",
            Self::Sharded => "SSUBSCRIBE",
        }
    }

    pub(crate) fn unsubscribe(self) -> &'static str {
        match self {
            Self::Plain => "UNSUBSCRIBE",
            Self::Sharded => "SUNSUBSCRIBE",
        }
    }
}

/// What a transport calls back. Called from connection tasks: must not block.
pub(crate) trait EventHandler: Debug + Send + Sync + 'static {
    fn message(&self, channel: &[u8], message: &[u8]);

    /// Messages may have been missed, and every subscription is gone.
    fn gap(&self);

    /// A connection of this lane was made anew to this server.
    fn reconnected(&self, _lane: &'static str, _server: &str) {}

    /// Another server answers for some keys from now on, and may lack some of what the one before it
    /// had: every hold has to be checked.
    fn moved(&self);
}
