//! One share of a hold. Every guard contains one.
//!
//! Invariant: each share ends exactly once, by `release`, by `forget`, or by `Drop`. A future or guard that holds a
//! share therefore leaves nothing behind when it is dropped.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::effects::NewHold;
use super::local::LocalLock;
use super::loss::{ShareView, SharedHold};
use super::protocol::Protocol;
use super::reenter::{Entrance, LeaseSource, Reentry};
use super::share_lease::ShareLease;
use super::shell::{Hold, RawShare};
use super::state::HoldState;
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::{Loss, LossCell, Lost, LostReason};
use crate::engine::clock::Tick;
use crate::engine::keys::LockName;
use crate::observe::observer::{HoldSpan, HoldTimer};

/// One share of a hold.
#[derive(Debug)]
pub(crate) struct Share {
    /// `None` once the share has ended: then only `Drop` is left to run.
    raw: Option<RawShare>,
    view: LossCell,
    span: HoldSpan,
    /// Set if a call got this share while calls are timed.
    timer: Option<HoldTimer>,
    /// When this client learned that it has the share. Zero if that was not noted.
    since: Tick,
}

impl Share {
    /// The first share of a hold that was just granted.
    pub(crate) fn granted(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        protocol: &'static dyn Protocol,
        name: &LockName,
        new: NewHold,
    ) -> Self {
        let now = core.clock.now();
        let raw = Hold::granted(core, local, protocol, name, new, now);
        Self::of(raw, now)
    }

    /// One more share of a hold that is ready for it. `None` if the hold has changed since.
    pub(crate) fn entered(entrance: Entrance) -> Result<Option<Self>> {
        let entered = entrance.enter()?;
        Ok(entered.map(|raw| Self::of(raw, Tick::ZERO)))
    }

    /// Wraps a share that the hold counts already. `since` is when this client learned of the share, or zero.
    pub(super) fn of(raw: RawShare, since: Tick) -> Self {
        Self {
            raw: Some(raw),
            view: LossCell::default(),
            span: HoldSpan::default(),
            timer: None,
            since,
        }
    }

    /// When this client learned of the share, if that was noted.
    pub(crate) fn since(&self) -> Option<Tick> {
        (self.since != Tick::ZERO).then_some(self.since)
    }

    /// Gives the share to a guard. If the guard releases it before `kept_until`, the hold is left at the server until
    /// then. If the guard releases it later, the hold may stay with this client for up to `sticky`.
    pub(crate) fn guarded(mut self, kept_until: Tick, sticky: Duration) -> Self {
        if let Some(raw) = &mut self.raw {
            raw.kept_until = kept_until;
        }
        let RawShare {
            hold, owner, mode, ..
        } = self.raw();
        if !sticky.is_zero() {
            hold.listen_for_recalls();
        }
        let mut state = hold.state();
        let (is_first, lost) = (!state.is_taken(), state.loss());
        state.lock.grants.taken(hold.slot);
        let made = |state: &mut HoldState, now| state.make_guard(now, sticky);
        hold.change_locked(state, hold.core.clock, made);
        if is_first {
            if let Some(reason) = lost {
                // The loss was not noted when it happened, because the call had no guard.
                hold.note_loss(reason);
            }
            hold.open_to_others(owner, *mode);
        }
        // No mutex is held here, because a subscriber of traces may call methods of the guard.
        self.span = HoldSpan::begin(|| (self.name(), self.holder_id(), self.fencing_token()));
        self
    }

    /// Asks for the hold to be left at the server when its last share ends: until `until`, or if `is_forgotten` for the
    /// rest of its lease.
    pub(crate) fn ask_to_keep(&self, until: Tick, is_forgotten: bool) {
        let mut state = self.hold().state();
        state.ask_to_keep(until);
        if is_forgotten {
            state.note_forgotten(self.raw().mode);
        }
    }

    /// Adds the timer of a share that a call got.
    #[inline]
    pub(crate) fn timed(mut self, timed: Option<(HoldTimer, Tick)>) -> Self {
        if let Some((timer, since)) = timed {
            (self.timer, self.since) = (Some(timer), since);
        }
        self
    }

    /// Takes the share apart. The caller has to release the parts.
    pub(super) fn into_parts(mut self) -> Option<(RawShare, HoldSpan)> {
        let span = std::mem::take(&mut self.span);
        Some((self.end()?.0, span))
    }

