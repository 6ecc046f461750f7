//! A reader joins a read hold of its client: one hold at the server, one more share here.
//!
//! Invariants: [`State::can_be_joined`](super::state::State::can_be_joined) says which holds take readers; what
//! makes a hold unfit is looked at under the mutex under which the last share of it ends, so nobody joins a hold
//! that is being released.

use std::sync::Arc;
use std::time::Duration;

use super::event::Event;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::clock::Tick;
use crate::counts::Mode;
use crate::fencing::FencingToken;
use crate::group;
use crate::options::Replication;
use crate::owner::Owner;

/// What a reader that would join wants: a lease that is renewed, for an owner that has nothing yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRequest {
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
    pub(crate) group: group::Group,
}

impl Hold {
    /// One more share, for a new owner, and when. `None` if it takes nobody, or not on these terms.
    pub(super) fn join(self: &Arc<Self>, request: &JoinRequest) -> Option<(RawShare, Tick)> {
        if self.replication != request.replication || self.core.is_closed() {
            return None;
        }
        let state = self.state();
        // Not before: whoever had the state until now has read an earlier time.
        let now = self.core.clock.now();
        if !state.can_be_joined(now, request.lease, request.give_up) {
            return None;
        }
        let owner = Owner::new();
        self.apply_to(state, now, Event::Joined(owner.clone()));
        self.count_handoff(Mode::Shared, request.group);
        let share = RawShare {
            hold: Arc::clone(self),
            owner,
            mode: Mode::Shared,
            lease: ShareLease::Renewed(request.lease),
        };
        Some((share, now))
    }

    /// The token of one owner.
    pub(super) fn token_of(&self, owner: &Owner) -> Option<FencingToken> {
        self.state().token_of(owner)
    }
}

impl RawShare {
    /// How many shares its owner has.
    pub(super) fn hold_count(&self) -> u32 {
        self.hold.state().shares_of(&self.owner, self.mode)
    }

    /// Ends without being given back.
    pub(super) fn forget(self) {
        let Self {
            hold,
            owner,
            mode,
            lease,
        } = self;
        hold.apply(Event::ShareForgotten { owner, mode, lease });
    }
}
