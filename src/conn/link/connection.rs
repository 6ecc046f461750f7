//! One connection to one server: its socket, the scripts that were loaded over it, and the time of its last reply.
//!
//! The first call of a script on a connection is sent behind a command that loads the script, in the same write. A new
//! client therefore sends only the scripts that it uses, and needs no round trip for them. If the call alone were sent,
//! a server might answer `NOSCRIPT`, and another command could be executed before the second attempt with the text.
//! Invariant: a script counts as loaded only when the command that loads it is ahead of all later ones.
//!
//! A socket is connected as the client library does: to all addresses of a name at once, and the first that answers is
//! used.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::wire::{Carrier, Exchanged, SharedTick, Wire, WireParams, timed_out};
use crate::conn::push::PushState;
#[cfg(feature = "testing")]
use crate::conn::setup::Network;
use crate::conn::setup::{FindScript, Setup};
use crate::conn::transport::{Recipient, command, words};
use crate::engine::clock::Tick;

/// The interval of keep-alive probes on an idle connection, which reveal a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    pub(super) made: Tick,
    /// Of the process behind it; see [`SharedProcess`](super::server::SharedProcess).
    pub(super) generation: u64,
    /// The send time of the first abandoned call since the last reply.
    given_up: SharedTick,
    find_script: FindScript,
    /// The loaded scripts, one bit for each.
    loaded: AtomicU64,
}

impl Connection {
    /// A connection made just now.
    pub(super) fn new(socket: Socket, generation: u64, find_script: FindScript) -> Self {
        // A reply read at this instant must count as later.
        let params = &socket.wire.params;
        let made = params.clock.now().before(Duration::from_nanos(1));
        params.last_reply.set(made);
        Self {
            socket,
            made,
            generation,
            given_up: SharedTick::default(),
            find_script,
            loaded: AtomicU64::new(0),
        }
    }

    pub(super) fn last_reply_at(&self) -> Tick {
        self.socket.wire.params.last_reply.get()
    }

    pub(super) fn push(&self) -> &PushState {
        &self.socket.wire.params.push
    }

    /// Whether nothing can be sent over it any more.
    pub(super) fn has_ended(&self) -> bool {
        self.socket.wire.has_ended()
    }

    /// Whether the server has replied to a call. Replies to the handshake do not count.
    pub(super) fn has_answered(&self) -> bool {
        self.last_reply_at() > self.made
    }

    /// Whether there has been no reply for `silence`, judged by an abandoned call that was sent at `sent`. The first
    /// of several such calls counts, because a caller's limit may be shorter than `silence`. If other calls had
    /// replies since, or the connection was made since, it is slow and not dead.
    pub(super) fn is_silent(&self, sent: Tick, now: Tick, silence: Duration) -> bool {
        let last_reply = self.last_reply_at();
        if last_reply >= sent {
            return false;
        }
        let known = self.given_up.get();
        let since = if known <= last_reply {
            sent
        } else {
            known.min(sent)
        };
        self.given_up.set(since);
        since.until(now) >= silence
    }

    /// Sends these in one request, behind the scripts that they need.
    pub(super) fn exchange(
        &self,
        commands: &[&Cmd],
        limit: Duration,
    ) -> impl Future<Output = Exchanged> + use<> {
        let loads = self.missing_scripts(commands);
        let sent = self.socket.wire.send(&loads.commands, commands, limit);
        self.are_sent(&loads);
        sent
    }

    /// Sends these in one request behind the scripts that they need, and tells its end to `to`. If it needs a timer,
    /// or if the connection has ended, it sends nothing and returns false.
    pub(super) fn submit(
        &self,
        commands: &[&Cmd],
        limit: Duration,
        over: Arc<dyn Carrier>,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let wire = &self.socket.wire;
        if !wire.times(limit) {
            return false;
        }
        let loads = self.missing_scripts(commands);
        let is_sent = wire.submit(&loads.commands, commands, over, to);
        if is_sent {
            self.are_sent(&loads);
        }
        is_sent
    }

    /// The scripts to load before `commands`.
    fn missing_scripts(&self, commands: &[&Cmd]) -> Loads {
        let loaded = self.loaded.load(Ordering::Acquire);
        let mut loads = Loads::default();
        for (script, text) in commands.iter().filter_map(|command| self.script(command)) {
            let script = 1 << script;
            if (loaded | loads.scripts) & script == 0 {
                loads.commands.push(command(&["SCRIPT", "LOAD", text]));
                loads.scripts |= script;
            }
        }
        loads
    }

    /// These have been handed over to the connection.
    fn are_sent(&self, loads: &Loads) {
        if loads.scripts != 0 {
            self.loaded.fetch_or(loads.scripts, Ordering::AcqRel);
        }
    }

    fn script(&self, command: &Cmd) -> Option<(u8, &'static str)> {
        let mut words = words(command);
        match (words.next()?, words.next()?) {
            (b"EVALSHA", sha) => (self.find_script)(sha),
            _ => None,
        }
    }
}

/// The commands that load the scripts of one request.
#[derive(Default)]
struct Loads {
    commands: Vec<Cmd>,
    scripts: u64,
}

/// A connection with the task behind it, which ends on drop.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) wire: Wire,
    driver: AbortHandle,
}

impl Socket {
    /// Makes a connection within `limit`, on which nothing was sent yet.
    pub(crate) async fn connect(
        info: &ConnectionInfo,
        setup: &Setup,
        limit: Duration,
        wire: WireParams,
    ) -> Result<Self, RedisError> {
        let connected = Self::connect_to(info, setup, wire);
        let connected = setup.clock.within(limit, connected).await;
        connected.unwrap_or_else(|| Err(timed_out("connection", limit)))
    }

    async fn connect_to(
        info: &ConnectionInfo,
        setup: &Setup,
        wire: WireParams,
    ) -> Result<Self, RedisError> {
        #[cfg(feature = "testing")]
        if let (Network::Simulated(there), ConnectionAddr::Tcp(host, port)) =
            (&setup.network, info.addr())
        {
            let stream = there.connect(host, *port).await?;
            return Ok(Self::over(stream, setup, wire));
        }
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(setup, host, *port).await?;
                Ok(Self::over(stream, setup, wire))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                Ok(Self::over(stream, setup, wire))
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let stream = connect_tcp(setup, host, *port).await?;
                let stream = setup.security.secure(host, stream).await?;
                Ok(Self::over(stream, setup, wire))
            }
            other => {
                let what = "no such kind of connection";
                Err((ErrorKind::InvalidClientConfig, what, other.to_string()).into())
            }
        }
    }

    fn over<S>(stream: S, setup: &Setup, wire: WireParams) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (wire, driver) = Wire::new(stream, wire);
        let disconnected = Arc::clone(&setup.disconnected);
        let driver = setup.network.spawn(async move {
            driver.await;
            disconnected.notify();
        });
        Self { wire, driver }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn connect_tcp(setup: &Setup, host: &str, port: u16) -> Result<TcpStream, RedisError> {
    let addresses = setup.lookups.of(host, port).await?;
    let attempts: Vec<_> = addresses
        .iter()
        .map(TcpStream::connect)
        .map(Box::pin)
        .collect();
    if attempts.is_empty() {
        let why = "No address found for host";
        return Err((ErrorKind::InvalidClientConfig, why).into());
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(KEEPALIVE);
    SockRef::from(&stream).set_tcp_keepalive(&probes.with_interval(KEEPALIVE))?;
    Ok(stream)
}
