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
use crate::api::lost::LostReason;
use crate::api::options::LeasePolicy;
use crate::api::owner::Owner;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::script::{Call, millis, reply};

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
        let Ok(_nothing_under_way) = self.operation.try_lock() else {
            return false;
        };
        let queue = &self.local.queue;
        let local = &self.local;
        let is_handed_off = queue.hand_off(|request| {
            self.hand_off_to(request, lease, |now| local.try_spend_handoff(now))
        });
        if is_handed_off {
            self.local.gained.give();
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
        let _nothing_under_way = self.operation.try_lock().ok()?;
        // The sticky span is the limit for the sake of others.
        let handoff = self.hand_off_to(request, lease, |_| true)?;
        self.local.gained.give();
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
        &self,
        policy: LeasePolicy,
        operation: &'static str,
        bound: &Bound,
    ) -> Result<Option<ShareLease>> {
        let budget = self.call_budget_of(Some(bound));
        let _one_at_a_time = self.one_at_a_time(budget, operation).await?;
        if self.expire_if_due().is_some() {
            return Ok(None);
        }
        let lease = policy.lease();
        let until = budget.deadline.min(self.state().server_end());
        self.apply(Event::LeaseSent { lease, until });
        // Not an acquire, because a late one would take a free lock.
        let key = self.name.key();
        let call = Call::new(self.protocol.renewal(), key, &[key])
            .arg(&*self.holder)
            .arg(millis(lease));
        let answer = self
            .core
            .scripts
            .run(Lane::Command, &call, budget)
            .await
            .map_err(|failure| failure.into_error(operation).of_lock(self.name()))?;
        if reply::renewed(&answer.value, 1)? != [true] {
            self.apply(Event::Lost(LostReason::Revoked));
        }
        let effects = self.apply(Event::LeaseGranted {
            sent: answer.sent,
            lease,
            is_repeated: answer.repeated,
        });
        let share = ShareLease::of(policy, answer.sent, self.core.clock.now());
        Ok(effects.is_accepted.then_some(share))
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
