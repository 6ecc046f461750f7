//! A reader joins a hold of its client: one hold at the server, one more share in the client.
//!
//! Invariants: [`HoldState::can_be_joined`](super::state::HoldState::can_be_joined) decides which holds accept readers.
//! It is checked under the mutex under which the last share ends, so no reader joins a hold that is being released.

use std::sync::Arc;

use super::event::Event;
use super::handoff::Handoff;
use super::joinable_read::{JoinRequest, ReaderClass};
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

impl Hold {
    /// A share for a new owner, and the time of joining. `None` if the hold accepts no readers, or not on these
    /// terms.
    pub(super) fn join(self: &Arc<Self>, request: &JoinRequest) -> Option<(RawShare, Tick)> {
        let joined = self.enter_beside(&request.terms, true)?;
        self.note_handoff(Mode::Shared, request.group);
        Some(joined)
    }

    /// Hands a share to each reader of this client that waits to join it.
    pub(super) fn admit_waiting(self: &Arc<Self>) {
        let admit = |terms: &ReaderClass| self.admit(terms);
        let _none_may_wait = self.local.queue.hand_to_cohort(admit);
    }

    /// One more share, for a reader that waits to join.
    pub(super) fn admit(self: &Arc<Self>, terms: &ReaderClass) -> Option<Handoff> {
        let (share, _) = self.enter_beside(terms, false)?;
        Some(share.into_handoff())
    }

    fn enter_beside(
        self: &Arc<Self>,
        terms: &ReaderClass,
        is_claimed: bool,
    ) -> Option<(RawShare, Tick)> {
        if self.replication != terms.replication || self.core.is_closed() {
            return None;
        }
        let state = self.state();
        // Not read earlier: the previous user of the state may have read a later time.
        let now = self.core.clock.now();
        if !state.can_be_joined(now, terms.lease, terms.give_up) {
            return None;
        }
        let owner = Owner::new();
        self.local.holds.joined(&**self);
        let joined = Event::Joined {
            owner: owner.clone(),
            is_claimed,
        };
        self.apply_to(state, now, joined);
        let lease = ShareLease::Renewed(terms.lease);
        let share = RawShare::new(Arc::clone(self), owner, Mode::Shared, lease);
        Some((share, now))
    }

    /// Waits for the answer to whether the server still has the hold, for a reader that leaves while others stay. The
    /// last reader learns that from the answer to its release.
    ///
    /// # Errors
    /// Fails if the hold is lost, or if there is no answer.
    pub(super) async fn confirmed(&self, operation: &'static str) -> Result<()> {
        let budget = self.call_budget();
        loop {
            let mark = self.changed.mark();
            if let Some(reason) = self.expire_if_due() {
                return Err(self.not_held(operation, reason));
            }
            let end = {
                let state = self.state();
                if !state.is_held() || !state.is_doubted() {
                    return Ok(());
                }
                state.deadline()
            };
            tokio::select! {
                biased;
                () = self.changed.changed_since(mark) => {}
                () = self.core.clock.sleep_until(end) => {}
                () = self.core.clock.sleep_until(budget.deadline) => {
                    let message = "no answer yet to whether the server still has it, after it was out of reach; \
                                   check that it is up and reachable";
                    let error = Error::new(Kind::Io, operation, message).of_lock(self.name());
                    return Err(error.at(&self.endpoint()));
                }
            }
        }
    }

    /// The fencing token of one owner.
    pub(super) fn token_of(&self, owner: &Owner) -> Option<FencingToken> {
        self.state().token_of(owner)
    }
}

impl RawShare {
    /// The number of shares that the owner has.
    pub(super) fn hold_count(&self) -> u32 {
        self.hold.state().shares_of(&self.owner, self.mode)
    }

    /// Ends the share without releasing it.
    pub(super) fn forget(self) {
        let Self {
            hold,
            owner,
            mode,
            lease,
            ..
        } = self;
        if mode == Mode::Shared {
            // Only a read share may be left at the server.
            hold.end_deferral();
        }
        hold.apply(Event::ShareForgotten { owner, mode, lease });
    }
}
