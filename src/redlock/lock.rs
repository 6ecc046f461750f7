//! The handle on a lock of several servers.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::Acquisition;
use super::guard::RedlockGuard;
use super::handle::QuorumHandle;
use super::inspect;
use super::servers::Servers;
use crate::api::busy::Busy;
use crate::api::error::Result;
use crate::api::handle::option_methods;
use crate::api::holder::Holder;
use crate::engine::acquire::WaitLimit;
use crate::observe::call::{LockCall, Waited};
use crate::observe::counts::CountedKind;

/// The local queue has a kind of its own, because the members are reentrant locks.
const KIND: CountedKind = CountedKind::Redlock;

/// A lock for one owner at a time on several independent servers; from
/// [`Redlock::lock`](crate::Redlock::lock).
///
/// A handle: cheap to make and to clone, it holds nothing. Its options apply to the locks acquired through it.
///
/// Waiters of one process are served first come, first served. Processes have the lock in turns, near their servers and
/// far from them: one task of one process, against 64 of another, got one grant in six on loopback. A holder of this lock also
/// holds the [`ReentrantLock`](crate::ReentrantLock) of its name on a majority of the servers.
///
/// ```no_run
/// # async fn doc(redlock: lockset::Redlock) -> lockset::Result<()> {
/// let lock = redlock.lock("report").lease(std::time::Duration::from_secs(10));
/// if let Some(guard) = lock.try_lock().await? {
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct RedlockLock(QuorumHandle);

option_methods!(RedlockLock);

impl RedlockLock {
    pub(super) fn new(servers: &Arc<Servers>, name: &str) -> Self {
        Self(QuorumHandle::new(servers, name))
    }

