//! A hold passes from one task of this client to the next, at once or after it stayed with the client: it stays the same
//! at the server, with another owner here.
//!
//! Invariants: [`HoldState::can_hand_off`](super::state::HoldState::can_hand_off) decides which holds pass on.
//! Hand-offs stay within the budget of the lock, for the sake of other processes, and happen only while no operation on
//! the counts is under way. A hand-off changes nothing at the server, and never uses a token twice.
//!
//! A sticky hold stays with its client for a while after its last guard, and the client's next task takes it without a
//! round trip. [`HoldState::can_be_left`](super::state::HoldState::can_be_left) decides which holds stay, and until
//! when. A hold stays only if no task of this client waits for the lock at that moment, and no waiter elsewhere has
//! recalled it. A hold without a guard is renewed until its time is over, it is recalled or lost, or the client ends.

use std::sync::Arc;

use futures_util::FutureExt;

use super::event::{Event, NextOwner};
use super::protocol::Queue;
use super::registry::{HandedOff, Handoff, HandoffRequest, SharedHold, StickySlot, Watched};
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use super::state::HoldState;
use crate::api::holder::{HolderId, Owner};
use crate::conn::Lane;
use crate::engine::clock::{Clock, Tick};
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
        self.local.queue.hand_off(|request| {
            self.hand_off_to(request, lease, None, |_, now| {
                self.local.turns().try_spend_handoff(now)
            })
        })
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
        self.hand_off_to(request, lease, None, |_, _| true)
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
        let now = self.core.clock.now();
        let followers = &self.local.rare().followers;
        followers.hand_off(&ahead, now, |request, place| {
            self.hand_off_to(request, lease, Some(place), HoldState::try_spend_pass)
        })
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
            self.local.rare().followers.leave(&last);
        }
    }

    fn hand_off_to(
        self: &Arc<Self>,
        request: &HandoffRequest,
        lease: ShareLease,
        place: Option<HolderId>,
        may_go_on: impl FnOnce(&mut HoldState, Tick) -> bool,
    ) -> Option<Handoff> {
        let now = self.core.clock.now();
        let mut state = self.state();
        if !state.can_hand_off(now, lease, request.policy, request.options.fenced)
            || request.options.replication != self.replication
            || !self.is_alone()
            || !may_go_on(&mut state, now)
        {
            return None;
        }
        let owner = request.options.owner.clone().unwrap_or_else(Owner::new);
        let after = ShareLease::of(request.policy, now, now);
        let next = NextOwner {
            owner: owner.clone(),
            fenced: request.options.fenced,
            give_up: request.options.give_up.unwrap_or(self.core.timing.give_up),
            before: lease,
            after,
            place,
        };
        self.apply_to(state, now, Event::HandedOff(next));
        if request.options.owner.is_some() {
            self.local.wake_waiters_of(&owner);
        }
        let share = RawShare::new(Arc::clone(self), owner, Mode::Exclusive, after);
        Some(share.into_handoff())
    }

    /// Leaves the caller's share to the client. True if the client has it now.
    pub(super) fn leave_to_client(self: &Arc<Self>, mode: Mode, lease: ShareLease) -> bool {
        let Some((share, end)) = self.begin_to_stay(mode, lease) else {
            return false;
        };
        let slot = self.local.rare().sticky.get_or_init(Arc::default);
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
