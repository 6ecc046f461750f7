//! Taking holds away from their holders, for operators: the hold of one holder, while all others keep theirs; and all
//! holds of a lock, with a reason.

use futures_util::future::join_all;

use crate::api::error::Result;
use crate::api::handle::Handle;
use crate::api::holder::Holder;
use crate::engine::counts::{Counts, Mode};
use crate::engine::hold::freed::leave;
use crate::engine::hold::protocol::HolderRef;
use crate::engine::keys::LockName;
use crate::fair::FairLock;
use crate::reentrant::ReentrantLock;
use crate::rwlock::{ReadSide, RwLock, WriteSide};
use crate::script::{Answer, reply};

const OPERATION: &str = "release_holder";

/// The most readers that are left a reason.
const REASONS_MAX: usize = 64;

/// Adds the methods to a public handle.
macro_rules! release_holder {
    ($lock:ident, $what:literal) => {
        impl $lock {
            #[doc = concat!("Takes ", $what, " away from the holder with this id; `false` if it has none.")]
            /// For operators.
            ///
            /// Unlike `force_unlock`, it never ends a hold that began in between: each hold has an id of its own.
            /// Waiters are notified as by a release. The holder's guard is lost at its next renewal or before; until
            /// then its work continues.
            ///
            /// # Cancel safety
            /// If the future is dropped, the hold may or may not be taken away. The call may be repeated.
            ///
            /// # Errors
            /// As for [`lock`](crate::ReentrantLock::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ", id: &str) -> lockset::Result<()> {")]
            /// if lock.release_holder(id).await? {
            ///     println!("{id} holds it no longer");
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn release_holder(&self, holder_id: &str) -> Result<bool> {
                release(&self.0, holder_id).await
            }

            /// As [`release_holder`](Self::release_holder), and leaves `reason` for the holder: after the loss, an
            /// [observer](crate::Observer) of its client gets [`Freed`](crate::Event::Freed). The server keeps up to
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
            pub async fn release_holder_because(
                &self,
                holder_id: &str,
                reason: &str,
            ) -> Result<bool> {
                leave(self.0.core(), holder_id, reason).await;
                self.release_holder(holder_id).await
            }
        }
    };
}

release_holder!(ReentrantLock, "the lock");
release_holder!(FairLock, "the lock, or a place in its queue,");
release_holder!(RwLock, "every read and write hold");

/// Adds the method to a public handle.
macro_rules! force_unlock_because {
    ($lock:ident, $mode:expr) => {
        impl $lock {
            /// As [`force_unlock`](Self::force_unlock), and leaves `reason` for the holder: after the loss, an
            /// [observer](crate::Observer) of its client gets [`Freed`](crate::Event::Freed). The server keeps up to
            /// 1024 bytes of the reason, for an hour, and for up to 64 readers.
            ///
            /// Takes two more round trips, before. If the user has no right to write the reason, the lock is freed
            /// without it. A holder that comes in between learns no reason.
            ///
            /// # Cancel safety
            /// As for [`force_unlock`](Self::force_unlock).
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// lock.force_unlock_because("the build host was replaced").await?;
            /// # Ok(()) }
            /// ```
            pub async fn force_unlock_because(&self, reason: &str) -> Result<bool> {
                leave_reason(&self.0, $mode, reason).await?;
                self.force_unlock().await
            }
        }
    };
}

force_unlock_because!(ReentrantLock, Mode::Exclusive);
force_unlock_because!(FairLock, Mode::Exclusive);
force_unlock_because!(ReadSide, Mode::Shared);
force_unlock_because!(WriteSide, Mode::Exclusive);

/// Leaves the reason for every holder in this mode.
async fn leave_reason(handle: &Handle, mode: Mode, reason: &str) -> Result<()> {
    let holds = handle.inspect("force_unlock_because").await?.into_iter();
    let ended = holds.filter(|hold| hold.mode == mode);
    let ended = ended.take(REASONS_MAX).map(Holder::from);
    join_all(ended.map(|hold| async move { leave(handle.core(), &hold.id, reason).await })).await;
    Ok(())
}

async fn release(handle: &Handle, holder_id: &str) -> Result<bool> {
    let core = handle.core();
    let publish = core.channels().publish();
    // The field of a writer has this suffix.
    let id = holder_id.strip_suffix(":write").unwrap_or(holder_id);
    let call = |name: &LockName| {
        let holder = HolderRef {
            name,
            id,
            counts: Counts::NONE,
            fenced: handle.options.fenced,
            token_retention: core.timing.token_retention,
        };
        handle.protocol().evict(&holder, publish)
    };
    // A repeat finds nothing if an earlier attempt without an answer has taken the hold away.
    let read = |answer: &Answer| Ok(reply::flag(&answer.value)? || answer.repeated);
    handle.query(OPERATION, call, read).await
}