    /// Acquires the lock, waiting until it is free.
    ///
    /// Takes one round trip to all servers at once if it is free, two if it is fenced. It does not wait for a minority
    /// that is slow or dead, unless the majority [needs a server](crate::RedlockBuilder::longest_lease) that has been up
    /// for less than ten minutes. If the lock is held elsewhere, it asks again when a server notifies of
    /// a release, and after a random time of up to 200 ms.
    ///
    /// # Cancel safety
    /// Dropping the future takes it out of the queue. Grants under way are released in the background, on every server.
    ///
    /// # Errors
    /// * [`is_quorum`](crate::Error::is_quorum): for as long as [`give_up_after`](Self::give_up_after) says (default: a
    ///   third of the client's lease), fewer than a majority of the servers had a vote; or this cannot change. The
    ///   message lists the vote of each. It is also [`is_wrong_type`](crate::Error::is_wrong_type) if that is the
    ///   reason.
    /// * [`is_invalid`](crate::Error::is_invalid): a name or option that cannot work.
    /// * [`is_closed`](crate::Error::is_closed): a majority of the clients was shut down, or the client whose queue
    ///   this process uses was, or its runtime has ended.
    ///
    /// ```no_run
    /// # async fn doc(redlock: lockset::Redlock) -> lockset::Result<()> {
    /// let guard = redlock.lock("order:7").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lock(&self) -> Result<RedlockGuard> {
        self.take("lock", WaitLimit::Forever)
            .await
            .map(WaitLimit::forever)
    }

    /// Acquires the lock if it is free, or held by the same owner. `None`: others hold it, or contenders split the
    /// votes. It waits up to a second for slow servers, or as long as [`give_up_after`](Self::give_up_after) says if
    /// that is less.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock), after one round.
    pub async fn try_lock(&self) -> Result<Option<RedlockGuard>> {
        self.take("try_lock", WaitLimit::Never).await
    }

    /// Acquires the lock, waiting at most `wait`. `None`: it did not become free in time. Makes a last
    /// attempt at the deadline.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock); also if too few servers have a vote at the deadline.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<RedlockGuard>> {
        let deadline = self.0.members[0].core().clock.now().after(wait);
        self.take("try_lock_for", WaitLimit::Until(deadline)).await
    }

    /// Whether the lock is held on a majority of the servers, by any holders. One round trip; the answer may be
    /// outdated when it arrives.
    ///
    /// A server that was restarted less than a lease ago may have forgotten a hold, so it does not count as a server
    /// where the lock is free.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum): the answers within [`give_up_after`](Self::give_up_after) do not decide
    /// it, because the other servers may complete a majority.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(!inspect::holders(&self.0, "is_locked").await?.is_empty())
    }

    /// Returns the holder of the lock, if it is held on a majority of the servers. One round trip; the answer may be
    /// outdated when it arrives.
    ///
    /// Each server knows the holder by an id of its own. This returns the id at the first server that answers, with the
    /// smallest hold count and the shortest remaining lease of a majority.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`is_locked`](Self::is_locked).
    pub async fn holder(&self) -> Result<Option<Holder>> {
        let holders = inspect::holders(&self.0, "holder").await?.into_iter();
        Ok(holders.reduce(|first, other| Holder {
            id: first.id,
            hold_count: first.hold_count.min(other.hold_count),
            remaining: first.remaining.min(other.remaining),
        }))
    }

    /// Returns the holder in the way, and how long its lease lasts without a renewal; as [`holder`](Self::holder).
    /// `None`: the lock is not held on a majority of the servers.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`is_locked`](Self::is_locked).
    pub async fn busy(&self) -> Result<Option<Busy>> {
        let holder = self.holder().await?;
        let members = self.0.members.iter();
        Ok(holder.map(|hold| {
            let busy = Busy::held_by(self.name(), hold.id, hold.remaining);
            members.fold(busy, |busy, member| busy.seen_by(member.core().id()))
        }))
    }

    /// Frees the lock from any holder on every server; `false` if it was free. For operators; as
    /// [`ReentrantLock::force_unlock`](crate::ReentrantLock::force_unlock), on each server.
    ///
    /// Once a majority has freed it, the others have up to half a second. A hold that is left at a silent server is in
    /// no other call's way, and ends with its lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may or may not be freed.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum): it could not be freed on a majority of the servers within
    /// [`give_up_after`](Self::give_up_after).
    pub async fn force_unlock(&self) -> Result<bool> {
        inspect::force_unlock(&self.0).await
    }

    pub(crate) async fn refused(&self) -> Busy {
        let core = self.0.members[0].core();
        let answer = core.clock.within(core.timing.reply, self.busy()).await;
        let busy = answer.and_then(|answer| answer.ok().flatten());
        busy.unwrap_or_else(|| Busy::new(self.name()))
    }

    async fn take(&self, operation: &'static str, wait: WaitLimit) -> Result<Option<RedlockGuard>> {
        let acquisition = self.acquisition(operation)?;
        let core = self.0.members[0].core();
        // Pinned here, because moving a future into another one doubles its size.
        let call = pin!(acquisition.run(wait));
        let lock_call = LockCall {
            core,
            kind: KIND,
            name: self.name(),
            options: &self.0.options,
            began: core.clock.now(),
        };
        let (waiters, busy) = (|| acquisition.waiters(), || self.refused());
        let place = || ready(acquisition.place());
        let waited = Waited(waiters, place, busy);
        let call = pin!(lock_call.told_if_long(wait, waited, call));
        let got = lock_call.guarded(call).await?;
        Ok(got.map(|(share, timer)| RedlockGuard::new(share, timer)))
    }

    fn acquisition(&self, operation: &'static str) -> Result<Acquisition> {
        let request = self.0.request(operation)?;
        let mut queue_request = request.requests[self.0.servers.queue_client].clone();
        queue_request
            .options
            .owner
            .clone_from(&self.0.options.owner);
        let (locals, key) = (&queue_request.core.locals, queue_request.name.key());
        let local = locals.get_or_insert(KIND.name(), key);
        Ok(Acquisition {
            request,
            queue_request,
            local,
        })
    }
}
