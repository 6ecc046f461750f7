//! Makes the connection of a link, replaces it when it falls silent, and says what the end of a request over it means.
//!
//! Invariants: there is one dial at a time, in its own task on the client's runtime. All callers wait for its result. A
//! reply over a connection that is not used any longer counts for nothing, unless its caller waited for it.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::RedisError;
use tokio::task::AbortHandle;

use super::connection::{Connection, ConnectionUser, Exchanged};
use super::connector::{Connector, Ended};
use super::server::Sibling;
use crate::conn::error_reply::code;
use crate::conn::transport::{Fault, Reason, Replies};
use crate::engine::hint::Hint;

#[derive(Debug)]
pub(super) struct Dialer {
    connector: Connector,
    /// A connection without a reply for this long is silent, but not before a caller's limit ends. A shorter limit
    /// shows impatience, or, for renewals, a lack of time: the next renewal has to be answered before the lease ends.
    silence: Duration,
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
    pub(super) fn new(connector: Connector, silence: Duration) -> Self {
        Self {
            connector,
            silence,
            current: Mutex::default(),
            is_retired: AtomicBool::new(false),
            is_dialing: AtomicBool::new(false),
            ended: Hint::default(),
            failure: Mutex::default(),
            task: Mutex::default(),
        }
    }

    pub(super) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(super) fn current(&self) -> Option<Arc<Connection>> {
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

    pub(super) fn close(&self) {
        if let Some(connection) = self.current() {
            self.replace(&connection, Ended::Closed);
        }
    }

    pub(super) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
        self.close();
    }

    pub(super) fn reinstate(&self) {
        if self.is_retired.swap(false, Ordering::AcqRel) {
            self.connector.named_again();
        }
    }

    /// Ends the dial in progress.
    pub(super) fn abort(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }

    /// A connection, and the rest of `limit` once there is one.
    pub(super) async fn connected_within(
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
    pub(super) async fn connected(self: &Arc<Self>) -> Result<Arc<Connection>, Fault> {
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
    async fn dial(self: &Arc<Self>) -> Result<(), Fault> {
        self.ensure_in_use()?;
        let connection = Arc::new(self.connector.connect().await?);
        let this = Arc::downgrade(self);
        connection.used_by(this);
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

    /// Notes how a request of this number of commands ended that had `remaining` of its limit, and says what that means.
    pub(super) fn ended(
        &self,
        connection: &Arc<Connection>,
        commands: usize,
        limit: Duration,
        remaining: Duration,
        exchanged: Exchanged,
    ) -> Result<Replies, Fault> {
        match exchanged {
            Some(Ok(_)) if self.connector.is_replaced(connection) => {
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
                self.replace(connection, Ended::Broken);
                Err(self.unknown(error))
            }
            None => {
                let now = self.connector.clock.now();
                let is_silent = connection.is_silent(now.before(limit), now, self.silence);
                // It would delay what comes behind several commands. If it was made during this call, the call had
                // less time, which proves nothing.
                let is_overdue = commands > 1 && remaining == limit && limit >= self.silence;
                if is_silent || is_overdue {
                    self.replace(connection, Ended::Broken);
                }
                let why = format!("no reply within {limit:?}");
                Err(self.unknown(Reason::timed_out(why)))
            }
        }
    }

    /// Stops using a connection to a demoted server. The address may already lead to another server.
    fn replace_if_demoted(&self, connection: &Arc<Connection>, error: &RedisError) {
        if matches!(code(error), Some("READONLY" | "MASTERDOWN")) {
            self.replace(connection, Ended::Demoted);
        }
    }

    fn unknown(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unknown(self.connector.named(why))
    }

    fn unsent(&self, why: impl Into<Reason>) -> Fault {
        Fault::Unsent(self.connector.named(why))
    }
}

impl ConnectionUser for Dialer {
    fn outcome(
        &self,
        connection: &Arc<Connection>,
        commands: usize,
        is_awaited: bool,
        exchanged: Exchanged,
    ) -> Result<Replies, Fault> {
        let current = self.current();
        let is_used = current.is_some_and(|current| Arc::ptr_eq(&current, connection));
        // The time that the wire gave it, also where this link calls a connection silent earlier.
        let limit = self.connector.silence();
        let outcome = self.ended(connection, commands, limit, limit, exchanged);
        if outcome.is_ok() && !is_used && !is_awaited {
            // Another server may have its place by now.
            return Err(self.unknown("its connection is not used any longer"));
        }
        outcome
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
