//! Holds taken away by somebody else, for operators: that of one holder, while every other one keeps its own; and
//! all of a lock, with a reason.

use futures_util::future::join_all;

use crate::counts::{Counts, Mode};
use crate::error::Result;
use crate::fair::FairLock;
use crate::handle::Handle;
use crate::hold::freed::leave;
use crate::hold::protocol::HolderRef;
use crate::holder::Holder;
use crate::keys::LockName;
use crate::reentrant::ReentrantLock;
use crate::rwlock::{ReadSide, RwLock, WriteSide};
use crate::script::{Answer, reply};

const OPERATION: &str = "release_holder";

/// Of more readers than that the others learn no reason.
const REASONS_MAX: usize = 64;

/// Adds the method to a public handle.
macro_rules! release_holder {
    ($lock:ident, $what:literal) => {
        impl $lock {
            #[doc = concat!("Takes ", $what, " away from the holder with this id, whoever that is; `false` if it has none.")]
            /// For operators.
            ///
            /// Unlike `force_unlock` it never ends the hold of somebody who came in between: each hold has an
            /// id of its own. Waiters are notified as by a release. The guard of the holder is lost at its
            /// next renewal or before; until then its work continues.
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

            /// As [`release_holder`](Self::release_holder), and leaves `reason` for the holder: after its loss
            /// an [observer](crate::Observer) of its client is told [`Freed`](crate::Event::Freed). For an
            /// hour, and up to 1024 bytes of it.
            ///
            /// One round trip more, before. A user without the right to write it takes the hold away all the
            /// same.
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
            /// As [`force_unlock`](Self::force_unlock), and leaves `reason` for who holds it: after the loss an
            /// [observer](crate::Observer) of that client is told [`Freed`](crate::Event::Freed). For an hour,
            /// and up to 1024 bytes of it; of readers, for 64.
            ///
            /// Two round trips more, before. A user without the right to write it frees the lock all the same.
            /// A holder that comes in between learns no reason.
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

/// For everybody who holds it in this mode.
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
    // As the field of a writer is named.
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
    // A repeat finds nothing of what an attempt without an answer has taken away.
    let read = |answer: &Answer| Ok(reply::flag(&answer.value)? || answer.repeated);
    handle.query(OPERATION, call, read).await
}
