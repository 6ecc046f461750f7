//! The wait loop: ask, plan, sleep until a hint or a timer, and start again.
//!
//! Of all tasks of a client that want one lock, only the head of the local queue asks the server. If the lock queues at
//! the server, each task asks. The head need not ask if another task of the client hands the lock off to it. Several
//! locks are taken like one: a call that was refused one of them waits for that lock, and then asks for all.
//! Invariants:
//!
//! - a hint only ever leads to another attempt, unless it came with a message that hands the lock over (`grant.rs`);
//! - every wait has a timer;
//! - the server is asked again after a subscription is confirmed, and after every gap;
//! - a call never waits for one lock while it holds another or heads its queue;
//! - a future that is dropped anywhere in here leaves no hold, no queue place and no subscription behind.

mod following;
mod pauses;

use std::future::Future;
use std::ops::ControlFlow;
use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use super::attempt::Attempt;
use super::local::{
    Turn, end_deferrals_for_readers, held_here, is_owned, owned_or_joined, take_over, take_place,
    take_sticky, turn,
};
use super::request::{Attempted, ExpiredGrants, LockRequest, Requests};
use super::waiter::{Marks, Waiter, Woken};
use crate::api::error::Result;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hold::Share;
use crate::engine::hold::bound::{Bound, Over, Silence};
use crate::engine::hold::handoff::Handoff;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::queue::place::{QueuePlace, RestingPlace};
use crate::engine::hold::recall::recall_holder;
use crate::engine::hold::turns::next_attempt;
use crate::observe::observer::CountedWait;
use crate::script::CallBudget;

/// Takes the lock. If it did not become free in time, returns the rest of the holder's lease, as the server reported it
/// for a call that asks once.
pub(crate) async fn one(
    request: &LockRequest,
    bound: &Bound,
) -> Result<Result<Share, Option<Duration>>> {
    let requests = Requests {
        all: from_ref(request),
        bound,
    };
    let mut expired = ExpiredGrants::default();
    loop {
        is_owned(request)?;
        match all(requests).await?.share_or_remaining() {
            Ok(share) if expired.must_retry([(request, &share)])? => {}
            outcome => return Ok(outcome),
        }
    }
}

/// Takes all of these locks, or none. All must be of one client and on one server, and each lock is named once.
pub(super) async fn all(requests: Requests<'_>) -> Result<Attempted> {
    // A call that enters or joins a hold needs no place in a queue.
    if let Some(outcome) = owned_or_joined(requests, 0, None).await? {
        return Ok(outcome);
    }
    let waits = requests.bound.waits_until() > Tick::ZERO;
    // A call with a single attempt never queues, so no waiter comes before it.
    if let Some(outcome) = take_sticky(requests, !waits)? {
        return Ok(outcome);
    }
    if waits {
        let mut waiting = WaitLoop::new(requests);
        return waiting.run().await;
    }
    let now = requests.core().clock.now();
    let budget = requests.bound.call_budget(now, now);
    let mut attempt = Attempt::new(requests);
    Box::pin(once(&mut attempt, budget.deadline, budget)).await
}

/// Makes one attempt, without a place in a queue. `end` limits the wait for earlier releases to be sent.
pub(super) async fn once(
    attempt: &mut Attempt<'_>,
    end: Tick,
    budget: CallBudget,
) -> Result<Attempted> {
    let requests = attempt.requests();
    end_deferrals_for_readers(requests);
    let now = requests.core().clock.now();
    let now = requests.releases_sent(end, now).await;
    attempt.ask(None, now, 0, budget).await
}

/// A call that waits. It waits for one lock at a time, in the local queue of that lock or in its queue at the server.
struct WaitLoop<'a> {
    /// Dropped before `place`, so that the undoing of this attempt is noted before the next waiter asks.
    attempt: Attempt<'a>,
    waiter: Waiter<'a>,
    /// The place in the local queue. `None` where the lock queues at the server.
    place: Option<QueuePlace<'a>>,
    /// The index of the lock that the call waits for.
    at: usize,
    /// How many hints in a row have led to a refusal, since the last timer.
    hints_in_a_row: u32,
    /// How many times in a row a lock other than the one at `at` was refused.
    moves_in_a_row: u32,
    /// Until when the call waits for the readers of this client before it asks. [`Tick::ZERO`] before that wait.
    readers_until: Tick,
    /// Whether the holders at the last refusal have been sent a recall.
    has_recalled: bool,
    /// The number of sleeps.
    sleeps: u32,
    /// Set when the call first has to wait.
    counted: Option<CountedWait<'a>>,
}

