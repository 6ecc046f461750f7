//! One hold, as the rest of the client sees it: the shell around its [`HoldState`], which the state of the lock keeps.
//!
//! A shell locks the state of the lock, changes the state, and carries out the effects. The guards of one owner on one
//! lock share a hold. Invariants: only methods of the state change it. Effects are carried out without the mutex. A
//! hold keeps its place in the state of its lock for as long as anything refers to it.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::core::Core;
use super::effects::{Effects, NewHold, ReleaseStep};
use super::grants::Slot;
use super::handoff::{LocalHold, known};
use super::local::{LocalLock, Locked};
use super::loss::{LossListener, LossListeners, SharedHold};
use super::protocol::{HolderRef, Protocol, Queue};
use super::share_lease::ShareLease;
use super::state::HoldState;
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::api::loss::LostReason;
use crate::engine::clock::{Clock, Now, Tick};
use crate::engine::counts::Mode;
use crate::engine::hint::Hint;
use crate::engine::keys::LockName;
use crate::observe::counts::GrantedBy;
use crate::observe::group::GroupCell;
use crate::script::CallBudget;
use crate::watchdog::{Due, Leased, RenewalRequest};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) core: Arc<Core>,
    pub(super) local: Arc<LocalLock>,
    /// Where the state of the lock keeps the state of this hold.
    pub(super) slot: Slot,
    pub(super) protocol: &'static dyn Protocol,
    pub(super) name: LockName,
    /// The group of the last call that got the hold.
    pub(super) group: GroupCell,
    /// The id of this hold at the watchdog, and its number in the holder id.
    pub(super) number: u64,
    /// The text of the holder id, for callers that ask for it.
    pub(super) holder_id: OnceLock<Box<str>>,
    /// The number in the holder id under which the hold is kept at the server. 0 while it is not kept.
    pub(super) kept_number: AtomicU64,
    /// Signalled when the hold ends, when its deadline moves, and at the end of an operation that changes it at the
    /// server.
    pub(super) changed: Hint,
    /// The listeners to notify if the hold is lost. Most holds have none.
    loss_listeners: OnceLock<Box<LossListeners>>,
}

/// The state of a hold, under the mutex of its lock.
pub(super) struct LockedHold<'a> {
    pub(super) lock: Locked<'a>,
    slot: Slot,
}

impl Deref for LockedHold<'_> {
    type Target = HoldState;

    fn deref(&self) -> &HoldState {
        &self.lock.grants[self.slot].state
    }
}

impl DerefMut for LockedHold<'_> {
    fn deref_mut(&mut self) -> &mut HoldState {
        &mut self.lock.grants[self.slot].state
    }
}

impl LocalHold for Hold {
    fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease) {
        let now = self.core.clock.now();
        if mode == Mode::Shared {
            // Taken first, so that the share no longer counts as unclaimed.
            self.change(now, |state, now| state.accept_handoff(now, mode));
        }
        RawShare::new(self, owner, mode, lease).release_later(now);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let removed = self.local.lock().remove(self.slot);
        // Dropped outside the mutex.
        drop(removed);
    }
}

/// A share whose drop does not release it. A guard has it, or the code that has taken it from a guard must release it.
#[derive(Clone, Debug)]
pub(crate) struct RawShare {
    pub(super) hold: Arc<Hold>,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
    /// If the share is released before this time, the hold is left at the server until then.
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
    /// Makes a hold that was just granted, with one share, and starts its renewals. `now` was read just before.
    pub(super) fn granted(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        protocol: &'static dyn Protocol,
        name: &LockName,
        new: NewHold,
        now: Tick,
    ) -> RawShare {
        let seen = local.seen();
        let mut state = local.lock();
        let mut lease = None;
        let hold = Arc::new_cyclic(|hold| {
            let entry: Weak<Self> = Weak::clone(hold);
            let (slot, first) = state.grant(now, &new, entry);
            lease = Some(first);
            Self {
                core: Arc::clone(core),
                local: Arc::clone(local),
                slot,
                protocol,
                name: name.clone(),
                group: GroupCell::new(new.group),
                number: new.number,
                holder_id: OnceLock::new(),
                kept_number: AtomicU64::new(0),
                changed: Hint::default(),
                loss_listeners: OnceLock::new(),
            }
        });
        let lease = lease.expect("it was just granted");
        let contradictions = state.contradict(hold.slot, new.mode, now, seen);
        // As for a hold with a guard, which most holds have at their first check.
        let first_check = state.grants[hold.slot].state.renewal_due();
        drop(state);
        hold.begin(&new, first_check);
        for (other, effects) in contradictions.ended {
            if let Some(other) = known::<Self>(other) {
                other.carry_out(effects);
            }
        }
        hold.carry_out(contradictions.own);
        // The server that granted the hold may have been replaced since. The check of all holds after that came too
        // early for this hold.
        if contradictions.is_in_doubt || core.locals.moved.mark() != new.moved {
            hold.verify();
        }
        if core.is_closed() {
            hold.close();
        }
        RawShare::new(hold, new.owner, new.mode, lease)
    }

