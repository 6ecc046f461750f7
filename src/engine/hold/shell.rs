//! One hold at the server and what belongs to it: the shell around its [`HoldState`].
//!
//! It takes the mutex, applies an event, and carries out the effects. The guards of one owner on one lock share a
//! hold. Invariants: only [`HoldState::apply`] changes the state. Effects are carried out without the mutex, except for
//! the note that a release is decided on: the next call in this client must find it.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::core::Core;
use super::event::{Effects, Event, NewHold, NextStep, ReleaseStep};
use super::local::LocalLock;
use super::protocol::{HolderRef, Protocol, Queue};
use super::registry::{LocalHold, LossListener, SharedHold};
use super::share_lease::ShareLease;
use super::state::HoldState;
use super::undo::Unguarded;
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::api::loss::LostReason;
use crate::api::options::Replication;
use crate::conn::Lane;
use crate::engine::Few;
use crate::engine::clock::{Clock, Now, Tick};
use crate::engine::counts::Mode;
use crate::engine::hint::{Hint, Operations};
use crate::engine::keys::LockName;
use crate::observe::counts::GrantedBy;
use crate::observe::group::GroupCell;
use crate::script::CallBudget;
use crate::watchdog::{Due, Leased, RenewalRequest};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) core: Arc<Core>,
    pub(super) local: Arc<LocalLock>,
    pub(super) protocol: &'static dyn Protocol,
    pub(super) name: LockName,
    /// The group of the last call that got it.
    pub(super) group: GroupCell,
    /// The replication that was confirmed for it.
    pub(super) replication: Option<Replication>,
    /// When the granted request was sent.
    requested: Tick,
    /// Whether the server handed it over. It was then granted later than `requested`, at a time that this client does
    /// not know.
    is_handover: bool,
    /// The id of this hold at the watchdog, and its number in the holder id.
    pub(super) number: u64,
    pub(super) holder: HolderId,
    /// The number in the holder id under which it is kept at the server.
    pub(super) kept_number: OnceLock<u64>,
    state: Mutex<HoldState>,
    /// The operations that change it at the server. Their hint is also given when the hold ends or its deadline moves.
    pub(super) operations: Operations,
    /// The listeners to notify if it is lost.
    loss_listeners: Mutex<Few<Weak<dyn LossListener>>>,
}

/// A share without a destructor that releases it: a guard has it, or is about to release it.
#[derive(Clone, Debug)]
pub(crate) struct RawShare {
    pub(super) hold: Arc<Hold>,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
    /// If it is released before this time, the hold is left at the server until then.
    pub(super) kept_until: Tick,
}

impl RawShare {
    pub(super) fn new(hold: Arc<Hold>, owner: Owner, mode: Mode, lease: ShareLease) -> Self {
        Self {
            hold,
            owner,
            mode,
            lease,
            kept_until: Tick::ZERO,
        }
    }
}

impl Hold {
    /// Makes a hold with one share, which was just granted, and starts its renewals. `now` was read just before.
    pub(super) fn granted(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        protocol: &'static dyn Protocol,
        name: &LockName,
        new: NewHold,
        now: Tick,
    ) -> RawShare {
        let (state, lease) = HoldState::new(now, &new);
        // Most holds have a guard at their first check.
        let first_check = state.renewal_due();
        let hold = Arc::new(Self {
            core: Arc::clone(core),
            local: Arc::clone(local),
            protocol,
            name: name.clone(),
            group: GroupCell::new(new.group),
            replication: new.replication,
            requested: new.sent,
            is_handover: new.handover.is_some(),
            number: new.number,
            holder: new.holder,
            kept_number: OnceLock::new(),
            state: Mutex::new(state),
            operations: Operations::default(),
            loss_listeners: Mutex::default(),
        });
        let by = if hold.is_handover {
            GrantedBy::Handover
        } else {
            GrantedBy::Server
        };
        hold.note_grant(new.mode, by);
        let entry: Weak<Self> = Arc::downgrade(&hold);
        local.add_hold(entry.clone(), &new.owner, new.mode);
        if new.is_joinable {
            *local.rare().joinable_read.lock() = Some(entry.clone());
        }
        if protocol.queue() == Queue::Server {
            local.rare().followers.enter(&new.holder);
        }
        let is_in_doubt = hold.replace_contradicted(new.mode);
        core.watchdog.enrol(hold.number, first_check, entry);
        if !hold.state().is_held() {
            // It ended before it was listed everywhere.
            hold.leave_lists();
        }
        if new.is_joinable {
            hold.admit_waiting();
        }
        // The server that granted it may have been replaced since, and the check of all holds that followed came too
        // early for this hold.
        if is_in_doubt || core.locals.moved.mark() != new.moved {
            hold.verify();
        }
        if core.is_closed() {
            hold.close();
        }
        RawShare::new(hold, new.owner, new.mode, lease)
    }

