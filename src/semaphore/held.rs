//! Permits of one guard on their way back: to the next call of this client, or to the server.
//!
//! Invariant: permits that are dropped, anywhere, are handed off or released.

use std::fmt::Debug;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::permits::Permits;
use super::queue::Terms;
use crate::api::error::{Error, Result};
use crate::api::lost::LostReason;
use crate::api::options::LeasePolicy;
use crate::observe::fact::GrantedBy;

/// The place that permits return to when their guard is gone: the client's state of their semaphore.
pub(super) trait Home: Debug + Send + Sync {
    fn name(&self) -> &str;
    /// Hands permits off to the next caller with equal terms, or releases them.
    fn returned(&self, terms: Terms, held: Held);
    /// Releases permits in the background.
    fn release(&self, held: Held);
    /// The error of a release of permits that were lost.
    fn not_held(&self, reason: LostReason) -> Error;
    /// The error of a release that has no task to drive it.
    fn closed(&self) -> Error;
}

/// Permits that are handed off or released when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) semaphore: Arc<dyn Home>,
    pub(super) permits: Option<Permits>,
    pub(super) policy: LeasePolicy,
    pub(super) is_fair: bool,
    /// How the next caller gets them.
    pub(super) by: GrantedBy,
    /// Receives the outcome of a release.
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

    /// Splits off a part of the same grant.
    pub(super) fn part(&self, permits: Permits) -> Self {
        Self {
            semaphore: Arc::clone(&self.semaphore),
            permits: Some(permits),
            policy: self.policy,
            is_fair: self.is_fair,
            by: GrantedBy::Handoff,
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
            // Permits that are lost or have little time left are not handed off.
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
