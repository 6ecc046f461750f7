//! The words of the seam between the engine and a server: lanes, failures and callbacks.

use std::fmt::{self, Debug};
use std::io;
use std::mem;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

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

/// Commands for one write. Most writes have one command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Commands<'a> {
    One([&'a Cmd; 1]),
    Several(&'a [&'a Cmd]),
}

impl<'a> Commands<'a> {
    pub(crate) fn as_slice(&self) -> &[&'a Cmd] {
        match self {
            Self::One(command) => command,
            Self::Several(commands) => commands,
        }
    }
}

/// The replies to commands sent in one write, errors among them.
#[derive(Debug)]
pub(crate) enum Replies {
    One(Value),
    Several(Vec<Value>),
}

impl Replies {
    /// Takes the replies out of a buffer.
    pub(crate) fn take(values: &mut Vec<Value>) -> Self {
        match values.pop() {
            Some(value) if values.is_empty() => Self::One(value),
            last => {
                values.extend(last);
                Self::Several(mem::take(values))
            }
        }
    }

    pub(crate) fn values(&self) -> &[Value] {
        match self {
            Self::One(value) => slice::from_ref(value),
            Self::Several(values) => values,
        }
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = RedisError> {
        self.values().iter().filter_map(|value| match value {
            Value::ServerError(no) => Some(no.clone().into()),
            _ => None,
        })
    }

    /// The reply to the only command.
    pub(crate) fn one(self) -> Result<Value, Fault> {
        match self {
            Self::One(value) => value.extract_error().map_err(Fault::Answered),
            Self::Several(_) => Err(Fault::Unknown("a reply is missing".into())),
        }
    }

    pub(crate) fn all(self) -> Vec<Value> {
        match self {
            Self::One(value) => vec![value],
            Self::Several(values) => values,
        }
    }
}

/// The state of one link.
#[derive(Debug)]
pub(crate) struct LinkState {
    /// The host and port of its server.
    pub(crate) endpoint: Arc<str>,
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
    /// The command that publishes.
    pub fn publish(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }

    /// The command that subscribes.
    pub fn subscribe(self) -> &'static str {
        match self {
            Self::Plain => "SUBSCRIBE",
            Self::Sharded => "SSUBSCRIBE",
        }
    }

    /// The command that unsubscribes.
    pub fn unsubscribe(self) -> &'static str {
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
