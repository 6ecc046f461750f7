//! The one narrow seam between the engine and a server.
//!
//! The engine sends commands on lanes and hears of two things it did not ask for: a message on a
//! channel, and a gap in which messages may have been missed. Everything else (sockets, reconnects,
//! topologies) is on the other side of [`Transport`], so that a test can replace it whole.

mod cluster;
pub(crate) mod error_reply;
mod hearing;
mod link;
mod nodes;
pub(crate) mod process;
pub(crate) mod sent;
mod sentinel;
mod single;
pub(crate) mod tls;
pub(crate) mod url;

use std::fmt::{self, Debug};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, Value};

use self::cluster::Cluster;
use self::error_reply::connect_error;
pub(crate) use self::nodes::AddressMap;
pub(crate) use self::process::Process;
use self::sentinel::FollowedPrimary;
use self::single::{Role, SingleServer};
use self::url::Target;
use crate::clock::{Clock, Tick};
use crate::error::{Error, Result};
use crate::hint::Hint;

/// Which of a client's connections a command takes. Each lane is first in, first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What callers ask for, and what undoes it.
    Command,
    /// Renewals, so that they never queue behind anything else.
    Renewal,
    /// Subscriptions, and the attempts that must be seen to happen after them.
    Push,
    /// Waits for replicas, for which the server holds up everything behind them.
    Confirm,
}

/// Why a command was not answered with a value.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The server answered with an error.
    Answered(RedisError),
    /// The server answered with an error while a connection was being made: it never left.
    Declined(RedisError),
    /// It never left: it is not and will not be executed.
    Unsent(Reason),
    /// It left, or may have left: it was executed, will be, or never will.
    Unknown(Reason),
}

/// Why there was no answer: a message, and the error of the socket if there is one.
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

/// A command is not expected to be held back for longer than this on a connection that is gone.
pub(crate) const LATE_ARRIVAL_MAX: Duration = Duration::from_secs(60);

pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// Sends one command and waits for its reply: at most `limit` in all, the wait for a connection
    /// included. A connection that is being made goes on being made when the time is over, and a
    /// command whose time is over before there is one is not sent.
    ///
    /// Commands of one lane and server are executed in the order in which these futures are first
    /// polled, as long as the connection stands. A dropped future does not take its command back.
    fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> BoxFuture<'a, std::result::Result<Value, Fault>>;

    /// Sends these commands right behind each other over one connection, and waits for all replies: at
    /// most `limit` in all, the wait for a connection included. An error that a command was answered
    /// is the value in its place. All go to the server of `route`; where they are redirected, it is
    /// followed if their keys have the slot of `route`.
    fn send_together<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<Value>, Fault>>;

    /// Whether everything sent on a lane, to the server of `route` and before its present
    /// connection, is known to be executed or dead, so that nothing from then can still arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool;

    /// Keys with equal slots may be named in one script.
    fn slot(&self, route: &str) -> u16;

    /// Keys with equal servers are served by one server, as far as is known just now.
    fn server(&self, route: &str) -> u64;

    /// Where the server is, without secrets: equal for clients of one server, if they write its
    /// address the same way.
    fn address(&self) -> &str;

    /// Who serves a key, in messages: host and port.
    fn endpoint(&self, _route: &str) -> String {
        self.address().to_owned()
    }

    /// When the server of `route` last answered on the connection that a lane has; the beginning of time
    /// if it has not, or there is none.
    fn last_reply_at(&self, _lane: Lane, _route: &str) -> Tick {
        Tick::ZERO
    }

    /// How channels are used here.
    fn channels(&self) -> Channels;

    /// Whether it is one server for good, and no topology in which others take over.
    fn is_single_server(&self) -> bool {
        false
    }

    /// The process that has answered on a lane; `None` if it does not say. Asked after an answer, it is
    /// the process that gave it or a later one: every connection asks before it is used.
    fn process(&self, _lane: Lane, _route: &str) -> Option<Process> {
        None
    }
}

/// How a channel finds those who listen to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channels {
    /// By its name, anywhere.
    Plain,
    /// By its slot, on the server of that alone.
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

/// What every connection of a client is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    /// The longest that a step of making a connection may take, such as a round trip.
    pub(crate) step_timeout: Duration,
    /// The longest wait for an answer of what stands between a caller and the server.
    pub(crate) reply_timeout: Duration,
    /// Shown in the names of its connections.
    pub(crate) client_id: Arc<str>,
    pub(crate) preload: Arc<Preload>,
    pub(crate) events: Arc<dyn EventHandler>,
    /// Given when a connection to a server has ended by itself.
    pub(crate) disconnected: Arc<Hint>,
    /// For what servers tell of each other.
    pub(crate) address_map: AddressMap,
    /// What the certificates of all servers name, if that is not the host that is connected to.
    pub(crate) server_name: Option<Arc<str>>,
}

/// What is loaded into a server before a connection to it is used; the server may refuse it.
#[derive(Debug, Default)]
pub(crate) struct Preload {
    /// Asks which parts the server has.
    pub(crate) check: Option<Cmd>,
    /// Loads them, one command a part.
    pub(crate) load: Vec<Cmd>,
}

impl Preload {
    /// What has to be loaded after this reply to `check`: a 1 for each part that is there. All of it, if
    /// the reply does not say.
    pub(crate) fn missing(&self, present: Option<&Value>) -> Vec<Cmd> {
        let present = match present {
            Some(Value::Array(present)) => present.as_slice(),
            _ => &[],
        };
        let parts = self.load.iter().enumerate();
        let missing = parts.filter(|(at, _)| present.get(*at) != Some(&Value::Int(1)));
        missing.map(|(_, part)| part.clone()).collect()
    }
}

/// When a client makes its first connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Before it is handed out.
    Eager,
    /// When they are needed.
    Lazy,
}

/// Connects to whatever a URL stands for.
pub(crate) async fn connect(
    target: Target,
    setup: Setup,
    opening: Opening,
) -> Result<Arc<dyn Transport>> {
    match target {
        Target::Single(info) => {
            let server = SingleServer::new(info, &setup);
            if opening == Opening::Eager {
                let at = server.endpoint("");
                let opened = server.open().await;
                opened.map_err(|fault| connect_error(fault, &at))?;
                let role = server.role(setup.step_timeout).await;
                if role.map_err(|fault| connect_error(fault, &at))? == Role::Replica {
                    return Err(error_reply::not_a_primary(&at));
                }
            }
            Ok(Arc::new(server))
        }
        Target::Cluster { .. } if opening == Opening::Lazy => Err(Error::invalid(
            "connect",
            "a client of a cluster cannot be lazy: only its nodes say how channels are used there; \
             leave out ClientBuilder::lazy, and build the client when the cluster is up",
        )),
        Target::Cluster { seeds, model } => {
            Ok(Arc::new(Cluster::connect(seeds, model, setup).await?))
        }
        Target::Sentinel {
            sentinels,
            primary,
            sentinel_model,
            model,
        } => {
            let followed = FollowedPrimary::connect(
                sentinels,
                primary,
                [sentinel_model, model],
                setup,
                opening,
            );
            Ok(Arc::new(followed.await?))
        }
    }
}

/// Who is told what comes unasked. Called from connection tasks: must not block.
pub(crate) trait EventHandler: Debug + Send + Sync + 'static {
    fn message(&self, channel: &[u8], message: &[u8]);

    /// Messages may have been missed, and every subscription is gone.
    fn gap(&self);

    /// Another server answers for some keys from now on, and may not have all that the one before
    /// it had: what is held has to be looked at again.
    fn moved(&self);
}
