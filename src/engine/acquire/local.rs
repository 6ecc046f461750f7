//! The part of a call that needs no server: it queues behind other tasks of its client, accepts a hand-off or a sticky
//! hold, joins the hold of a reader, or enters a hold of its own owner again.
//!
//! Invariants: nothing here asks the server for the lock. A task gets only a hold that the client already has. A call
//! that cannot use a sticky hold as it is asks the server behind the release of that hold. A waiting writer of this
//! client comes before the readers that arrived after it.

use std::future::Future;
use std::sync::Arc;

use tokio::task::coop::consume_budget;

use super::request::{Attempted, LockRequest, Requests};
use crate::api::error::Result;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::OwnersWaiter;
use crate::engine::hold::bound::{Bound, Over};
use crate::engine::hold::handoff::{Handoff, HandoffRequest};
use crate::engine::hold::protocol::Queue;
use crate::engine::hold::queue::Wants;
use crate::engine::hold::queue::place::QueuePlace;
use crate::engine::hold::reenter::{Entrance, LeaseSource, Reentry};
use crate::engine::hold::transfer::end_deferrals;
use crate::engine::hold::{Hold, Share};

/// Whether the calling owner has the lock, so that it can enter the hold again.
///
/// # Errors
/// Fails if the owner reads and wants to write, because it would wait for itself.
pub(super) fn is_owned(request: &LockRequest) -> Result<bool> {
    request.ensure_open()?;
    match owned_hold(request) {
        Some(hold) if request.mode == Mode::Exclusive && !hold.is_written() => {
            Err(hold.no_upgrade(request.operation))
        }
        hold => Ok(hold.is_some()),
    }
}

pub(super) fn owned_hold(request: &LockRequest) -> Option<Arc<Hold>> {
    let owner = request.options.owner.as_ref()?;
    request.local.hold_of(owner, request.core.clock.now())
}

/// Looks for a hold of the calling owner. A call for one lock enters the hold. A call for several locks reports that
/// the owner has one of them.
async fn owned(requests: Requests<'_>) -> Result<Option<Attempted>> {
    let Some(request) = requests.alone() else {
        let mut locks = requests.all.iter();
        let is_owned = locks.any(|request| hold_to_enter(request).is_some());
        return Ok(is_owned.then_some(Attempted::Owned));
    };
    let Some(hold) = hold_to_enter(request) else {
        return Ok(None);
    };
    let entrance = entrance(request, &hold, requests.bound).await?;
    let share = entrance.map(Share::entered).transpose()?.flatten();
    Ok(share.map(Attempted::granted))
}

/// Enters a hold of the caller's owner, or joins the hold of another reader.
pub(super) async fn owned_or_joined(
    requests: Requests<'_>,
    at: usize,
    place: Option<&QueuePlace<'_>>,
) -> Result<Option<Attempted>> {
    // The usual case: nothing to enter or join.
    let mut all = requests.all.iter();
    if all.all(|request| request.options.owner.is_none() && request.mode == Mode::Exclusive) {
        return Ok(None);
    }
    if let Some(outcome) = owned(requests).await? {
        return Ok(Some(outcome));
    }
    // Joining needs no wait, so a task that keeps joining has to let other tasks run.
    consume_budget().await;
    let joined = join(&requests.all[at], place);
    Ok(joined.map(Attempted::granted))
}

/// The hold of the owner that a waiter can enter. A writer cannot enter a hold that only reads, but it can wait:
/// another task of its owner may end that hold.
fn hold_to_enter(request: &LockRequest) -> Option<Arc<Hold>> {
    let hold = owned_hold(request)?;
    (request.mode == Mode::Shared || hold.is_written()).then_some(hold)
}

/// Prepares one more share of this hold, if the calling owner has it.
///
/// # Errors
/// As for [`is_owned`].
pub(super) async fn entrance(
    request: &LockRequest,
    hold: &Arc<Hold>,
    bound: &Bound,
) -> Result<Option<Entrance>> {
    let Some(owner) = &request.options.owner else {
        return Ok(None);
    };
    let reentry = Reentry {
        owner: owner.clone(),
        mode: request.mode,
        entry: LeaseSource::Asked(request.policy),
        fenced: request.options.fenced,
        operation: request.operation,
    };
    // Boxed: it is rare and large.
    Box::pin(hold.entrance(reentry, Some(bound))).await
}

/// Accepts a hand-off from another task of this client. `None` if the share is lost by now.
pub(super) fn take_over(request: &LockRequest, handoff: Handoff) -> Result<Option<Attempted>> {
    request.ensure_open()?;
    let share = Share::handed_off(handoff, request.options.group);
    Ok(share.map(Attempted::granted))
}

/// Takes the sticky hold if the call can use it as it is. `None` means that the server has to be asked, and that a
/// sticky hold that does not fit is being released. Unless `is_next` is set, the waiters in the local queue come first.
pub(super) fn take_sticky(requests: Requests<'_>, is_next: bool) -> Result<Option<Attempted>> {
    let mut all = requests.all.iter();
    if all.all(|request| request.local.lock().sticky.is_none()) {
        return Ok(None);
    }
    let Some(request) = requests.alone() else {
        let locals = requests.all.iter().map(|request| &request.local);
        locals.for_each(|local| drop(local.take_sticky()));
        return Ok(None);
    };
    let local = &request.local;
    if !is_next && local.lock().queue().has_waiter_blocked_by(Mode::Exclusive) {
        return Ok(None);
    }
    let Some(sticky) = local.take_sticky() else {
        return Ok(None);
    };
    if request.mode == Mode::Shared || request.protocol.queue() == Queue::Server {
        return Ok(None);
    }
    let Some(handoff) = sticky.pass_on(&handoff_request(request)) else {
        return Ok(None);
    };
    take_over(request, handoff)
}

