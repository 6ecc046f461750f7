//! Permits of one guard, on their way back: to the next call of this client, or to the server.
//!
//! Invariant: permits that are dropped, wherever that is, are handed off or released.

use std::fmt::Debug;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::permits::Permits;
use super::queue::Terms;
use crate::api::error::{Error, Result};
use crate::api::lost::LostReason;
use crate::api::options::LeasePolicy;

/// Where permits go when their guard is gone: what the client knows of their semaphore.
pub(super) trait Home: Debug + Send + Sync {
    fn name(&self) -> &str;
    /// Gives permits to the next caller of these terms, or releases them.
    fn returned(&self, terms: Terms, held: Held);
    /// Has permits released.
    fn release(&self, held: Held);
    /// The error of a release of permits that were lost.
    fn not_held(&self, reason: LostReason) -> Error;
    /// The error of a release that nothing drives.
    fn closed(&self) -> Error;
}

/// Permits that are given to another caller or released when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) semaphore: Arc<dyn Home>,
    pub(super) permits: Option<Permits>,
    pub(super) policy: LeasePolicy,
    pub(super) is_fair: bool,
    /// Where the outcome of a release goes.
    pub(super) done: Option<oneshot::Sender<Result<()>>>,
}

impl Held {
    /// Returns the permits, to the next caller of this client or to the server, and waits for the outcome.
    pub(super) async fn release(mut self) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.done = Some(sender);
        let semaphore = Arc::clone(&self.semaphore);
        drop(self);
        receiver.await.map_err(|_| semaphore.closed())?
    }

    /// Stops the renewals and leaves the permits taken until their leases end.
    pub(super) fn forget(mut self) {
        if let Some(permits) = self.permits.take() {
            permits.release();
        }
    }

    /// Another part of the same grant.
    pub(super) fn part(&self, permits: Permits) -> Self {
        Self {
            semaphore: Arc::clone(&self.semaphore),
            permits: Some(permits),
            policy: self.policy,
            is_fair: self.is_fair,
            done: None,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else {
            return;
        };
        let semaphore = Arc::clone(&self.semaphore);
        let done = self.done.take();
        if !is_whole(&permits) {
            // Permits with little time left are not handed off, nor lost ones.
            let mut held = self.part(permits);
            held.done = done;
            semaphore.release(held);
            return;
        }
        let terms = Terms::of(permits.len(), self.policy, self.is_fair);
        let mut held = self.part(permits);
        held.done = done;
        semaphore.returned(terms, held);
    }
}

/// Whether all of these permits are held, with at least half of their leases left.
fn is_whole(permits: &Permits) -> bool {
    permits.0.iter().all(|permit| permit.is_fresh())
}
