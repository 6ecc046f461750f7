//! Locks that need not be asked for: an owner's own, and what another task gives.

use std::sync::Arc;

use super::{Ask, ensure_open};
use crate::counts::Mode;
use crate::error::Result;
use crate::hold::bound::Bound;
use crate::hold::line::Given;
use crate::hold::local::LocalLock;
use crate::hold::reenter::Entry;
use crate::hold::{Hold, Share};

/// Enters the lock again, if the owner who asks has it.
///
/// # Errors
/// If the owner reads and wants to write: it would wait for itself.
pub(crate) async fn reenter(ask: &Ask, bound: &Bound) -> Result<Option<Share>> {
    ensure_open(ask)?;
    let Some(hold) = owned_hold(ask) else {
        return Ok(None);
    };
    enter_again(ask, &hold, bound).await
}

/// Whether the owner who asks has the lock, and can enter it again.
///
/// # Errors
/// As for [`reenter`].
pub(crate) fn is_owned(ask: &Ask) -> Result<bool> {
    ensure_open(ask)?;
    match owned_hold(ask) {
        Some(hold) if ask.mode == Mode::Exclusive && !hold.is_exclusive() => {
            Err(hold.no_upgrade(ask.operation))
        }
        hold => Ok(hold.is_some()),
    }
}

fn owned_hold(ask: &Ask) -> Option<Arc<Hold>> {
    let owner = ask.options.owner.as_ref()?;
    let local = ask.core.locals.enter(ask.protocol.kind(), ask.name.key());
    local.hold_of(owner)
}

/// A hold that a waiter can enter. Not one that only reads, if it wants to write: another task of
/// its owner may end that.
pub(super) fn hold_to_enter(ask: &Ask, local: &LocalLock) -> Option<Arc<Hold>> {
    let hold = local.hold_of(ask.options.owner.as_ref()?)?;
    (ask.mode == Mode::Shared || hold.is_exclusive()).then_some(hold)
}

/// What another task of this client has given, once the server agrees to all of it; `None` if it is
/// lost by then.
pub(super) async fn take_over(ask: &Ask, given: Given, bound: &Bound) -> Result<Option<Share>> {
    let Given {
        mut share,
        is_complete,
    } = given;
    ensure_open(ask)?;
    let is_held = match is_complete {
        true => {
            share.taken();
            !share.is_lost()
        }
        false => share.adopt(ask.term, ask.operation, bound).await?,
    };
    Ok(is_held.then_some(share))
}

pub(super) async fn enter_again(
    ask: &Ask,
    hold: &Arc<Hold>,
    bound: &Bound,
) -> Result<Option<Share>> {
    let Some(owner) = &ask.options.owner else {
        return Ok(None);
    };
    let (entry, fenced) = (Entry::Asked(ask.term), ask.options.fenced);
    hold.reenter(owner, ask.mode, entry, fenced, ask.operation, Some(bound))
        .await
}