    /// Ends the older of two holds that exclude each other. The hold that was requested later was granted later, but
    /// the answers may arrive in either order. If either lock was handed over, the order is unknown: the hold that
    /// was just learned of counts, provided that the server agrees. True if the server has to be asked.
    fn replace_contradicted(&self, mode: Mode) -> bool {
        let mut is_in_doubt = false;
        for other in self.local.holds.contradicted(self, mode) {
            let is_known = !self.is_handover && !other.is_handover;
            is_in_doubt |= !is_known;
            if !is_known || other.requested <= self.requested {
                other.apply(Event::Lost(LostReason::Revoked));
            } else {
                self.apply(Event::Lost(LostReason::Revoked));
            }
        }
        is_in_doubt
    }

    /// Applies an event to the state, and carries out the effects.
    pub(super) fn apply(&self, event: Event) -> Effects {
        let state = self.state.lock();
        // Not read earlier: the previous user of the state may have read a later time.
        self.apply_to(state, self.core.clock, event)
    }

    /// As [`apply`](Self::apply), for a state that the caller has locked already.
    pub(super) fn apply_to(
        &self,
        mut state: MutexGuard<'_, HoldState>,
        now: impl Now,
        event: Event,
    ) -> Effects {
        let effects = state.apply(now, event);
        if let Some(ReleaseStep::Decided(mode)) = effects.release {
            // From here on, requests of this client go behind the release.
            self.local.decide_release(mode, now);
        }
        drop(state);
        if effects != Effects::default() {
            self.carry_out(effects);
        }
        effects
    }

    fn carry_out(&self, effects: Effects) {
        let is_over = effects.ended.is_some();
        if is_over {
            self.leave_lists();
        } else if let Some(at) = effects.check_at {
            self.core.watchdog.shift(self.number, at);
        }
        if effects.release == Some(ReleaseStep::Sent) {
            self.local.release_sent();
        }
        if effects.wakes_waiters() {
            self.local.wake_waiters();
        }
        if effects.wakes_guards || is_over {
            self.operations.changed.notify();
        }
        if let Some(reason) = effects.lost() {
            self.end_at_server(reason);
            self.end_stay();
            self.note_loss(reason);
            let loss_listeners = std::mem::take(&mut *self.loss_listeners.lock());
            for group in loss_listeners.iter().filter_map(Weak::upgrade) {
                group.member_lost(reason);
            }
        }
    }

    /// Takes the hold, which has ended, out of all lists.
    fn leave_lists(&self) {
        self.core.watchdog.withdraw(self.number);
        self.local.remove_hold(self);
        self.wake_follower();
    }

    /// Locks the state, to read it or to decide on an event.
    pub(super) fn state(&self) -> MutexGuard<'_, HoldState> {
        self.state.lock()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn holder_id(&self) -> &str {
        &self.holder
    }

    pub(crate) fn owner(&self) -> Owner {
        self.state().owner().clone()
    }

    /// Whether its owner may write.
    pub(crate) fn is_written(&self) -> bool {
        self.state().is_written()
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state().token()
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.state().deadline()
    }

    /// The time since the lock was requested.
    pub(super) fn age(&self) -> Duration {
        self.requested.until(self.core.clock.now())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.expire_if_due().is_none() && self.state().is_held()
    }

