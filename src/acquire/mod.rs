//! The wait engine: attempt, plan, wait for a hint or a timer, again.
//!
//! Of all tasks of a client that want one lock, only the head of the local queue talks to the
//! server, unless the lock queues at the server itself; and it need not, if it is given the lock by
//! another task of the client. Several locks are sought like one: whoever
//! was refused one of them waits for that one, and then asks for all. Invariants: a hint only ever
//! leads to another attempt, unless a letter that hands over the lock came with it (`handover.rs`); every
//! wait has a timer; the server is asked again after a subscription is confirmed and after every gap;
//! nobody waits for one lock while it holds, or is the head of the queue of, another; a future dropped
//! anywhere in here leaves no hold, no queue place and no subscription behind.

mod attempt;
mod attempt_once;
mod confirm;
mod expired;
mod handover;
mod local;
mod plan;
mod queue;
mod subscriber;
#[cfg(test)]
mod tests;
mod undo;
mod waiter;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Tick;
use crate::conn::Lane;
use crate::counts::Mode;
use crate::error::{Error, Kind, Result};
use crate::hold::bound::Bound;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::local::QueuePlace;
use crate::hold::protocol::{Protocol, Queue};
use crate::hold::silence::Silence;
use crate::hold::{Hold, Share};
use crate::keys::LockName;
use crate::options::{LeasePolicy, Options};
use crate::script::{Answer, Call};
use attempt::Attempt;
use local::{enter_again, hold_to_enter, take_over};
use plan::Next;
use waiter::Waiter;

pub(crate) use attempt::Outcome;
pub(crate) use attempt_once::attempt_once;
pub(crate) use expired::ExpiredGrants;
pub(crate) use local::{is_owned, reenter};
pub(crate) use subscriber::subscribe;

/// How long the waiters of one client stand back at most after their share of turns, for another
/// process to come.
const STAND_BACK: Duration = Duration::from_millis(2);

/// After a subscription could not be made, it is not tried again for this many polls.
const POLLS_WITHOUT_LISTENING: u32 = 4;

/// So many hints in a row may lead to an attempt in vain; from then on there is a pause before every
/// other one. Before each, it would always come after those of others, who have not lost as often.
const HINTS_IN_A_ROW_MAX: u32 = 16;
const HINT_PAUSE: Duration = Duration::from_millis(5);

/// Who wants what, on which terms.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) core: Arc<Core>,
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) name: LockName,
    pub(crate) options: Options,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    /// The verb that was called, for errors.
    pub(crate) operation: &'static str,
}

impl LockRequest {
    /// How long its calls go on without an answer.
    pub(crate) fn give_up(&self) -> Duration {
        self.options.give_up.unwrap_or(self.core.timing.give_up)
    }

    /// Why it gives up: what was said to who asked before it, if that is known.
    pub(crate) fn silent(&self, why: Option<Error>) -> Error {
        let error = match why {
            Some(error) => error.during(self.operation),
            None => {
                let message = format!(
                    "no answer from the server for {:?}, to this call or to those it queued behind; \
                     check that it is up and reachable",
                    self.give_up()
                );
                Error::new(Kind::Io, self.operation, message)
            }
        };
        error.of_lock(self.name.as_str())
    }

    /// Whether one script can name both.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.core
            .is_beside(self.name.key(), &other.core, other.name.key())
    }
}

/// How long to wait for a lock that is held elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Never,
    Until(Tick),
    Forever,
}

impl Wait {
    pub(crate) fn deadline(self) -> Option<Tick> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::Never | Self::Forever => None,
        }
    }

    /// The same, but not past `limit`.
    pub(crate) fn at_most(self, limit: Tick) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Until(deadline) => Self::Until(deadline.min(limit)),
            Self::Forever => Self::Until(limit),
        }
    }

    /// Whether a wait that has not led to anything by `now` is not to be tried again.
    pub(crate) fn is_over(self, now: Tick) -> bool {
        match self {
            Self::Never => true,
            Self::Until(deadline) => now >= deadline,
            Self::Forever => false,
        }
    }
}

/// How long a call for these may go on that starts now.
pub(crate) fn bound(requests: &[LockRequest], wait: Wait) -> Bound {
    let give_up = requests.iter().map(LockRequest::give_up).min();
    requests[0]
        .core
        .bound(give_up.unwrap_or_default(), wait.deadline())
}

