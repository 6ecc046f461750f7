//! The connection of one lane to one server: how a command gets it, and how it is replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by its id. Every
//! command on the old connection is then executed or dead, and none can arrive late and overtake a new one. Only a
//! reconnect pays for this. Without the right to kill its own connections, the earlier commands of a user stay
//! unsettled for a while, and the engine cancels repeatedly.
//!
//! Invariant: no caller's time limit ends an attempt to connect, a dial. There is one dial at a time, in its own task,
//! and all callers wait for its result. A caller whose limit is over leaves; the dial continues, and the next caller
//! finds its result. A dial ends with its link or with the client's runtime, and its callers then get an error.
//!
//! ```text
//! dialer.rs       the connection of a link, and the next one when it falls silent
//! connector.rs    makes a connection, or says why it cannot
//! connection.rs   a connection: its socket, its scripts, its last reply
//! handshake.rs    the first exchange: the login, names, the kill of earlier connections
//! server.rs       what all links to a server share: pauses between attempts, the process behind the address
//! wire/           our end of a connection: one buffer, replies in order, one timer
//! pace.rs         pure: portions of replies, so that many tasks keep a connection busy
//! ```

mod connection;
mod connector;
mod dialer;
mod handshake;
mod pace;
mod server;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ConnectionInfo, Value};

use self::connection::Connection;
pub(super) use self::connection::{DialParams, Socket};
use self::connector::Connector;
pub(crate) use self::connector::Purpose;
use self::dialer::Dialer;
pub(super) use self::handshake::{check_greeting, greeting};
pub(crate) use self::server::{Reachability, SharedProcess};
pub(super) use self::wire::{FirstBytes, SharedTick, WireParams};
use super::setup::Setup;
use super::transport::{Commands, Fault, LinkState, Recipient, Replies, sent};
use crate::engine::clock::Tick;

/// A renewal waits at least this long for its reply, however short the lease.
pub(crate) const RENEWAL_WAIT_MIN: Duration = Duration::from_millis(25);

/// A link. The task that makes a connection ends with it.
#[derive(Debug)]
pub(crate) struct Link {
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
        let silence = match purpose {
            Purpose::Renewals => setup.silence.min(RENEWAL_WAIT_MIN),
            _ => setup.silence,
        };
        let dialer = Arc::new(Dialer::new(connector, silence));
        process.add(&dialer);
        Self { dialer }
    }

    pub(crate) fn state(&self) -> LinkState {
        let (connector, current) = (self.dialer.connector(), self.dialer.current());
        LinkState {
            endpoint: Arc::clone(&connector.endpoint),
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
            return Ok(Replies::default());
        }
        let (connection, remaining) = self.connection(limit).await?;
        sent::mark();
        let exchanged = connection.exchange(commands, remaining).await;
        self.dialer
            .ended(&connection, commands.len(), limit, remaining, exchanged)
    }

    /// Hands commands over to the connection, if it can take them at once, and tells their end to `to`.
    pub(crate) fn submit(
        &self,
        commands: Commands<'_>,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let current = self.dialer.current();
        current.is_some_and(|connection| connection.submit(commands.as_slice(), limit, to))
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
}
