//! One share of a hold: what every guard is made of.
//!
//! Invariant: each share is given back exactly once, by `release`, by `forget`, or by `Drop`. So
//! whatever holds a share, a future or a guard, leaves nothing behind when it is dropped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::bound::Bound;
use super::reenter::Entry;
use super::settle::Ended;
use super::{Hold, ShareLease};
use crate::clock::Tick;
use crate::counts::Mode;
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::lost::{Lost, LostReason, drive};
use crate::options::LeasePolicy;
use crate::owner::Owner;

/// One share of a hold.
#[derive(Debug)]
pub(crate) struct Share {
    /// `None` once it was given back: then only `Drop` is left to run.
    hold: Option<Arc<Hold>>,
    mode: Mode,
    owner: Owner,
    lease: ShareLease,
}

impl Share {
    /// Takes over a share that the hold has counted already.
    pub(super) fn of(hold: Arc<Hold>, mode: Mode, owner: Owner, lease: ShareLease) -> Self {
        Self {
            hold: Some(hold),
            mode,
            owner,
            lease,
        }
    }

    /// It is a guard's from here on.
    pub(crate) fn guarded(self) -> Self {
        self.hold().guarded();
        self
    }

    /// Takes the share apart; whoever has the parts gives it back.
    pub(super) fn into_parts(mut self) -> Option<(Ended, Owner)> {
        Some((self.take()?, self.owner.clone()))
    }

    fn take(&mut self) -> Option<Ended> {
        Some(Ended {
            hold: self.hold.take()?,
            mode: self.mode,
            lease: self.lease,
        })
    }

    pub(super) fn lease(&self) -> ShareLease {
        self.lease
    }

    /// Gives it another lease from here on.
    pub(super) fn set_lease(&mut self, lease: ShareLease) {
        let before = std::mem::replace(&mut self.lease, lease);
        self.hold().change_lease(before, lease);
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        // Methods that give the share back take the guard by value.
        self.hold
            .as_ref()
            .expect("a guard holds its share until it is consumed")
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let lost = |reason| Lost::new(self.name(), reason);
        let look = || self.hold().loss_of(self.lease).map(lost);
        drive(async { lost(self.lost().await) }, look, work).await
    }

    pub(crate) async fn reenter(&self) -> Result<Self> {
        Self::enter_again(self.hold(), &self.owner, self.mode, self.lease).await
    }

    /// One more share of a hold, for a guard that has one, with the lease of that.
    pub(super) async fn enter_again(
        hold: &Arc<Hold>,
        owner: &Owner,
        mode: Mode,
        lease: ShareLease,
    ) -> Result<Self> {
        let lost = |reason| hold.not_held("reenter", reason);
        if let Some(reason) = hold.loss_of(lease) {
            return Err(lost(reason));
        }
        // A hold keeps the token it has, or has none.
        let entered = hold.reenter(owner, mode, Entry::Like(lease), false, "reenter", None);
        let share = entered.await?;
        share.ok_or_else(|| lost(hold.expire_if_due().unwrap_or(LostReason::Revoked)))
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        match self.take() {
            Some(share) => share.release().await,
            None => Ok(()),
        }
    }

    /// Turns an exclusive share into a shared one.
    pub(crate) async fn downgrade(mut self) -> Result<Self> {
        let share = self.take().expect("a guard holds its share");
        share.downgrade().await
    }

    pub(crate) fn forget(mut self) {
        if let Some(Ended { hold, mode, lease }) = self.take() {
            hold.forget(mode, lease);
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.hold().name()
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn holder_id(&self) -> &str {
        self.hold().holder_id()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        self.hold().counts().of(self.mode)
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.hold().token()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold().remaining_of(self.lease)
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.hold().loss_of(self.lease)
    }

    /// How long ago it was asked for.
    pub(crate) fn age(&self) -> Duration {
        self.hold().age()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.hold().lost(self.lease).await
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.hold().deadline()
    }

    /// As [`Hold::accept_handoff`].
    pub(crate) fn accept_handoff(&self) {
        self.hold().accept_handoff();
    }

    /// As [`Hold::adopt`].
    pub(crate) async fn adopt(
        &mut self,
        policy: LeasePolicy,
        operation: &'static str,
        bound: &Bound,
    ) -> Result<bool> {
        let hold = Arc::clone(self.hold());
        if !policy.is_renewed() {
            // No renewal from here on, which would lengthen it.
            self.set_lease(ShareLease::Until(hold.deadline()));
        }
        let lease = hold.adopt(policy, operation, bound).await?;
        if let Some(lease) = lease {
            self.set_lease(lease);
        }
        Ok(lease.is_some())
    }

    /// As [`Hold::raise_token`].
    pub(crate) async fn raise_token(
        &self,
        token: FencingToken,
        operation: &'static str,
    ) -> Result<()> {
        self.hold().raise_token(token, operation).await
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(share) = self.take() {
            share.release_later();
        }
    }
}