    /// Takes the raw share out, which the caller has to release now.
    fn end(&mut self) -> Option<(RawShare, Tick)> {
        let (raw, now) = self.take_raw()?;
        self.view.end(|| raw.hold.loss_of(raw.lease));
        Some((raw, now))
    }

    /// Takes the raw share out, and ends its timer.
    #[inline]
    fn take_raw(&mut self) -> Option<(RawShare, Tick)> {
        let raw = self.raw.take()?;
        let now = raw.hold.core.clock.now();
        if let Some(timer) = self.timer {
            timer.ends(raw.hold.core.observed(), self.since.until(now));
        }
        Some((raw, now))
    }

    fn raw(&self) -> &RawShare {
        // The methods that end the share take the guard by value.
        self.raw
            .as_ref()
            .expect("a guard holds its share until it is consumed")
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.raw().hold
    }

    pub(crate) fn lease(&self) -> ShareLease {
        self.raw().lease
    }

    /// Gives the share another lease from now on.
    pub(crate) fn set_lease(&mut self, after: ShareLease) {
        if let Some(raw) = &mut self.raw {
            let before = std::mem::replace(&mut raw.lease, after);
            raw.hold.change(raw.hold.core.clock, |state, _| {
                state.change_share_lease(before, after)
            });
        }
    }

    pub(crate) async fn reenter(&self) -> Result<Self> {
        loop {
            let entrance = Self::entrance_again(self.raw()).await?;
            // If not, the lease has become too short since, or the hold is in doubt.
            if let Some(share) = Self::entered(entrance)? {
                return Ok(share);
            }
        }
    }

    /// Prepares one more share of a hold, for a guard that has this share of it.
    pub(super) async fn entrance_again(share: &RawShare) -> Result<Entrance> {
        const OPERATION: &str = "reenter";
        let RawShare {
            hold, mode, lease, ..
        } = share;
        let lost = |reason| hold.not_held(OPERATION, reason);
        if let Some(reason) = hold.loss_of(*lease) {
            return Err(lost(reason));
        }
        // The new share has the token of the hold, or none if the hold has none.
        let reentry = Reentry {
            owner: share.owner.clone(),
            mode: *mode,
            entry: LeaseSource::Like(*lease),
            fenced: false,
            operation: OPERATION,
        };
        let entrance = hold.entrance(reentry, None).await?;
        entrance.ok_or_else(|| lost(hold.expire_if_due().unwrap_or(LostReason::Revoked)))
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        match self.end() {
            Some((raw, now)) => {
                let released = pin!(raw.release(now));
                released.await
            }
            None => Ok(()),
        }
    }

    /// Turns an exclusive share into a shared share, and waits for the server to agree. If this future is dropped,
    /// the share is released. Loss views of the guard stay valid.
    pub(crate) async fn downgrade(mut self) -> Result<Self> {
        let (raw, _) = self.take_raw().expect("a guard holds its share");
        let view = std::mem::take(&mut self.view);
        let (hold, lease) = (Arc::clone(&raw.hold), raw.lease);
        let raw = raw.begin_downgrade();
        let raw = raw.inspect_err(|_| view.end(|| hold.loss_of(lease)))?;
        let mut share = Self::of(raw, Tick::ZERO);
        share.view = view;
        hold.settle_downgrade().await?;
        Ok(share)
    }

    pub(crate) fn forget(mut self) {
        if let Some((raw, _)) = self.end() {
            raw.forget();
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.hold().name()
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.raw().owner
    }

    pub(crate) fn holder_id(&self) -> &str {
        self.hold().holder_id()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        self.raw().hold_count()
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.hold().token_of(self.owner())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold().remaining_of(self.lease())
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.hold().loss_of(self.lease())
    }

    /// The time since the lock was requested.
    pub(crate) fn age(&self) -> Duration {
        self.hold().age()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// The loss of the lock, if it is lost.
    pub(crate) fn lost_now(&self) -> Option<Lost> {
        self.loss().map(|reason| Lost::new(self.name(), reason))
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.hold().lost(self.lease()).await
    }

    pub(crate) async fn recalled(&self) {
        self.hold().recalled(self.raw().mode).await;
    }

    pub(crate) fn loss_view(&self) -> Loss {
        let held = || ShareView(Arc::clone(self.hold()), self.lease());
        self.view.view(|| Arc::new(held()))
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.hold().deadline()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((raw, now)) = self.end() {
            raw.release_later(now);
        }
    }
}
