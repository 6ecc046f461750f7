//! The guard of a Redlock.

use std::future::Future;
use std::time::Duration;

use super::reenter::reenter;
use super::round::QuorumRequest;
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::loss::Loss;
use crate::api::lost::{Lost, LostReason};
use crate::api::owner::Owner;
use crate::engine::hold::quorum::QuorumShare;
use crate::engine::hold::reenter::Entry;
use crate::observe::meter::GuardTimer;

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
pub struct RedlockGuard {
    /// Dropped first, because the guard may be the last of its clients; or once the lock is released.
    pub(super) _timer: GuardTimer,
    pub(super) share: QuorumShare,
    pub(super) request: QuorumRequest,
}

impl RedlockGuard {
    /// The name of the lock, as it was given to [`Redlock::lock`](crate::Redlock::lock).
    #[must_use]
    pub fn name(&self) -> &str {
        self.share.name()
    }

    /// The owner that holds the lock: the one set on the handle, or one made for this hold.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        self.share.owner()
    }

    /// The holder id at one server that granted the lock. Each server has its own, and a new one after it was lost and
    /// rejoined; see [`holder_ids`](Self::holder_ids).
    #[must_use]
    pub fn holder_id(&self) -> &str {
        self.share.holder_id()
    }

    /// The holder ids at the servers that hold the lock now, in the order of the clients; empty once the lock
    /// is lost.
    #[must_use]
    pub fn holder_ids(&self) -> Vec<String> {
        self.share.holder_ids()
    }

    /// How many guards of this owner share this hold.
    #[must_use]
    pub fn hold_count(&self) -> u32 {
        self.share.hold_count()
    }

    /// The fencing token of this hold; `None` unless the handle is `fenced()`.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.share.fencing_token()
    }

    /// The fencing token of this hold, for code that cannot work without.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid): the handle is not `fenced()`.
    pub fn token(&self) -> Result<FencingToken> {
        FencingToken::required(self.fencing_token(), self.name())
    }

    /// How long a majority certainly still holds the lock, by the local monotonic clock. Zero once it is
    /// lost.
    ///
    /// Each server's time counts from before its last confirmed request was sent, so this ends before the leases of a
    /// majority do.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.share.remaining()
    }

    /// Whether the lock is lost: fewer than a majority hold it. Once true, it stays true.
    ///
    /// It reads the clock, so it is right even after the process or the machine was stopped for longer than
    /// the lease.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.share.is_lost()
    }

    /// Waits until the lock is lost, and returns the reason at the server that broke the majority.
    ///
    /// It resolves by the local deadline, even if the network fails; after the machine was suspended for longer than
    /// the lease, within a quarter of a second.
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times, also after the loss.
    pub async fn lost(&self) -> LostReason {
        self.share.lost().await
    }

    /// Waits until a call waits for the lock at one of its servers, in this process or in another; as
    /// [`ReentrantGuard::recalled`](crate::ReentrantGuard::recalled).
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times.
    pub async fn recalled(&self) {
        self.share.recalled().await;
    }

    /// Whether the lock is lost, for tasks and threads that do not have the guard: `'static`, and cheap to
    /// clone. See [`Loss`](crate::Loss).
    ///
    /// ```no_run
    /// # async fn doc(guard: lockset::RedlockGuard) {
    /// let loss = guard.loss();
    /// tokio::spawn(async move { println!("lost: {}", loss.wait().await) });
    /// # }
    /// ```
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.share.loss_view()
    }

    /// Runs `work` to its end, or drops it when the lock is lost.
    ///
    /// The clock is read before each step of the work and once more at its end, so `Ok` means that the lock was held
    /// until then. A loss stops only what `work` itself awaits, not a task that it spawned, nor a call that blocks its
    /// thread. If such a call outlasts the lease, this returns `Lost` when the call comes back, although the work was
    /// done.
    ///
    /// # Cancel safety
    /// Dropping this future drops `work`; the guard is not touched.
    ///
    /// # Errors
    /// [`Lost`]: the lock was lost before the work ended.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        self.share.run(work).await
    }

    /// Enters the lock once more for the same owner. Never waits for another owner.
    ///
    /// It takes no round trip while a majority has more than half of its lease left. Otherwise, or after a server was
    /// out of reach, a renewal is sent first.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the guards as they are. Renewals under way go on in the background.
    ///
    /// # Errors
    /// * [`is_not_held`](crate::Error::is_not_held): the lock is lost.
    /// * [`is_quorum`](crate::Error::is_quorum): no majority answers.
    pub async fn reenter(&self) -> Result<Self> {
        let hold = self.share.hold();
        if let Some(reason) = self.share.loss() {
            return Err(hold.not_held("reenter", reason));
        }
        let entry = Entry::Like(self.share.lease());
        let share = reenter(&self.request, hold, entry, None).await?;
        let share = share.ok_or_else(|| {
            let reason = hold.loss().unwrap_or(LostReason::Revoked);
            hold.not_held("reenter", reason)
        })?;
        Ok(Self {
            share,
            request: self.request.clone(),
            _timer: GuardTimer::none(),
        })
    }

    /// Releases this hold and waits until a majority has confirmed it, in one round trip; the other servers release in
    /// the background. `Ok` means that the lock was held to the end, as far as this client knows.
    ///
    /// # Cancel safety
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// * [`is_not_held`](crate::Error::is_not_held): the lock was lost before. Work done under it may have overlapped
    ///   with another holder.
    /// * [`is_io`](crate::Error::is_io), [`is_refused`](crate::Error::is_refused),
    ///   [`is_denied`](crate::Error::is_denied): no majority has confirmed it. This is the error of one of the servers
    ///   that have not. The release continues in the background until the leases end.
    /// * [`is_closed`](crate::Error::is_closed): the runtime of a client has ended. The leases run out.
    pub async fn release(self) -> Result<()> {
        self.share.release().await
    }

    /// Drops the guard without releasing: renewals stop, and the lock stays held until its leases end.
    pub fn forget(self) {
        self.share.forget();
    }

    pub(crate) fn lost_now(&self) -> Option<Lost> {
        self.share
            .loss()
            .map(|reason| Lost::new(self.name(), reason))
    }

    pub(crate) async fn lost_lock(&self) -> Lost {
        Lost::new(self.name(), self.share.lost().await)
    }
}