/// Takes the lock, or says that it did not become free in time.
pub(crate) async fn one(request: &LockRequest, wait: Wait) -> Result<Option<Share>> {
    let requests = std::slice::from_ref(request);
    let bound = bound(requests, wait);
    let mut expired = ExpiredGrants::default();
    loop {
        let share = match reenter(request, &bound).await? {
            None => match all(requests, wait, bound).await? {
                Outcome::Granted(mut shares) => shares.pop(),
                Outcome::Refused { .. } => None,
            },
            share => share,
        };
        if !expired.must_retry(share.iter().map(|share| (request, share)))? {
            return Ok(share);
        }
    }
}

/// Takes all of these locks, or none. All are of one client and on one server; a lock is named once.
pub(crate) async fn all(requests: &[LockRequest], wait: Wait, bound: Bound) -> Result<Outcome> {
    let locals: Vec<_> = requests
        .iter()
        .map(|request| {
            request
                .core
                .locals
                .get_or_insert(request.protocol.kind(), request.name.key())
        })
        .collect();
    let party = Party {
        requests,
        locals: &locals,
        bound,
    };
    match wait {
        Wait::Never => party.once().await,
        Wait::Until(_) | Wait::Forever => party.queue().await,
    }
}

/// Asks, and what this client knows of the lock of each.
#[derive(Clone, Copy)]
struct Party<'a> {
    requests: &'a [LockRequest],
    locals: &'a [Arc<LocalLock>],
    bound: Bound,
}

/// How the wait of a head ended.
enum Headed {
    Ended(Outcome),
    /// It is this lock that has to be waited for. To be asked next on this lane: behind a
    /// subscription, if it was the server who refused it.
    Behind(usize, Lane),
}

