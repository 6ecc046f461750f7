//! A hold passes from one task of this client to the next: it stays the same at the server, with another owner here.
//!
//! Invariants: [`HoldState::can_hand_off`](super::state::HoldState::can_hand_off) decides which holds pass on.
//! Hand-offs stay within the budget of the lock, for the sake of other processes, and happen only while no operation on
//! the counts is under way. A hand-off changes nothing at the server, and never uses a token twice.

use std::sync::Arc;
use std::time::Duration;

use super::event::{Event, NextOwner};
use super::handoff::{HANDOFFS_MAX, HandedOff, Handoff, HandoffRequest};
use super::loss::SharedHold;
use super::protocol::Queue;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use super::state::HoldState;
use crate::api::holder::{HolderId, Owner};
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

impl Hold {
    /// Hands the caller's share on to the head of the local queue. True if the head has it now.
    pub(super) fn hand_off_next(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        // Tasks that arrive after this ask behind the release.
        if self.protocol.queue() == Queue::Server {
            return self.loss_of(lease).is_none() && self.hand_to_follower(lease);
        }
        let is_last = mode == Mode::Exclusive || self.state().is_last_of_deferred();
        if !is_last
            || !self.local.queue.has_waiter_blocked_by(Mode::Exclusive)
            || self.loss_of(lease).is_some()
        {
            return false;
        }
        self.hand_off(lease) || self.pass_to_readers(mode, lease)
    }

    fn hand_off(self: &Arc<Self>, lease: ShareLease) -> bool {
        let Some(_nothing_under_way) = self.begin_operation() else {
            return false;
        };
        let local = &self.local;
        let mut owner = None;
        let is_handed_off = local.queue.hand_off(|request| {
            owner.clone_from(&request.owner);
            self.hand_off_to(request, lease, None, |now| {
                local.turns().try_spend_handoff(now)
            })
        });
        if is_handed_off && let Some(owner) = owner {
            local.acquired_here.notify(&owner);
        }
        is_handed_off
    }

    /// Hands the hold off to a task that came while it was without a guard.
    pub(super) fn hand_off_later(
        self: &Arc<Self>,
        request: &HandoffRequest,
        lease: ShareLease,
    ) -> Option<Handoff> {
        if self.loss_of(lease).is_some() {
            return None;
        }
        let _nothing_under_way = self.begin_operation()?;
        // Its span is the bound for the sake of others.
        let handoff = self.hand_off_to(request, lease, None, |_| true)?;
        if let Some(owner) = &request.owner {
            self.local.acquired_here.notify(owner);
        }
        Some(handoff)
    }

    /// Hands the hold off to the waiter directly behind it in the queue at the server, if that is one of this client.
    /// Nobody is passed over, and the release takes the used places out of the queue.
    fn hand_to_follower(self: &Arc<Self>, lease: ShareLease) -> bool {
        let Some(_nothing_under_way) = self.begin_operation() else {
            return false;
        };
        let ahead = {
            let state = self.state();
            if state.token().is_some() {
                return false;
            }
            self.last_place(&state)
        };
        let local = &self.local;
        let mut owner = None;
        let now = self.core.clock.now();
        let is_handed_off = local.followers.hand_off(&ahead, now, |request, place| {
            owner.clone_from(&request.owner);
            let near = Duration::ZERO;
            let may_go_on = |now| self.passes.lock().try_spend(now, near, HANDOFFS_MAX);
            self.hand_off_to(request, lease, Some(place), may_go_on)
        });
        if is_handed_off && let Some(owner) = owner {
            local.acquired_here.notify(&owner);
        }
        is_handed_off
    }

    /// The place at the server that the present owner came from.
    fn last_place(&self, state: &HoldState) -> HolderId {
        *state.places().last().unwrap_or(&self.holder)
    }

    /// Has used places removed once the server answers again. Unlike a hold, they do not end with a lease.
    pub(super) fn leave_places(&self) {
        let unguarded = self.unguarded(&self.state());
        if !unguarded.places.is_empty() {
            self.core.undo_unguarded(&unguarded, Lane::Command);
        }
    }

    /// Has the waiter behind it ask the server, now that it has ended.
    pub(super) fn wake_follower(&self) {
        if self.protocol.queue() == Queue::Server {
            let last = self.last_place(&self.state());
            self.local.followers.leave(&last);
        }
    }

    fn hand_off_to(
        self: &Arc<Self>,
        request: &HandoffRequest,
        lease: ShareLease,
        place: Option<HolderId>,
        may_go_on: impl FnOnce(Tick) -> bool,
    ) -> Option<Handoff> {
        let now = self.core.clock.now();
        let state = self.state();
        if !state.can_hand_off(now, lease, request.policy, request.fenced)
            || request.replication != self.replication
            || !self.is_alone()
            || !may_go_on(now)
        {
            return None;
        }
        let owner = request.owner.clone().unwrap_or_else(Owner::new);
        let after = ShareLease::of(request.policy, now, now);
        let next = NextOwner {
            owner: owner.clone(),
            fenced: request.fenced,
            give_up: request.give_up,
            before: lease,
            after,
            place,
        };
        self.apply_to(state, now, Event::HandedOff(next));
        let share = RawShare::new(Arc::clone(self), owner, Mode::Exclusive, after);
        Some(share.into_handoff())
    }
}

impl RawShare {
    /// Puts the share on its way to another task.
    pub(super) fn into_handoff(self) -> Handoff {
        Handoff::new(self.hold as _, self.owner, self.mode, self.lease)
    }
}

impl HandedOff for Hold {
    fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease) {
        if mode == Mode::Shared {
            // Take it first, so that it no longer counts as unclaimed.
            self.apply(Event::HandoffAccepted(mode));
        }
        let now = self.core.clock.now();
        RawShare::new(self, owner, mode, lease).release_later(now);
    }

    fn pass_on(self: Arc<Self>, lease: ShareLease, request: &HandoffRequest) -> Option<Handoff> {
        self.hand_off_later(request, lease)
    }
}
