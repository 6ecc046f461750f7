//! One lane's connection to one server, replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by
//! its id. Whatever had been sent on the old one is then executed or dead; nothing can arrive late
//! and overtake what is sent from now on. The cost is paid on a reconnect alone. A user who may not
//! kill his own connections leaves the past unsettled for a while, and the engine cancels
//! repeatedly. `handshake` has the words of it, `dial` who makes it and when.

mod dial;
mod handshake;
mod portions;
mod reach;
mod socket;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ConnectionAddr, ConnectionInfo, RedisError, Value};

use self::dial::Dial;
use self::handshake::Identity;
pub(crate) use self::reach::Reach;
use self::socket::Socket;
use super::error_reply::code;
use super::hearing::Hearing;
use super::nodes::Address;
use super::process::Process;
use super::{EventHandler, Fault, Preload, Reason, Setup, sent};
use crate::clock::{Clock, Tick};
use crate::hint::Hint;

/// The task that makes a connection ends with this.
#[derive(Debug)]
pub(crate) struct Link(Arc<Inner>);

impl Deref for Link {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.dial.abandon();
    }
}

#[derive(Debug)]
pub(crate) struct Inner {
    info: ConnectionInfo,
    /// Where the server is, in messages.
    at: String,
    clock: Clock,
    /// The longest that a step of making a connection may take.
    step_timeout: Duration,
    /// Shared by all links to the server.
    reach: Arc<Reach>,
    /// Shown by `CLIENT LIST`, so that an operator knows whose connection it is.
    label: String,
    preload: Arc<Preload>,
    events: Option<Arc<dyn EventHandler>>,
    /// What the server's certificate names, if that is not the host of its address.
    server_name: Option<Arc<str>>,
    /// Told when the server was restarted.
    watcher: Arc<dyn EventHandler>,
    /// Given when a connection has ended by itself.
    disconnected: Arc<Hint>,
    live: Mutex<Option<Arc<Live>>>,
    /// Whether there is to be no connection for now.
    is_retired: AtomicBool,
    /// Who answered when the last connection was made. Set before that is used.
    process: Mutex<Option<Process>>,
    dial: Dial,
    /// Those connections that may still have commands at the server; `None` for one that cannot be
    /// named.
    past: Mutex<Vec<Option<Identity>>>,
    /// Until then something sent on an earlier connection may still arrive.
    unsettled_until: AtomicU64,
}

#[derive(Debug)]
struct Live {
    socket: Socket,
    /// When the server was last heard on this connection.
    heard: AtomicU64,
    hearing: Arc<Hearing>,
}

impl Live {
    async fn ask(&self, first: Option<&Cmd>, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.socket.connection.clone();
        let Some(first) = first else {
            let _asked = self.socket.traffic.asked(1);
            return connection.send_packed_command(command).await;
        };
        let mut pipe = redis::pipe();
        pipe.add_command(first.clone());
        pipe.add_command(command.clone());
        let _asked = self.socket.traffic.asked(pipe.len());
        let replies = connection
            .send_packed_commands(&pipe, 0, pipe.len())
            .await?;
        let mut replies = replies.into_iter();
        let before = replies.next();
        match (before, replies.next()) {
            // What follows from that says less.
            (Some(no @ Value::ServerError(_)), Some(Value::ServerError(_))) => Ok(no),
            (_, answer) => Ok(answer.unwrap_or(Value::Nil)),
        }
    }

    async fn ask_all(&self, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.add_command(command.clone());
        }
        let _asked = self.socket.traffic.asked(pipe.len());
        let mut connection = self.socket.connection.clone();
        connection.send_packed_commands(&pipe, 0, pipe.len()).await
    }
}

impl Link {
    pub(crate) fn new(
        info: ConnectionInfo,
        label: String,
        setup: &Setup,
        reach: &Arc<Reach>,
        events: Option<Arc<dyn EventHandler>>,
    ) -> Self {
        Self(Arc::new(Inner {
            at: shown(info.addr()),
            info,
            clock: setup.clock,
            step_timeout: setup.step_timeout,
            reach: Arc::clone(reach),
            label,
            server_name: setup.server_name.clone(),
            preload: Arc::clone(&setup.preload),
            events,
            watcher: Arc::clone(&setup.events),
            disconnected: Arc::clone(&setup.disconnected),
            live: Mutex::new(None),
            is_retired: AtomicBool::new(false),
            process: Mutex::new(None),
            dial: Dial::default(),
            past: Mutex::default(),
            unsettled_until: AtomicU64::new(Tick::ZERO.nanos()),
        }))
    }
}

/// An address as messages have it.
fn shown(at: &ConnectionAddr) -> String {
    match at {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            let host = host.as_str().into();
            Address { host, port: *port }.to_string()
        }
        other => other.to_string(),
    }
}

impl Inner {
    /// Where the server is, in messages: host and port, or a path.
    pub(crate) fn endpoint(&self) -> &str {
        &self.at
    }