    /// Notes the grant, and begins to renew the hold.
    fn begin(self: &Arc<Self>, new: &NewHold, first_check: Tick) {
        let by = match new.handover {
            Some(_) => GrantedBy::Handover,
            None => GrantedBy::Server,
        };
        self.note_grant(new.mode, by);
        if new.mode == Mode::Shared {
            self.local.subscription.note_read();
        }
        if self.protocol.queue() == Queue::Server {
            (self.local.lock()).with_followers(|followers, _| followers.enter(self.holder()));
        }
        let entry: Weak<Self> = Arc::downgrade(self);
        self.core.watchdog.enrol(self.number, first_check, entry);
        if !self.state().is_held() {
            // It ended before it was in all lists.
            self.leave_lists();
        }
    }

    /// Lets other tasks of the owner enter the hold, and readers join it, now that its call has a guard.
    pub(super) fn open_to_others(&self, owner: &Owner, mode: Mode) {
        self.local.wake_waiters_of(owner);
        if mode == Mode::Shared && !self.core.is_closed() {
            let now = self.core.clock.now();
            self.local.lock().admit_waiting(now, self.slot);
        }
    }

    /// Removes the hold, which has ended, from all lists.
    fn leave_lists(&self) {
        self.core.watchdog.withdraw(self.number);
        self.wake_follower();
    }

    /// Changes the state, and carries out the effects.
    #[inline]
    pub(super) fn change<N: Now>(
        &self,
        now: N,
        change: impl FnOnce(&mut HoldState, N) -> Effects,
    ) -> Effects {
        // If `now` is a clock, it is read under the mutex. Otherwise the previous user of the state may have read a
        // later time.
        self.change_locked(self.state(), now, change)
    }

    /// As [`change`](Self::change), for a state that the caller has locked already.
    #[inline]
    pub(super) fn change_locked<N: Now>(
        &self,
        mut state: LockedHold<'_>,
        now: N,
        change: impl FnOnce(&mut HoldState, N) -> Effects,
    ) -> Effects {
        // From this change on, requests of this client go behind a release that it decides on.
        let seen = self.local.seen();
        let effects = state.lock.change(self.slot, now, seen, change);
        drop(state);
        self.carry_out(effects);
        effects
    }

    #[inline]
    pub(super) fn carry_out(&self, effects: Effects) {
        if effects != Effects::default() {
            self.carry_out_some(effects);
        }
    }

    fn carry_out_some(&self, effects: Effects) {
        let is_over = effects.ended.is_some();
        if is_over {
            self.leave_lists();
        } else if effects.looks_again {
            self.look_again();
        }
        if effects.wakes_waiters() || effects.release == Some(ReleaseStep::Sent) {
            self.local.wake_waiters();
        }
        if is_over {
            self.changed.notify();
        }
        if let Some(reason) = effects.lost() {
            self.end_at_server(reason);
            self.end_stay();
            if effects.was_taken {
                self.note_loss(reason);
            }
            let loss_listeners = self.loss_listeners.get();
            let all = loss_listeners.map(|all| std::mem::take(&mut *all.lock()));
            let listeners = all.iter().flatten().filter_map(Weak::upgrade);
            listeners.for_each(LossListener::member_lost);
        }
    }