impl<'a> Party<'a> {
    fn core(self) -> &'a Core {
        &self.requests[0].core
    }

    /// One attempt.
    async fn once(self) -> Result<Outcome> {
        let budget = self.bound.call_budget(self.core().clock.now());
        self.left(budget.deadline).await;
        let mut attempt = Attempt::single(self);
        attempt.ask(0, Lane::Command, budget).await
    }

    /// Waits in the local queue of one lock after the other, and there at the server.
    async fn queue(self) -> Result<Outcome> {
        let clock = self.core().clock;
        let deadline = self.bound.deadline();
        // These go after the attempt: who asks next finds what it undoes.
        let (mut place, mut waiter): (Option<QueuePlace<'_>>, _);
        let mut attempt = Attempt::waiting(self, deadline);
        let (mut at, mut lane) = (0, Lane::Command);
        let mut hints = 0;
        loop {
            place = self.enter_line(at);
            waiter = Waiter::enter(&self.requests[at], &self.locals[at]);
            let here = (at, place.as_ref(), &waiter);
            let headed = self.head(here, &mut attempt, (lane, &mut hints)).await;
            if let Err(error) = &headed {
                self.locals[at].silence.failed(error);
            }
            match headed? {
                Headed::Ended(outcome) => return Ok(outcome),
                Headed::Behind(..) if deadline.is_some_and(|deadline| clock.now() >= deadline) => {
                    return Ok(Outcome::refused(at, None));
                }
                Headed::Behind(other, on) => (at, lane) = (other, on),
            }
            // Never waits for one place while it has another.
            drop(place.take());
        }
    }

    /// The wait of one in the local queue, of which the head asks, or in the queue at the server.
    async fn head(
        self,
        (at, place, waiter): (usize, Option<&QueuePlace<'_>>, &Waiter<'_>),
        attempt: &mut Attempt<'a>,
        (mut lane, hints_in_a_row): (Lane, &mut u32),
    ) -> Result<Headed> {
        let (request, local) = (&self.requests[at], &self.locals[at]);
        let core = self.core();
        let clock = core.clock;
        let deadline = self.bound.deadline();
        let queues_here = request.protocol.queue() == Queue::Local;
        // Who queues at the server asks for itself alone.
        let alone = Silence::default();
        let silence = if queues_here { &local.silence } else { &alone };
        loop {
            if let Some(place) = place
                && let Some(outcome) = self.turn(at, place).await?
            {
                return Ok(Headed::Ended(outcome));
            }
            ensure_open(request)?;
            let marks = waiter.marks();
            if let Some(given) = place.and_then(QueuePlace::take_handoff)
                && let Some(share) = take_over(request, given, &self.bound).await?
            {
                silence.ends();
                return Ok(Headed::Ended(Outcome::Granted(vec![share])));
            }
            if let Some(outcome) = self.owned(at).await? {
                return Ok(Headed::Ended(outcome));
            }
            let now = clock.now();
            // Held in this client: its end gives a hint, and so does its loss.
            if let Some((closed, until)) = self.closed_here(at) {
                silence.ends();
                if closed != at {
                    // Its place in a queue would keep others from a lock it cannot use yet.
                    attempt.start_over();
                    return Ok(Headed::Behind(closed, Lane::Command));
                }
                let end = Some(now.until(until));
                match plan::next(now, deadline, end, core.timing.lease) {
                    Next::GiveUp => return Ok(Headed::Ended(Outcome::refused(at, None))),
                    Next::WaitUntil(time) => {
                        waiter.rest(marks, place, time);
                        waiter.wait(marks, place, time).await;
                    }
                }
                continue;
            }
            let (silent_since, why) = silence.asks(now, &self.bound);
            if why.is_some() {
                return Err(request.silent(why));
            }
            let end = self.bound.end_of_asking(silent_since, now);
            self.left(end).await;
            if queues_here && request.mode == Mode::Exclusive && local.must_yield(now) {
                self.stand_back(local, deadline).await;
            } else if *hints_in_a_row > HINTS_IN_A_ROW_MAX && hints_in_a_row.is_multiple_of(2) {
                self.pause(HINT_PAUSE, deadline).await;
            }
            if let Some(given) = place.and_then(QueuePlace::begin_attempt) {
                if let Some(share) = take_over(request, given, &self.bound).await? {
                    silence.ends();
                    return Ok(Headed::Ended(Outcome::Granted(vec![share])));
                }
                continue;
            }
            let mut outcome = None;
            if lane == Lane::Push && waiter.may_listen(deadline) {
                match waiter.attempt_listening(attempt, at, end).await {
                    Ok(answer) => outcome = Some(answer),
                    // It was granted, and would be no other on the other lane.
                    Err(error) if error.is_not_replicated() => return Err(error),
                    // Listening is a help, not a need: goes on without. If it is the lock that is
                    // the matter, the other lane says the same.
                    Err(_) => {
                        let polls = core.timing.poll_cap * POLLS_WITHOUT_LISTENING;
                        waiter.listen_after(clock.now().after(polls));
                        if attempt.is_in_doubt() {
                            attempt.start_over();
                        }
                    }
                }
            }
            let outcome = match outcome {
                Some(outcome) => outcome,
                None => {
                    let budget = self.bound.call_budget_until(end);
                    attempt.ask(at, Lane::Command, budget).await?
                }
            };
            silence.ends();
            let remaining = match outcome {
                Outcome::Granted(shares) => {
                    return Ok(Headed::Ended(Outcome::Granted(shares)));
                }
                Outcome::Refused { at: by, .. } if by != at => {
                    *hints_in_a_row += 1;
                    return Ok(Headed::Behind(by, Lane::Push));
                }
                Outcome::Refused { remaining, .. } => remaining,
            };
            local.reset_handoffs();
            let next = plan::next(clock.now(), deadline, remaining, core.timing.poll_cap);
            let Next::WaitUntil(time) = next else {
                return Ok(Headed::Ended(Outcome::refused(at, None)));
            };
            waiter.rest(marks, place, time);
            if lane != Lane::Push
                && waiter.may_listen(deadline)
                && !waiter.is_listening(attempt, at)
            {
                // Asks once more, behind the subscription: a release in between would go unheard.
                lane = Lane::Push;
                continue;
            }
            let mut marks = marks;
            lane = loop {
                match waiter.wait(marks, place, time).await {
                    Woken::Given => break Lane::Command,
                    Woken::Hint => {
                        let letter = waiter.letter(attempt, at);
                        if let Some(shares) = letter.and_then(|letter| attempt.accept(letter)) {
                            return Ok(Headed::Ended(Outcome::Granted(shares)));
                        }
                        *hints_in_a_row += 1;
                        // If it was a release of this client, then behind it.
                        break Lane::Command;
                    }
                    Woken::Timer => {
                        *hints_in_a_row = 0;
                        // Over the connection that has been silent: if it is dead, this finds out.
                        break Lane::Push;
                    }
                    // Nothing the server knows more of.
                    Woken::Entry => {
                        marks = waiter.marks_but_told(marks);
                        ensure_open(request)?;
                        if let Some(outcome) = self.owned(at).await? {
                            return Ok(Headed::Ended(outcome));
                        }
                    }
                }
            };
        }
    }

    /// Resolves once what this client has given up of these locks was sent; what it asks then is
    /// asked behind that. Not later than a reply would take, nor than half of the time until `end`: it
    /// is there to ask.
    async fn left(self, end: Tick) {
        let core = self.core();
        let now = core.clock.now();
        let leave_by = now.after(core.timing.reply.min(now.until(end) / 2));
        for local in self.locals {
            loop {
                let mark = local.hint().mark();
                if !local.has_unsent_release() || core.clock.now() >= leave_by {
                    break;
                }
                tokio::select! {
                    biased;
                    () = local.hint().past(mark) => {}
                    () = core.clock.sleep_until(leave_by) => {}
                }
            }
        }
    }

    /// A lock that another task of this client holds so that nobody else can, and until when; the
    /// one at `at` first. What queues at the server has to be there to keep its place.
    fn closed_here(self, at: usize) -> Option<(usize, Tick)> {
        let others = (0..self.requests.len()).filter(|index| *index != at);
        std::iter::once(at)
            .chain(others)
            .filter(|index| self.requests[*index].protocol.queue() == Queue::Local)
            .find_map(|index| Some((index, self.locals[index].exclusive_until()?)))
    }

    /// Whether the owner who asks has one of these locks already; then, of a single one, a share.
    async fn owned(self, at: usize) -> Result<Option<Outcome>> {
        if self.requests.len() > 1 {
            let mut members = self.requests.iter().zip(self.locals);
            let is_owned = members.any(|(request, local)| hold_to_enter(request, local).is_some());
            return Ok(is_owned.then_some(Outcome::Refused {
                at,
                remaining: None,
                is_owned,
            }));
        }
        let Some(hold) = hold_to_enter(&self.requests[at], &self.locals[at]) else {
            return Ok(None);
        };
        let entered = enter_again(&self.requests[at], &hold, &self.bound).await?;
        Ok(entered.map(|share| Outcome::Granted(vec![share])))
    }

    /// Lets another process have the lock: until it has given it back, or has not come for it.
    async fn stand_back(self, local: &LocalLock, deadline: Option<Tick>) {
        tokio::select! {
            // The message of our own release, and that of the other one.
            () = local.hint().messages(2) => {}
            () = self.pause(STAND_BACK, deadline) => {}
        }
    }

    async fn pause(self, span: Duration, deadline: Option<Tick>) {
        let clock = self.core().clock;
        let end = clock.now().after(span);
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        clock.sleep_until(end).await;
    }
}

enum Woken {
    /// The lock, by another task of this client.
    Given,
    /// It is worth asking the server.
    Hint,
    /// The owner may have got the lock, or the client is being closed.
    Entry,
    Timer,
}

fn ensure_open(request: &LockRequest) -> Result<()> {
    let open = request.core.ensure_open(request.operation);
    open.map_err(|error| error.of_lock(request.name.as_str()))
}

/// Asks something of a lock: one script on the command lane, repeated until it is answered.
pub(crate) async fn query(
    core: &Core,
    name: &LockName,
    operation: &'static str,
    call: &Call,
    give_up: Duration,
) -> Result<Answer> {
    let of_lock = |error: Error| error.of_lock(name.as_str());
    core.ensure_open(operation).map_err(of_lock)?;
    core.scripts
        .run(Lane::Command, call, core.call_budget(give_up))
        .await
        .map_err(|failure| of_lock(failure.into_error(operation)))
}

/// The holds of this client on a lock, to be told if the server takes the lock away from them.
pub(crate) fn holds(core: &Core, protocol: &dyn Protocol, name: &LockName) -> Vec<Arc<Hold>> {
    let local = core.locals.get_or_insert(protocol.kind(), name.key());
    local.live_holds()
}