    pub(crate) fn earlier_commands_settled(&self) -> bool {
        self.clock.now().nanos() >= self.unsettled_until.load(Ordering::Acquire)
    }

    /// When the server last answered on the connection that there is.
    pub(crate) fn last_reply_at(&self) -> Tick {
        let heard = self
            .live()
            .map_or(0, |live| live.heard.load(Ordering::Relaxed));
        Tick::ZERO.after(Duration::from_nanos(heard))
    }

    /// The process behind the last connection; `None` if it did not say, or the user may not ask.
    pub(crate) fn process(&self) -> Option<Process> {
        self.process.lock().clone()
    }

    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        self.send_behind(None, command, limit).await
    }

    /// Sends `first` and right behind it, with nothing in between, the command that counts.
    pub(crate) async fn send_behind(
        self: &Arc<Self>,
        first: Option<&Cmd>,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let (live, left) = match self.live() {
            Some(live) => (live, limit),
            None => self.dialled(limit).await?,
        };
        sent::mark();
        let expected = live.hearing.expect(command);
        match self.clock.within(left, live.ask(first, command)).await {
            Some(Ok(value)) => {
                live.heard
                    .store(self.clock.now().nanos(), Ordering::Relaxed);
                if !expected.accepts(command, &value) {
                    self.replace(&live);
                    return Err(self.unknown("the answer to another command"));
                }
                self.judge(&live, &value);
                value.extract_error().map_err(Fault::Answered)
            }
            Some(Err(error)) => {
                self.replace(&live);
                Err(self.unknown(error))
            }
            None => {
                // Others may have been answered meanwhile, or the connection made: then it is slow,
                // not dead.
                let sent = self.clock.now().before(limit);
                if live.heard.load(Ordering::Relaxed) < sent.nanos() {
                    self.replace(&live);
                }
                Err(self.unknown(Reason::timed_out(format!("no reply within {limit:?}"))))
            }
        }
    }

    /// Sends these right behind each other over one connection; an error that one of them was
    /// answered is the value in its place. Not for a connection that listens.
    pub(crate) async fn send_together(
        self: &Arc<Self>,
        commands: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let (live, left) = match self.live() {
            Some(live) => (live, limit),
            None => self.dialled(limit).await?,
        };
        sent::mark();
        match self.clock.within(left, live.ask_all(commands)).await {
            Some(Ok(values)) => {
                live.heard
                    .store(self.clock.now().nanos(), Ordering::Relaxed);
                for value in &values {
                    self.judge(&live, value);
                }
                Ok(values)
            }
            Some(Err(error)) => {
                self.replace(&live);
                Err(self.unknown(error))
            }
            None => {
                // What comes behind would be held up; unless it was made meanwhile, and this had less
                // time than that.
                if left == limit {
                    self.replace(&live);
                }
                Err(self.unknown(Reason::timed_out(format!("no reply within {limit:?}"))))
            }
        }
    }

    /// Whether its connection has, or may still have, a channel that `which` says.
    pub(crate) fn has_channel(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        self.live()
            .is_some_and(|live| live.hearing.has_channel(which))
    }

    /// Stops using the connection there is, once what is under way on it has ended.
    pub(crate) fn close(&self) {
        if let Some(live) = self.live() {
            self.replace(&live);
        }
    }

    /// Makes a connection unless there is one.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<(), Fault> {
        self.connected().await.map(drop)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.live().is_some()
    }

    /// Closes the connection; no other is made until it is reinstated.
    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.close();
    }

    pub(super) fn reinstate(&self) {
        self.is_retired.store(false, Ordering::Release);
    }

    fn ensure_in_use(&self) -> Result<(), Fault> {
        match self.is_retired.load(Ordering::Acquire) {
            true => Err(self.unsent("this server is not in use now")),
            false => Ok(()),
        }
    }

    fn live(&self) -> Option<Arc<Live>> {
        let mut live = self.live.lock();
        live.take_if(|live| live.hearing.is_out_of_step());
        live.clone()
    }

    /// Stops using a connection whose server says that it is none to write to: it was demoted; the
    /// address may lead to another server by now.
    fn judge(&self, live: &Arc<Live>, answer: &Value) {
        if let Value::ServerError(no) = answer
            && matches!(
                code(&RedisError::from(no.clone())),
                Some("READONLY" | "MASTERDOWN")
            )
        {
            self.replace(live);
        }
    }

    /// Stops using a connection; the next command makes another.
    fn replace(&self, dead: &Arc<Live>) {
        let mut live = self.live.lock();
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, dead)) {
            *live = None;
            drop(live);
            dead.hearing.end();
        }
    }

    fn unsent(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unsent(self.named(why.into()))
    }

    fn unknown(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unknown(self.named(why.into()))
    }

    /// The same, and which server it is about.
    fn named(&self, why: Reason) -> Reason {
        let words = format!("{}: {why}", self.at);
        why.with_message(words)
    }
}
