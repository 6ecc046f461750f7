//! Shares of several holds that stand and fall together: what the guard of a multi-lock is made of.
//!
//! Invariants: as for a share, each is given back exactly once, those on one server with one script;
//! when one hold is lost, the shares of the others are given back.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::settle::{release_all, release_all_later};
use super::{Hold, Share};
use crate::counts::Mode;
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::lost::{Lost, LostReason};
use crate::owner::Owner;

/// At least one share, in the order of the members.
#[derive(Debug)]
pub(crate) struct Bundle(Arc<Members>);

/// What the holds know of a bundle they belong to.
#[derive(Debug)]
pub(super) struct Members {
    holds: Vec<(Arc<Hold>, Mode)>,
    /// Whether the shares were given back, or are not to be.
    is_over: AtomicBool,
}

impl Members {
    /// One of the holds was lost.
    pub(super) fn fall(&self) {
        if self.end() {
            release_all_later(self.holds.clone());
        }
    }

    /// True for the one who has to give the shares back.
    fn end(&self) -> bool {
        !self.is_over.swap(true, Ordering::AcqRel)
    }
}

impl Bundle {
    pub(crate) fn of(shares: Vec<Share>) -> Self {
        let holds = shares.into_iter().filter_map(Share::into_parts).collect();
        let members = Arc::new(Members {
            holds,
            is_over: AtomicBool::new(false),
        });
        for (hold, _) in &members.holds {
            hold.bundles.lock().push(Arc::downgrade(&members));
        }
        let bundle = Self(members);
        // One may have been lost before it knew of the others.
        if bundle.is_lost() {
            bundle.0.fall();
        }
        bundle
    }

    fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.0.holds.iter().map(|(hold, _)| hold)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.holds().map(|hold| hold.name())
    }

    pub(crate) fn owner(&self) -> &Owner {
        self.0.holds[0].0.owner()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let holds = self.0.holds.iter();
        let counts = holds.map(|(hold, mode)| hold.counts().of(*mode));
        counts.min().unwrap_or(0)
    }

    pub(crate) fn fencing_tokens(&self) -> impl Iterator<Item = Option<FencingToken>> {
        self.holds().map(|hold| hold.token())
    }

    pub(crate) fn remaining(&self) -> Duration {
        let each = self.holds().map(|hold| hold.remaining());
        each.min().unwrap_or(Duration::ZERO)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.holds().any(|hold| hold.loss().is_some())
    }

    /// Resolves when the first hold is lost, and says which.
    pub(crate) async fn lost(&self) -> (&str, LostReason) {
        let each = self.holds().map(|hold| {
            Box::pin(async move {
                let reason = hold.lost().await;
                (hold.name(), reason)
            })
        });
        select_all(each).await.0
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        tokio::select! {
            biased;
            (name, reason) = self.lost() => Err(Lost::new(name, reason)),
            done = work => Ok(done),
        }
    }

    /// One more share of each, or of none.
    pub(crate) async fn reenter(&self) -> Result<Self> {
        let holds = self.0.holds.iter();
        let each = holds.map(|(hold, mode)| Share::enter_again(hold, *mode));
        let shares = join_all(each).await.into_iter();
        shares.collect::<Result<Vec<_>>>().map(Self::of)
    }

    pub(crate) async fn release(self) -> Result<()> {
        if self.0.end() {
            return release_all(self.0.holds.clone()).await;
        }
        // One of them was lost, and the others were given back then.
        let lost = self
            .holds()
            .find_map(|hold| hold.loss().map(|reason| (hold, reason)));
        match lost {
            Some((hold, reason)) => Err(hold.not_held("release", reason)),
            None => Ok(()),
        }
    }

    pub(crate) fn forget(self) {
        if self.0.end() {
            for (hold, mode) in &self.0.holds {
                hold.forget(*mode);
            }
        }
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.0.fall();
        for hold in self.holds() {
            let this = Arc::as_ptr(&self.0);
            let mut bundles = hold.bundles.lock();
            bundles.retain(|members| members.as_ptr() != this);
        }
    }
}