/// Goes on with the loop, or ends the call.
type Step = ControlFlow<Attempted>;

impl<'a> WaitLoop<'a> {
    fn new(requests: Requests<'a>) -> Self {
        Self {
            attempt: Attempt::new(requests),
            place: take_place(requests, 0),
            waiter: Waiter::new(&requests.all[0]),
            at: 0,
            hints_in_a_row: 0,
            moves_in_a_row: 0,
            readers_until: Tick::ZERO,
            has_recalled: false,
            sleeps: 0,
            counted: None,
        }
    }

    async fn run(&mut self) -> Result<Attempted> {
        let mut is_first = true;
        loop {
            let step = if std::mem::take(&mut is_first) {
                self.take_free().await
            } else {
                self.step().await
            };
            if let Err(error) = &step {
                self.silence().note_error(error);
            }
            if let Step::Break(outcome) = step? {
                return Ok(outcome);
            }
        }
    }

    /// Counts the call as waiting, once, because it did not get the lock immediately.
    fn count_wait(&mut self) {
        if self.counted.is_none() {
            let group = self.requests().all[0].options.group;
            let observed = self.requests().core().observed();
            self.counted = Some(CountedWait::begin(observed, group));
        }
    }

    /// Asks for a lock that is probably free, by one plain command and without waiting for anything first. The lock
    /// counts as free if no task of this client has it or waits for it, and no client elsewhere is known to listen.
    /// After a refusal the loop goes on.
    async fn take_free(&mut self) -> Result<Step> {
        let (request, now) = (self.request(), self.clock().now());
        let (Some(place), Some(restore)) = (&self.place, self.attempt.plain(now)) else {
            return Ok(Step::Continue(()));
        };
        if request.options.owner.is_some() || !request.local.lock().begin_free(place.number(), now)
        {
            return Ok(Step::Continue(()));
        }
        request.ensure_open()?;
        let marks = self.waiter.marks();
        let budget = self.begin_asking(now)?;
        let asking = (self.attempt).ask(Some(&restore), now, self.at, budget);
        let outcome = asking.await?;
        let remaining = match self.answered(outcome, false) {
            Ok(step) => return Ok(step),
            Err(remaining) => remaining,
        };
        self.sleep(marks, remaining).await
    }

    /// Waits for the head of the queue, tries the ways without the server, asks, and sleeps.
    async fn step(&mut self) -> Result<Step> {
        if let Some(outcome) = self.wait_for_turn().await? {
            return Ok(Step::Break(outcome));
        }
        let mut marks = self.waiter.marks();
        self.request().ensure_open()?;
        if let Some(step) = self.local_way_in(marks).await? {
            return Ok(step);
        }
        let now = self.clock().now();
        // Before `begin_asking`, because a pause here does not count as silence of the server.
        let (now, has_backed_off) = self.yield_turn(now).await;
        if has_backed_off {
            // The client may have been closed during the pause.
            self.request().ensure_open()?;
        }
        let budget = self.begin_asking(now)?;
        let asked = self.requests().releases_sent(budget.deadline, now).await;
        if has_backed_off {
            // The answer to the attempt will cover the messages that have come so far.
            marks = self.waiter.marks_after_messages(marks);
        }
        // The last check: after it the call asks the server, and accepts no hand-off.
        if let Some(handoff) = self.place.as_ref().and_then(QueuePlace::begin_attempt) {
            let outcome = self.take_over(handoff)?;
            return Ok(outcome.map_or(Step::Continue(()), Step::Break));
        }
        // Boxed like all parts of a call that are larger than the wait for its turn, because few waiters are at the
        // head.
        let outcome = Box::pin(async {
            let restore = self.attempt.plain(asked);
            (self.attempt)
                .ask(restore.as_ref(), asked, self.at, budget)
                .await
        });
        let outcome = outcome.await?;
        let remaining = match self.answered(outcome, has_backed_off) {
            Ok(step) => return Ok(step),
            Err(remaining) => remaining,
        };
        self.sleep(marks, remaining).await
    }

