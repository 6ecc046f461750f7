//! Hand-off from one task of this client to the next: the same hold at the server, another owner here.
//!
//! Invariants: only a hold that is certain and is one exclusive share goes from task to task, with most of
//! its lease left and with no operation on its counts under way; it does so within the bounds that
//! [`LocalLock`](super::local::LocalLock) sets for the sake of other processes. A hand-off never shortens
//! a lease, and never uses a token twice.

use std::sync::Arc;
use std::time::Duration;

use super::{Hold, Phase, Share, ShareLease, State};
use crate::counts::{Counts, Mode};
use crate::fencing::FencingToken;
use crate::options::{LeasePolicy, Replication};
use crate::owner::Owner;

/// What a waiter would take over from another task.
#[derive(Clone, Debug)]
pub(crate) struct HandoffRequest {
    pub(crate) owner: Option<Owner>,
    pub(crate) policy: LeasePolicy,
    pub(crate) fenced: bool,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

/// What a waiter is handed.
#[derive(Debug)]
pub(crate) struct Handoff {
    pub(crate) share: Share,
    /// Whether it is all that was requested. If not, the server has to agree to the lease.
    pub(crate) is_complete: bool,
}

impl Hold {
    /// Hands the caller's share off to the head of the local queue. True if that has it now.
    pub(super) fn hand_off(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        if mode != Mode::Exclusive || self.loss_of(lease).is_some() {
            return false;
        }
        let Ok(_nothing_under_way) = self.operation.try_lock() else {
            return false;
        };
        let is_handed_off = self
            .local
            .queue
            .hand_off(|request| self.handoff_to(request, lease));
        if is_handed_off {
            self.local.gained.give();
        }
        is_handed_off
    }

    /// The task that it was handed off to has taken it.
    pub(super) fn accept_handoff(&self) {
        let look = {
            let mut state = self.state.lock();
            state.unclaimed = false;
            state.next_look()
        };
        let now = self.core.clock.now();
        if look <= now {
            // Put off when it was due.
            self.core.watchdog.shift(self.number, now);
        }
    }

    fn handoff_to(
        self: &Arc<Self>,
        request: &HandoffRequest,
        lease: ShareLease,
    ) -> Option<Handoff> {
        let now = self.core.clock.now();
        let mut state = self.state.lock();
        if !state.is_one_certain_share() || !self.groups.lock().is_empty() {
            return None;
        }
        let policy = request.policy;
        let is_complete =
            matches!(lease, ShareLease::Renewed(lease) if policy == LeasePolicy::Renewed(lease));
        let remaining = now.until(state.deadline);
        let fits = if is_complete {
            remaining >= policy.lease() / 2
        } else {
            // The server can agree to the other lease in time, and need not shorten this one.
            remaining >= self.core.timing.reply && now.after(policy.lease()) >= state.server_end()
        };
        let is_replicated = match request.replication {
            None => true,
            wanted => is_complete && wanted == self.replication,
        };
        let has_token = !request.fenced || !state.spare_tokens.is_empty();
        if !fits || !is_replicated || !has_token || !self.local.try_spend_handoff(now) {
            return None;
        }
        let owner = request.owner.clone().unwrap_or_else(Owner::new);
        state.owner = owner.clone();
        state.unclaimed = true;
        state.guarded = false;
        state.give_up = request.give_up;
        state.token = if request.fenced {
            state.spare_tokens.next().map(FencingToken::from)
        } else {
            None
        };
        drop(state);
        Some(Handoff {
            share: Share::of(Arc::clone(self), Mode::Exclusive, owner, lease),
            is_complete,
        })
    }
}

impl State {
    /// Whether all there is of it is one exclusive share, and the server is known to have just that.
    fn is_one_certain_share(&self) -> bool {
        let one = Counts::one(Mode::Exclusive);
        self.phase == Phase::Held
            && self.counts == one
            && self.forgotten.is_none()
            && self.confirmed == Some(one)
            && self.doubted.is_none()
            && !self.unsent
    }
}
