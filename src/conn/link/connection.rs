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

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures_util::future::{join, select_ok};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{Arg, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::server::Generation;
use super::wire::{Carrier, Ended, SharedTick, Wire, WireParams, timed_out};
use crate::conn::push::PushState;
use crate::conn::setup::{FindScript, Network};
use crate::conn::tls::Security;
use crate::conn::transport::{Fault, Recipient, Replies};
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;

/// The replies to a request. `None`: some reply is missing after its limit.
pub(super) type Exchanged = Option<Result<Replies, RedisError>>;

#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    made: Tick,
    /// Of the process behind it.
    generation: Generation,
    last_reply: SharedTick,
    /// The send time of the first abandoned call since the last reply.
    given_up: SharedTick,
    scripts: LoadedScripts,
    pub(super) push: Arc<PushState>,
    /// Set once the link uses it.
    user: OnceLock<Weak<dyn ConnectionUser>>,
}

/// The link that uses a connection.
pub(super) trait ConnectionUser: Debug + Send + Sync {
    /// Says what the end of a submitted request means.
    fn outcome(
        &self,
        connection: &Arc<Connection>,
        commands: usize,
        is_awaited: bool,
        exchanged: Exchanged,
    ) -> Result<Replies, Fault>;
}

impl Connection {
    /// A connection made just now.
    pub(super) fn new(
        socket: Socket,
        push: Arc<PushState>,
        clock: Clock,
        last_reply: SharedTick,
        generation: Generation,
        scripts: FindScript,
    ) -> Self {
        // A reply read at this instant must count as later.
        let made = clock.now().before(Duration::from_nanos(1));
        last_reply.set(made);
        Self {
            socket,
            made,
            generation,
            last_reply,
            given_up: SharedTick::default(),
            scripts: LoadedScripts::new(scripts),
            push,
            user: OnceLock::new(),
        }
    }

    /// Notes the link that uses it from now on.
    pub(super) fn used_by(&self, user: Weak<dyn ConnectionUser>) {
        // A connection is installed once.
        let _ = self.user.set(user);
    }

    pub(super) fn last_reply_at(&self) -> Tick {
        self.last_reply.get()
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn made_at(&self) -> Tick {
        self.made
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
    pub(super) async fn exchange(&self, commands: &[&Cmd], limit: Duration) -> Exchanged {
        let wire = &self.socket.wire;
        let loads = self.scripts.missing(commands);
        let sent = wire.send(commands.iter().copied(), limit);
        match loads {
            None => sent.await,
            // Boxed because it is rare and large.
            Some(loads) => Box::pin(self.behind(loads, limit, sent)).await,
        }
    }

    /// Sends these in one request behind the scripts that they need, and tells its end to `to`. If it needs a timer, if a
    /// caller waits for it and it needs a script, or if the connection has ended, it sends nothing and returns false.
    pub(super) fn submit(
        self: &Arc<Self>,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let wire = &self.socket.wire;
        if !wire.times(limit) {
            return false;
        }
        let over = Arc::clone(self) as _;
        let Some(loads) = self.scripts.missing(commands) else {
            return wire.submit(commands.iter().copied(), over, to);
        };
        if to.is_awaited() {
            // Where these replies are nonsense, `exchange` has the connection replaced.
            return false;
        }
        let all: Vec<&Cmd> = loads
            .commands
            .iter()
            .chain(commands.iter().copied())
            .collect();
        let loaded = loads.commands.len();
        let is_sent = wire.submit(all.into_iter(), over, Arc::new(BehindLoads { loaded, to }));
        if is_sent {
            self.scripts.are_sent(&loads);
        }
        is_sent
    }

    /// Loads scripts, and sends a request behind them in the same write.
    async fn behind(
        &self,
        loads: Loads,
        limit: Duration,
        sent: impl Future<Output = Exchanged>,
    ) -> Exchanged {
        let wire = &self.socket.wire;
        let loading = async {
            let replies = wire.send(loads.commands.iter(), limit).await?;
            Some(replies.map(|replies| replies.values().iter().all(is_of_load)))
        };
        let sent = async {
            self.scripts.are_sent(&loads);
            sent.await
        };
        // Polled in this order.
        match join(loading, sent).await {
            (Some(Ok(false)), Some(_)) => {
                Some(Err((ErrorKind::UnexpectedReturnType, NO_LOAD).into()))
            }
            (_, replies) => replies,
        }
    }
}

/// The recipient of commands behind this number of scripts that the same request loads.
#[derive(Debug)]
struct BehindLoads {
    loaded: usize,
    to: Arc<dyn Recipient>,
}

impl Recipient for BehindLoads {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        let outcome = outcome.and_then(|replies| {
            let replies = replies.values();
            let (loads, replies) = replies.split_at(self.loaded.min(replies.len()));
            if !loads.iter().all(is_of_load) {
                return Err(Fault::Unknown(NO_LOAD.into()));
            }
            Ok(replies.iter().cloned().collect())
        });
        Arc::clone(&self.to).received(outcome);
    }
}

const NO_LOAD: &str = "a reply to SCRIPT LOAD that is no text";

/// Whether a server replies to `SCRIPT LOAD` like this. One that refuses it refuses the call, too, which is then
/// repeated with the text of its script.
fn is_of_load(reply: &Value) -> bool {
    let is_text = matches!(reply, Value::BulkString(_) | Value::SimpleString(_));
    is_text || matches!(reply, Value::ServerError(_))
}

impl Carrier for Connection {
    fn outcome(
        self: Arc<Self>,
        commands: usize,
        is_awaited: bool,
        ended: Ended<Replies>,
    ) -> Result<Replies, Fault> {
        match self.user.get().and_then(Weak::upgrade) {
            Some(user) => user.outcome(&self, commands, is_awaited, ended.outcome()),
            None => Err(Fault::Unknown("the client has ended".into())),
        }
    }
}

#[derive(Debug)]
struct LoadedScripts {
    find: FindScript,
    /// One bit for each script.
    loaded: AtomicU64,
}

/// The commands that load the scripts of one request.
struct Loads {
    commands: Vec<Cmd>,
    scripts: u64,
}

impl LoadedScripts {
    fn new(find: FindScript) -> Self {
        Self {
            find,
            loaded: AtomicU64::new(0),
        }
    }

