//! The wait engine: attempt, plan, wait for a hint or a timer, again.
//!
//! Of all tasks of a client that want one lock, only the head of the local queue talks to the
//! server. Invariants: a hint only ever leads to another attempt; every wait has a timer; the
//! server is asked again after a subscription is confirmed and after every gap; a future dropped
//! anywhere in here leaves no hold, no queue place and no subscription behind.

mod attempt;
mod listen;
mod plan;
#[cfg(test)]
mod tests;
mod undo;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::{Error, Result};
use crate::hint::Mark;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::protocol::Protocol;
use crate::hold::{Hold, Share};
use crate::keys::LockName;
use crate::options::{Options, Term};
use crate::script::{Answer, Call};
use attempt::{Candidate, Outcome};
use listen::Waiter;
use plan::Next;

/// How long the waiters of one client stand back for other processes after their share of turns.
const STAND_BACK: Duration = Duration::from_millis(2);

/// After a subscription could not be made, it is not tried again for this many polls.
const POLLS_WITHOUT_LISTENING: u32 = 4;

/// So many hints in a row may lead to an attempt in vain; from then on there is a pause before each.
const HINTS_IN_A_ROW_MAX: u32 = 16;
const HINT_PAUSE: Duration = Duration::from_millis(5);

/// Who wants what, on which terms.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) core: Arc<Core>,
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) name: LockName,
    pub(crate) options: Options,
    pub(crate) term: Term,
    /// The verb that was called, for errors.
    pub(crate) operation: &'static str,
}

/// How long to wait for a lock that is held elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Never,
    For(Duration),
    Forever,
}

/// Takes the lock, or says that it did not become free in time.
pub(crate) async fn run(ask: &Ask, wait: Wait) -> Result<Option<Share>> {
    ask.core
        .ensure_open(ask.operation)
        .map_err(|error| named(ask, error))?;
    let local = ask.core.locals.enter(ask.protocol.kind(), ask.name.key());
    let deadline = match wait {
        Wait::For(limit) => Some(ask.core.clock.now().after(limit)),
        Wait::Never | Wait::Forever => None,
    };
    if let Some(share) = reenter(ask, &local, deadline).await? {
        return Ok(Some(share));
    }
    match wait {
        Wait::Never => once(ask, &local).await,
        Wait::For(_) | Wait::Forever => queue(ask, &local, deadline).await,
    }
}

/// Enters the lock again, if the owner who asks has it.
async fn reenter(ask: &Ask, local: &LocalLock, deadline: Option<Tick>) -> Result<Option<Share>> {
    let Some(owner) = &ask.options.owner else {
        return Ok(None);
    };
    let Some(hold) = local.hold_of(owner) else {
        return Ok(None);
    };
    let fenced = ask.options.fenced;
    hold.reenter(Some(ask.term), fenced, ask.operation, deadline)
        .await
}

/// Resolves once what this client has given up of a lock was sent; what it asks then is asked
/// behind that. Not later than a reply would take, nor than the deadline.
async fn left(ask: &Ask, local: &LocalLock, deadline: Option<Tick>) {
    if !local.is_leaving() {
        return;
    }
    let leave_by = ask.core.clock.now().after(ask.core.timing.reply);
    let leave_by = deadline.map_or(leave_by, |deadline| leave_by.min(deadline));
    loop {
        let mark = local.hint.mark();
        if !local.is_leaving() || ask.core.clock.now() >= leave_by {
            return;
        }
        wait(ask, local, mark, leave_by).await;
    }
}

/// One attempt.
async fn once(ask: &Ask, local: &Arc<LocalLock>) -> Result<Option<Share>> {
    left(ask, local, None).await;
    let patience = ask.core.patience(None);
    let mut candidate = Candidate::new(ask, local);
    match candidate.attempt(Lane::Command, patience).await? {
        Outcome::Granted(share) => Ok(Some(share)),
        Outcome::Refused { .. } => Ok(None),
    }
}

/// Waits in the local queue, then at the server.
async fn queue(ask: &Ask, local: &Arc<LocalLock>, deadline: Option<Tick>) -> Result<Option<Share>> {
    let waiter = Waiter::enter(ask, local);
    let turn = tokio::select! {
        biased;
        turn = local.turn.acquire() => turn,
        share = owner_gets_it(ask, local, deadline) => return share.map(Some),
        () = ask.core.clock.sleep_until(deadline.unwrap_or(Tick::NEVER)), if deadline.is_some() => {
            return Ok(None);
        }
    };
    // It is never closed; a place in the queue is all that matters.
    let _turn = turn;
    at_the_head(ask, local, &waiter, deadline).await
}

