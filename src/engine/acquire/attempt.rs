//! An attempt to take one lock or several, repeated until the wait for them ends.
//!
//! Invariants: while an answer is missing, the holder ids of the attempt are never used for a hold. An attempt that is
//! dropped is undone (`grant.rs`).

use std::pin::pin;
use std::time::Duration;

use super::grant::{Confirmed, Grant, Holders, ServerPlace, confirm};
use super::request::{Attempted, LockRequest, Requests};
use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::HolderId;
use crate::conn::{Lane, sent};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::followers::Kept;
use crate::engine::hold::protocol::{AcquireTerms, Queue};
use crate::engine::hold::subscription::GrantMessage;
use crate::engine::hold::turns::HANDOFFS_MAX;
use crate::engine::hold::{Share, local_deadline};
use crate::script::reply::{self, Acquired, AcquiredAll, Queued, Restored};
use crate::script::{Call, CallBudget, Executed, Failure, Restore, catalog, millis};

/// The acquire command of a call, under one holder id for each lock.
pub(super) struct Attempt<'a> {
    holders: Holders<'a>,
    /// When the call began to wait.
    since: Tick,
    /// When the wait ends. `None` if a refused attempt takes no place in a queue.
    waits_until: Option<Tick>,
    /// The place in the server's queue, where the server may hand the lock over. Boxed: most locks have no such queue.
    place: Option<Box<ServerPlace>>,
}

/// A reply, and the command that it answers.
struct Reply {
    /// When the command was made. It may have been sent again later, unchanged.
    asked: Tick,
    /// When the lease starts, if the reply is a grant.
    grant: Grant,
    value: redis::Value,
    /// Whether an earlier send of the command got no answer and may have been executed too.
    is_repeated: bool,
    /// Whether no command sent earlier can still arrive.
    is_settled: bool,
}

impl<'a> Attempt<'a> {
    /// An attempt that takes no place in a queue.
    pub(super) fn single(requests: Requests<'a>) -> Self {
        Self::new(requests, None)
    }

    pub(super) fn waiting(requests: Requests<'a>, deadline: Option<Tick>) -> Self {
        Self::new(requests, Some(deadline.unwrap_or(Tick::NEVER)))
    }

    fn new(requests: Requests<'a>, waits_until: Option<Tick>) -> Self {
        Self {
            holders: Holders::new(requests),
            since: requests.bound.start(),
            waits_until,
            place: None,
        }
    }

