//! One lane's connection to one server, replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by
//! its id. Whatever had been sent on the old one is then executed or dead; nothing can arrive late
//! and overtake what is sent from now on. The cost is paid on a reconnect alone. A user who may not
//! kill his own connections leaves the past unsettled for a while, and the engine cancels
//! repeatedly. `handshake` has the words of it.

mod handshake;
mod portions;
mod socket;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ConnectionInfo, RedisError, Value};

use self::handshake::Identity;
use self::socket::Socket;
use super::answer::code;
use super::hearing::Hearing;
use super::process::Process;
use super::{Fault, Listener, Setup, Why, left, tls};
use crate::clock::{Clock, Tick};

#[derive(Debug)]
pub(crate) struct Link {
    info: ConnectionInfo,
    clock: Clock,
    /// The longest wait for a new connection.
    dial_limit: Duration,
    /// Shown by `CLIENT LIST`, so that an operator knows whose connection it is.
    label: String,
    /// Sent first on every new connection; a server may refuse it.
    greeting: Arc<[Cmd]>,
    listener: Option<Arc<dyn Listener>>,
    /// Told when the server was restarted.
    watcher: Arc<dyn Listener>,
    live: Mutex<Option<Arc<Live>>>,
    /// Whether there is to be no connection for now.
    is_retired: AtomicBool,
    /// Who answered when the last connection was made. Set before that is used.
    process: Mutex<Option<Process>>,
    /// Held while connecting: one caller connects, the others wait for it.
    dial: tokio::sync::Mutex<Dialled>,
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

/// What is known of the connections made so far.
#[derive(Debug, Default)]
struct Dialled {
    /// Those that may still have commands at the server; `None` for one that cannot be named.
    past: Vec<Option<Identity>>,
    /// When the last attempt began, and why it came to nothing.
    failed: Option<(Tick, Fault)>,
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
        listener: Option<Arc<dyn Listener>>,
    ) -> Self {
        Self {
            info,
            clock: setup.clock,
            dial_limit: setup.dial_limit,
            label,
            greeting: Arc::clone(&setup.greeting),
            listener,
            watcher: Arc::clone(&setup.listener),
            live: Mutex::new(None),
            is_retired: AtomicBool::new(false),
            process: Mutex::new(None),
            dial: tokio::sync::Mutex::default(),
            unsettled_until: AtomicU64::new(Tick::ZERO.nanos()),
        }
    }

    pub(crate) fn past_is_settled(&self) -> bool {
        self.clock.now().nanos() >= self.unsettled_until.load(Ordering::Acquire)
    }

    /// The process behind the last connection; `None` if it did not say, or the user may not ask.
    pub(crate) fn process(&self) -> Option<Process> {
        self.process.lock().clone()
    }

    pub(crate) async fn send(&self, command: &Cmd, limit: Duration) -> Result<Value, Fault> {
        self.send_behind(None, command, limit).await
    }

    /// Sends `first` and right behind it, with nothing in between, the command that counts.
    pub(crate) async fn send_behind(
        &self,
        first: Option<&Cmd>,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let live = match self.live() {
            Some(live) => live,
            None => self.dialled().await?,
        };
        left::leaves();
        let expected = live.hearing.expect(command);
        match self.clock.within(limit, live.ask(first, command)).await {
            Some(Ok(value)) => {
                live.heard
                    .store(self.clock.now().nanos(), Ordering::Relaxed);
                if !expected.accepts(command, &value) {
                    self.replace(&live);
                    return Err(Fault::Unknown("the answer to another command".into()));
                }
                self.judge(&live, &value);
                value.extract_error().map_err(Fault::Answered)
            }
            Some(Err(error)) => {
                self.replace(&live);
                Err(Fault::Unknown(error.into()))
            }
            None => {
                // Others may have been answered meanwhile: then it is slow, not dead.
                let sent = self.clock.now().before(limit);
                if live.heard.load(Ordering::Relaxed) < sent.nanos() {
                    self.replace(&live);
                }
                Err(Fault::Unknown(Why::late(format!(
                    "no reply within {limit:?}"
                ))))
            }
        }
    }