    /// Whether it is held, and no question to the server about it is unanswered.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_held() && !self.state().is_doubted()
    }

    /// Has the watchdog ask the server whether it still has the hold.
    pub(crate) fn verify(&self) {
        let now = self.core.clock.now();
        self.apply_to(self.state(), now, Event::Doubted);
        self.core.watchdog.shift(self.number, now);
    }

    /// Why it is lost, if it is. The clock decides, not the watchdog, which may be late: a hold past its deadline is
    /// lost from now on.
    pub(crate) fn expire_if_due(&self) -> Option<LostReason> {
        self.loss_at(self.core.clock.now())
    }

    /// The record of a hold that the server may have and no guard.
    pub(super) fn unguarded(&self, state: &HoldState) -> Unguarded {
        Unguarded {
            protocol: self.protocol,
            name: self.name.clone(),
            holder: self.holder,
            fenced: state.token().is_some(),
            places: state.places().to_vec(),
            lease: state.lease(),
        }
    }

    /// The budget of an operation that starts now.
    pub(super) fn call_budget(&self) -> CallBudget {
        let give_up = self.state().give_up();
        self.core.call_budget(give_up)
    }

    /// Host and port of the hold's server, for messages.
    pub(super) fn endpoint(&self) -> String {
        self.core.scripts.transport.endpoint(self.name.key())
    }

    /// Notifies `group` when the hold is lost. Has no effect if it is lost already.
    pub(crate) fn add_loss_listener(&self, group: Weak<dyn LossListener>) {
        self.loss_listeners.lock().push(group);
    }

    pub(super) fn remove_loss_listener(&self, group: *const ()) {
        let mut loss_listeners = self.loss_listeners.lock();
        loss_listeners.retain(|other| other.as_ptr().cast::<()>() != group);
    }

    pub(super) fn is_alone(&self) -> bool {
        self.loss_listeners.lock().is_empty()
    }

    pub(super) fn holder_ref(&self) -> HolderRef<'_> {
        HolderRef {
            name: &self.name,
            id: &self.holder,
            fenced: self.token().is_some(),
            token_retention: self.core.timing.token_retention,
        }
    }
}

impl SharedHold for Hold {
    fn clock(&self) -> Clock {
        self.core.clock
    }

    fn changed(&self) -> &Hint {
        &self.operations.changed
    }

    fn loss_at(&self, now: Tick) -> Option<LostReason> {
        let state = self.state();
        if !state.is_held() {
            return state.loss();
        }
        self.apply_to(state, now, Event::ClockRead).lost()
    }
}

impl LocalHold for Hold {
    fn is_of(&self, owner: &Owner) -> bool {
        self.state().is_of(owner)
    }

    fn is_held(&self) -> bool {
        self.is_held()
    }

    fn is_exclusive(&self) -> bool {
        self.state().is_exclusive()
    }

    fn deadline(&self) -> Tick {
        self.deadline()
    }

    fn at_server(&self) -> Option<(&str, &str, Tick)> {
        Some((&self.holder, self.name.key(), self.requested))
    }

    /// Ends its renewals. If no guard has it, it is released.
    fn close(&self) {
        self.apply(Event::Lost(LostReason::Closed));
        let unguarded = {
            let state = self.state();
            (!state.has_guard()).then(|| self.unguarded(&state))
        };
        if let Some(unguarded) = unguarded {
            self.core.undo_unguarded(&unguarded, Lane::Command);
        }
    }
}

impl Leased for Hold {
    fn doubt(&self, now: Tick) {
        self.apply_to(self.state(), now, Event::Doubted);
    }

    fn wake(&self) {
        self.operations.changed.notify();
    }

    fn due(self: Arc<Self>, now: Tick) -> Due {
        self.end_deferral_if_due(now);
        let mut state = self.state();
        match state.next_step(now) {
            NextStep::Gone => Due::Gone,
            NextStep::Expired => Due::Expired,
            NextStep::Wait(until) => {
                state.put_off_check();
                Due::Later(until)
            }
            NextStep::Renew { lease, wait } => {
                // The deadline counts even while a renewal is on its way.
                let deadline = state.deadline().min(state.downgrade_due());
                self.apply_to(state, now, Event::RenewalBegun { lease });
                Due::Renew {
                    request: RenewalRequest {
                        script: self.protocol.renewal(),
                        key: Arc::clone(self.name.key()),
                        holder: self.holder,
                        lease,
                    },
                    deadline,
                    wait,
                }
            }
        }
    }

    fn lock(&self) -> &LockName {
        &self.name
    }

    fn renewed(&self, sent: Tick, lease: Duration) {
        self.apply(Event::Renewed { sent, lease });
    }

    fn deadline(&self) -> Tick {
        Hold::deadline(self)
    }

    fn next_check(&self) -> Tick {
        self.state().next_check()
    }

    fn revoked(&self) {
        self.apply(Event::Lost(LostReason::Revoked));
    }

    fn expired(&self) {
        self.apply(Event::Lost(LostReason::Expired));
    }

    fn wanted(self: Arc<Self>) {
        self.recall();
    }
}
