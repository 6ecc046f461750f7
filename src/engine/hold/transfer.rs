//! Hand-offs, sticky holds and joins. A hold passes from one task of this client to the next, at once or after it
//! stayed with the client, and readers take shares of it. At the server the hold stays the same.
//! [`LockState`](super::lock::LockState) decides.
//!
//! A sticky hold stays with its client for a while after its last guard, and the client's next task takes it without a
//! round trip. It is renewed until its span is over, it is recalled or lost, or the client ends.
//!
//! The deferred downgrade: when a writer goes, waiting readers of its client take over its hold. The server hears of
//! the downgrade later, or never, if the last reader hands the hold off to the next writer. At the server the hold
//! remains a write hold. It excludes more than readers need, so its downgrade is deferred only while no waiter elsewhere
//! is known to listen, and only within the turn of this client. After that the remaining readers have a read hold, and
//! the server is asked for the downgrade in the background. Invariants:
//! [`HoldState::can_pass_to_readers`](super::state::HoldState::can_pass_to_readers) decides which holds pass to
//! readers. No owner writes under a hold whose downgrade is deferred. The hold is handed off to a writer only after its
//! last reader.

use std::sync::Arc;

use futures_util::FutureExt;

use super::core::Core;
use super::effects::Effects;
use super::handoff::{Handoff, HandoffRequest, ReaderClass, known};
use super::local::LocalLock;
use super::lock::{Passed, Passing};
use super::loss::SharedHold;
use super::protocol::Queue;
use super::settling::downgrade_later;
use super::share::Share;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::observe::group::Group;

impl Hold {
    /// Describes a share of this hold that may pass to another task.
    fn passing(&self, mode: Mode, lease: ShareLease) -> Passing {
        Passing {
            slot: self.slot,
            mode,
            lease,
            is_alone: self.is_alone(),
            is_open: self.core.ensure_open("release").is_ok(),
            give_up: self.core.timing.give_up,
        }
    }

    /// Carries out the effects of a share that went to another task or stays with the client.
    fn passed(&self, passed: Passed) {
        match passed {
            Passed::On(Some(owner)) => self.local.wake_waiters_of(&owner),
            Passed::On(None) => {}
            Passed::ToReaders => self.look_again(),
            Passed::Stays(before) => {
                drop(before);
                self.look_again();
                if self.core.ensure_open("release").is_err() {
                    // The client may have looked for sticky holds, to end them, before this one stayed.
                    self.end_stay();
                }
            }
        }
    }

    /// Has the used places removed in the background, because unlike a hold they do not end with a lease.
    pub(super) fn leave_places(&self) {
        let state = self.state();
        if !state.places().is_empty() {
            self.undo(state);
        }
    }

    /// Wakes the follower of this hold, which has ended, so that it asks the server.
    pub(super) fn wake_follower(&self) {
        if self.protocol.queue() == Queue::Server {
            let mut state = self.state();
            let last = state.last_place(self.holder());
            (state.lock).with_followers(|followers, woken| followers.leave(&last, woken));
        }
    }

    /// Ends the stay with the client if that is due. The watchdog calls this when it checks the hold.
    pub(super) fn end_stay_if_due(self: &Arc<Self>, now: Tick) {
        let mut state = self.state();
        if state.stays_until() <= now {
            state.end_stay();
            drop(state);
            let this = Arc::clone(self);
            let ending = async move {
                let stays = &mut this.local.lock().sticky;
                stays.take_if(|stays| stays.is_of(&*this))
            };
            let ending = ending.map(drop);
            self.core.watchdog.drive(ending.boxed());
        }
    }

    /// Releases the hold if it stays with the client.
    pub(super) fn end_stay(&self) {
        // If a later grant of this lock stays now, it is released instead: the waiter elsewhere wants that one too.
        drop(self.local.take_sticky());
    }
}

impl RawShare {
    /// Ends the share. Returns `None` beside the hold if the share went to the next task or stays with the client.
    /// Otherwise returns the effects, which say what the hold needs, or why the hold was lost before. Tasks that arrive
    /// later ask behind the release.
    pub(super) fn end(self, now: Tick) -> (Arc<Hold>, Option<Result<Effects, LostReason>>) {
        let Self {
            hold,
            owner,
            mode,
            lease,
            kept_until,
        } = self;
        let passing = (now >= kept_until).then(|| hold.passing(mode, lease));
        let mut state = hold.state_at(now);
        let passed = passing.and_then(|passing| {
            let lock = &mut state.lock;
            let next = match hold.protocol.queue() {
                Queue::Server => lock.hand_to_follower(now, &passing, hold.holder()),
                Queue::Local | Queue::LocalWithPlace => None,
            };
            next.or_else(|| lock.pass_on(now, &passing))
        });
        if let Some(passed) = passed {
            drop(state);
            hold.passed(passed);
            return (hold, None);
        }
        let lost = state.loss();
        let effects = hold.change_locked(state, now, |state, now| {
            state.release_share(now, &owner, mode, lease, kept_until)
        });
        (hold, Some(lost.map_or(Ok(effects), Err)))
    }
}

impl Handoff {
    /// Takes the share out. The caller has to release it.
    pub(super) fn into_raw(mut self) -> Option<RawShare> {
        let hold = known(self.take()?)?;
        let owner = self.owner.clone();
        Some(RawShare::new(hold, owner, self.mode, self.lease))
    }

