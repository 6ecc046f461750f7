//! One holder's hold taken away by somebody else: for operators. Every other holder keeps its own.

use crate::counts::Counts;
use crate::error::Result;
use crate::fair::FairLock;
use crate::handle::Handle;
use crate::hold::protocol::HolderRef;
use crate::keys::LockName;
use crate::reentrant::ReentrantLock;
use crate::rwlock::RwLock;
use crate::script::Answer;
use crate::script::reply::Released;

const OPERATION: &str = "release_holder";

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
        }
    };
}

release_holder!(ReentrantLock, "the lock");
release_holder!(FairLock, "the lock, or a place in its queue,");
release_holder!(RwLock, "every read and write hold");

async fn release(handle: &Handle, holder_id: &str) -> Result<bool> {
    let core = handle.core();
    let publish = core.channels().publish();
    let call = |name: &LockName| {
        let holder = HolderRef {
            name,
            id: holder_id,
            counts: Counts::NONE,
            fenced: handle.options.fenced,
            token_retention: core.timing.token_retention,
        };
        handle
            .protocol()
            .release(&holder, core.timing.lease, publish)
    };
    let read = |answer: &Answer| {
        let released = handle.protocol().released(&answer.value)?;
        // A repeat finds nothing of what an attempt without an answer has taken away.
        Ok(matches!(released, Released::Done { .. }) || answer.repeated)
    };
    handle.query(OPERATION, call, read).await
}