    /// Locks the state, to read it, or for a change without effects.
    #[inline]
    pub(super) fn state(&self) -> LockedHold<'_> {
        LockedHold {
            lock: self.local.lock(),
            slot: self.slot,
        }
    }

    /// Locks the state. If the deadline has passed, the hold is lost first.
    pub(super) fn state_at(&self, now: Tick) -> LockedHold<'_> {
        let state = self.state();
        if !state.is_held() || state.is_valid(now) {
            return state;
        }
        self.change_locked(state, now, HoldState::expire_if_due);
        self.state()
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn owner(&self) -> Owner {
        self.state().owner().clone()
    }

    /// Whether the owner may write.
    pub(crate) fn is_written(&self) -> bool {
        self.state().is_written()
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state().token()
    }

    /// The key of the lock.
    pub(crate) fn key(&self) -> &str {
        self.name.key()
    }

    /// Whether the hold excludes all other holders.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.state().is_exclusive()
    }

    /// Whether the hold is held, and there is no doubt whether the server has it.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_held() && !self.state().is_doubted()
    }

    /// Returns why the hold is lost, if it is. The clock decides, not the watchdog, which may be late: a hold past its
    /// deadline is lost from now on.
    pub(crate) fn expire_if_due(&self) -> Option<LostReason> {
        self.loss_at(self.core.clock.now())
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

    /// Notifies `group` when the hold is lost. Has no effect if the hold is lost already.
    pub(crate) fn add_loss_listener(&self, group: Weak<dyn LossListener>) {
        let listeners = self.loss_listeners.get_or_init(Box::default);
        let mut listeners = listeners.lock();
        listeners.retain(|other| other.strong_count() > 0);
        listeners.push(group);
    }

    /// Whether no group has to be notified of the loss of this hold.
    pub(super) fn is_alone(&self) -> bool {
        let listeners = self.loss_listeners.get();
        listeners.is_none_or(|all| all.lock().iter().all(|group| group.strong_count() == 0))
    }

    /// Ends the renewals because the client is closed. A hold without a guard is released, unless a guard asked to keep
    /// it for longer.
    pub(super) fn close(&self) {
        let now = self.core.clock.now();
        self.change(now, |state, now| state.lose(now, LostReason::Closed));
        let state = self.state();
        if !state.has_guard() && state.kept_for(now).is_none() {
            self.undo(state);
        }
    }

    /// Ends the hold at the server in the background, with its used places.
    pub(super) fn undo(&self, state: LockedHold<'_>) {
        let (release, lease) = (self.release_by_script(&state), state.lease());
        drop(state);
        self.core.undo_later(release, lease, (None, None));
    }

    /// Refers to this hold in calls. `id` is its holder id.
    pub(super) fn holder_ref<'a>(&'a self, id: &'a HolderId) -> HolderRef<'a> {
        self.core.holder_ref(&self.name, id, self.token().is_some())
    }
}

impl SharedHold for Hold {
    fn clock(&self) -> Clock {
        self.core.clock
    }

    fn is_held(&self) -> bool {
        self.state_at(self.core.clock.now()).is_held()
    }

    fn deadline(&self) -> Tick {
        self.state().deadline()
    }

    fn changed(&self) -> &Hint {
        &self.changed
    }

    fn loss_at(&self, now: Tick) -> Option<LostReason> {
        self.state_at(now).loss()
    }
}

impl Leased for Hold {
    fn doubt(&self, now: Tick) {
        self.state().doubt(now);
    }

    fn wake(&self) {
        self.changed.notify();
    }

    fn due(self: Arc<Self>, now: Tick) -> Due {
        if self.state().downgrade_due() <= now {
            self.end_deferral();
        }
        self.end_stay_if_due(now);
        let mut state = self.state();
        let due = state.next_step(now);
        match due {
            Due::Later(_) => state.put_off_check(),
            Due::Renew { lease, .. } => state.lease_sent(now, lease),
            Due::Expired | Due::Gone => {}
        }
        due
    }

    fn request(&self, lease: Duration) -> RenewalRequest {
        RenewalRequest {
            script: self.protocol.renewal(),
            key: Arc::clone(self.name.key()),
            holder: self.holder(),
            lease,
        }
    }

    fn lock(&self) -> &LockName {
        &self.name
    }

    fn renewed(&self, sent: Tick, lease: Duration) {
        let mut state = self.state();
        // Read under the mutex, so that times do not go backwards from one change to the next.
        let has_moved = state.renewed(self.core.clock.now(), sent, lease);
        drop(state);
        if has_moved {
            self.changed.notify();
        }
    }

    fn deadline(&self) -> Tick {
        self.state().deadline()
    }

    fn measure(&self, lease: Duration) -> Duration {
        self.state().measure(lease)
    }

    fn next_check(&self) -> Tick {
        let mut state = self.state();
        // A task that takes the hold later has to ask for an earlier check.
        state.put_off_check();
        state.next_check()
    }

    fn lose(&self, reason: LostReason) {
        self.change(self.core.clock, |state, now| state.lose(now.tick(), reason));
    }

    fn wanted(self: Arc<Self>) {
        self.recall();
    }

    fn orphaned(&self) {
        self.end_stay();
    }
}