    /// Sends these right behind each other over one connection; an error that one of them was
    /// answered is the value in its place. Not for a connection that listens.
    pub(crate) async fn send_together(
        &self,
        commands: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let live = match self.live() {
            Some(live) => live,
            None => self.dialled().await?,
        };
        left::leaves();
        match self.clock.within(limit, live.ask_all(commands)).await {
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
                Err(Fault::Unknown(error.into()))
            }
            None => {
                // What comes behind would be held up.
                self.replace(&live);
                Err(Fault::Unknown(Why::late(format!(
                    "no reply within {limit:?}"
                ))))
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
    pub(crate) async fn open(&self) -> Result<(), Fault> {
        self.dialled().await.map(drop)
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
            true => Err(Fault::Unsent("this server is not in use now".into())),
            false => Ok(()),
        }
    }

    async fn dialled(&self) -> Result<Arc<Live>, Fault> {
        let limit = self.dial_limit;
        let dialled = self.clock.within(limit, self.dial()).await;
        dialled.unwrap_or_else(|| {
            let hint = tls::hint(self.info.addr());
            let why = format!("no connection within {limit:?}{hint}");
            Err(Fault::Unsent(Why::late(why)))
        })
    }

    async fn dial(&self) -> Result<Arc<Live>, Fault> {
        let asked = self.clock.now();
        let mut dialled = self.dial.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        if let Some((began, fault)) = &dialled.failed
            && *began >= asked
        {
            // Tried in vain since: all who wait here would try again, one after the other.
            return Err(fault.clone());
        }
        let began = self.clock.now();
        let made = self.make(&mut dialled).await;
        dialled.failed = made.as_ref().err().map(|fault| (began, fault.clone()));
        made
    }

    async fn make(&self, dialled: &mut Dialled) -> Result<Arc<Live>, Fault> {
        self.ensure_in_use()?;
        let failed = |error: RedisError| match error.code() {
            Some(_) => Fault::Declined(error),
            None if error.kind() == redis::ErrorKind::AuthenticationFailed => {
                Fault::Declined(error)
            }
            None if tls::advice(&error).is_some() => Fault::Declined(error),
            None if error.is_connection_refusal() => Fault::Unsent(error.into()),
            None => {
                let words = format!("{error}{}", tls::hint(self.info.addr()));
                Fault::Unsent(Why::from(error).put(words))
            }
        };
        let hearing = Arc::new(Hearing::new(self.listener.clone()));
        let mut socket = Socket::connect(&self.info, self.config(&hearing))
            .await
            .map_err(failed)?;
        let connection = &mut socket.connection;
        let (identity, process) = self.introduce(connection).await.map_err(failed)?;
        let is_another = {
            // From here on, what is asked about answers of an earlier connection is answered for a
            // later process: that is the careful way round.
            let mut known = self.process.lock();
            let run =
                |process: &Option<Process>| process.as_ref().map(|one| Arc::clone(&one.run_id));
            let is_another = known.is_some() && run(&known) != run(&process);
            *known = process.map(|process| process.after(known.as_ref()));
            is_another
        };
        if is_another {
            // It was restarted, and may have forgotten what is held. Told now: it is not seen again
            // if this connection comes to nothing.
            self.watcher.moved();
        }
        self.settle(connection, &mut dialled.past, identity.as_ref())
            .await
            .map_err(failed)?;
        dialled.past.push(identity);
        let live = Arc::new(Live {
            socket,
            heard: AtomicU64::new(Tick::ZERO.nanos()),
            hearing,
        });
        let mut slot = self.live.lock();
        // Under the lock: it may have been retired meanwhile.
        self.ensure_in_use()?;
        *slot = Some(Arc::clone(&live));
        Ok(live)
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
}
