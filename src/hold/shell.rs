//! One hold at the server and what belongs to it: the shell around its [`State`].
//!
//! It takes the mutex, applies an event, and carries out what follows from it. A hold is shared by the
//! guards of one owner on one lock. Invariants: nothing but [`State::apply`] changes the state; what an
//! event leads to outside is carried out without the mutex, but for what those who ask next in this
//! client have to find: that a release is decided on.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::bound::Bound;
use super::core::Core;
use super::event::{Effects, Event, NewHold, NextStep, ReleaseStep};
use super::local::LocalLock;
use super::member::Group;
use super::protocol::{HolderRef, Protocol};
use super::registry::LocalHold;
use super::share_lease::ShareLease;
use super::state::State;
use super::unguarded::Unguarded;
use crate::clock::{Now, Tick};
use crate::conn::Lane;
use crate::counts::{Counts, Mode};
use crate::error::{Error, Kind, Result};
use crate::fencing::FencingToken;
use crate::few::Few;
use crate::group::GroupCell;
use crate::hint::Hint;
use crate::holder::HolderId;
use crate::keys::LockName;
use crate::lost::LostReason;
use crate::options::Replication;
use crate::owner::Owner;
use crate::script::CallBudget;
use crate::totals::GrantedBy;
use crate::watchdog::{Due, Leased, RenewalRequest};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(super) core: Arc<Core>,
    pub(super) local: Arc<LocalLock>,
    pub(super) protocol: &'static dyn Protocol,
    pub(super) name: LockName,
    /// That of the call that got it last.
    pub(super) group: GroupCell,
    /// What replicas have confirmed of it.
    pub(super) replication: Option<Replication>,
    /// When the request that was granted was sent.
    requested: Tick,
    /// Whether it was granted later than that, nobody here knows when.
    is_handover: bool,
    /// The id of this hold at the watchdog, and its number in the holder id.
    pub(super) number: u64,
    pub(super) holder: HolderId,
    /// The number in the holder id of what is left at the server.
    pub(super) kept_number: OnceLock<u64>,
    state: Mutex<State>,
    /// Whether a request that releases it may have been executed.
    pub(super) may_be_released: AtomicBool,
    /// One operation on the counts at a time.
    pub(super) operation: tokio::sync::Mutex<()>,
    /// Given when it is held no more, or its deadline moves.
    pub(super) changed: Hint,
    /// What it is a member of, to be told if it is lost.
    groups: Mutex<Few<Weak<dyn Group>>>,
}

/// A share of a hold that nothing gives back by itself: a guard has it, or is giving it back.
#[derive(Debug)]
pub(crate) struct RawShare {
    pub(super) hold: Arc<Hold>,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
    /// If it is released before this time, the hold is left at the server until then.
    pub(super) kept_until: Tick,
}

