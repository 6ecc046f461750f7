//! The deferred downgrade: when a writer goes, waiting readers of its client take over its hold. The server hears of
//! the downgrade later, or never, if the last reader hands the hold off to the next writer. At the server the hold
//! remains a write hold.
//!
//! A write hold excludes more than readers need. So its downgrade is deferred only while no waiter elsewhere is known
//! to listen, and only within the turn of this client. After that the remaining readers have a read hold, and the
//! server is asked for the downgrade in the background. Invariants:
//! [`HoldState::can_pass_to_readers`](super::state::HoldState::can_pass_to_readers) decides which holds pass to
//! readers. No owner writes under a hold whose downgrade is deferred. The hold is handed off to a writer only after its
//! last reader.

use std::sync::Arc;

use super::core::Core;
use super::event::{DeferredDowngrade, Event};
use super::handoff::Handoff;
use super::joinable_read::ReaderClass;
use super::local::LocalLock;
use super::registry::known;
use super::settle::settle_later;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::holder::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::few::Few;

/// Turns write holds that readers of this client have into read holds. True if there were any.
pub(crate) fn end_deferrals(local: &LocalLock) -> bool {
    let holds = local.holds.live_of_writers().into_iter();
    let holds = holds.filter_map(known::<Hold>);
    holds.filter(Hold::end_deferral).count() > 0
}

/// As [`end_deferrals`], and waits until the downgrade is sent, so that the next request goes behind it.
pub(crate) async fn deferrals_ended(core: &Core, local: &LocalLock) {
    if end_deferrals(local) {
        let now = core.clock.now();
        let limit = now.after(core.timing.reply);
        local.releases_sent_by(core.clock, limit, now).await;
    }
}

impl Hold {
    /// Passes the caller's share on to the readers at the head of the local queue. True if readers have it now.
    pub(super) fn pass_to_readers(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        if mode != Mode::Exclusive {
            return false;
        }
        let Some(_nothing_under_way) = self.begin_operation() else {
            return false;
        };
        let mut has_first = false;
        let is_any = self.local.queue.hand_to_cohort(|terms| {
            if has_first {
                return self.admit(terms);
            }
            let first = self.pass_to_first(lease, terms)?;
            has_first = true;
            Some(first)
        });
        if is_any {
            self.local.joinable_read.put(Arc::downgrade(self) as _);
        }
        is_any
    }

    fn pass_to_first(self: &Arc<Self>, lease: ShareLease, terms: &ReaderClass) -> Option<Handoff> {
        if self.replication != terms.replication || !self.is_alone() || self.core.is_closed() {
            return None;
        }
        let state = self.state();
        let now = self.core.clock.now();
        if !state.can_pass_to_readers(now, lease, terms.lease) {
            return None;
        }
        let until = self.local.turns().try_defer_downgrade(now)?;
        let first = Owner::new();
        let deferred = DeferredDowngrade {
            first: first.clone(),
            lease: terms.lease,
            give_up: terms.give_up,
            until,
        };
        self.apply_to(state, now, Event::DowngradeDeferred(deferred));
        let share = RawShare::new(Arc::clone(self), first, Mode::Shared, lease);
        Some(share.into_handoff())
    }

    /// Ends the deferral: readers under this write hold have a read hold from now on, and the server is asked for the
    /// downgrade in the background. True if there were any readers.
    pub(crate) fn end_deferral(self: &Arc<Self>) -> bool {
        let state = self.state();
        let is_deferred = state.is_downgrade_deferred();
        if is_deferred {
            self.apply_to(state, self.core.clock, Event::DowngradeDue);
            settle_later(Few::from_buf([Arc::clone(self)]));
        }
        is_deferred
    }

    /// Ends the deferral if it is due. The watchdog calls this when it checks the hold.
    pub(super) fn end_deferral_if_due(self: &Arc<Self>, now: Tick) {
        let state = self.state();
        if !state.is_downgrade_due(now) {
            return;
        }
        let is_deferred = state.is_downgrade_deferred();
        self.apply_to(state, now, Event::DowngradeDue);
        if is_deferred {
            settle_later(Few::from_buf([Arc::clone(self)]));
        }
    }
}