    /// Handles the server's answer to the attempt. If the lock at `at` was refused, returns the rest of the holder's
    /// lease.
    fn answered(
        &mut self,
        outcome: Attempted,
        has_backed_off: bool,
    ) -> Result<Step, Option<Duration>> {
        self.silence().end();
        if has_backed_off || matches!(outcome, Attempted::Refused { .. }) {
            let now = self.clock().now();
            self.local()
                .lock()
                .turns
                .note_trip(self.attempt.asked_at.until(now));
            if matches!(outcome, Attempted::Granted(_)) {
                self.local().begin_turn(now);
            }
        }
        match outcome {
            Attempted::Refused { at, .. } if at != self.at => {
                self.moves_in_a_row += 1;
                Ok(self.wait_for(at))
            }
            Attempted::Refused { remaining, .. } => Err(remaining),
            Attempted::Granted(_) | Attempted::Owned => Ok(Step::Break(outcome)),
        }
    }

    /// Waits behind others of this client, unless the lock queues at the server. `None` means that it is this call's
    /// turn to ask.
    async fn wait_for_turn(&mut self) -> Result<Option<Attempted>> {
        if self.place.as_ref().is_none_or(QueuePlace::is_head) {
            return Ok(None);
        }
        self.count_wait();
        let Some(place) = &self.place else {
            return Ok(None);
        };
        let bound = self.requests().bound;
        match turn(self.request(), place, bound, || self.entered_or_joined()).await? {
            Turn::Head => Ok(None),
            Turn::Entered(outcome) => Ok(Some(outcome)),
            Turn::Over(Over::NotInTime) => Ok(Some(self.refused())),
            Turn::Over(Over::Silent(why)) => Err(self.request().silent(why)),
        }
    }

    /// Takes a hand-off, a hold of the owner or a sticky hold, or waits for the end of a hold of this client. `None`
    /// means that the server has to be asked.
    async fn local_way_in(&mut self, marks: Marks) -> Result<Option<Step>> {
        if let Some(handoff) = self.place.as_ref().and_then(QueuePlace::take_handoff)
            && let Some(outcome) = self.take_over(handoff)?
        {
            return Ok(Some(Step::Break(outcome)));
        }
        if let Some(outcome) = self.entered_or_joined().await? {
            return Ok(Some(Step::Break(outcome)));
        }
        if let Some(outcome) = take_sticky(self.requests(), true)? {
            self.silence().end();
            return Ok(Some(Step::Break(outcome)));
        }
        end_deferrals_for_readers(self.requests());
        let Some((held, until)) = held_here(self.requests(), self.at) else {
            let has_waited = self.wait_for_readers(marks).await;
            return Ok(has_waited.then_some(Step::Continue(())));
        };
        let now = self.clock().now();
        self.silence().end();
        if held != self.at {
            // With a place in the queue, the call would keep others from a lock that it cannot use yet.
            self.attempt.start_over();
            return Ok(Some(self.wait_for(held)));
        }
        // The end of the hold gives a hint, and so does its loss.
        let lease = self.request().core.timing.lease;
        let remaining = Some(now.until(until));
        let Some(time) = next_attempt(now, self.deadline(), remaining, lease) else {
            return Ok(Some(Step::Break(self.refused())));
        };
        self.count_wait();
        // The call that was granted the hold may not have taken it yet.
        self.requests().core().watch_heads(self.local());
        self.waiter.rest(marks, self.place.as_ref(), time);
        self.waiter.wait(marks, self.place.as_ref(), time).await;
        Ok(Some(Step::Continue(())))
    }

    fn entered_or_joined(&self) -> impl Future<Output = Result<Option<Attempted>>> {
        owned_or_joined(self.requests(), self.at, self.place.as_ref())
    }

    fn take_over(&self, handoff: Handoff) -> Result<Option<Attempted>> {
        let outcome = take_over(self.request(), handoff)?;
        if outcome.is_some() {
            self.silence().end();
        }
        Ok(outcome)
    }

    /// Returns how long the call may ask.
    ///
    /// # Errors
    /// Fails if the calls that asked before this one have had no answer for as long as this call may go on.
    fn begin_asking(&self, now: Tick) -> Result<CallBudget> {
        let bound = self.requests().bound;
        let silent_since = self.silence().begin_asking(now, bound);
        let silent_since = silent_since.map_err(|why| self.request().silent(Some(why)))?;
        Ok(bound.call_budget(silent_since, now))
    }

