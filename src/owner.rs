//! Who asks for a lock.
//!
//! Reentrancy belongs to a value that is passed, never to a thread or a task: the branches of one
//! `join!` share a task, and a future may change its thread at any await.

use std::sync::atomic::{AtomicU64, Ordering};

/// The identity under which a lock is asked for.
///
/// A call made for an owner that already holds the lock enters it again at once instead of waiting.
/// Sharing an owner (it is `Clone`) therefore shares the right to re-enter; two owners made by two
/// calls of [`Owner::new`] are strangers. An owner has a meaning inside this process only: what the
/// server sees is a holder id, fresh for each time the lock is taken there.
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
    /// A new owner, different from every other one.
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
