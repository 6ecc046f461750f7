//! The guard of a Redlock.

use std::future::Future;
use std::time::Duration;

use super::reenter::reenter;
use super::round::QuorumRequest;
use crate::error::Result;
use crate::fencing::FencingToken;
use crate::hold::quorum::QuorumShare;
use crate::hold::reenter::Entry;
use crate::lost::{Lost, LostReason};
use crate::owner::Owner;

/// One hold on a [`RedlockLock`](crate::RedlockLock); dropping it releases everywhere in the
/// background.
///
/// **A program that ends right after the drop leaves the lock taken** until its lease is over. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown) of all its
/// clients, which waits for what dropped guards have left to do.
///
/// It is held while a majority of all servers holds the lock for it, each by a local deadline of its
/// own. A server that is lost (it was restarted, or away for a lease) is asked again in the background,
/// about every third of a lease, so that a long hold outlives the restart of every server, one after the
/// other; not for a [fixed lease](crate::RedlockLock::fixed_lease). Once fewer than a majority are left
/// the guard is lost, and the rest is given back at once.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RedlockGuard {
    pub(super) share: QuorumShare,
    pub(super) request: QuorumRequest,
}

impl RedlockGuard {
    /// The name of the lock, as it was given to [`Redlock::lock`](crate::Redlock::lock).
    #[must_use]
    pub fn name(&self) -> &str {
        self.share.name()
    }

    /// The owner that holds the lock: the one given to the handle, or one made for this hold.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.share.owner()
    }

    /// The holder id at a server that granted the lock. Each server knows the hold by an id of its own,
    /// and by a new one after it was lost there and asked again; see [`holder_ids`](Self::holder_ids).
    #[must_use]
    pub fn holder_id(&self) -> &str {
        self.share.holder_id()
    }

    /// The holder ids at the servers that hold the lock now, in the order of the clients; none once the
    /// lock is lost.
    #[must_use]
    pub fn holder_ids(&self) -> Vec<String> {
        self.share.holder_ids()
    }

    /// How many guards of this owner share this hold now.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.share.hold_count()
    }

    /// The fencing token of this hold; `None` unless a handle asked for one with `fenced()`.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.share.fencing_token()
    }

    /// How long the lock is still held for certain by a majority, by the local monotonic clock.
    ///
    /// Each server counts from before the last request that it confirmed was sent to it, so this ends
    /// before the leases of a majority do. Zero once the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.share.remaining()
    }

    /// Whether the lock is lost: fewer than a majority hold it. Once true it stays true.
    ///
    /// Read from the clock, so it is right even after the process or the machine was stopped for
    /// longer than the lease.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.share.is_lost()
    }

    /// Resolves when the lock is lost, with the reason that took the last server too many; at the
    /// latest when the local deadline passes, whatever the network does. After the machine was suspended
    /// for longer than the lease: within a quarter of a second.
    ///
    /// # Cancel safety
    /// Cancel safe; may be called any number of times, also after the loss.
    pub async fn lost(&self) -> LostReason {
        self.share.lost().await
    }

    /// Drives `work` to its end, or drops it the moment the lock is lost.
    ///
    /// The clock is read before each step of the work and once more at its end: `Ok` means that the
    /// lock was still held then. Only what is awaited in `work` itself stops with it: not a task it
    /// spawned, nor a call that blocks its thread. What blocks for longer than the lease is found out
    /// when it comes back, and `Lost` is the answer though the work was done.
    ///
    /// # Cancel safety
    /// Dropping this future drops `work`; the guard is not touched.
    ///
    /// # Errors
    /// [`Lost`] if the lock was lost before the end.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        self.share.run(work).await
    }

    /// One more hold for the same owner; never waits for anybody. One round trip to a majority.
    ///
    /// # Cancel safety
    /// If the future is dropped, counts that servers may have raised are put right in the background.
    ///
    /// # Errors
    /// [`is_not_held`](crate::Error::is_not_held) if the lock is lost;
    /// [`is_quorum`](crate::Error::is_quorum) if no majority answers.
    pub async fn reenter(&self) -> Result<Self> {
        let quorum = self.share.quorum();
        if let Some(reason) = self.share.loss() {
            return Err(quorum.not_held("reenter", reason));
        }
        let entry = Entry::Like(self.share.stay());
        match reenter(&self.request, quorum, entry, None).await? {
            Some(share) => Ok(Self {
                share,
                request: self.request.clone(),
            }),
            None => {
                let reason = quorum.loss().unwrap_or(LostReason::Revoked);
                Err(quorum.not_held("reenter", reason))
            }
        }
    }

    /// Gives this hold back and waits until a majority has done so: the exact way out. One round trip;
    /// the other servers are told in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    /// [`is_not_held`](crate::Error::is_not_held) if the lock was lost before: what was done under it
    /// may have overlapped with another holder. [`is_io`](crate::Error::is_io) if no majority answers:
    /// the release goes on in the background until the leases are over.
    pub async fn release(self) -> Result<()> {
        self.share.release().await
    }

    /// Gives up the guard without releasing: renewals stop, and the lock stays taken until its leases
    /// run out.
    pub fn forget(self) {
        self.share.forget();
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.share.loss()
    }
}
