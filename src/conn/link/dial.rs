//! How a link gets its connection: one attempt at a time, made by a task of its own, whose result all
//! wait for who need it.
//!
//! Invariant: nobody's patience ends an attempt. A caller whose time is over goes; the attempt goes on,
//! and the next caller finds what came of it. It ends with its link, or with the runtime that it runs
//! on; in either case whoever waits is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Inner, Live};
use crate::conn::{Fault, Reason};
use crate::hint::Hint;

#[derive(Debug, Default)]
pub(super) struct Dial {
    is_under_way: AtomicBool,
    /// Given when an attempt has ended.
    ended: Hint,
    /// Why the last attempt came to nothing.
    failed: Mutex<Option<Fault>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Dial {
    /// Ends the attempt that is under way.
    pub(super) fn abandon(&self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Inner {
    /// A connection, and what is left of `limit` when there is one.
    pub(super) async fn dialled(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<(Arc<Live>, Duration), Fault> {
        let end = self.clock.now().after(limit);
        let live = self.clock.within(limit, self.connected()).await;
        let live = live.unwrap_or_else(|| {
            // Why the last attempt came to nothing says more than that the next has not ended yet.
            let failed = self.dial.failed.lock().clone();
            let why = || Reason::timed_out(format!("no connection within {limit:?}"));
            Err(failed.unwrap_or_else(|| self.unsent(why())))
        });
        Ok((live?, self.clock.now().until(end)))
    }

    /// The connection there is, or what comes of the next attempt to make one.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<Arc<Live>, Fault> {
        let ended = self.dial.ended.mark();
        self.ensure_in_use()?;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        if let Some(declined @ Fault::Declined(_)) = &*self.dial.failed.lock()
            && self.reach.pauses(self.clock.now())
        {
            // It would say the same again.
            return Err(declined.clone());
        }
        self.start()?;
        self.dial.ended.past(ended).await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let failed = self.dial.failed.lock().clone();
        Err(failed.unwrap_or_else(|| self.unsent("a new connection was cut at once")))
    }

    /// Starts an attempt unless one is under way.
    fn start(self: &Arc<Self>) -> Result<(), Fault> {
        let runtime = Handle::try_current();
        let runtime = runtime.map_err(|_| self.unsent("no tokio runtime to connect on"))?;
        if self.dial.is_under_way.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let attempt = Attempt {
            link: Arc::clone(self),
            ended: Err(self.unsent("the runtime has ended on which a connection was being made")),
        };
        // Where the runtime is ending, that has ended it by now.
        let task = runtime.spawn(attempt.make()).abort_handle();
        *self.dial.task.lock() = Some(task);
        Ok(())
    }
}

/// One attempt, and what came of it. It tells that however it ends.
struct Attempt {
    link: Arc<Inner>,
    ended: Result<(), Fault>,
}

impl Attempt {
    async fn make(mut self) {
        let link = &self.link;
        // One that has ended just before this began may have got through.
        if link.live().is_none() {
            link.reach.turn(link.clock).await;
            self.ended = link.make().await;
        } else {
            self.ended = Ok(());
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let dial = &self.link.dial;
        let ended = std::mem::replace(&mut self.ended, Ok(()));
        *dial.failed.lock() = ended.err();
        dial.is_under_way.store(false, Ordering::Release);
        dial.ended.give();
    }
}