/// Takes a share of the client's read hold, if that hold admits this reader. `place` is the reader's place in the local
/// queue, if it has one.
fn join(request: &LockRequest, place: Option<&QueuePlace<'_>>) -> Option<Share> {
    let terms = request.joins_on()?;
    let local = &request.local;
    let is_writer_first = match place {
        Some(place) => place.is_behind_alone(),
        None => local.lock().queue().has_alone(),
    };
    if is_writer_first {
        return None;
    }
    Share::joined(&request.core, local, &terms, request.options.group)
}

/// Ends the deferred downgrades that would keep out the readers of this call. A write hold that readers of this client
/// use in memory becomes a read hold at the server, before a reader that cannot join them asks.
pub(super) fn end_deferrals_for_readers(requests: Requests<'_>) {
    let readers = requests.all.iter();
    for request in readers.filter(|request| request.mode == Mode::Shared) {
        let _whether_there_was_one = end_deferrals(&request.local);
    }
}

/// Finds a lock that a task of this client holds exclusively. Returns its index and the local deadline of that hold.
/// The lock at `at` is checked first. Locks that queue at the server are skipped, because their waiters have to ask to
/// keep their places.
pub(super) fn held_here(requests: Requests<'_>, at: usize) -> Option<(usize, Tick)> {
    let now = requests.core().clock.now();
    let others = (0..requests.all.len()).filter(|index| *index != at);
    std::iter::once(at)
        .chain(others)
        .filter(|index| requests.all[*index].protocol.queue() != Queue::Server)
        .find_map(|index| {
            let state = requests.all[index].local.lock();
            Some((index, state.grants.exclusive_until(now)?))
        })
}

/// Takes a place in the local queue. `None` if the lock queues at the server. A call for several locks accepts no
/// hand-off.
pub(super) fn take_place<'a>(requests: Requests<'a>, at: usize) -> Option<QueuePlace<'a>> {
    let request = &requests.all[at];
    if request.protocol.queue() == Queue::Server {
        return None;
    }
    let place = QueuePlace::take(
        &request.local,
        match request.mode {
            Mode::Exclusive => Wants::Alone(requests.alone().map(handoff_request)),
            Mode::Shared => Wants::Together(request.joins_on()),
        },
    );
    request.queued.note(place.number());
    request.local.note_wanted();
    Some(place)
}

/// The terms that a hold must meet to be handed off to this request.
pub(super) fn handoff_request(request: &LockRequest) -> HandoffRequest {
    HandoffRequest {
        options: request.options.clone(),
        policy: request.policy,
    }
}

/// How a task's wait behind others of its client ended.
pub(crate) enum Turn<T> {
    /// The task is at the head and asks next.
    Head,
    /// Another task of the owner got the lock, and this task has entered it.
    Entered(T),
    /// The task has waited until its deadline, or as long as it may without an answer.
    Over(Over),
}

/// Waits in the local queue. A task that was passed over is next. If another task of the owner gets the lock, `enter`
/// enters it, and this task need not reach the head.
pub(crate) async fn turn<T, E>(
    request: &LockRequest,
    place: &QueuePlace<'_>,
    bound: &Bound,
    enter: impl Fn() -> E,
) -> Result<Turn<T>>
where
    E: Future<Output = Result<Option<T>>>,
{
    if place.is_head() {
        return Ok(Turn::Head);
    }
    request.core.watch_heads(&request.local);
    tokio::select! {
        biased;
        () = place.turn() => Ok(Turn::Head),
        // Boxed: it is rare and large.
        entered = async { Box::pin(another_gets_it(request, enter)).await },
            if request.options.owner.is_some() => entered.map(Turn::Entered),
        over = request.local.silence().until_over(request.core.clock, bound) => Ok(Turn::Over(over)),
    }
}

/// Lists a call with an owner as a waiter of that owner, because another task may get a hold that the call can enter.
pub(super) fn wait_for_owner(request: &LockRequest) -> Option<OwnersWaiter<'_>> {
    let owner = request.options.owner.as_ref()?;
    Some(request.local.rare().acquired_here.wait_as(owner))
}

/// Waits until another task of the owner gets the lock, and enters that hold, from any place in the queue. Never
/// resolves for a call without an owner.
async fn another_gets_it<T, E>(request: &LockRequest, enter: impl Fn() -> E) -> Result<T>
where
    E: Future<Output = Result<Option<T>>>,
{
    let Some(waiter) = wait_for_owner(request) else {
        return std::future::pending().await;
    };
    let owner_waiters = waiter.hint();
    let closing = &request.core.closing;
    loop {
        let marks = (owner_waiters.mark(), closing.mark());
        request.ensure_open()?;
        if let Some(entered) = enter().await? {
            return Ok(entered);
        }
        tokio::select! {
            biased;
            () = owner_waiters.changed_since(marks.0) => {}
            () = closing.changed_since(marks.1) => {}
        }
    }
}