impl Hold {
    /// A hold that was just granted, with one share, at a time that was read just now. Starts its renewals.
    pub(super) fn granted(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        protocol: &'static dyn Protocol,
        name: &LockName,
        new: NewHold,
        now: Tick,
    ) -> RawShare {
        let (state, lease) = State::new(now, &new);
        let first_check = state.next_check();
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
            operation: tokio::sync::Mutex::new(()),
            changed: Hint::default(),
            may_be_released: AtomicBool::new(false),
            groups: Mutex::default(),
        });
        let by = if hold.is_handover {
            GrantedBy::Handover
        } else {
            GrantedBy::Server
        };
        hold.count_grant(new.mode, by);
        let entry: Weak<Self> = Arc::downgrade(&hold);
        if new.is_joinable {
            local.open_read.put(entry.clone());
        }
        local.add_hold(entry.clone());
        let is_in_doubt = hold.replace_contradicted(new.mode);
        core.watchdog.enrol(hold.number, first_check, entry);
        if new.is_joinable {
            hold.admit_waiting();
        }
        // The server that granted it may not be the one that answers now, and the holds that were checked
        // for that reason were checked without this one.
        if is_in_doubt || core.locals.moved.mark() != new.moved {
            hold.verify();
        }
        if core.is_closed() {
            hold.close();
        }
        RawShare {
            hold,
            owner: new.owner,
            mode: new.mode,
            lease,
            kept_until: Tick::ZERO,
        }
    }

    /// Of two holds that exclude each other, the one that was requested later was granted later. The answer
    /// that says so may be the first that is looked at. When a lock was handed over nobody here knows: the
    /// hold that is heard of now counts, if the server agrees. True if the server has to be asked.
    fn replace_contradicted(&self, mode: Mode) -> bool {
        let mut is_in_doubt = false;
        for other in self.local.holds.others::<Self>(self) {
            if mode == Mode::Shared && !other.is_exclusive() {
                continue;
            }
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

    /// Has the state take an event, and carries out what follows from it.
    pub(super) fn apply(&self, event: Event) -> Effects {
        let state = self.state.lock();
        // Not read before: whoever had the state until now has read an earlier time.
        self.apply_to(state, self.core.clock, event)
    }

    /// The same for a state of which something was read before.
    pub(super) fn apply_to(
        &self,
        mut state: MutexGuard<'_, State>,
        now: impl Now,
        event: Event,
    ) -> Effects {
        let effects = state.apply(now, event);
        if effects.is_released {
            self.core
                .note_unguarded(self.number, self.unguarded(&state));
        }
        if effects.release == Some(ReleaseStep::Decided) {
            // Whoever asks in this client from here on asks behind it.
            self.local.decide_release(now.tick());
        }
        drop(state);
        if effects != Effects::default() {
            self.carry_out(effects);
        }
        effects
    }

    fn carry_out(&self, effects: Effects) {
        if effects.is_over {
            self.core.watchdog.withdraw(self.number);
            self.local.remove_hold(self);
        } else if let Some(at) = effects.check_at {
            self.core.watchdog.shift(self.number, at);
        }
        if effects.release == Some(ReleaseStep::Sent) {
            self.local.release_sent();
        }
        if effects.wakes_waiters {
            self.local.wake_waiters();
        }
        if effects.wakes_guards || effects.is_over {
            self.changed.give();
        }
        if let Some(reason) = effects.lost {
            self.end_at_server(reason);
            self.end_stay();
            self.tell_lost(reason);
            let groups = std::mem::take(&mut *self.groups.lock());
            for group in groups.iter().filter_map(Weak::upgrade) {
                group.member_lost(reason);
            }
        }
    }

    /// The state as it is now, to read from it or to decide on an event.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
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

    /// Whether it keeps out everybody else.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.state().is_exclusive()
    }

    /// Whether those who have it may write.
    pub(crate) fn is_written(&self) -> bool {
        self.state().is_written()
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state().token()
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.state().deadline()
    }

    /// Of one share.
    pub(crate) fn remaining_of(&self, lease: ShareLease) -> Duration {
        let now = self.core.clock.now();
        match self.expire_if_due() {
            Some(_) => Duration::ZERO,
            None => now.until(self.deadline().min(lease.end())),
        }
    }

    /// How long ago it was asked for.
    pub(super) fn age(&self) -> Duration {
        self.requested.until(self.core.clock.now())
    }

    pub(crate) fn is_held(&self) -> bool {
        self.expire_if_due().is_none() && self.state().is_held()
    }

    /// Whether it is held, and the server was not asked about it in vain.
    pub(super) fn is_certain(&self) -> bool {
        self.is_held() && !self.state().is_doubted()
    }

    /// Has the server asked whether it still has it.
    pub(super) fn verify(&self) {
        let now = self.core.clock.now();
        self.apply_to(self.state(), now, Event::Doubted);
        self.core.watchdog.shift(self.number, now);
    }

    /// Why it is lost, if it is. The clock decides, whatever the watchdog has had time to notice: a hold
    /// whose deadline has passed is lost from here on.
    pub(crate) fn expire_if_due(&self) -> Option<LostReason> {
        self.expire_at(self.core.clock)
    }

    /// The same at a time that was just read.
    pub(super) fn expire_at(&self, now: impl Now) -> Option<LostReason> {
        let state = self.state();
        if !state.is_held() {
            return state.loss();
        }
        self.apply_to(state, now, Event::ClockRead).lost
    }

    /// Why one share is lost, if it is: with the hold, or at an end of its own.
    pub(crate) fn loss_of(&self, lease: ShareLease) -> Option<LostReason> {
        let now = self.core.clock.now();
        self.expire_at(now).or_else(|| lease.loss_at(now))
    }

    /// Resolves when this share is lost. Carries its own timer, so that it needs neither the watchdog
    /// nor the network. Cancel safe.
    pub(crate) async fn lost(&self, lease: ShareLease) -> LostReason {
        loop {
            let mark = self.changed.mark();
            if let Some(reason) = self.loss_of(lease) {
                return reason;
            }
            let is_held = self.state().is_held();
            let end = self.deadline().min(lease.end());
            tokio::select! {
                biased;
                () = self.changed.past(mark) => {}
                // One that was given back is never lost.
                () = self.core.clock.sleep_until(end), if is_held => {}
            }
        }
    }

    /// What the server may have of it when no guard has it.
    pub(super) fn unguarded(&self, state: &State) -> Unguarded {
        Unguarded {
            protocol: self.protocol,
            name: self.name.clone(),
            holder: self.holder,
            fenced: state.token().is_some(),
            lease: state.lease(),
        }
    }

    /// How long an operation on it that starts now may go on.
    pub(super) fn call_budget(&self) -> CallBudget {
        let give_up = self.state().give_up();
        self.core.call_budget(give_up)
    }

    /// The same for an operation that may be a part of a call.
    pub(super) fn call_budget_of(&self, bound: Option<&Bound>) -> CallBudget {
        match bound {
            Some(bound) => bound.call_budget(self.core.clock.now()),
            None => self.call_budget(),
        }
    }

    /// Waits for the operations before this one.
    pub(super) async fn one_at_a_time(
        &self,
        budget: CallBudget,
        operation: &'static str,
    ) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        // There is one nearly always. It is given to nobody while others wait for it.
        if let Ok(turn) = self.operation.try_lock() {
            return Ok(turn);
        }
        tokio::select! {
            biased;
            turn = self.operation.lock() => Ok(turn),
            () = self.core.clock.sleep_until(budget.deadline) => {
                let message = "an earlier operation on this hold has no answer yet; check that \
                               the server is up and reachable";
                Err(Error::new(Kind::Io, operation, message).of_lock(self.name()))
            }
        }
    }

    /// Host and port of the server that has it, for messages.
    pub(super) fn endpoint(&self) -> String {
        self.core.scripts.transport.endpoint(self.name.key())
    }

    /// Has `group` told when it is lost, if it is not lost yet.
    pub(super) fn enter_group(&self, group: Weak<dyn Group>) {
        self.groups.lock().push(group);
    }

    pub(super) fn leave_group(&self, group: *const ()) {
        let mut groups = self.groups.lock();
        groups.retain(|other| other.as_ptr().cast::<()>() != group);
    }

    pub(super) fn is_alone(&self) -> bool {
        self.groups.lock().is_empty()
    }

    pub(super) fn holder_ref(&self, counts: Counts) -> HolderRef<'_> {
        HolderRef {
            name: &self.name,
            id: &self.holder,
            counts,
            fenced: self.token().is_some(),
            token_retention: self.core.timing.token_retention,
        }
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
        self.is_exclusive()
    }

    fn deadline(&self) -> Tick {
        self.deadline()
    }

    fn at_server(&self) -> Option<(&str, &str, Tick)> {
        Some((&self.holder, self.name.key(), self.requested))
    }

    /// Nobody will renew it any more. What no guard holds is given back.
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
        self.changed.give();
    }

    fn due(self: Arc<Self>, now: Tick) -> Due {
        self.end_deferral_if_due(now);
        let state = self.state();
        match state.next_step(now) {
            NextStep::Gone => Due::Gone,
            NextStep::Expired => Due::Expired,
            NextStep::Wait(until) => Due::Later(until),
            NextStep::Renew { lease, wait } => {
                // Also while its renewal is on its way.
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

    fn renewed(&self, sent: Tick, lease: Duration) {
        let left = self.core.clock.now().until(self.deadline());
        self.tell_renewed(left, lease);
        self.apply(Event::Renewed { sent, lease });
    }

    fn renewal_failed(&self) {
        self.tell_renewal_failed();
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
