//! One command that takes locks, on its way to the server and back.
//!
//! Invariants: no caller's future drives it. The connection's task applies a clear reply where it arrives, and makes a
//! hold of a grant; the watchdog's task (`drive.rs`) drives everything else. If the caller leaves, the locks that the
//! command took or may take are released behind it, on its lane. A command without a clear answer is undone before its
//! caller learns of that.

mod drive;

use std::future::poll_fn;
use std::mem;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::AbortHandle;
use parking_lot::Mutex;

use super::grant::{Grant, Holders, ServerPlace};
use super::request::{Attempted, Ids, LockRequest, Requests};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::conn::{Fault, Lane, Recipient, Replies, only};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hint::{Mark, set_waker};
use crate::engine::hold::bound::Bound;
use crate::engine::hold::handoff::GrantedCall;
use crate::engine::hold::protocol::AcquireTerms;
use crate::engine::hold::undo::PendingRelease;
use crate::script::reply::{self, Acquired, Queued};
use crate::script::{Call, CallBudget, Earlier, Executed, Failure, Restore, catalog, millis};

#[derive(Debug)]
pub(super) struct Asked {
    requests: Few<LockRequest>,
    bound: Bound,
    ids: Ids,
    terms: Terms,
    /// Whether the command was first sent as a plain command.
    is_plain: bool,
    /// A mark of failovers and moved slots, taken before the command was sent.
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
    /// How many tokens to ask for beyond the token of the grant.
    pub(super) spare_tokens: u32,
    /// The entry that has the client undo the ids when it is closed.
    pub(super) undone_at_close: Option<NonZero<u64>>,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    /// When a check first found that the caller has not taken its grant.
    missed_at: Option<Tick>,
    caller: Option<Waker>,
    /// The undoing that a driving task has yet to send.
    undoing: Option<PendingRelease>,
}

#[derive(Debug)]
enum Stage {
    /// The connection has the command.
    Sent,
    /// The reply is being read.
    Reading,
    /// The watchdog's task drives the command. The handle stops that.
    Driven(AbortHandle),
    Ended(End),
    /// The caller has left, or has taken the end.
    Left,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct End {
    /// `None` if the caller has to ask again under new holder ids, because an earlier send of the command may still
    /// arrive.
    pub(super) attempted: Option<Result<Attempted>>,
    /// The place at the server that a refusal reported.
    pub(super) place: Option<Box<ServerPlace>>,
    /// Whether an earlier send of the command got no answer and may have been executed too.
    pub(super) is_repeated: bool,
    /// Whether the holder ids of the command are undone, so that they must not be used again.
    pub(super) is_undone: bool,
}

impl End {
    fn new(attempted: impl Into<Option<Result<Attempted>>>) -> Self {
        Self {
            attempted: attempted.into(),
            place: None,
            is_repeated: false,
            is_undone: false,
        }
    }
}

impl Asked {
    /// Sends the command. If `plain` is given, sends that first, and the script only if its reply is unclear.
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

    /// Hands the command over to the connection. False if the connection cannot take it now, or if the watchdog's task
    /// has to drive the command.
    fn submit(self: &Arc<Self>, plain: Option<&Restore>) -> bool {
        let (core, Terms { asked, budget, .. }) = (self.requests().core(), self.terms);
        let limit = core.timing.reply;
        // The connection would wait for a whole reply time, beyond the end of the budget.
        let is_short = budget.end(asked) < asked.after(limit);
        if is_short || core.is_closed() || self.requests().replication().is_some() {
            return false;
        }
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
        let (requests, Terms { asked, budget, .. }) = (self.requests(), self.terms);
        let confirmed_in = requests.replication().map(|wanted| wanted.within);
        let until = budget.end(asked).after(confirmed_in.unwrap_or_default());
        let ended = poll_fn(|context| self.poll_ended(context));
        let watchdog = &requests.core().watchdog;
        let ended = watchdog.in_time(requests.operation(), until, ended).await;
        ended.unwrap_or_else(|error| {
            self.leave();
            End {
                is_undone: true,
                ..End::new(Err(requests.of_locks(error)))
            }
        })
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
        if let Stage::Driven(_) = stage {
            // The next request of this client goes behind the undoing.
            progress.undoing = Some(self.holders().pending_release());
        }
        drop(progress);
        match stage {
            Stage::Sent => {
                self.holders().undo_later();
                self.requests().core().request_ended();
            }
            Stage::Driven(driver) => driver.abort(),
            Stage::Ended(end) => self.discard(end),
            Stage::Reading | Stage::Left => {}
        }
    }

    /// Ends the command, and wakes its caller.
    fn end(self: Arc<Self>, end: End) {
        let mut progress = self.progress.lock();
        if let Stage::Left = progress.stage {
            drop(progress);
            return self.discard(end);
        }
        progress.stage = Stage::Ended(end);
        let caller = progress.caller.take();
        drop(progress);
        // Dropped first, so that the caller finds that nothing else refers to its locks.
        drop(self);
        caller.into_iter().for_each(Waker::wake);
    }

    /// Releases or undoes everything that the command took for a caller that has left.
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

    /// Undoes the command if it `may_arrive`, if it may have taken a place (`may_queue`), or if the ids have one.
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

    /// How long the server keeps the place that the command takes if this lock is refused. `None` if it takes none.
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

