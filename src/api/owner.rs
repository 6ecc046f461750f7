//! The identity of a caller.
//!
//! Re-entry belongs to a value that is passed, never to a thread or a task: the branches of one `join!` share
//! a task, and a future may change its thread at any await.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity that asks for a lock.
///
/// A call for an owner that already holds the lock enters it again at once instead of waiting. Clones are the
/// same owner and share the right to enter again; each [`Owner::new`] is a new one. An owner means something
/// inside this process only: the server knows a holder id, which is new each time the lock is granted there.
///
/// ```
/// use lockset::Owner;
///
/// let me = Owner::new();
/// assert_eq!(me, me.clone());
/// assert_ne!(me, Owner::new());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// A new owner, different from every other.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let me = lockset::Owner::new();
    /// let outer = client.lock("order:7").owner(&me).lock().await?;
    /// let inner = client.lock("order:7").owner(&me).lock().await?; // does not wait
    /// assert_eq!(inner.hold_count(), 2);
    /// # drop(outer); Ok(()) }
    /// ```
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default suggests a common value, and every owner is a new one"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
