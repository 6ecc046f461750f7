//! The guard of a Redlock.

use super::share::QuorumShare;
use crate::api::guard::guard_methods;
use crate::observe::guard::GuardTimer;

/// One hold on a [`RedlockLock`](crate::RedlockLock); dropping it releases on every server in the background.
///
/// It is held while a majority of all servers holds the lock for it, each with a local deadline of its own. A lost
/// server (restarted, or unreachable for a lease) is asked again in the background about every third of a lease, so a
/// long hold outlives the restart of every server, one after the other. Not so with a [fixed
/// lease](crate::RedlockLock::fixed_lease). Once fewer than a majority are left, the guard is lost, and the rest is
/// released at once.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown) of all its clients,
/// which waits for the releases of dropped guards.
///
/// ```no_run
/// # async fn doc(redlock: lockset::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = redlock.lock("order:7").lock().await?;
/// println!("held on {} servers", guard.holder_ids().len());
/// guard.run(async { /* work */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RedlockGuard(QuorumShare);

guard_methods!(RedlockGuard);

impl RedlockGuard {
    pub(super) fn new(mut share: QuorumShare, timer: GuardTimer) -> Self {
        share.timer = timer;
        Self(share)
    }

    /// The holder ids at the servers that hold the lock now, in the order of the clients; empty once the lock
    /// is lost.
    #[must_use]
    pub fn holder_ids(&self) -> Vec<String> {
        self.0.holder_ids()
    }
}
