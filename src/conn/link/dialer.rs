//! A link: it makes its connection, replaces it when it falls silent, and says what the end of a request over it means.
//!
//! Invariants: there is one dial at a time, in its own task on the client's runtime. All callers wait for its result. A
//! reply over a connection that is not used any longer counts for nothing, unless a task waits in `exchange` for it.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, ConnectionInfo, Value};
use tokio::task::AbortHandle;

use super::connection::Connection;
use super::connector::{Connector, Ended, RENEWAL_WAIT_MIN};
use super::server::{Reachability, SharedProcess, Sibling};
use super::wire::{Carrier, Exchanged};
use crate::api::error::Kind;
use crate::conn::error_reply::code;
use crate::conn::setup::Setup;
use crate::conn::transport::{
    Fault, Lane, LinkState, Reason, Recipient, Replies, errors_in, only, sent,
};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;

/// A link. The task that makes a connection ends with it.
#[derive(Debug)]
pub(crate) struct Link {
    connector: Arc<Connector>,
    /// A connection without a reply for this long is silent, but not before a caller's limit ends. A shorter limit
    /// shows impatience, or, for renewals, a lack of time: the next renewal has to be answered before the lease ends.
    silence: Duration,
    current: Mutex<Option<Arc<Used>>>,
    is_dialing: AtomicBool,
    /// Given when a dial has ended.
    ended: Hint,
    /// The reason why the last dial failed, if it did.
    failure: Mutex<Option<Fault>>,
    task: Mutex<Option<AbortHandle>>,
}

/// A connection, and the link that uses it.
#[derive(Debug)]
struct Used {
    connection: Connection,
    link: Weak<Link>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl Link {
    /// Makes a link, of a lane or for one question. All links to a server share its `reachability` and `process`.
    pub(crate) fn new(
        info: ConnectionInfo,
        lane: Option<Lane>,
        setup: &Setup,
        reachability: &Arc<Reachability>,
        process: &Arc<SharedProcess>,
    ) -> Arc<Self> {
        let silence = match lane {
            Some(Lane::Renewal) => setup.silence.min(RENEWAL_WAIT_MIN),
            _ => setup.silence,
        };
        let link = Arc::new(Self {
            connector: Arc::new(Connector::new(info, lane, setup, reachability, process)),
            silence,
            current: Mutex::default(),
            is_dialing: AtomicBool::new(false),
            ended: Hint::default(),
            failure: Mutex::default(),
            task: Mutex::default(),
        });
        process.add(&link);
        link
    }

    pub(crate) fn state(&self) -> LinkState {
        let current = self.current();
        LinkState {
            endpoint: Arc::clone(&self.connector.endpoint),
            is_open: current.is_some(),
            earlier_commands_settled: self.connector.handshake.earlier_commands_settled(),
            last_reply_at: current.map_or(Tick::ZERO, |used| used.connection.last_reply_at()),
            process: self.connector.process.known(),
        }
    }

    /// Sends one command. An error reply is a fault.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        only(self.exchange(&[command], limit).await?)
    }

    /// Sends these back to back over one connection. Only the last may be about a subscription.
    pub(crate) async fn exchange(
        self: &Arc<Self>,
        commands: &[&Cmd],
        limit: Duration,
    ) -> Result<Replies, Fault> {
        let (used, remaining) = match self.usable() {
            Some(used) => (used, limit),
            // Boxed because it is rare and large.
            None => Box::pin(self.connected_within(limit)).await?,
        };
        sent::mark();
        let exchanged = used.connection.exchange(commands, remaining).await;
        self.outcome(&used, commands.len(), limit, remaining, exchanged)
    }

    /// Hands commands over to the connection, if it can take them at once, and tells their end to `to`.
    pub(crate) fn submit(
        &self,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        self.current().is_some_and(|used| {
            let over = Arc::clone(&used) as _;
            used.connection.submit(commands, limit, over, to)
        })
    }

    /// Whether its connection has, or may still have, a sharded channel that `which` accepts.
    pub(crate) fn has_sharded(&self, which: impl Fn(&[u8]) -> bool) -> bool {
        let current = self.current();
        current.is_some_and(|used| used.connection.push().has_sharded(which))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.current().is_some()
    }

