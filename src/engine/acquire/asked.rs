//! One command that takes locks, on its way to the server and back.
//!
//! Invariants: no caller's future drives it. The connection's task applies a clear reply where it arrives, and makes a
//! hold of a grant; the watchdog's task drives everything else. If the caller leaves, what the command took or may
//! take is released behind it, on its lane.
//!
//! ```text
//! answer.rs   the words of the command, and the meaning of its answer
//! drive.rs    a command that the watchdog's task drives
//! ```

mod answer;
mod drive;

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;

use super::grant::{Grant, Holders, ServerPlace};
use super::request::{Attempted, Ids, LockRequest, Requests};
use crate::api::error::Result;
use crate::conn::{Fault, Lane, Recipient, Replies};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hint::{Mark, set_waker};
use crate::engine::hold::bound::Bound;
use crate::engine::hold::handoff::GrantedCall;
use crate::engine::hold::undo::PendingRelease;
use crate::script::{CallBudget, Restore};

#[derive(Debug)]
pub(super) struct Asked {
    requests: Few<LockRequest>,
    bound: Bound,
    ids: Ids,
    terms: Terms,
    /// Whether it was sent as a plain command.
    is_plain: bool,
    /// A mark of failovers and moved slots, taken before it was sent.
    moved: Mark,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The lock that the call waits for.
    pub(super) at: usize,
    pub(super) budget: CallBudget,
    /// When the command was made. It may be sent again later, unchanged.
    pub(super) asked: Tick,
    /// The lock in whose queue at the server the ids may have a place.
    pub(super) queued_at: Option<usize>,
    /// How many tokens to ask for beyond its own.
    pub(super) spare_tokens: u32,
    /// Whether the client would undo the ids when it ends.
    pub(super) is_known: bool,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    /// When a check first found that the caller has not taken its grant.
    missed_at: Option<Tick>,
    caller: Option<Waker>,
    driver: Option<Waker>,
    /// The undoing that a driving task has yet to send.
    undoing: Option<PendingRelease>,
}

#[derive(Debug)]
enum Stage {
    /// The connection has it.
    Sent,
    /// Its reply is being read.
    Reading,
    /// The watchdog's task drives it.
    Driven,
    Ended(End),
    /// The caller has left, or has taken the end.
    Left,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct End {
    /// `None` if an earlier send of the command may still arrive.
    pub(super) attempted: Option<Result<Attempted>>,
    /// The place at the server that a refusal reported.
    pub(super) place: Option<Box<ServerPlace>>,
    /// Whether an earlier send of the command got no answer and may have been executed too.
    pub(super) is_repeated: bool,
    /// Whether its holder ids are undone, and must not be used again.
    pub(super) is_undone: bool,
}

impl Asked {
    /// Sends the command. With a plain command, that is sent first, and the script only if its reply is unclear.
    pub(super) fn begin(holders: Holders<'_>, plain: Option<&Restore>, terms: Terms) -> Arc<Self> {
        let Holders { requests, ids } = holders;
        let this = Arc::new(Self {
            requests: requests.all.iter().cloned().collect(),
            bound: *requests.bound,
            ids: ids.iter().copied().collect(),
            terms,
            is_plain: plain.is_some(),
            moved: requests.core().locals.moved.mark(),
            progress: Mutex::new(Progress {
                stage: Stage::Sent,
                missed_at: None,
                caller: None,
                driver: None,
                undoing: None,
            }),
        });
        let core = requests.core();
        core.request_begins();
        if !this.submit(plain) {
            Arc::clone(&this).drive(None);
            core.request_ended();
        }
        this
    }

    /// Hands the command over to the connection. False if the connection cannot take it now, or if that would not
    /// suffice.
    fn submit(self: &Arc<Self>, plain: Option<&Restore>) -> bool {
        let (core, Terms { asked, budget, .. }) = (self.requests().core(), self.terms);
        let has_replicas = self.requests().replication().is_some();
        if has_replicas || core.is_closed() || budget.end(asked) <= asked {
            return false;
        }
        let limit = core.timing.reply;
        let submit = |route: &str, command| {
            let to = Arc::clone(self) as _;
            (core.scripts.transport).submit(Lane::Command, route, &[command], limit, to)
        };
        match plain {
            Some(restore) => submit(self.requests[0].name.key(), restore.command()),
            None => {
                let call = self.call();
                submit(call.route(), call.by_sha())
            }
        }
    }

