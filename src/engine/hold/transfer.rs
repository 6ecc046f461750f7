//! A hold passes from one task of this client to the next: it stays the same at the server, with another owner here.
//!
//! Invariants: [`State::can_hand_off`](super::state::State::can_hand_off) decides which holds pass on. Hand-offs stay
//! within the budget of the lock, for the sake of other processes, and happen only while no operation on the counts
//! is under way. A hand-off never shortens a lease, and never uses a token twice.

use std::sync::Arc;

use super::bound::Bound;
use super::event::{Event, NextOwner};
use super::handoff::{HandedOff, Handoff, HandoffRequest};
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::error::Result;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

impl Hold {
    /// Hands the caller's share on to the head of the local queue. True if the head has it now.
    pub(super) fn hand_on(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        // Tasks that come from here on ask behind the release.
        let is_last = mode == Mode::Exclusive || self.state().is_last_of_deferred();
        if !is_last || !self.local.queue.is_wanted(Mode::Exclusive) || self.loss_of(lease).is_some()
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
            self.hand_off_to(request, lease, |now| local.try_spend_handoff(now))
        });
        if is_handed_off && let Some(owner) = owner {
            local.gained.give(&owner);
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
        let handoff = self.hand_off_to(request, lease, |_| true)?;
        if let Some(owner) = &request.owner {
            self.local.gained.give(owner);
        }
        Some(handoff)
    }

    fn hand_off_to(
        self: &Arc<Self>,
        request: &HandoffRequest,
        lease: ShareLease,
        may_go_on: impl FnOnce(Tick) -> bool,
    ) -> Option<Handoff> {
        let now = self.core.clock.now();
        let state = self.state();
        let reply = self.core.timing.reply;
        let is_complete = state.can_hand_off(now, lease, request.policy, request.fenced, reply)?;
        let is_replicated = match request.replication {
            None => true,
            wanted => is_complete && wanted == self.replication,
        };
        if !is_replicated || !self.is_alone() || !may_go_on(now) {
            return None;
        }
        let owner = request.owner.clone().unwrap_or_else(Owner::new);
        let before = lease;
        // Another lease is set only after the server has agreed to it.
        let after = if is_complete {
            ShareLease::of(request.policy, now, now)
        } else {
            before
        };
        let next = NextOwner {
            owner: owner.clone(),
            fenced: request.fenced,
            give_up: request.give_up,
            before,
            after,
        };
        self.apply_to(state, now, Event::HandedOff(next));
        Some(Handoff::new(
            Arc::clone(self) as _,
            owner,
            after,
            is_complete,
        ))
    }

    /// Asks the server for another lease, for a hold that another task of this client has handed off. `None` if it is
    /// lost.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        policy: LeasePolicy,
        operation: &'static str,
        bound: &Bound,
    ) -> Result<Option<ShareLease>> {
        let (this, budget) = (Arc::clone(self), self.call_budget_of(Some(bound)));
        let lease = policy.lease();
        let adopting = async move {
            let _one_at_a_time = this.one_at_a_time(budget, operation).await?;
            this.ask_for_lease(lease, operation, budget).await
        };
        let Some(answer) = self.driven(operation, adopting).await? else {
            return Ok(None);
        };
        let sent = answer.sent;
        let granted = self.apply(Event::LeaseGranted { sent, lease });
        let share = ShareLease::of(policy, sent, self.core.clock.now());
        Ok(granted.is_accepted.then_some(share))
    }
}

impl HandedOff for Hold {
    fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease) {
        if mode == Mode::Shared {
            // Take it first, so that it no longer counts as unclaimed.
            self.apply(Event::HandoffAccepted(mode));
        }
        let share = RawShare {
            hold: self,
            owner,
            mode,
            lease,
            kept_until: Tick::ZERO,
        };
        share.release_later();
    }

    fn pass_on(self: Arc<Self>, lease: ShareLease, request: &HandoffRequest) -> Option<Handoff> {
        self.hand_off_later(request, lease)
    }
}