/// The wait of the head of the local queue: it alone talks to the server.
async fn at_the_head(
    ask: &Ask,
    local: &Arc<LocalLock>,
    waiter: &Waiter<'_>,
    deadline: Option<Tick>,
) -> Result<Option<Share>> {
    let Ask { core, .. } = ask;
    let clock = core.clock;
    let mut candidate = Candidate::new(ask, local);
    let mut lane = Lane::Command;
    let mut hints_in_a_row = 0;
    loop {
        core.ensure_open(ask.operation)
            .map_err(|error| named(ask, error))?;
        let mark = local.hint.mark();
        if let Some(share) = reenter(ask, local, deadline).await? {
            return Ok(Some(share));
        }
        let now = clock.now();
        // Held in this client: its end gives a hint, and so does its loss.
        if let Some(held_until) = local.held_until() {
            let end = Some(now.until(held_until));
            match plan::next(now, deadline, end, core.timing.lease) {
                Next::GiveUp => return Ok(None),
                Next::WaitUntil(at) => {
                    wait(ask, local, mark, at).await;
                }
            }
            continue;
        }
        left(ask, local, deadline).await;
        if !local.may_pass(now) {
            pause(ask, STAND_BACK, deadline).await;
        } else if hints_in_a_row > HINTS_IN_A_ROW_MAX {
            pause(ask, HINT_PAUSE, deadline).await;
        }
        let mut outcome = None;
        if lane == Lane::Push && waiter.may_listen(deadline) {
            match waiter.attempt_listening(&mut candidate, deadline).await {
                Ok(answer) => outcome = Some(answer),
                // Listening is a help, not a need: goes on without. If it is the lock that is the
                // matter, the other lane says the same.
                Err(_) => {
                    let polls = core.timing.poll_cap * POLLS_WITHOUT_LISTENING;
                    local.listen_after(clock.now().after(polls));
                    candidate = Candidate::new(ask, local);
                }
            }
        }
        let outcome = match outcome {
            Some(outcome) => outcome,
            None => {
                candidate
                    .attempt(Lane::Command, core.patience(deadline))
                    .await?
            }
        };
        let remaining = match outcome {
            Outcome::Granted(share) => return Ok(Some(share)),
            Outcome::Refused { remaining } => remaining,
        };
        local.end_passing();
        let next = plan::next(clock.now(), deadline, remaining, core.timing.poll_cap);
        let Next::WaitUntil(at) = next else {
            return Ok(None);
        };
        if lane != Lane::Push && waiter.may_listen(deadline) && !waiter.is_listening() {
            // Asks once more, behind the subscription: a release in between would go unheard.
            lane = Lane::Push;
            continue;
        }
        lane = match wait(ask, local, mark, at).await {
            Woken::ByHint => {
                hints_in_a_row += 1;
                // If it was a release of this client, then behind it.
                Lane::Command
            }
            Woken::ByTimer => {
                hints_in_a_row = 0;
                // Over the connection that has been silent: if it is dead, this finds out.
                Lane::Push
            }
        };
    }
}

async fn pause(ask: &Ask, span: Duration, deadline: Option<Tick>) {
    let end = ask.core.clock.now().after(span);
    let end = deadline.map_or(end, |deadline| deadline.min(end));
    ask.core.clock.sleep_until(end).await;
}

enum Woken {
    ByHint,
    ByTimer,
}

async fn wait(ask: &Ask, local: &LocalLock, mark: Mark, at: Tick) -> Woken {
    tokio::select! {
        biased;
        () = local.changed(mark) => Woken::ByHint,
        () = ask.core.clock.sleep_until(at) => Woken::ByTimer,
    }
}

/// Resolves when the owner who asks gets the lock through another of its tasks: then it enters at
/// once, wherever it stands in the queue.
async fn owner_gets_it(ask: &Ask, local: &LocalLock, deadline: Option<Tick>) -> Result<Share> {
    if ask.options.owner.is_none() {
        return std::future::pending().await;
    }
    loop {
        let mark = local.hint.mark();
        ask.core
            .ensure_open(ask.operation)
            .map_err(|error| named(ask, error))?;
        if let Some(share) = reenter(ask, local, deadline).await? {
            return Ok(share);
        }
        local.changed(mark).await;
    }
}

/// Asks something of a lock: one script on the command lane, repeated until it is answered.
pub(crate) async fn query(
    core: &Core,
    name: &LockName,
    operation: &'static str,
    call: &Call,
) -> Result<Answer> {
    let of_lock = |error: Error| error.of_lock(name.as_str());
    core.ensure_open(operation).map_err(of_lock)?;
    core.scripts
        .run(Lane::Command, call, core.patience(None))
        .await
        .map_err(|failure| of_lock(failure.into_error(operation)))
}

/// The holds of this client on a lock, to be told if the server takes the lock away from them.
pub(crate) fn holds(core: &Core, protocol: &dyn Protocol, name: &LockName) -> Vec<Arc<Hold>> {
    let local = core.locals.enter(protocol.kind(), name.key());
    local.live_holds()
}

fn named(ask: &Ask, error: Error) -> Error {
    error.of_lock(ask.name.as_str())
}
