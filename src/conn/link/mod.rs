//! The connection of one lane to one server, replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by its id. Every
//! command on the old connection is then executed or dead, and none can arrive late and overtake a new one. Only a
//! reconnect pays for this. Without the right to kill its own connections, the earlier commands of a user stay
//! unsettled for a while, and the engine cancels repeatedly. `dial` decides when to connect, `connector` connects,
//! and `handshake` introduces the connection.
//!
//! ```text
//! dial.rs         the current connection; one attempt at a time to make another, in its own task
//! connector.rs    makes one, or says why it cannot
//! socket.rs       the socket under one; greeting.rs: its first command, which logs in
//! handshake.rs    the first exchange: names, the kill of earlier connections
//! loaded_scripts.rs  the scripts that were loaded over a connection
//! reconnects.rs   reports connections that replace another
//! reachability.rs the beginning and the limit of the next attempt
//! shared_process.rs  the process behind an address, for all links to it
//! wire/           our end of a connection: one buffer, replies in order, one timer
//! pace.rs         pure: portions of replies, so that many tasks keep a connection busy
//! ```

mod connection;
mod connector;
mod dial;
mod handshake;
mod pace;
mod server;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, RedisError, Value};

use self::connection::Connection;
pub(super) use self::connection::{DialParams, Socket};
pub(crate) use self::connector::Purpose;
use self::connector::{Connector, Ended};
use self::dial::Dialer;
pub(super) use self::handshake::{check_greeting, greeting};
pub(crate) use self::server::{Reachability, SharedProcess};
pub(super) use self::wire::{FirstBytes, SharedTick, WireParams};
use super::error_reply::code;
use super::sent;
use super::setup::Setup;
use super::transport::{Commands, Fault, LinkState, Reason, Replies};
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

    pub(crate) fn state(&self) -> LinkState {
        let (connector, current) = (self.dialer.connector(), self.dialer.current());
        LinkState {
            endpoint: Arc::clone(connector.endpoint()),
            earlier_commands_settled: connector.earlier_commands_settled(),
            last_reply_at: current.map_or(Tick::ZERO, |current| current.last_reply_at()),
            process: connector.process().known(),
        }
    }

    /// Sends one command. An error reply is a fault.
    pub(crate) async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value, Fault> {
        let command = Commands::One([command]);
        self.exchange(command, limit).await?.one()
    }

    /// Sends these back to back over one connection. Only the last may be about a subscription.
    pub(crate) async fn exchange(
        &self,
        commands: Commands<'_>,
        limit: Duration,
    ) -> Result<Replies, Fault> {
        let commands = commands.as_slice();
        if commands.is_empty() {
            return Ok(Replies::Several(Vec::new()));
        }
        let (connection, remaining) = self.connection(limit).await?;
        sent::mark();
        match connection.exchange(commands, remaining).await {
            Some(Ok(_)) if self.dialer.connector().is_replaced(&connection) => {
                // What an earlier process at the address did counts for nothing.
                Err(self.unknown("another server answers at this address by now"))
            }
            Some(Ok(replies)) => {
                for error in replies.errors() {
                    self.replace_if_demoted(&connection, &error);
                }
                Ok(replies)
            }
            Some(Err(error)) => {
                self.dialer.replace(&connection, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                let now = self.clock.now();
                let is_silent = connection.is_silent(now.before(limit), now, self.silence);
                // It would delay what comes behind several commands. If it was made during this call, the call had
                // less time, which proves nothing.
                let is_overdue = commands.len() > 1 && remaining == limit && limit >= self.silence;
                if is_silent || is_overdue {
                    self.dialer.replace(&connection, Ended::Broken);
                }
                let why = format!("no reply within {limit:?}");
                Err(self.unknown(Reason::timed_out(why)))
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
    fn replace_if_demoted(&self, connection: &Arc<Connection>, error: &RedisError) {
        if matches!(code(error), Some("READONLY" | "MASTERDOWN")) {
            self.dialer.replace(connection, Ended::Demoted);
        }
    }

    fn unknown(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unknown(self.dialer.connector().named(why))
    }
}
