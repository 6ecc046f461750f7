//! Taking holds away from their holders: the hold of one holder, while all others keep theirs; and all holds of a lock,
//! with a reason.

use std::future::Future;

use futures_util::future::try_join_all;
use lockset::operator::{Holds, end_permit, leave_reason};
use lockset::{FairLock, ReadSide, ReentrantLock, Result, RwLock, Semaphore, WriteSide};

/// The most readers that are left a reason.
const REASONS_MAX: usize = 64;

mod sealed {
    /// Only handles of lockset have these methods.
    pub trait Sealed {}
}

/// Takes the hold of one holder away: of a fair lock, also a place in its queue; of a read-write lock, every read and
/// write hold of the holder; of a semaphore, one permit.
pub trait ReleaseHolder: sealed::Sealed {
    /// Takes the lock away from the holder with this id; `false` if it has none.
    ///
    /// Unlike `force_unlock`, it never ends a hold that began in between: each hold has an id of its own.
    /// Waiters are notified as by a release. The holder's guard is lost at its next renewal or before; until
    /// then its work continues.
    ///
    /// # Cancel safety
    /// If the future is dropped, the hold may or may not be taken away. The call may be repeated.
    ///
    /// # Errors
    /// As for [`lock`](lockset::ReentrantLock::lock).
    ///
    /// ```no_run
    /// # async fn doc(lock: lockset::FairLock, id: &str) -> lockset::Result<()> {
    /// use lockset_operator::ReleaseHolder;
    ///
    /// if lock.release_holder(id).await? {
    ///     println!("{id} holds it no longer");
    /// }
    /// # Ok(()) }
    /// ```
    fn release_holder(&self, holder_id: &str) -> impl Future<Output = Result<bool>> + Send;

    /// As [`release_holder`](Self::release_holder), and leaves `reason` for the holder: after the loss, an
    /// [observer](lockset::Observer) of its client gets [`Freed`](lockset::Event::Freed). The server keeps up to
    /// 1024 bytes of the reason, for an hour.
    ///
    /// Takes one more round trip, before. If the user has no right to write the reason, the hold is taken away
    /// without it.
    ///
    /// # Cancel safety
    /// As for [`release_holder`](Self::release_holder).
    ///
    /// # Errors
    /// As for [`release_holder`](Self::release_holder).
    fn release_holder_because(
        &self,
        holder_id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// Frees a lock from any holder, and says why.
pub trait ForceUnlock: sealed::Sealed {
    /// As `force_unlock`, and leaves `reason` for the holder: after the loss, an [observer](lockset::Observer) of its
    /// client gets [`Freed`](lockset::Event::Freed). The server keeps up to 1024 bytes of the reason, for an hour, and
    /// for up to 64 readers.
    ///
    /// Takes two more round trips, before. If the user has no right to write the reason, the lock is freed
    /// without it. A holder that comes in between learns no reason.
    ///
    /// # Cancel safety
    /// As for [`force_unlock`](lockset::ReentrantLock::force_unlock).
    ///
    /// # Errors
    /// As for [`lock`](lockset::ReentrantLock::lock).
    ///
    /// ```no_run
    /// # async fn doc(lock: lockset::ReentrantLock) -> lockset::Result<()> {
    /// use lockset_operator::ForceUnlock;
    ///
    /// lock.force_unlock_because("the build host was replaced").await?;
    /// # Ok(()) }
    /// ```
    fn force_unlock_because(&self, reason: &str) -> impl Future<Output = Result<bool>> + Send;
}

macro_rules! release_holder {
    ($($lock:ident)*) => {
        $(impl sealed::Sealed for $lock {}

        impl ReleaseHolder for $lock {
            async fn release_holder(&self, holder_id: &str) -> Result<bool> {
                Holds::from(self).end("release_holder", holder_id).await
            }

            async fn release_holder_because(&self, holder_id: &str, reason: &str) -> Result<bool> {
                Holds::from(self).leave_reason(holder_id, reason).await?;
                self.release_holder(holder_id).await
            }
        })*
    };
}

release_holder!(ReentrantLock FairLock RwLock);

impl sealed::Sealed for Semaphore {}

impl ReleaseHolder for Semaphore {
    async fn release_holder(&self, holder_id: &str) -> Result<bool> {
        end_permit(self, "release_holder", holder_id).await
    }

    async fn release_holder_because(&self, holder_id: &str, reason: &str) -> Result<bool> {
        leave_reason(self, holder_id, reason).await;
        self.release_holder(holder_id).await
    }
}

macro_rules! force_unlock {
    ($($lock:ident)*) => {
        $(impl ForceUnlock for $lock {
            async fn force_unlock_because(&self, reason: &str) -> Result<bool> {
                leave_reasons(&Holds::from(self), reason).await?;
                self.force_unlock().await
            }
        })*
    };
}

impl sealed::Sealed for ReadSide {}
impl sealed::Sealed for WriteSide {}

force_unlock!(ReentrantLock FairLock ReadSide WriteSide);

/// Leaves the reason for every holder.
async fn leave_reasons(holds: &Holds<'_>, reason: &str) -> Result<()> {
    let mut holders = holds.holders("force_unlock_because").await?;
    holders.truncate(REASONS_MAX);
    let left = holders.iter().map(|id| holds.leave_reason(id, reason));
    try_join_all(left).await.map(drop)
}
