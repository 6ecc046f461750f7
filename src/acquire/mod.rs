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

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::{Error, Result};
use crate::hint::Mark;
use crate::hold::Hold;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::protocol::Protocol;
use crate::keys::LockName;
use crate::options::{Options, Term};
use crate::script::Call;
use crate::watchdog::Leased;
use attempt::{Candidate, Outcome};
use listen::Waiter;
use plan::Next;

/// How long the waiters of one client stand back for other processes after their share of turns.
const STAND_BACK: Duration = Duration::from_millis(2);

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
pub(crate) async fn run(ask: &Ask, wait: Wait) -> Result<Option<Arc<Hold>>> {
    let started = ask.core.clock.now();
    ask.core
        .ensure_open(ask.operation)
        .map_err(|error| named(ask, error))?;
    let local = ask.core.locals.enter(ask.protocol.kind(), ask.name.key());
    if let Some(hold) = reenter(ask, &local).await? {
        return Ok(Some(hold));
    }
    match wait {
        Wait::Never => once(ask, &local).await,
        Wait::For(limit) => queue(ask, &local, Some(started.after(limit))).await,
        Wait::Forever => queue(ask, &local, None).await,
    }
}

/// Enters the lock again, if the owner who asks has it.
async fn reenter(ask: &Ask, local: &LocalLock) -> Result<Option<Arc<Hold>>> {
    let Some(owner) = &ask.options.owner else {
        return Ok(None);
    };
    let Some(hold) = local.hold_of(owner) else {
        return Ok(None);
    };
    let entered = hold
        .reenter(Some(ask.term), ask.options.fenced, ask.operation)
        .await?;
    Ok(entered.then_some(hold))
}

/// One attempt, after what this client has given up was sent.
async fn once(ask: &Ask, local: &Arc<LocalLock>) -> Result<Option<Arc<Hold>>> {
    let leave_by = ask.core.clock.now().after(ask.core.timing.reply);
    loop {
        let mark = local.hint.mark();
        if !local.is_leaving() || ask.core.clock.now() >= leave_by {
            break;
        }
        tokio::select! {
            () = local.changed(mark) => {}
            () = ask.core.clock.sleep_until(leave_by) => {}
        }
    }
    match Candidate::new(ask, local)
        .attempt(Lane::Command, None)
        .await?
    {
        Outcome::Granted(hold) => Ok(Some(hold)),
        Outcome::Refused { .. } => Ok(None),
    }
}

/// Waits in the local queue, then at the server.
async fn queue(
    ask: &Ask,
    local: &Arc<LocalLock>,
    deadline: Option<Tick>,
) -> Result<Option<Arc<Hold>>> {
    let clock = ask.core.clock;
    let waiter = Waiter::enter(ask, local);
    let turn = tokio::select! {
        biased;
        turn = local.turn.acquire() => turn,
        hold = owner_gets_it(ask, local) => return hold.map(Some),
        () = clock.sleep_until(deadline.unwrap_or(Tick::NEVER)), if deadline.is_some() => {
            return Ok(None);
        }
    };
    // It is never closed; a place in the queue is all that matters.
    let _turn = turn;
    let mut candidate = Candidate::new(ask, local);
    let mut lane = Lane::Command;
    loop {
        ask.core
            .ensure_open(ask.operation)
            .map_err(|error| named(ask, error))?;
        let mark = local.hint.mark();
        if let Some(hold) = reenter(ask, local).await? {
            return Ok(Some(hold));
        }
        let now = clock.now();
        // Held or just given up in this client: its end gives a hint, and so does its loss.
        if local.held_until().is_some() || local.is_leaving() {
            let end = local.held_until().map(|until| now.until(until));
            match plan::next(now, deadline, end, ask.core.timing.lease) {
                Next::GiveUp => return Ok(None),
                Next::WaitUntil(at) => {
                    wait(ask, local, mark, at).await;
                }
            }
            continue;
        }
        if !local.may_pass(now) {
            let back = now.after(STAND_BACK);
            clock
                .sleep_until(deadline.map_or(back, |deadline| deadline.min(back)))
                .await;
        }
        let outcome = match lane {
            Lane::Push => match waiter.attempt_listening(&mut candidate, deadline).await {
                Err(error) if error.is_io() => {
                    // Listening is a help, not a need. The attempt is undone where it was made.
                    candidate = Candidate::new(ask, local);
                    candidate.attempt(Lane::Command, deadline).await?
                }
                other => other?,
            },
            lane => candidate.attempt(lane, deadline).await?,
        };
        let remaining = match outcome {
            Outcome::Granted(hold) => return Ok(Some(hold)),
            Outcome::Refused { remaining } => remaining,
        };
        local.end_passing();
        let next = plan::next(clock.now(), deadline, remaining, ask.core.timing.poll_cap);
        let Next::WaitUntil(at) = next else {
            return Ok(None);
        };
        if lane != Lane::Push && !waiter.is_listening().await {
            // Asks once more, behind the subscription: a release in between would go unheard.
            lane = Lane::Push;
            continue;
        }
        lane = match wait(ask, local, mark, at).await {
            // If it was a release of this client, then behind it.
            Woken::ByHint => Lane::Command,
            // Over the connection that has been silent: if it is dead, this finds out.
            Woken::ByTimer => Lane::Push,
        };
    }
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
async fn owner_gets_it(ask: &Ask, local: &LocalLock) -> Result<Arc<Hold>> {
    if ask.options.owner.is_none() {
        return std::future::pending().await;
    }
    loop {
        let mark = local.hint.mark();
        ask.core
            .ensure_open(ask.operation)
            .map_err(|error| named(ask, error))?;
        if let Some(hold) = reenter(ask, local).await? {
            return Ok(hold);
        }
        local.changed(mark).await;
    }
}

/// Asks a question about a lock: one script on the command lane, repeated until it is answered.
pub(crate) async fn query(
    core: &Core,
    name: &LockName,
    operation: &'static str,
    call: &Call,
) -> Result<Value> {
    let of_lock = |error: Error| error.of_lock(name.as_str());
    core.ensure_open(operation).map_err(of_lock)?;
    core.scripts
        .run(Lane::Command, call, core.patience(None))
        .await
        .map(|answer| answer.value)
        .map_err(|failure| of_lock(failure.into_error(operation)))
}

/// The server has taken the lock away from whoever held it: tells the holders of this client.
pub(crate) fn revoke(core: &Core, protocol: &dyn Protocol, name: &LockName) {
    for hold in core.locals.enter(protocol.kind(), name.key()).live_holds() {
        hold.revoked();
    }
}

fn named(ask: &Ask, error: Error) -> Error {
    error.of_lock(ask.name.as_str())
}