    fn current(&self) -> Option<Arc<Used>> {
        let mut current = self.current.lock();
        current.take_if(|used| used.connection.push().has_lost_subscription());
        current.clone()
    }

    /// The current connection. One that has ended is replaced: what is handed over to it would count as sent.
    fn usable(&self) -> Option<Arc<Used>> {
        let used = self.current()?;
        if used.connection.has_ended() {
            self.replace(&used, Ended::Broken);
            return None;
        }
        Some(used)
    }

    /// Stops using a connection. The next command makes another.
    fn replace(&self, dead: &Arc<Used>, end: Ended) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, dead)) {
            *current = None;
            drop(current);
            self.connector.note_end(&dead.connection, end);
            dead.connection.push().report_gap();
        }
    }

    /// Stops using the current connection, which closes when the commands in flight on it have ended.
    pub(crate) fn close(&self) {
        self.end(Ended::Closed);
    }

    /// Stops using the current connection, because it leads to a server that is of no use. The next may lead to another,
    /// and is made after a pause.
    pub(crate) fn leave(&self) {
        self.end(Ended::Unfit);
    }

    fn end(&self, end: Ended) {
        if let Some(used) = self.current() {
            self.replace(&used, end);
        }
    }

    /// Connects unless there is a connection.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<(), Fault> {
        self.connected().await.map(drop)
    }

    /// A connection, and the rest of `limit` once there is one.
    async fn connected_within(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<(Arc<Used>, Duration), Fault> {
        let clock = self.connector.setup.clock;
        let end = clock.now().after(limit);
        let used = clock.within(limit, self.connected()).await;
        let used = used.unwrap_or_else(|| {
            // The last failure is more useful than the news that the next dial has not ended.
            let failure = self.failure.lock().clone();
            let why = || Reason::timed_out(format!("no connection within {limit:?}"));
            Err(failure.unwrap_or_else(|| self.unsent(why())))
        });
        Ok((used?, clock.now().until(end)))
    }

    /// The current connection, or the result of the next dial.
    async fn connected(self: &Arc<Self>) -> Result<Arc<Used>, Fault> {
        let ended = self.ended.mark();
        self.ensure_in_use()?;
        if let Some(used) = self.usable() {
            return Ok(used);
        }
        if let Some(declined @ Fault::Declined(_)) = &*self.failure.lock()
            && self.connector.repeats_refusal()
        {
            return Err(declined.clone());
        }
        self.start();
        self.ended.changed_since(ended).await;
        if let Some(used) = self.current() {
            return Ok(used);
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
            link: Arc::downgrade(self),
            result: Err(self.unsent("the runtime of the client has ended")),
        };
        // If the runtime is shutting down, this ends the dial at once.
        let setup = &self.connector.setup;
        let task = setup.network.task(dial.run(Arc::clone(&self.connector)));
        let task = setup.runtime.spawn(task).abort_handle();
        *self.task.lock() = Some(task);
    }

    fn install(self: &Arc<Self>, connection: Connection) -> Result<(), Fault> {
        let link = Arc::downgrade(self);
        let mut current = self.current.lock();
        // Checked under the lock, because the server may have been retired since.
        self.ensure_in_use()?;
        // Under the lock too, so that the connection is seen here or by `leave_earlier`.
        if self.connector.is_replaced(&connection) {
            return Err(self.unsent("another server was reached at this address"));
        }
        *current = Some(Arc::new(Used { connection, link }));
        drop(current);
        self.connector.note_connected();
        Ok(())
    }

    fn ensure_in_use(&self) -> Result<(), Fault> {
        if self.connector.reachability.is_retired() {
            return Err(self.unsent("this server is not in use now"));
        }
        Ok(())
    }

    /// Replaces a connection whose server says that it serves no longer.
    ///
    /// # Errors
    /// If nothing was executed because the connection is logged out. The next handshake says whether the login has expired
    /// or is wrong.
    fn note_errors(
        &self,
        used: &Arc<Used>,
        commands: usize,
        replies: &[Value],
    ) -> Result<(), Fault> {
        let count = |codes: &[&str]| {
            let said =
                errors_in(replies).filter(|no| code(no).is_some_and(|code| codes.contains(&code)));
            said.count()
        };
        if count(&["NOAUTH"]) == commands {
            self.replace(used, Ended::Unfit);
            return Err(self.unsent("the server has logged this connection out"));
        }
        if count(&["READONLY", "MASTERDOWN"]) > 0 {
            // The address may already lead to another server.
            self.replace(used, Ended::Unfit);
        }
        Ok(())
    }

    /// Notes how a request of this number of commands ended that had `remaining` of its limit, and says what that means.
    fn outcome(
        &self,
        used: &Arc<Used>,
        commands: usize,
        limit: Duration,
        remaining: Duration,
        exchanged: Exchanged,
    ) -> Result<Replies, Fault> {
        match exchanged {
            Some(Ok(_)) if self.connector.is_replaced(&used.connection) => {
                // The reply of an earlier process at the address does not count.
                Err(self.unknown("another server answers at this address by now"))
            }
            Some(Ok(replies)) => {
                if errors_in(&replies).next().is_some() {
                    self.note_errors(used, commands, &replies)?;
                }
                Ok(replies)
            }
            Some(Err(error)) => {
                self.replace(used, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                let now = self.connector.setup.clock.now();
                let sent = now.before(limit);
                let is_silent = used.connection.is_silent(sent, now, self.silence);
                // It would delay what comes behind several commands. If it was made during this call, the call had
                // less time, which proves nothing.
                let is_overdue = commands > 1 && remaining == limit && limit >= self.silence;
                if is_silent || is_overdue {
                    self.replace(used, Ended::Broken);
                }
                let why = format!("no reply within {limit:?}");
                Err(self.unknown(Reason::timed_out(why)))
            }
        }
    }

    fn unknown(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unknown(self.connector.named(why))
    }

    fn unsent(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unsent(self.connector.named(why))
    }
}

impl Carrier for Used {
    fn outcome(self: Arc<Self>, commands: usize, exchanged: Exchanged) -> Result<Replies, Fault> {
        let Some(link) = self.link.upgrade() else {
            return Err(Fault::Unknown("the client has ended".into()));
        };
        let current = link.current();
        let is_used = current.is_some_and(|current| Arc::ptr_eq(&current, &self));
        // The time that the wire gave it, also where this link calls a connection silent earlier.
        let limit = link.connector.setup.silence;
        let outcome = link.outcome(&self, commands, limit, limit, exchanged);
        if outcome.is_ok() && !is_used {
            // Another server may have its place by now.
            return Err(link.unknown("its connection is not used any longer"));
        }
        outcome
    }
}

impl Sibling for Link {
    fn leave_earlier(&self) {
        if let Some(used) = self.current()
            && self.connector.is_replaced(&used.connection)
        {
            self.replace(&used, Ended::Unfit);
        }
    }
}

/// One dial, which reports its result however it ends. It does not keep the link.
struct Dial {
    link: Weak<Link>,
    result: Result<(), Fault>,
}

impl Dial {
    async fn run(mut self, connector: Arc<Connector>) {
        self.result = self.dial(&connector).await;
    }

    /// Makes a connection and installs it.
    async fn dial(&self, connector: &Connector) -> Result<(), Fault> {
        // The previous dial may have connected just before this one began.
        if self.link.upgrade().is_none_or(|link| link.is_open()) {
            return Ok(());
        }
        let clock = connector.setup.clock;
        connector.reachability.wait_turn(clock).await;
        if let Some(link) = self.link.upgrade() {
            link.ensure_in_use()?;
        }
        let connection = connector.connect().await?;
        let link = self.link.upgrade();
        link.map_or(Ok(()), |link| link.install(connection))
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            let mut result = mem::replace(&mut self.result, Ok(()));
            if std::thread::panicking() {
                let why = "the task that connects has panicked; does the runtime have I/O and timers (`enable_all`)?";
                result = Err(link.unsent(Reason::of(Kind::Invalid, why.to_owned())));
            }
            *link.failure.lock() = result.err();
            link.is_dialing.store(false, Ordering::Release);
            link.ended.notify();
        }
    }
}