    /// The end that this reply means, or the failure after which it has to be sent again.
    fn read_first(
        self: &Arc<Self>,
        outcome: std::result::Result<Replies, Fault>,
    ) -> std::result::Result<End, Option<Earlier>> {
        let Terms { asked, budget, .. } = self.terms;
        let scripts = &self.requests().core().scripts;
        let reply = outcome.and_then(only);
        let value = match self.is_plain {
            true => scripts.restored(asked, reply)?,
            false => match scripts.submitted(|| self.call(), asked, reply, budget) {
                Ok(value) => value,
                Err(Ok(earlier)) => return Err(Some(earlier)),
                Err(Err(failure)) => return Ok(self.failed(failure)),
            },
        };
        Ok(self.read(asked, self.read_value(&value), false))
    }

    /// The end of a command with this answer.
    fn read(self: &Arc<Self>, sent: Tick, read: Result<Acquired>, is_repeated: bool) -> End {
        let (member, remaining, place) = match read {
            Err(error) => return self.undone(Err(error)),
            Ok(Acquired::Held { tokens }) => return self.granted(self.grant(sent), &tokens),
            Ok(Acquired::Elsewhere {
                member,
                remaining,
                place,
            }) => (member, remaining, place),
        };
        let refused = Ok(Attempted::Refused {
            at: member,
            remaining,
        });
        if is_repeated && self.requests.len() > 1 {
            // The first command may have been granted, and one of its locks lost since, while the server still has the
            // others.
            return self.undone(refused);
        }
        let place = place.map(|Queued { until_ms, ahead }| ServerPlace {
            poll: self.grant(sent),
            until_ms,
            ahead,
        });
        End {
            place: place.map(Box::new),
            is_repeated,
            ..End::new(refused)
        }
    }

    /// Makes holds of a grant.
    fn granted(self: &Arc<Self>, grant: Grant, tokens: &[Option<FencingToken>]) -> End {
        if self.requests().core().is_closed() {
            // A closed client would not renew it.
            return self.undone(Err(self.requests().closed()));
        }
        if let Some(entry) = self.terms.undone_at_close {
            // From now on each hold ends by itself. It may even pass to a guard of another task while this call is not
            // polled.
            self.requests().core().no_longer_closed(entry.get());
        }
        let call = Arc::downgrade(self) as Weak<dyn GrantedCall>;
        let shares = self.holders().make_holds(grant, tokens, Some(call));
        End::new(Ok(Attempted::Granted(shares)))
    }

    /// Undoes the command, and returns its end.
    fn undone(&self, attempted: impl Into<Option<Result<Attempted>>>) -> End {
        self.holders().undo_later();
        End {
            is_undone: true,
            ..End::new(attempted)
        }
    }

    fn failed(&self, failure: Failure) -> End {
        match failure.executed {
            Executed::Maybe => self.undone(Err(self.error(failure))),
            Executed::No => End::new(Err(self.error(failure))),
        }
    }

    fn call(&self) -> Call {
        let Terms {
            asked,
            queued_at,
            spare_tokens,
            ..
        } = self.terms;
        let terms = |member: usize, request: &LockRequest| AcquireTerms {
            mode: request.mode,
            lease: request.policy.lease(),
            tokens: u32::from(request.options.fenced) * (1 + spare_tokens),
            heartbeat: self.heartbeat(member),
            accepts_handover: self.requests().accept_handover(),
            waited: self.bound.start().until(asked),
        };
        let mut holders = self.holders().each_ref();
        if let [request] = &*self.requests
            && let Some((_, holder)) = holders.next()
        {
            return request.protocol.acquire(&holder, &terms(0, request));
        }
        let plain_lease = self.requests[0].policy.lease();
        let parts = holders.enumerate().map(|(member, (request, holder))| {
            let (terms, protocol) = (terms(member, request), request.protocol);
            protocol.acquire_as_member(&holder, &terms, plain_lease)
        });
        let core = self.requests().core();
        let queued = queued_at.map_or(0, |member| member + 1);
        let for_all = [
            core.channels().publish(),
            &queued.to_string(),
            &core.timing.token_retention.to_string(),
            &millis(plain_lease).to_string(),
        ];
        Call::of_parts(&catalog::MULTI_ACQUIRE, &for_all, parts)
    }

    fn read_value(&self, value: &redis::Value) -> Result<Acquired> {
        let read = match &*self.requests {
            [_] => reply::acquired(value),
            many => reply::acquired_all(value, many.len()),
        };
        read.map_err(|error| {
            let error = error.during(self.requests().operation());
            self.requests().of_locks(error)
        })
    }

    fn error(&self, failure: Failure) -> Error {
        let member = failure.member().filter(|_| self.requests.len() > 1);
        let error = failure.into_error(self.requests().operation());
        match member.and_then(|member| self.requests.get(member)) {
            Some(request) => error.of_lock(request.name.as_str()),
            None => self.requests().of_locks(error),
        }
    }
}

impl Recipient for Asked {
    fn received(self: Arc<Self>, outcome: std::result::Result<Replies, Fault>) {
        {
            let stage = &mut self.progress.lock().stage;
            if let Stage::Left = stage {
                // The caller has left, and the undoing is behind the command.
                return;
            }
            *stage = Stage::Reading;
        }
        let core = Arc::clone(self.requests().core());
        match self.read_first(outcome) {
            Ok(end) => self.end(end),
            Err(earlier) => self.drive(earlier),
        }
        // Last: everything that the command left for a caller that is gone is undone by now, or is queued to be undone.
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
