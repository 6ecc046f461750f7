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
//! connector.rs    makes a connection, or says why it cannot
//! connection.rs   a connection: its socket, its scripts, its last reply
//! handshake.rs    the first exchange: the login, names, the kill of earlier connections
//! server.rs       what all links to a server share: pauses between attempts, the process behind the address
//! wire/           our end of a connection: one buffer, replies in order, one timer
//! pace.rs         pure: portions of replies, so that many tasks keep a connection busy
//! ```

mod connection;
mod connector;
mod handshake;
mod pace;
mod server;
mod wire;

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::{Cmd, ConnectionInfo, RedisError, Value};
use tokio::task::AbortHandle;

use self::connection::{Connection, Exchanged};
pub(super) use self::connection::{DialParams, Socket};
pub(crate) use self::connector::Purpose;
use self::connector::{Connector, Ended};
pub(super) use self::handshake::{check_greeting, greeting};
use self::server::Sibling;
pub(crate) use self::server::{Reachability, SharedProcess};
use self::wire::Place;
pub(super) use self::wire::{FirstBytes, SharedTick, WireParams};
use super::error_reply::code;
use super::setup::Setup;
use super::transport::{Commands, Fault, LinkState, Reason, Replies, sent};
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;

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
            return Ok(Replies::Several(Vec::new()));
        }
        let (connection, remaining) = self.connection(limit).await?;
        sent::mark();
        let exchanged = connection.exchange(commands, remaining).await;
        self.ended(&connection, commands.len(), limit, remaining, exchanged)
    }

    /// As [`exchange`](Self::exchange), in a future that is small as long as there is a connection to use at once.
    pub(crate) fn exchanging<'a>(
        &'a self,
        commands: Commands<'a>,
        limit: Duration,
    ) -> Exchanging<'a> {
        Exchanging {
            link: self,
            commands,
            limit,
            stage: Stage::Unsent,
        }
    }

    /// The connection, if these commands need nothing but to be handed over to it.
    fn ready(&self, commands: &[&Cmd], limit: Duration) -> Option<Arc<Connection>> {
        let connection = self.dialer.current()?;
        let is_ready = !commands.is_empty() && connection.takes(commands, limit);
        is_ready.then_some(connection)
    }

    /// Notes how a request of this number of commands ended that had `remaining` of its limit, and says what that means.
    fn ended(
        &self,
        connection: &Arc<Connection>,
        commands: usize,
        limit: Duration,
        remaining: Duration,
        exchanged: Exchanged,
    ) -> Result<Replies, Fault> {
        match exchanged {
            Some(Ok(_)) if self.dialer.connector().is_replaced(connection) => {
                // What an earlier process at the address did counts for nothing.
                Err(self.unknown("another server answers at this address by now"))
            }
            Some(Ok(replies)) => {
                for error in replies.errors() {
                    self.replace_if_demoted(connection, &error);
                }
                Ok(replies)
            }
            Some(Err(error)) => {
                self.dialer.replace(connection, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                let now = self.clock.now();
                let is_silent = connection.is_silent(now.before(limit), now, self.silence);
                // It would delay what comes behind several commands. If it was made during this call, the call had
                // less time, which proves nothing.
                let is_overdue = commands > 1 && remaining == limit && limit >= self.silence;
                if is_silent || is_overdue {
                    self.dialer.replace(connection, Ended::Broken);
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

/// Commands that are exchanged over a link. Cancel safe, like [`Link::exchange`].
pub(crate) struct Exchanging<'a> {
    link: &'a Link,
    commands: Commands<'a>,
    limit: Duration,
    stage: Stage<'a>,
}

enum Stage<'a> {
    Unsent,
    /// Handed over to the connection.
    Sent(Place<Arc<Connection>>),
    /// There has to be a connection first, or a timer, or a script.
    Prepared(BoxFuture<'a, Result<Replies, Fault>>),
    Over,
}

impl Exchanging<'_> {
    fn ended(&self, connection: &Arc<Connection>, exchanged: Exchanged) -> Result<Replies, Fault> {
        let (commands, limit) = (self.commands.as_slice().len(), self.limit);
        self.link
            .ended(connection, commands, limit, limit, exchanged)
    }
}

impl Future for Exchanging<'_> {
    type Output = Result<Replies, Fault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let (link, commands, limit) = (this.link, this.commands, this.limit);
        let mut place = match mem::replace(&mut this.stage, Stage::Over) {
            Stage::Unsent => match link.ready(commands.as_slice(), limit) {
                Some(connection) => {
                    sent::mark();
                    let mut place = Place::new(connection);
                    let commands = commands.as_slice().iter().copied();
                    if let Err(why) = place.hand_over(commands, true, context) {
                        return Poll::Ready(this.ended(&place.on, Some(Err(why))));
                    }
                    this.stage = Stage::Sent(place);
                    return Poll::Pending;
                }
                None => {
                    this.stage = Stage::Prepared(link.exchange(commands, limit).boxed());
                    return self.poll(context);
                }
            },
            Stage::Prepared(mut exchange) => {
                let exchanged = exchange.as_mut().poll(context);
                if exchanged.is_pending() {
                    this.stage = Stage::Prepared(exchange);
                }
                return exchanged;
            }
            Stage::Sent(place) => place,
            Stage::Over => panic!("a future is not polled after its end"),
        };
        match place.poll(Replies::take, context) {
            Poll::Ready(ended) => Poll::Ready(this.ended(&place.on, ended.outcome())),
            Poll::Pending => {
                this.stage = Stage::Sent(place);
                Poll::Pending
            }
        }
    }
}

#[derive(Debug)]
struct Dialer {
    connector: Connector,
    current: Mutex<Option<Arc<Connection>>>,
    /// Whether the link must have no connection for now.
    is_retired: AtomicBool,
    is_dialing: AtomicBool,
    /// Given when a dial has ended.
    ended: Hint,
    /// The reason why the last dial failed, if it did.
    failure: Mutex<Option<Fault>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Dialer {
    fn new(connector: Connector) -> Self {
        Self {
            connector,
            current: Mutex::default(),
            is_retired: AtomicBool::new(false),
            is_dialing: AtomicBool::new(false),
            ended: Hint::default(),
            failure: Mutex::default(),
            task: Mutex::default(),
        }
    }

    fn connector(&self) -> &Connector {
        &self.connector
    }

    fn current(&self) -> Option<Arc<Connection>> {
        let mut current = self.current.lock();
        current.take_if(|connection| connection.push.has_lost_subscription());
        current.clone()
    }

    /// Stops using a connection. The next command makes another.
    fn replace(&self, dead: &Arc<Connection>, end: Ended) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, dead)) {
            *current = None;
            drop(current);
            self.connector.note_end(dead, end);
            dead.push.report_gap();
        }
    }

    fn close(&self) {
        if let Some(connection) = self.current() {
            self.replace(&connection, Ended::Closed);
        }
    }

    fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.close();
    }

    fn reinstate(&self) {
        if self.is_retired.swap(false, Ordering::AcqRel) {
            self.connector.named_again();
        }
    }

    /// Ends the dial in progress.
    fn abort(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// A connection, and the rest of `limit` once there is one.
    async fn connected_within(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<(Arc<Connection>, Duration), Fault> {
        let clock = self.connector.clock;
        let end = clock.now().after(limit);
        let connection = clock.within(limit, self.connected()).await;
        let connection = connection.unwrap_or_else(|| {
            // The last failure is more useful than the news that the next dial has not ended.
            let failure = self.failure.lock().clone();
            let why = || Reason::timed_out(format!("no connection within {limit:?}"));
            Err(failure.unwrap_or_else(|| self.unsent(why())))
        });
        Ok((connection?, clock.now().until(end)))
    }

    /// The current connection, or the result of the next dial.
    async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
        let ended = self.ended.mark();
        self.ensure_in_use()?;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        if let Some(declined @ Fault::Declined(_)) = &*self.failure.lock()
            && self.connector.repeats_refusal()
        {
            return Err(declined.clone());
        }
        self.start();
        self.ended.changed_since(ended).await;
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let failure = self.failure.lock().clone();
        Err(failure.unwrap_or_else(|| self.unsent("the new connection was closed at once")))
    }

    /// Starts a dial unless one is in progress. Runs it on the client's runtime: a caller's runtime may stand still,
    /// and all other callers would wait for it.
    fn start(self: &Arc<Self>) {
        if self.is_dialing.swap(true, Ordering::AcqRel) {
            return;
        }
        let dial = Dial {
            dialer: Arc::clone(self),
            result: Err(self.unsent("the runtime of the client has ended")),
        };
        // If the runtime is shutting down, this ends the dial at once.
        let task = self.connector.network.task(dial.run());
        let task = self.connector.runtime.spawn(task).abort_handle();
        *self.task.lock() = Some(task);
    }

    /// Makes a connection and installs it.
    async fn dial(&self) -> Result<(), Fault> {
        self.ensure_in_use()?;
        let connection = Arc::new(self.connector.connect().await?);
        let mut current = self.current.lock();
        // Checked under the lock, because the link may have been retired since.
        self.ensure_in_use()?;
        // Under the lock too, so that the connection is seen here or by `leave_earlier`.
        if self.connector.is_replaced(&connection) {
            return Err(self.unsent("another server was reached at this address"));
        }
        *current = Some(connection);
        drop(current);
        self.connector.note_connected();
        Ok(())
    }

    fn ensure_in_use(&self) -> Result<(), Fault> {
        if self.is_retired.load(Ordering::Acquire) {
            return Err(self.unsent("this server is not in use now"));
        }
        Ok(())
    }

    fn unsent(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unsent(self.connector.named(why))
    }
}

impl Sibling for Dialer {
    fn leave_earlier(&self) {
        if let Some(connection) = self.current()
            && self.connector.is_replaced(&connection)
        {
            self.replace(&connection, Ended::Replaced);
        }
    }
}

/// One dial, which reports its result however it ends.
struct Dial {
    dialer: Arc<Dialer>,
    result: Result<(), Fault>,
}

impl Dial {
    async fn run(mut self) {
        let dialer = &self.dialer;
        // The previous dial may have connected just before this one began.
        if dialer.current().is_none() {
            dialer.connector.wait_turn().await;
            self.result = dialer.dial().await;
        } else {
            self.result = Ok(());
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        let result = mem::replace(&mut self.result, Ok(()));
        *self.dialer.failure.lock() = result.err();
        self.dialer.is_dialing.store(false, Ordering::Release);
        self.dialer.ended.notify();
    }
}
