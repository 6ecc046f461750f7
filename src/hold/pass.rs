//! From one task of this client to the next: the same hold at the server, another owner here.
//!
//! Invariants: what passes is the only share of a hold that is certain, with most of its lease left
//! and with nothing under way that is about its counts; it passes within the bounds that
//! [`LocalLock`](super::local::LocalLock) sets for the sake of other processes. A lease is never
//! shortened by it, and a token is never given twice.

use std::sync::Arc;

use super::line::{Given, Wish};
use super::{Hold, Phase, Share, State, Stay};
use crate::counts::{Counts, Mode};
use crate::fencing::FencingToken;
use crate::options::Term;
use crate::owner::Owner;

impl Hold {
    /// Gives the share of the caller to the head of the local queue. If true, it is that one's.
    pub(super) fn pass_on(self: &Arc<Self>, mode: Mode, stay: Stay) -> bool {
        // Lets the clock speak first.
        if mode != Mode::Exclusive || self.loss_of(stay).is_some() {
            return false;
        }
        let Ok(_nothing_under_way) = self.operation.try_lock() else {
            return false;
        };
        let passed = self.local.line.give(|wish| self.handed_to(wish, stay));
        if passed {
            self.local.entered.give();
        }
        passed
    }

    /// The task that it has passed to has it now.
    pub(super) fn taken(&self) {
        let look = {
            let mut state = self.state.lock();
            state.untaken = false;
            state.next_look()
        };
        let now = self.core.clock.now();
        if look <= now {
            // Put off when it was due.
            self.core.watchdog.shift(self.number, now);
        }
    }

    fn handed_to(self: &Arc<Self>, wish: &Wish, stay: Stay) -> Option<Given> {
        let now = self.core.clock.now();
        let mut state = self.state.lock();
        if !state.is_one_whole_share() || !self.groups.lock().is_empty() {
            return None;
        }
        let is_complete = matches!(stay, Stay::Renewed(lease) if wish.term == Term::Renewed(lease));
        let left = now.until(state.deadline);
        let fits = match is_complete {
            true => left >= wish.term.lease() / 2,
            // The server can agree to the other term in time, and need not shorten the lease.
            false => {
                left >= self.core.timing.reply && now.after(wish.term.lease()) >= state.server_end()
            }
        };
        let is_replicated = match wish.replication {
            None => true,
            wanted => is_complete && wanted == self.replication,
        };
        let has_token = !wish.fenced || !state.spare_tokens.is_empty();
        if !fits || !is_replicated || !has_token || !self.local.may_hand_over(now) {
            return None;
        }
        let owner = wish.owner.clone().unwrap_or_else(Owner::new);
        state.owner = owner.clone();
        state.untaken = true;
        state.guarded = false;
        state.give_up = wish.give_up;
        state.token = match wish.fenced {
            true => state.spare_tokens.next().map(FencingToken::from),
            false => None,
        };
        drop(state);
        Some(Given {
            share: Share::of(Arc::clone(self), Mode::Exclusive, owner, stay),
            is_complete,
        })
    }
}

impl State {
    /// Whether all there is of it is one exclusive share, and the server is known to have just that.
    fn is_one_whole_share(&self) -> bool {
        let one = Counts::one(Mode::Exclusive);
        self.phase == Phase::Held
            && self.counts == one
            && self.forgotten.is_none()
            && self.confirmed == Some(one)
            && self.doubted.is_none()
            && !self.unsent
    }
}
