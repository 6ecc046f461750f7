//! One share of a hold: what every guard is made of.
//!
//! Invariant: each share is given back exactly once, by `release`, by `forget`, or by `Drop`. So
//! whatever holds a share, a future or a guard, leaves nothing behind when it is dropped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Hold;
use crate::clock::Tick;
use crate::counts::Mode;
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::lost::{Lost, LostReason, drive};
use crate::options::Term;
use crate::owner::Owner;

/// One share of a hold.
#[derive(Debug)]
pub(crate) struct Share {
    /// `None` once it was given back: then only `Drop` is left to run.
    hold: Option<Arc<Hold>>,
    mode: Mode,
    owner: Owner,
}

impl Share {
    /// Takes over a share that the hold has counted already.
    pub(super) fn of(hold: Arc<Hold>, mode: Mode, owner: Owner) -> Self {
        Self {
            hold: Some(hold),
            mode,
            owner,
        }
    }

    /// It is a guard's from here on.
    pub(crate) fn guarded(self) -> Self {
        self.hold().guarded();
        self
    }

    /// Takes the share apart; whoever has the parts gives it back.
    pub(super) fn into_parts(mut self) -> Option<(Arc<Hold>, Mode, Owner)> {
        let hold = self.take()?;
        Some((hold, self.mode, self.owner.clone()))
    }

    fn take(&mut self) -> Option<Arc<Hold>> {
        self.hold.take()
    }

    pub(super) fn hold(&self) -> &Arc<Hold> {
        // Methods that give the share back take the guard by value.
        self.hold
            .as_ref()
            .expect("a guard holds its share until it is consumed")
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let lost = |reason| Lost::new(self.name(), reason);
        let look = || self.hold().loss().map(lost);
        drive(async { lost(self.lost().await) }, look, work).await
    }

    pub(crate) async fn reenter(&self) -> Result<Self> {
        Self::enter_again(self.hold(), &self.owner, self.mode).await
    }

    /// One more share of a hold, for a guard that has one.
    pub(super) async fn enter_again(hold: &Arc<Hold>, owner: &Owner, mode: Mode) -> Result<Self> {
        // A hold keeps the token it has, or has none.
        let entered = hold.reenter(owner, mode, None, false, "reenter", None);
        entered.await?.ok_or_else(|| {
            let reason = hold.loss().unwrap_or(LostReason::Revoked);
            hold.not_held("reenter", reason)
        })
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        match self.take() {
            Some(hold) => hold.release(self.mode).await,
            None => Ok(()),
        }
    }

    /// Turns an exclusive share into a shared one.
    pub(crate) async fn downgrade(mut self) -> Result<Self> {
        let hold = self.take().expect("a guard holds its share");
        hold.downgrade().await
    }

    pub(crate) fn forget(mut self) {
        if let Some(hold) = self.take() {
            hold.forget(self.mode);
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
        self.hold().remaining()
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.hold().loss()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.hold().lost().await
    }

    pub(crate) fn deadline(&self) -> Tick {
        self.hold().deadline()
    }

    /// As [`Hold::taken`].
    pub(crate) fn taken(&self) {
        self.hold().taken();
    }

    /// As [`Hold::adopt`].
    pub(crate) async fn adopt(
        &self,
        term: Term,
        operation: &'static str,
        deadline: Option<Tick>,
    ) -> Result<bool> {
        self.hold().adopt(term, operation, deadline).await
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
        if let Some(hold) = self.take() {
            hold.release_later(self.mode);
        }
    }
}
