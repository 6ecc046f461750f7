//! Locks that need not be asked for: an owner's own, and what another task gives.

use std::sync::Arc;

use super::{LockRequest, ensure_open};
use crate::counts::Mode;
use crate::error::Result;
use crate::hold::bound::Bound;
use crate::hold::handoff::Handoff;
use crate::hold::local::LocalLock;
use crate::hold::reenter::Entry;
use crate::hold::{Hold, Share};

/// Enters the lock again, if the owner who asks has it.
///
/// # Errors
/// If the owner reads and wants to write: it would wait for itself.
pub(crate) async fn reenter(request: &LockRequest, bound: &Bound) -> Result<Option<Share>> {
    ensure_open(request)?;
    let Some(hold) = owned_hold(request) else {
        return Ok(None);
    };
    enter_again(request, &hold, bound).await
}

/// Whether the owner who asks has the lock, and can enter it again.
///
/// # Errors
/// As for [`reenter`].
pub(crate) fn is_owned(request: &LockRequest) -> Result<bool> {
    ensure_open(request)?;
    match owned_hold(request) {
        Some(hold) if request.mode == Mode::Exclusive && !hold.is_exclusive() => {
            Err(hold.no_upgrade(request.operation))
        }
        hold => Ok(hold.is_some()),
    }
}

fn owned_hold(request: &LockRequest) -> Option<Arc<Hold>> {
    let owner = request.options.owner.as_ref()?;
    let local = request
        .core
        .locals
        .get_or_insert(request.protocol.kind(), request.name.key());
    local.hold_of(owner)
}

/// A hold that a waiter can enter. Not one that only reads, if it wants to write: another task of
/// its owner may end that.
pub(super) fn hold_to_enter(request: &LockRequest, local: &LocalLock) -> Option<Arc<Hold>> {
    let hold = local.hold_of(request.options.owner.as_ref()?)?;
    (request.mode == Mode::Shared || hold.is_exclusive()).then_some(hold)
}

/// What another task of this client has given, once the server agrees to all of it; `None` if it is
/// lost by then.
pub(super) async fn take_over(
    request: &LockRequest,
    handoff: Handoff,
    bound: &Bound,
) -> Result<Option<Share>> {
    let Handoff {
        mut share,
        is_complete,
    } = handoff;
    ensure_open(request)?;
    let is_held = match is_complete {
        true => {
            share.accept_handoff();
            !share.is_lost()
        }
        false => {
            share
                .adopt(request.policy, request.operation, bound)
                .await?
        }
    };
    Ok(is_held.then_some(share))
}

pub(super) async fn enter_again(
    request: &LockRequest,
    hold: &Arc<Hold>,
    bound: &Bound,
) -> Result<Option<Share>> {
    let Some(owner) = &request.options.owner else {
        return Ok(None);
    };
    let (entry, fenced) = (Entry::Asked(request.policy), request.options.fenced);
    hold.reenter(
        owner,
        request.mode,
        entry,
        fenced,
        request.operation,
        Some(bound),
    )
    .await
}
