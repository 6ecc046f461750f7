//! One share of a hold: what every guard is made of.
//!
//! Invariant: each share is given back exactly once, by `release`, by `forget`, or by `Drop`. So
//! whatever holds a share, a future or a guard, leaves nothing behind when it is dropped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Hold;
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::lost::{Lost, LostReason};
use crate::owner::Owner;

/// One share of a hold. `None` once it was given back: then only `Drop` is left to run.
#[derive(Debug)]
pub(crate) struct Share(Option<Arc<Hold>>);

impl Share {
    /// Takes over a share that the hold has counted already.
    pub(super) fn of(hold: Arc<Hold>) -> Self {
        Self(Some(hold))
    }

    fn hold(&self) -> &Arc<Hold> {
        // Methods that give the share back take the guard by value.
        self.0
            .as_ref()
            .expect("a guard holds its share until it is consumed")
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let hold = self.hold();
        tokio::select! {
            biased;
            reason = hold.lost() => Err(Lost::new(hold.name(), reason)),
            done = work => Ok(done),
        }
    }

    pub(crate) async fn reenter(&self) -> Result<Self> {
        let hold = self.hold();
        let fenced = hold.token().is_some();
        let entered = hold.reenter(None, fenced, "reenter", None).await?;
        entered.ok_or_else(|| {
            let reason = hold.loss().unwrap_or(LostReason::Revoked);
            hold.not_held("reenter", reason)
        })
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        match self.0.take() {
            Some(hold) => hold.release().await,
            None => Ok(()),
        }
    }

    pub(crate) fn forget(mut self) {
        if let Some(hold) = self.0.take() {
            hold.forget();
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.hold().name()
    }

    pub(crate) fn owner(&self) -> &Owner {
        self.hold().owner()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        self.hold().count()
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.hold().token()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold().remaining()
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.hold().loss().is_some()
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.hold().lost().await
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take() {
            hold.release_later();
        }
    }
}
