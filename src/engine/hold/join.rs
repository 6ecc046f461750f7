//! Readers take shares of a hold in memory: one hold at the server, one more share in the client.
//! [`HoldState::can_be_joined`](super::state::HoldState::can_be_joined) decides which holds accept readers.
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

use super::core::Core;
use super::handoff::{ReaderClass, known};
use super::local::LocalLock;
use super::settling::downgrade_later;
use super::share::Share;
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::engine::counts::Mode;
use crate::observe::group::Group;

impl Share {
    /// A share, for a new owner, of the hold that readers of this client have. `None` if there is none that accepts
    /// readers, or not on these terms.
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

    /// Has the watchdog check it in time, by what its state says now: other events may have followed.
    pub(super) fn look_again(&self) {
        self.core.watchdog.look_again(self.number);
    }

    /// Waits for the answer to whether the server still has the hold, for a guard that leaves while others stay. The
    /// last one learns that from the answer to its release.
    ///
    /// # Errors
    /// Fails if the hold is lost, or if there is no answer.
    pub(crate) async fn confirmed(&self, operation: &'static str) -> Result<()> {
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
                // The other shares may have ended by themselves, which is no answer.
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

    /// Ends the deferral: readers under this write hold have a read hold from now on, and the server is asked for the
    /// downgrade in the background. True if there were any readers.
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
            // Only a read share may be left at the server.
            hold.end_deferral();
        }
        hold.change(hold.core.clock, |state, _| {
            state.forget_share(&owner, mode, lease)
        });
    }
}

/// Turns write holds that readers of this client have into read holds. True if there were any.
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