    /// Resolves when the command has ended for its caller.
    pub(super) async fn ended(self: &Arc<Self>) -> End {
        let core = self.requests().core();
        let Terms { asked, budget, .. } = self.terms;
        let (end, is_here) = (budget.end(asked), core.scripts.is_here());
        let mut ended = poll_fn(|context| self.poll_ended(context));
        // The connection ends it in time, or the watchdog's task does, if they are polled.
        if is_here && end >= asked.after(core.timing.reply) {
            return ended.await;
        }
        let replication = self.requests().replication();
        let margin = match replication.map(|wanted| wanted.within) {
            _ if is_here => Duration::ZERO,
            within => core.timing.reply + within.unwrap_or_default(),
        };
        let limit = asked.until(end).saturating_add(margin);
        // Boxed because few calls need a timer.
        if let Some(end) = Box::pin(core.clock.within(limit, &mut ended)).await {
            return end;
        }
        if is_here && matches!(self.progress.lock().stage, Stage::Driven) {
            // The driving task gives up at the same time. Its error says more.
            return ended.await;
        }
        self.leave();
        self.no_reply(limit)
    }

    fn poll_ended(&self, context: &Context<'_>) -> Poll<End> {
        let mut progress = self.progress.lock();
        match mem::replace(&mut progress.stage, Stage::Left) {
            Stage::Ended(end) => return Poll::Ready(end),
            stage => progress.stage = stage,
        }
        set_waker(&mut progress.caller, context);
        Poll::Pending
    }

    /// Undoes the command, for a caller that leaves.
    pub(super) fn leave(&self) {
        let mut progress = self.progress.lock();
        let stage = mem::replace(&mut progress.stage, Stage::Left);
        let driver = progress.driver.take();
        if let Stage::Driven = stage {
            // The next request of this client goes behind it.
            progress.undoing = Some(self.holders().pending_release());
        }
        drop(progress);
        match stage {
            Stage::Sent => {
                self.holders().undo_later();
                self.requests().core().request_ended();
            }
            Stage::Driven => driver.into_iter().for_each(Waker::wake),
            Stage::Ended(end) => self.discard(end),
            Stage::Reading | Stage::Left => {}
        }
    }

    /// Tells the caller how it ended.
    fn end(self: Arc<Self>, end: End) {
        let mut progress = self.progress.lock();
        if let Stage::Left = progress.stage {
            drop(progress);
            return self.discard(end);
        }
        progress.stage = Stage::Ended(end);
        let caller = progress.caller.take();
        drop(progress);
        // The caller finds that nothing else refers to its locks.
        drop(self);
        caller.into_iter().for_each(Waker::wake);
    }

    /// Releases or undoes what the command took for a caller that has left.
    fn discard(&self, end: End) {
        let is_granted = matches!(end.attempted, Some(Ok(Attempted::Granted(_))));
        if !end.is_undone && !is_granted {
            let member = match end.attempted {
                Some(Ok(Attempted::Refused { at, .. })) => at,
                _ => self.terms.at,
            };
            self.undo_unless_answered(false, self.heartbeat(member).is_some());
        }
    }

    /// Undoes the command if it `may_arrive`, and the place that it has or may have taken.
    fn undo_unless_answered(&self, may_arrive: bool, may_queue: bool) {
        if may_arrive || may_queue || self.terms.queued_at.is_some() {
            self.holders().undo_later();
        }
    }

    fn requests(&self) -> Requests<'_> {
        Requests {
            all: &self.requests,
            bound: &self.bound,
        }
    }

    fn holders(&self) -> Holders<'_> {
        Holders {
            requests: self.requests(),
            ids: &self.ids,
        }
    }

    /// How long the server keeps the place that it takes if this lock is refused.
    fn heartbeat(&self, member: usize) -> Option<Duration> {
        let Terms { at, asked, .. } = self.terms;
        self.requests().heartbeat(member, at, asked)
    }

    fn grant(&self, sent: Tick) -> Grant {
        Grant {
            sent,
            moved: self.moved,
            handover: None,
            spare_tokens: self.terms.spare_tokens,
        }
    }
}

impl Recipient for Asked {
    fn received(self: Arc<Self>, outcome: std::result::Result<Replies, Fault>) {
        {
            let stage = &mut self.progress.lock().stage;
            if let Stage::Left = stage {
                // Its undoing is behind it.
                return;
            }
            *stage = Stage::Reading;
        }
        let core = Arc::clone(self.requests().core());
        match self.read_first(outcome) {
            Ok(end) => self.end(end),
            Err(earlier) => self.drive(earlier),
        }
        // Now that what it leaves for a caller that is gone is undone, or is about to be.
        core.request_ended();
    }
}

impl GrantedCall for Asked {
    fn miss(&self) {
        let taken_back = Ok(Attempted::not_held(self.terms.at));
        let end = End {
            is_undone: true,
            ..End::new(taken_back)
        };
        let core = self.requests().core();
        let now = core.clock.now();
        let mut progress = self.progress.lock();
        if let Stage::Ended(_) = progress.stage
            && let missed_at = *progress.missed_at.get_or_insert(now)
            && missed_at.after(core.timing.reply) <= now
        {
            let granted = mem::replace(&mut progress.stage, Stage::Ended(end));
            drop(progress);
            // Its shares go to the next task, or back to the server.
            drop(granted);
        }
    }
}