    pub(super) fn requests(&self) -> Requests<'a> {
        self.holders.requests
    }

    /// The channel on which the server notifies this attempt that the lock may be free.
    pub(super) fn channel(&self, at: usize) -> String {
        self.holders.channel(at)
    }

    /// Whether the command may still be executed, so that the holder ids must not be used.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.holders.is_in_doubt()
    }

    /// Undoes the attempt at the server in the background, and goes on under new holder ids.
    pub(super) fn start_over(&mut self) {
        self.place = None;
        self.holders = Holders::new(self.requests());
    }

    /// As [`start_over`](Self::start_over), and waits until the undoing is sent. Returns the time at the end.
    pub(super) async fn start_behind(&mut self, end: Tick) -> Tick {
        self.start_over();
        let now = self.requests().core().clock.now();
        self.requests().releases_sent(end, now).await
    }

    /// Asks the server for all locks, from the head of the local queue of the lock at `at`. Repeats the command while
    /// there is no answer.
    ///
    /// `now` was read just now, before any await. Callers box it, so that a task that waits takes less memory.
    pub(super) async fn ask(
        &mut self,
        mut now: Tick,
        at: usize,
        lane: Lane,
        budget: CallBudget,
    ) -> Result<Attempted> {
        loop {
            let reply = self.send(now, at, lane, budget).await?;
            if !reply.is_settled {
                // An earlier command may still arrive, and must not find its holder id in use.
                now = self.start_behind(budget.deadline).await;
                continue;
            }
            let (member, remaining, place) = match self.read(&reply.value)? {
                AcquiredAll::Held { tokens } => {
                    return self.hold(at, reply.grant, &tokens, lane, budget).await;
                }
                AcquiredAll::Elsewhere {
                    member,
                    remaining,
                    place,
                } => (member, remaining, place),
            };
            self.note_refusal(at, member, &reply, place);
            if reply.is_repeated && self.requests().all.len() > 1 {
                // The first command may have been granted and one of its locks lost since. Then the server still has
                // the others.
                self.holders.doubt(lane);
                self.start_behind(budget.deadline).await;
            }
            return Ok(Attempted::refused(member, remaining));
        }
    }

    /// Sends the command until it is answered.
    async fn send(
        &mut self,
        asked: Tick,
        at: usize,
        lane: Lane,
        budget: CallBudget,
    ) -> Result<Reply> {
        let core = self.requests().core();
        let scripts = &core.scripts;
        let moved = core.locals.moved.mark();
        let spare_tokens = self.spare_tokens();
        let call = self.call(at, asked, spare_tokens);
        // An earlier attempt under the same holder id may be executed as well.
        let was_asked = self.holders.is_in_doubt();
        let was_sent = self.holders.sending(lane);
        let run = pin!(scripts.run_at(asked, lane, &call, budget));
        let run = pin!(core.while_open(run));
        match sent::track(was_sent, run).await {
            Some(Ok(answer)) => Ok(Reply {
                asked,
                grant: Grant {
                    sent: answer.sent,
                    moved,
                    handover: None,
                    spare_tokens,
                },
                is_repeated: answer.repeated || was_asked,
                is_settled: !(answer.repeated || was_asked)
                    || scripts
                        .transport
                        .earlier_commands_settled(lane, call.route()),
                value: answer.value,
            }),
            Some(Err(failure)) => {
                if failure.executed == Executed::No && !was_asked {
                    self.holders.answered();
                }
                Err(self.error(failure))
            }
            None => Err(self.requests().closed()),
        }
    }

    /// Notes the place that the attempt has at the server, now that the lock at `member` was refused.
    fn note_refusal(&mut self, at: usize, member: usize, reply: &Reply, place: Option<Queued>) {
        self.holders.answered();
        self.requests().all[member].local.note_refusal(reply.asked);
        if let Some(Queued { until_ms, ahead }) = place {
            // The place is the one that it had, unless that is in a reply which never came.
            let same = self.place.take().filter(|_| !reply.is_repeated);
            self.place = Some(Box::new(ServerPlace {
                poll: reply.grant,
                until_ms,
                ahead: ahead.or_else(|| same?.ahead),
            }));
        }
        let has_place = self.heartbeat(member, at, reply.asked).is_some();
        // The script has removed a place at another lock, and has kept a place at this lock.
        let had_place = self.holders.queued_at == Some(member);
        let queued_at = (has_place || had_place).then_some(member);
        if queued_at != self.holders.queued_at {
            self.holders.wake_follower();
        }
        self.holders.queued_at = queued_at;
        self.holders.note_queued();
    }

    /// Turns a grant into holds, once the requested replicas have confirmed it.
    async fn hold(
        &mut self,
        at: usize,
        grant: Grant,
        tokens: &[Option<FencingToken>],
        lane: Lane,
        budget: CallBudget,
    ) -> Result<Attempted> {
        if (self.requests().replication().is_some() || self.requests().core().is_closed())
            // Boxed, because it is rare and large.
            && let Some(refused) = Box::pin(self.confirm(at, grant.sent, lane, budget)).await?
        {
            return Ok(refused);
        }
        self.place = None;
        Ok(Attempted::Granted(self.holders.make_holds(grant, tokens)))
    }

    /// Waits until the requested replicas have the grant of the request sent at `sent`. If its lease has ended before,
    /// the attempt counts as refused.
    async fn confirm(
        &mut self,
        at: usize,
        sent: Tick,
        lane: Lane,
        budget: CallBudget,
    ) -> Result<Option<Attempted>> {
        if let Some(replication) = self.requests().replication() {
            match confirm(self.requests(), &self.holders, replication, sent).await {
                Confirmed::Replicated => {}
                Confirmed::NotReplicated(error) => {
                    self.give_back(lane, budget).await;
                    return Err(error);
                }
                Confirmed::Closed => {
                    self.give_back(lane, budget).await;
                    return Err(self.requests().closed());
                }
                Confirmed::Ended => {
                    self.start_behind(budget.deadline).await;
                    return Ok(Some(Attempted::refused(at, Some(Duration::ZERO))));
                }
                // Dropping the attempt undoes it. Waiting could take long, because the server may be silent.
                Confirmed::Unknown(error) => return Err(error),
            }
        }
        if self.requests().core().is_closed() {
            // A closed client would not renew it.
            self.give_back(lane, budget).await;
            return Err(self.requests().closed());
        }
        Ok(None)
    }

    /// Releases a grant that is not handed out, and waits until the server has done so.
    async fn give_back(&mut self, lane: Lane, budget: CallBudget) {
        let scripts = &self.requests().core().scripts;
        let release = self.holders.release();
        if scripts.run(lane, &release, budget).await.is_ok() {
            self.holders.wake_follower();
            self.holders.gone();
        }
    }

    /// Takes the lock that this message hands over. `None` means that the server has to be asked.
    pub(super) fn accept_handover(&mut self, message: &GrantMessage) -> Option<Few<Share>> {
        if self.is_in_doubt() || self.requests().core().is_closed() {
            return None;
        }
        let grant = self.place.as_ref()?.grant(self.requests(), message)?;
        let [request] = self.requests().all else {
            return None;
        };
        let token = message.token.filter(|_| request.options.fenced);
        self.place = None;
        Some(self.holders.make_holds(grant, &[token]))
    }

    /// What stands directly ahead of the place at the server, the place, and until when the server keeps it at least.
    pub(super) fn place_behind(&self) -> Option<(HolderId, HolderId, Tick)> {
        let place = self.place.as_ref()?;
        let ahead = place.ahead?;
        if self.is_in_doubt() {
            return None;
        }
        let (request, id) = self.holders.each().next()?;
        let kept_until = local_deadline(place.poll.sent, request.core.timing.heartbeat);
        Some((ahead, *id, kept_until))
    }

    /// The place at the server, if it is certain to have one.
    pub(super) fn place(&self) -> Option<HolderId> {
        if self.is_in_doubt() {
            return None;
        }
        let (_, id) = self
            .holders
            .each()
            .next()
            .filter(|_| self.place.is_some())?;
        Some(*id)
    }

    /// Notes a heartbeat that keeps the place. Returns until when the place is kept at least.
    pub(super) fn place_kept(&mut self, kept: Kept) -> Tick {
        if let Some(place) = &mut self.place {
            place.poll = Grant {
                sent: kept.sent,
                moved: kept.moved,
                ..place.poll
            };
            place.until_ms = kept.until_ms;
        }
        local_deadline(kept.sent, self.requests().core().timing.heartbeat)
    }

    /// Notes that a hold of this client has the place now, and takes it out of the queue when it ends.
    pub(super) fn place_used(&mut self) {
        self.place = None;
        self.holders.gone();
    }

    /// How long the server keeps the place that a refused attempt takes. `None` if the attempt takes no place: it is
    /// the last, or it would then wait behind others of this client.
    fn heartbeat(&self, member: usize, at: usize, now: Tick) -> Option<Duration> {
        let request = &self.requests().all[member];
        let takes_place = self.waits_until.is_some_and(|until| now < until)
            && request.protocol.waits_at_server()
            && (member == at || request.protocol.queue() == Queue::Server);
        takes_place.then_some(request.core.timing.heartbeat)
    }

    /// How many tokens to ask for beyond its own, for the tasks that it may hand the lock off to.
    fn spare_tokens(&self) -> u32 {
        let [request] = self.requests().all else {
            return 0;
        };
        let may_pass = request.options.fenced
            && request.mode == Mode::Exclusive
            && request.protocol.queue() == Queue::Local
            && (request.local.lock().queue.has_more() || !request.sticky().is_zero());
        if may_pass { HANDOFFS_MAX } else { 0 }
    }

    /// The plain command that takes the lock, if it may. Its refusal says only that the lock is not free. So there must be
    /// time to ask again, and the lock should be free.
    pub(super) fn plain(&self, now: Tick) -> Option<Restore> {
        let [request] = self.requests().all else {
            return None;
        };
        let core = &request.core;
        let soon = now.after(core.timing.reply);
        let is_plain = request.mode == Mode::Exclusive
            && !request.options.fenced
            && self.waits_until.is_some_and(|until| soon <= until)
            && core.scripts.native.may_acquire()
            && !request.local.was_refused_lately(now)
            && !self.is_in_doubt();
        let (_, holder) = self.holders.each_ref().next().filter(|_| is_plain)?;
        let lease = request.policy.lease();
        request.protocol.acquire_plain(&holder, lease)
    }

    /// Asks the server by this plain command, once. `None`: the script has to be asked, and there is time for it.
    ///
    /// `now` was read just now, before any await.
    pub(super) async fn ask_plainly(
        &mut self,
        restore: &Restore,
        now: Tick,
        budget: &CallBudget,
    ) -> Result<Option<Attempted>> {
        let core = self.requests().core();
        let (scripts, key) = (&core.scripts, self.requests().all[0].name.key());
        let moved = core.locals.moved.mark();
        let limit = budget.reply_timeout.min(now.until(budget.deadline));
        let restored = {
            let was_sent = self.holders.sending(Lane::Command);
            let restoring = pin!(scripts.restore(now, key, restore, limit));
            let restoring = pin!(core.while_open(restoring));
            sent::track(was_sent, restoring).await
        };
        let Some(restored) = restored else {
            return Err(self.requests().closed());
        };
        match restored {
            Restored::Granted => {
                let grant = Grant {
                    sent: now,
                    moved,
                    handover: None,
                    spare_tokens: 0,
                };
                let held = self.hold(0, grant, &[None], Lane::Command, *budget);
                return held.await.map(Some);
            }
            Restored::Held => {
                self.holders.answered();
                self.requests().all[0].local.note_refusal(now);
                // The script knows for how long.
                return Ok(Some(Attempted::refused(0, Some(Duration::ZERO))));
            }
            Restored::Unclear(failure) => {
                if failure.executed == Executed::No {
                    self.holders.answered();
                }
                if core.clock.now() >= budget.deadline {
                    return Err(self.error(*failure));
                }
            }
        }
        Ok(None)
    }

    fn call(&self, at: usize, now: Tick, spare_tokens: u32) -> Call {
        let terms = |member: usize, request: &LockRequest| AcquireTerms {
            publish: request.core.channels().publish(),
            mode: request.mode,
            lease: request.policy.lease(),
            tokens: u32::from(request.options.fenced) * (1 + spare_tokens),
            heartbeat: self.heartbeat(member, at, now),
            accepts_handover: self.requests().accept_handover(),
            waited: self.since.until(now),
        };
        let mut holders = self.holders.each_ref();
        if let [request] = self.requests().all
            && let Some((_, holder)) = holders.next()
        {
            return request.protocol.acquire(&holder, &terms(0, request));
        }
        let plain_lease = self.requests().all[0].policy.lease();
        let parts = holders.enumerate().map(|(member, (request, holder))| {
            let (terms, protocol) = (terms(member, request), request.protocol);
            protocol.acquire_as_member(&holder, &terms, plain_lease)
        });
        let core = self.requests().core();
        let queued = self.holders.queued_at.map_or(0, |member| member + 1);
        let for_all = [
            core.channels().publish(),
            &queued.to_string(),
            &core.timing.token_retention.to_string(),
            &millis(plain_lease).to_string(),
        ];
        Call::of_parts(&catalog::MULTI_ACQUIRE, &for_all, parts)
    }

    fn read(&self, value: &redis::Value) -> Result<AcquiredAll> {
        let read = match self.requests().all {
            [request] => request
                .protocol
                .acquired(value)
                .map(|acquired| match acquired {
                    Acquired::Held { token } => AcquiredAll::Held {
                        tokens: Few::from_buf([token]),
                    },
                    other => AcquiredAll::Elsewhere {
                        member: 0,
                        remaining: other.remaining(),
                        place: other.place(),
                    },
                }),
            many => reply::acquired_all(value, many.len()),
        };
        read.map_err(|error| {
            let error = error.during(self.requests().operation());
            self.requests().of_locks(error)
        })
    }

    fn error(&self, failure: Failure) -> Error {
        let member = failure.member().filter(|_| self.requests().all.len() > 1);
        let error = failure.into_error(self.requests().operation());
        match member.and_then(|member| self.requests().all.get(member)) {
            Some(request) => error.of_lock(request.name.as_str()),
            None => self.requests().of_locks(error),
        }
    }
}
