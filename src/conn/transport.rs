//! The seam between the engine and a server: requests, failures and callbacks.
//!
//! Invariant: everything that depends on sockets or topologies is behind [`Transport`], so a test can replace it as a
//! whole. `script` runs calls over it, and every kind of server in this folder implements it.

use std::fmt::{self, Debug};
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, Value};

use super::process::Process;
use crate::engine::clock::Tick;

/// The connection of a client that a command takes. Each lane is first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Requests of callers, and the commands that undo them.
    Command,
    /// Renewals, which must never queue behind anything else.
    Renewal,
    /// Subscriptions, and the attempts that must come after them.
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

/// The reason for a missing reply: a message, with the error of the socket if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Reason {
    message: String,
    pub(crate) source: Option<RedisError>,
}

impl Reason {
    /// The reason with another message.
    pub(crate) fn with_message(self, message: String) -> Self {
        Self { message, ..self }
    }

    /// A time-out.
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

/// No command from a lost connection is expected to arrive after this long.
pub(crate) const LATE_ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// A server, or a topology of servers, as the engine sees it.
pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// Sends one command and waits for its reply, for at most `limit` including the wait for a connection. A
    /// connection attempt continues after the limit. A command whose limit ends before there is a connection is not
    /// sent.
    ///
    /// Commands of one lane and server are executed in the order in which these futures are first polled, as long as
    /// the connection stands. Dropping a future does not take its command back.
    fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Fault>>;

    /// Sends these commands back to back over one connection and waits for all replies, for at most `limit` including
    /// the wait for a connection. An error reply is returned as a value in its place. All commands go to the server
    /// of `route`. A redirection is followed if the keys share the slot of `route`.
    fn send_together<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<Value>, Fault>>;

    /// Whether every command sent on a lane before its current connection, to the server of `route`, is known to be
    /// executed or dead. If so, none can arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool;

    /// The slot of a key. One script may name keys with equal slots.
    fn slot(&self, route: &str) -> u16;

    /// Whether the keys of one slot may be on two servers for a while, because the slot is moving. Commands sent
    /// together for several of them may then be executed in part.
    fn splits_slots(&self) -> bool {
        false
    }

    /// An id of the server of a key, as far as is known now. Keys with equal ids have one server.
    fn server(&self, route: &str) -> u64;

    /// The address of the server, without secrets. Clients that write it in the same way get equal addresses.
    fn address(&self) -> &str;

    /// The host and port of a key's server, for messages.
    fn endpoint(&self, _route: &str) -> String {
        self.address().to_owned()
    }

    /// The time of the last reply from the server of `route` on a lane's current connection; [`Tick::ZERO`] if there
    /// was none, or there is no connection.
    fn last_reply_at(&self, _lane: Lane, _route: &str) -> Tick {
        Tick::ZERO
    }

    /// One key for each server that serves keys, as far as is known now. A command with this key as its route goes to
    /// that server.
    fn routes(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// How channels reach their subscribers here.
    fn channels(&self) -> Channels;

    /// Whether this is always one server, not a topology with failovers.
    fn is_single_server(&self) -> bool {
        false
    }

    /// The server process that last replied on a lane; `None` if it does not say. After a reply, this is the process
    /// that sent it or a later one, because every connection asks before it is used.
    fn process(&self, _lane: Lane, _route: &str) -> Option<Process> {
        None
    }

    /// Starts the client's task.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// How a channel reaches its subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// By its name, through any node.
    Plain,
    /// By its slot, through the node that serves it.
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

/// Callbacks of a transport. Connection tasks call them, so they must not block.
pub(crate) trait EventHandler: Debug + Send + Sync + 'static {
    fn message(&self, channel: &[u8], message: &[u8]);

    /// Messages may have been missed, and every subscription is gone.
    fn gap(&self);

    /// A connection of this lane to this server replaced an earlier one.
    fn reconnected(&self, _lane: &'static str, _server: &str) {}

    /// Another server now serves some keys, and may lack writes of the previous one. Every hold has to be checked.
    fn moved(&self);
}
