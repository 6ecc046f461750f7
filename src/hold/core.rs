//! What all handles, guards and tasks of one client share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::local::Locals;
use super::undos::{Undo, Undos};
use crate::clock::{Clock, Tick};
use crate::conn::Channels;
use crate::error::{Error, Result};
use crate::hint::Hint;
use crate::replicas::Replicas;
use crate::script::{Patience, Scripts};
use crate::watchdog::Watchdog;

pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) timing: Timing,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) watchdog: Watchdog,
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) locals: Arc<Locals>,
    undos: Arc<Undos>,
    id: Box<str>,
    next_holder: AtomicU64,
    closed: AtomicBool,
    /// Given when the client is closed.
    pub(crate) closing: Hint,
}

/// The spans of time the engine works with, all derived from the client's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// The lease of a hold unless its handle says otherwise.
    pub(crate) lease: Duration,
    /// No reply within this is taken as a broken connection.
    pub(crate) reply: Duration,
    /// An operation that gets no answer is repeated for this long.
    pub(crate) give_up: Duration,
    /// A waiter asks at least this often, message or no message.
    pub(crate) poll_cap: Duration,
    /// A waiter that has not asked for this long has lost its place at the server. At most 3 s:
    /// scripts take what lies further ahead for a clock that was set back.
    pub(crate) heartbeat: Duration,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All locks and scripts of a client would come with each guard that is shown.
        f.debug_struct("Core")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Timing {
    pub(crate) fn of_lease(lease: Duration) -> Self {
        let reply = (lease / 6).clamp(Duration::from_millis(100), Duration::from_secs(1));
        let poll_cap = (lease / 6).clamp(Duration::from_millis(50), Duration::from_secs(1));
        Self {
            lease,
            reply,
            give_up: (lease / 3).max(reply * 2),
            poll_cap,
            heartbeat: (poll_cap * 3).max(Duration::from_secs(1)),
        }
    }
}

impl Core {
    pub(crate) fn new(
        id: &str,
        timing: Timing,
        scripts: Arc<Scripts>,
        locals: Arc<Locals>,
    ) -> Arc<Self> {
        Arc::new(Self {
            clock: scripts.clock,
            timing,
            watchdog: Watchdog::start(
                Arc::clone(&scripts),
                Arc::clone(&locals.moved),
                timing.reply,
            ),
            replicas: Arc::new(Replicas::new(Arc::clone(&scripts), timing.reply)),
            scripts,
            locals,
            undos: Arc::default(),
            id: id.into(),
            next_holder: AtomicU64::new(1),
            closed: AtomicBool::new(false),
            closing: Hint::default(),
        })
    }

    /// Redisson's: a UUID of this client.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// A holder id that nobody has used: Redisson's `uuid:number`, with a new number each time a
    /// lock is taken. So nothing late can ever concern a later hold, whoever owns it.
    pub(crate) fn new_holder(&self) -> (u64, Arc<str>) {
        let number = self.next_holder.fetch_add(1, Ordering::Relaxed);
        (number, format!("{}:{number}", self.id).into())
    }

    /// Whether one script can name this key of ours and that of another client, which may be this.
    pub(crate) fn is_beside(&self, key: &str, other: &Self, others_key: &str) -> bool {
        let transport = &self.scripts.transport;
        std::ptr::eq(self, other) && transport.slot(key) == transport.slot(others_key)
    }

    /// Has something undone in the background, which is not given up before `until`.
    pub(crate) fn undo_later(&self, undo: Undo) {
        let reply = self.timing.reply;
        self.undos.push(undo, &self.scripts, &self.watchdog, reply);
    }

    /// How channels are used at the server.
    pub(crate) fn channels(&self) -> Channels {
        self.scripts.transport.channels()
    }

    /// How long an operation that starts now may go on; if it has a deadline of its own, not much
    /// past that, but long enough for one reply.
    pub(crate) fn patience(&self, deadline: Option<Tick>) -> Patience {
        let now = self.clock.now();
        let give_up = now.after(self.timing.give_up);
        let until = match deadline {
            Some(deadline) => give_up.min(deadline.max(now.after(self.timing.reply))),
            None => give_up,
        };
        Patience {
            reply: self.timing.reply,
            until,
            stubborn: false,
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(crate) fn ensure_open(&self, operation: &'static str) -> Result<()> {
        if self.is_closed() {
            return Err(Error::closed(operation));
        }
        Ok(())
    }

    /// Resolves when no caller waits for a lock any more, so that what they leave behind is in
    /// hand; not later than a reply would take, as a waiter may be one that nobody polls.
    async fn waiters_gone(&self) {
        let gone = async {
            loop {
                let mark = self.locals.departed.mark();
                if self.locals.all().iter().all(|local| local.waiters() == 0) {
                    return;
                }
                self.locals.departed.past(mark).await;
            }
        };
        self.clock.within(self.timing.reply, gone).await;
    }

    /// Ends everything: guards are told, waiters leave with an error, pending releases are sent.
    /// False if not all of them were answered in time.
    pub(crate) async fn close(&self) -> bool {
        self.closed.store(true, Ordering::Release);
        self.closing.give();
        self.undos.end();
        for local in self.locals.all() {
            local.line.close();
            for hold in local.live_holds() {
                hold.close();
            }
        }
        self.waiters_gone().await;
        let done = self.watchdog.finish();
        self.clock.within(self.timing.give_up, done).await.is_some()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.undos.end();
    }
}