    /// Passes the share of a sticky hold on to the task that asks for it. If it does not fit `request`, releases the
    /// share and returns `None`.
    pub(crate) fn pass_on(self, request: &HandoffRequest) -> Option<Self> {
        let share = self.into_raw()?;
        let hold = &share.hold;
        let now = hold.core.clock.now();
        let passing = hold.passing(share.mode, share.lease);
        let next = hold.local.lock().hand_to(now, &passing, request);
        let Some(next) = next else {
            share.release_later(now);
            return None;
        };
        if let Some(owner) = &request.options.owner {
            hold.local.wake_waiters_of(owner);
        }
        Some(next)
    }
}

impl Share {
    /// Takes the share that another task of this client has handed off to a call of this group. `None` if the share is
    /// lost by now.
    pub(crate) fn handed_off(handoff: Handoff, group: Group) -> Option<Self> {
        let raw = handoff.into_raw()?;
        let (mode, now) = (raw.mode, raw.hold.core.clock.now());
        let share = Self::of(raw, now);
        let hold = share.hold();
        hold.change(now, |state, now| state.accept_handoff(now, mode));
        if hold.loss_at(now).is_some() || share.lease().loss_at(now).is_some() {
            return None;
        }
        hold.note_handoff(mode, group);
        Some(share)
    }

    /// Joins the hold that readers of this client have, as a new owner. `None` if no hold accepts a reader on these
    /// terms.
    pub(crate) fn joined(
        core: &Core,
        local: &LocalLock,
        terms: &ReaderClass,
        group: Group,
    ) -> Option<Self> {
        if core.is_closed() {
            return None;
        }
        let joined = local.lock().join(core.clock, terms);
        let (hold, owner, now, effects) = joined?;
        let hold: Arc<Hold> = known(hold)?;
        hold.carry_out(effects);
        hold.note_handoff(Mode::Shared, group);
        let lease = ShareLease::renewed(terms.lease);
        let raw = RawShare::new(hold, owner, Mode::Shared, lease);
        Some(Self::of(raw, now))
    }
}

impl Hold {
    /// Has the watchdog ask the server whether it still has the hold.
    pub(crate) fn verify(&self) {
        self.state().doubt(self.core.clock.now());
        self.look_again();
    }

    /// Fails if the client's background task is gone.
    #[inline]
    pub(super) fn ensure_alive(&self, operation: &'static str) -> Result<()> {
        let alive = self.core.ensure_alive(operation);
        alive.map_err(|error| error.of_lock(self.name()))
    }

    /// Has the watchdog look again when to check this hold. The watchdog reads that from the state, because other
    /// events may have followed.
    pub(super) fn look_again(&self) {
        self.core.watchdog.look_again(self.number);
    }

    /// Waits until the server has answered whether it still has the hold. For a guard that is released while others
    /// stay; the last guard learns this from the answer to its release.
    ///
    /// # Errors
    /// Fails if the hold is lost, if there is no answer, or if nothing renews it.
    pub(crate) async fn confirmed(&self, operation: &'static str) -> Result<()> {
        self.ensure_alive(operation)?;
        let budget = self.call_budget();
        let unanswered = || {
            let message = "no answer yet to whether the server still has it, after it was out of reach; check that it \
                           is up and reachable";
            let error = Error::new(Kind::Io, operation, message).of_lock(self.name());
            Err(error.at(&self.endpoint()))
        };
        loop {
            let mark = self.changed.mark();
            if let Some(reason) = self.expire_if_due() {
                // If only the other shares have ended by themselves, the server has not answered.
                return match self.state().has_ended_by_itself() {
                    true => unanswered(),
                    false => Err(self.not_held(operation, reason)),
                };
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
                () = self.core.clock.sleep_until(budget.deadline) => return unanswered(),
            }
        }
    }

    /// The fencing token of one owner.
    pub(super) fn token_of(&self, owner: &Owner) -> Option<FencingToken> {
        self.state().token_of(owner)
    }

    /// Ends the deferral of the downgrade. Readers under this write hold have a read hold from now on, and the server
    /// is asked for the downgrade in the background. False if no downgrade was deferred.
    pub(crate) fn end_deferral(self: &Arc<Self>) -> bool {
        let state = self.state();
        let is_deferred = state.is_downgrade_deferred();
        if is_deferred {
            let now = self.core.clock.now();
            self.change_locked(state, now, |state, _| state.end_deferral());
            downgrade_later(Arc::clone(self), now);
        }
        is_deferred
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
            // A forgotten read share must stay at the server as a reader, not as a writer.
            hold.end_deferral();
        }
        hold.change(hold.core.clock, |state, _| {
            state.forget_share(&owner, mode, lease)
        });
    }
}

/// Turns the write holds that readers of this client use into read holds. True if there were any.
pub(crate) fn end_deferrals(local: &LocalLock) -> bool {
    let deferred: Vec<Arc<Hold>> = {
        let state = local.lock();
        let writers = state.grants.writers();
        let deferred = writers.filter(|grant| grant.state.is_downgrade_deferred());
        deferred.filter_map(|grant| known(grant.hold()?)).collect()
    };
    deferred.iter().filter(|hold| hold.end_deferral()).count() > 0
}

/// As [`end_deferrals`], and waits until the downgrade is sent, so that the next request goes behind it.
pub(crate) async fn deferrals_ended(core: &Core, local: &LocalLock) {
    if end_deferrals(local) {
        let now = core.clock.now();
        let limit = now.after(core.timing.reply);
        local.releases_sent_by(core.clock, limit, now).await;
    }
}