    /// What has to be sent before `commands`; `None` if they run only loaded scripts, or none.
    fn missing(&self, commands: &[&Cmd]) -> Option<Loads> {
        let loaded = self.loaded.load(Ordering::Acquire);
        let mut loads = None;
        for (script, text) in commands.iter().filter_map(|command| self.script(command)) {
            let script = 1 << script;
            let loads = loads.get_or_insert_with(|| Loads {
                commands: Vec::new(),
                scripts: 0,
            });
            if (loaded | loads.scripts) & script == 0 {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(text);
                loads.commands.push(load);
                loads.scripts |= script;
            }
        }
        loads.filter(|loads| loads.scripts != 0)
    }

    /// These have been handed over to the connection.
    fn are_sent(&self, loads: &Loads) {
        self.loaded.fetch_or(loads.scripts, Ordering::AcqRel);
    }

    fn script(&self, command: &Cmd) -> Option<(u8, &'static str)> {
        let mut args = command.args_iter();
        match (args.next()?, args.next()?) {
            (Arg::Simple(b"EVALSHA"), Arg::Simple(sha)) => (self.find)(sha),
            _ => None,
        }
    }
}

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialParams<'a> {
    pub(crate) info: &'a ConnectionInfo,
    pub(crate) security: &'a Security,
    /// The time for each step of connecting.
    pub(crate) limit: Duration,
    pub(crate) wire: &'a WireParams,
    /// Given when the connection ends by itself.
    pub(crate) disconnected: &'a Arc<Hint>,
    pub(crate) network: &'a Network,
}

impl DialParams<'_> {
    async fn connected<S>(
        &self,
        stream: impl Future<Output = Result<S, RedisError>>,
    ) -> Result<S, RedisError> {
        let connected = self.wire.clock.within(self.limit, stream).await;
        connected.unwrap_or_else(|| Err(timed_out("connection", self.limit)))
    }
}

/// A connection with the task behind it, which ends on drop.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) wire: Wire,
    driver: AbortHandle,
}

impl Socket {
    /// Makes a connection, on which nothing was sent yet.
    pub(crate) async fn connect(terms: DialParams<'_>) -> Result<Self, RedisError> {
        let settings = terms.info.tcp_settings();
        #[cfg(feature = "testing")]
        if let (Network::Simulated(there), ConnectionAddr::Tcp(host, port)) =
            (terms.network, terms.info.addr())
        {
            let stream = async { Ok(there.connect(host, *port).await?) };
            let stream = terms.connected(stream).await?;
            return Ok(Self::over(stream, terms));
        }
        match terms.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, settings);
                let stream = terms.connected(stream).await?;
                Ok(Self::over(stream, terms))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                Ok(Self::over(stream, terms))
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let secured = async {
                    let stream = connect_tcp(host, *port, settings).await?;
                    terms.security.secure(host, stream).await
                };
                let stream = terms.connected(secured).await?;
                Ok(Self::over(stream, terms))
            }
            other => {
                let what = "no such kind of connection";
                Err((ErrorKind::InvalidClientConfig, what, other.to_string()).into())
            }
        }
    }

    fn over<S>(stream: S, terms: DialParams<'_>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (wire, driver) = Wire::new(stream, terms.wire.clone());
        let disconnected = Arc::clone(terms.disconnected);
        let driver = terms.network.spawn(async move {
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

async fn connect_tcp(
    host: &str,
    port: u16,
    settings: &TcpSettings,
) -> Result<TcpStream, RedisError> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(TcpStream::connect).map(Box::pin).collect();
    if attempts.is_empty() {
        let why = "No address found for host";
        return Err((ErrorKind::InvalidClientConfig, why).into());
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
    }
    Ok(stream)
}
