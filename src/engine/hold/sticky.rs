//! Sticky holds: a hold stays with its client for a while after its last guard, and the client's next task takes it
//! without a round trip.
//!
//! Invariants: [`HoldState::can_be_left`](super::state::HoldState::can_be_left) decides which holds stay, and until
//! when. A hold stays only if no task of this client waits for the lock at that moment, and no waiter elsewhere has
//! recalled it. A hold without a guard is renewed until its time is over, it is recalled or lost, or the client ends.

use std::sync::Arc;

use futures_util::FutureExt;

use super::event::Event;
use super::handoff::Handoff;
use super::loss::SharedHold;
use super::share_lease::ShareLease;
use super::shell::Hold;
use super::sticky_slot::{StickySlot, Watched};
use crate::engine::clock::{Clock, Tick};
use crate::engine::counts::Mode;

impl Hold {
    /// Leaves the caller's share to the client. True if the client has it now.
    pub(super) fn leave_to_client(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        let Some((share, end)) = self.begin_to_stay(mode, lease) else {
            return false;
        };
        let slot = self.local.sticky_slot();
        let (before, is_unwatched) = slot.put(share, end);
        drop(before);
        if is_unwatched {
            let sticky = Arc::clone(slot);
            let is_over = false;
            let watch = Watch { sticky, is_over }.run(self.core.clock);
            self.core.watchdog.drive_while_needed(watch.boxed());
        }
        // Waiters that came in the meantime did not find it in the slot.
        if self.core.is_closed() || !self.is_held() || self.state().is_recalled() {
            drop(self.local.take_sticky());
        } else if self.local.queue.has_waiter_blocked_by(Mode::Exclusive) {
            self.local.wake_waiters();
        }
        true
    }

    fn begin_to_stay(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> Option<(Handoff, Tick)> {
        if mode != Mode::Exclusive
            || !self.state().is_sticky()
            || self.core.ensure_open("release").is_err()
        {
            return None;
        }
        let _nothing_under_way = self.begin_operation()?;
        if self.loss_of(lease).is_some()
            || !self.is_alone()
            || self.local.queue.has_waiter_blocked_by(Mode::Exclusive)
        {
            return None;
        }
        let state = self.state();
        let now = self.core.clock.now();
        let (end, after) = state.can_be_left(now, lease)?;
        let left = Event::LeftToClient {
            before: lease,
            after,
            end,
        };
        self.apply_to(state, now, left);
        let owner = self.owner();
        let share = Handoff::new(Arc::clone(self) as _, owner, mode, after);
        Some((share, end))
    }

    /// Releases the hold if it waits for the next task.
    pub(super) fn end_stay(&self) {
        // If the slot holds a later grant of this lock, the waiter wants that one too.
        drop(self.local.take_sticky());
    }
}

/// Ends a hold without a guard in time. If the runtime ends earlier, the hold ends with it.
struct Watch {
    sticky: Arc<StickySlot>,
    is_over: bool,
}

impl Watch {
    async fn run(mut self, clock: Clock) {
        loop {
            let sticky = &self.sticky;
            let mark = sticky.sooner.mark();
            match sticky.watch(clock.now()) {
                Watched::Over(share) => drop(share),
                Watched::Until(end) => tokio::select! {
                    () = sticky.sooner.changed_since(mark) => {}
                    () = clock.sleep_until(end) => {}
                },
                Watched::Nothing => break,
            }
        }
        // Another watch may run by now.
        self.is_over = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_over {
            drop(self.sticky.end_watch());
        }
    }
}
