//! A write hold covers the readers of this client that wait when its writer goes, and is handed off to the next
//! writer when the last of them goes: at the server it stays what it is.
//!
//! It keeps out more than readers need. So it covers them only while nobody elsewhere is known to listen, and within
//! the turn of this client: who still reads then has a read hold, of which the server is told in the background.
//! Invariants: [`State::can_cover`](super::state::State::can_cover) says which holds do; nobody writes by a hold
//! that covers readers, and it is handed off when none of them is left.

use std::sync::Arc;

use super::core::Core;
use super::event::{Cover, Event};
use super::handoff::Handoff;
use super::local::LocalLock;
use super::settle::settle_later;
use super::share_lease::ShareLease;
use super::shell::Hold;
use super::terms::JoinTerms;
use crate::clock::Tick;
use crate::counts::Mode;
use crate::few::Few;
use crate::owner::Owner;

/// What readers of this client have by a write hold is a read hold from here on. True if they had any so.
pub(crate) fn end_covers(local: &LocalLock) -> bool {
    let holds = local.holds.live_as::<Hold>();
    holds.iter().filter(|hold| hold.end_cover()).count() > 0
}

/// The same, and whatever is asked next is asked behind it.
pub(crate) async fn covers_ended(core: &Core, local: &LocalLock) {
    if end_covers(local) {
        let now = core.clock.now();
        let limit = now.after(core.timing.reply);
        local.releases_sent_by(core.clock, limit, now).await;
    }
}

impl Hold {
    /// Passes the caller's share on to the readers at the head of the local queue. True if they have it now.
    pub(super) fn cover_waiting(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        if mode != Mode::Exclusive {
            return false;
        }
        let Ok(_nothing_under_way) = self.operation.try_lock() else {
            return false;
        };
        let mut is_cover = false;
        let is_any = self.local.queue.hand_to_party(|terms| {
            if is_cover {
                return self.admit(terms);
            }
            let first = self.cover_first(lease, terms)?;
            is_cover = true;
            Some(first)
        });
        if is_any {
            self.local.open_read.put(Arc::downgrade(self) as _);
        }
        is_any
    }

    fn cover_first(self: &Arc<Self>, lease: ShareLease, terms: &JoinTerms) -> Option<Handoff> {
        if self.replication != terms.replication || !self.is_alone() || self.core.is_closed() {
            return None;
        }
        let state = self.state();
        let now = self.core.clock.now();
        if !state.can_cover(now, lease, terms.lease) {
            return None;
        }
        let until = self.local.try_spend_cover(now)?;
        let first = Owner::new();
        let cover = Cover {
            first: first.clone(),
            lease: terms.lease,
            give_up: terms.give_up,
            until,
        };
        self.apply_to(state, now, Event::Covers(cover));
        Some(Handoff::to_reader(Arc::clone(self) as _, first, lease))
    }

    /// Whoever reads by a write hold has a read hold from here on: the server is told in the background. True if
    /// anybody did.
    pub(crate) fn end_cover(self: &Arc<Self>) -> bool {
        let state = self.state();
        let is_cover = state.is_cover();
        if is_cover {
            self.apply_to(state, self.core.clock, Event::CoverOver);
            settle_later(Few::from_buf([Arc::clone(self)]));
        }
        is_cover
    }

    /// The watchdog looks at it: it may have covered readers for long enough.
    pub(super) fn end_cover_if_over(self: &Arc<Self>, now: Tick) {
        let state = self.state();
        if !state.is_cover_over(now) {
            return;
        }
        let is_cover = state.is_cover();
        self.apply_to(state, now, Event::CoverOver);
        if is_cover {
            settle_later(Few::from_buf([Arc::clone(self)]));
        }
    }
}