    /// Sleeps after a refusal until there is a reason to ask again. A waiter that does not listen yet begins to, and
    /// asks again when messages reach it, because a release in between would be missed.
    async fn sleep(&mut self, mut marks: Marks, remaining: Option<Duration>) -> Result<Step> {
        let (now, deadline) = (self.clock().now(), self.deadline());
        self.local().seen_elsewhere(now);
        let poll_cap = self.poll_cap();
        let Some(mut time) = next_attempt(now, deadline, remaining, poll_cap) else {
            return Ok(Step::Break(self.refused()));
        };
        self.count_wait();
        if !std::mem::replace(&mut self.has_recalled, true) {
            let LockRequest { core, name, .. } = self.request();
            recall_holder(core, self.local(), name.key());
        }
        self.waiter.rest(marks, self.place.as_ref(), time);
        // Boxed: only waiters of a queue at the server have one.
        let mut resting = self.rest_in_queue().map(Box::new);
        self.requests().core().watch_heads(self.local());
        let channel = self.attempt.channel(self.at);
        // Whether a message, or the waiter ahead, wakes this waiter when it has to ask.
        let is_told =
            resting.as_deref().is_some_and(RestingPlace::is_told) || self.waiter.listen(&channel);
        let mut begins_to_listen = !is_told;
        self.moves_in_a_row = 0;
        self.sleeps = self.sleeps.saturating_add(1);
        loop {
            let woken = self.waiter.wait(marks, self.place.as_ref(), time).await;
            if let Some(later) = self.rest_longer(resting.as_deref())
                && matches!(woken, Woken::Timer)
            {
                time = later;
                continue;
            }
            let now = self.clock().now();
            if matches!(woken, Woken::Timer)
                && now < deadline
                && !self.waiter.check_connection(&channel)
                && !std::mem::replace(&mut begins_to_listen, true)
            {
                // So far only the waiter ahead would have woken this one. It asks when messages reach it as well, or
                // soon.
                time = now.after(poll_cap / 8).min(deadline);
                continue;
            }
            if !matches!(woken, Woken::Gained)
                && let Some(step) = self.end_rest(resting.take())?
            {
                return Ok(step);
            }
            match woken {
                Woken::HandedOff => {}
                Woken::Hint => {
                    if let Some(message) = self.waiter.take_grant_message(&channel)
                        && let Some(shares) = self.attempt.accept_handover(&message)
                    {
                        return Ok(Step::Break(Attempted::Granted(shares)));
                    }
                    // A hint from the beginning of the subscription does not mean that a rival was faster.
                    self.hints_in_a_row += u32::from(is_told);
                    self.has_recalled = !is_told;
                }
                Woken::Timer => {
                    (self.hints_in_a_row, self.has_recalled) = (0, false);
                }
                // Something changed inside the client, so there is no need to ask the server.
                Woken::Gained => {
                    marks = self.waiter.marks_but_messages(marks);
                    self.request().ensure_open()?;
                    if let Some(outcome) = self.entered_or_joined().await? {
                        return Ok(Step::Break(outcome));
                    }
                    continue;
                }
            }
            return Ok(Step::Continue(()));
        }
    }

    /// Moves to the queue of another lock, unless the deadline has passed.
    fn wait_for(&mut self, at: usize) -> Step {
        if self.clock().now() >= self.deadline() {
            return Step::Break(self.refused());
        }
        self.count_wait();
        // A call never waits for one place while it has another.
        self.place = None;
        self.request().queued.clear();
        self.place = take_place(self.requests(), at);
        (self.has_recalled, self.at) = (false, at);
        self.waiter = Waiter::new(self.request());
        Step::Continue(())
    }

    fn requests(&self) -> Requests<'a> {
        self.attempt.requests()
    }

    fn request(&self) -> &'a LockRequest {
        &self.requests().all[self.at]
    }

    fn local(&self) -> &'a Arc<LocalLock> {
        &self.request().local
    }

    /// The silence of the server towards the waiters for this lock. Where the lock queues at the server, each waiter
    /// has its own.
    fn silence(&self) -> &Silence {
        self.waiter.silence()
    }

    fn clock(&self) -> Clock {
        self.requests().core().clock
    }

    fn deadline(&self) -> Tick {
        self.requests().bound.deadline()
    }

    fn refused(&self) -> Attempted {
        Attempted::Refused {
            at: self.at,
            remaining: None,
        }
    }
}
