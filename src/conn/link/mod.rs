//! The connection of one lane to one server, replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by its id. Every
//! command on the old connection is then executed or dead, and none can arrive late and overtake a new one. Only a
//! reconnect pays for this. Without the right to kill its own connections, the earlier commands of a user stay
//! unsettled for a while, and the engine cancels repeatedly. `dial` decides when to connect, `connector` connects,
//! and `handshake` introduces the connection.

mod bounded;
mod connection;
mod connector;
mod dial;
mod first_bytes;
mod framing;
mod handshake;
mod loan;
mod paced_read;
mod reachability;
mod reconnects;
mod shared_process;
mod shared_tick;
mod socket;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, Value};

use self::connection::Connection;
pub(crate) use self::connector::Purpose;
use self::connector::{Connector, Ended};
use self::dial::Dialer;
pub(super) use self::first_bytes::FirstBytes;
pub(crate) use self::reachability::Reachability;
pub(crate) use self::shared_process::SharedProcess;
pub(super) use self::shared_tick::SharedTick;
pub(super) use self::socket::{Socket, Step, Terms};
use super::error_reply::code;
use super::sent;
use super::setup::Setup;
use super::transport::{Fault, Reason};
use crate::engine::clock::{Clock, Tick};

/// A renewal waits at least this long for its reply, however short the lease.
pub(crate) const RENEWAL_WAIT_MIN: Duration = Duration::from_millis(25);

/// A link. The task that makes a connection ends with it.
#[derive(Debug)]
pub(crate) struct Link {
    clock: Clock,
    /// A connection without a reply for this long is silent, but not before a caller's limit ends. A shorter limit
    /// shows impatience, or, for renewals, a lack of time: the next renewal has to be answered before the lease ends.
    silence: Duration,
    dialer: Arc<Dialer>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.dialer.abort();
    }
}

impl Link {
    /// Makes a link. `CLIENT LIST` shows `label`, so that an operator can identify its connections.
    pub(crate) fn new(
        info: ConnectionInfo,
        label: String,
        setup: &Setup,
        reachability: &Arc<Reachability>,
        process: &Arc<SharedProcess>,
        purpose: Purpose,
    ) -> Self {
        let connector = Connector::new(info, label, setup, reachability, process, purpose);
        let dialer = Arc::new(Dialer::new(connector));
        process.add(&dialer);
        Self {
            clock: setup.clock,
            silence: match purpose {
                Purpose::Renewals => setup.silence.min(RENEWAL_WAIT_MIN),
                _ => setup.silence,
            },
            dialer,
        }
    }

    /// The address of the server for messages: host and port, or a path.
    pub(crate) fn endpoint(&self) -> &str {
        self.dialer.connector().endpoint()
    }

    pub(crate) fn earlier_commands_settled(&self) -> bool {
        self.dialer.connector().earlier_commands_settled()
    }

    /// The time of the server's last reply on the current connection.
    pub(crate) fn last_reply_at(&self) -> Tick {
        let current = self.dialer.current();
        current.map_or(Tick::ZERO, |connection| connection.last_reply_at())
    }

    /// Returns the future of [`send_behind`](Self::send_behind) itself, as an `async fn` around it would make it
    /// larger.
    pub(crate) fn send<'a>(
        &'a self,
        command: &'a Cmd,
        limit: Duration,
    ) -> impl Future<Output = Result<Value, Fault>> + Send + 'a {
        self.send_behind(None, command, limit)
    }

    /// Sends `first`, if there is one, and the actual command right behind it.
    pub(crate) async fn send_behind(
        &self,
        first: Option<&Cmd>,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let (connection, remaining) = self.connection(limit).await?;
        sent::mark();
        let expected = connection.push.expect(command);
        match connection.send(first, command, remaining).await {
            Some(Ok(_)) if self.dialer.connector().is_replaced(&connection) => Err(self.replaced()),
            Some(Ok(value)) => {
                if !expected.accepts(command, &value) {
                    self.dialer.replace(&connection, Ended::Broken);
                    return Err(self.unknown("the answer to another command"));
                }
                self.replace_if_demoted(&connection, &value);
                value.extract_error().map_err(Fault::Answered)
            }
            Some(Err(error)) => {
                self.dialer.replace(&connection, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                let now = self.clock.now();
                if connection.is_silent(now.before(limit), now, self.silence) {
                    self.dialer.replace(&connection, Ended::Broken);
                }
                Err(self.no_reply_within(limit))
            }
        }
    }

    /// Sends these back to back over one connection. An error reply is a value in its place. Not for a push
    /// connection.
    pub(crate) async fn send_together(
        &self,
        commands: &[&Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let (connection, remaining) = self.connection(limit).await?;
        sent::mark();
        let said = connection.send_each(commands, remaining).await;
        self.replies(&connection, said, remaining, limit)
    }

    /// The replies to commands sent together, which had `had` of `limit` left.
    fn replies(
        &self,
        connection: &Arc<Connection>,
        said: Option<Result<Vec<Value>, RedisError>>,
        had: Duration,
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        match said {
            Some(Ok(_)) if self.dialer.connector().is_replaced(connection) => Err(self.replaced()),
            Some(Ok(values)) => {
                for value in &values {
                    self.replace_if_demoted(connection, value);
                }
                Ok(values)
            }
            Some(Err(error)) => {
                self.dialer.replace(connection, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                // A silent connection would delay the next commands. If it was made during this call, the call had
                // less time, which proves nothing.
                let now = self.clock.now();
                let is_silent = connection.is_silent(now.before(limit), now, self.silence);
                if is_silent || (had == limit && limit >= self.silence) {
                    self.dialer.replace(connection, Ended::Broken);
                }
                Err(self.no_reply_within(limit))
            }
        }
    }

    /// Whether its connection has, or may still have, a sharded channel that `which` accepts.
    pub(crate) fn has_sharded(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        let current = self.dialer.current();
        current.is_some_and(|connection| connection.push.has_sharded(which))
    }

    /// Stops using the current connection, which closes when the commands in flight on it have ended.
    pub(crate) fn close(&self) {
        self.dialer.close();
    }

    /// Connects unless there is a connection.
    pub(crate) async fn open(&self) -> Result<(), Fault> {
        self.dialer.connected().await.map(drop)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.dialer.current().is_some()
    }

    /// Closes the connection. No other is made until [`Self::reinstate`].
    pub(super) fn retire(&self) {
        self.dialer.retire();
    }

    pub(super) fn reinstate(&self) {
        self.dialer.reinstate();
    }

    /// A connection, and the rest of `limit` once there is one.
    async fn connection(&self, limit: Duration) -> Result<(Arc<Connection>, Duration), Fault> {
        match self.dialer.current() {
            Some(connection) => Ok((connection, limit)),
            // Boxed because it is rare and large.
            None => Box::pin(self.dialer.connected_within(limit)).await,
        }
    }

    /// Stops using a connection to a demoted server. The address may already lead to another server.
    fn replace_if_demoted(&self, connection: &Arc<Connection>, reply: &Value) {
        if let Value::ServerError(no) = reply
            && matches!(
                code(&RedisError::from(no.clone())),
                Some("READONLY" | "MASTERDOWN")
            )
        {
            self.dialer.replace(connection, Ended::Demoted);
        }
    }

    fn unknown(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unknown(self.dialer.connector().named(why))
    }

    /// What an earlier process at the address did counts for nothing.
    fn replaced(&self) -> Fault {
        self.unknown("another server answers at this address by now")
    }

    fn no_reply_within(&self, limit: Duration) -> Fault {
        self.unknown(Reason::timed_out(format!("no reply within {limit:?}")))
    }
}
