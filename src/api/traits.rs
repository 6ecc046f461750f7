//! The public traits [`Lock`] and [`Guard`]: the methods that all locks and all guards share.
//!
//! The types have these methods themselves; the traits forward to them. They are sealed, so they can grow
//! with the types.

mod impls;
mod with;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::holder::{Busy, Owner};
use crate::api::loss::{Loss, Lost, LostReason};
use crate::api::with::{Completed, Wait, WithError};

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Any lock of this crate: [`ReentrantLock`], [`FairLock`], the [read side](crate::RwLock::read_side) or the
/// [write side](crate::RwLock::write_side) of an [`RwLock`](crate::RwLock), [`AnyLock`](crate::AnyLock), [`MultiLock`],
/// [`RedlockLock`].
///
/// [`ReentrantLock`]: crate::ReentrantLock
/// [`FairLock`]: crate::FairLock
/// [`MultiLock`]: crate::MultiLock
/// [`RedlockLock`]: crate::RedlockLock
///
/// Behaviour, cancel safety and errors are as for the method of the same name on each type. The trait is sealed.
///
/// ```
/// use lockset::{Guard, Lock};
///
/// /// Rebuilds an index unless another process is at it.
/// async fn rebuild(lock: &impl Lock) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
///     let Some(guard) = lock.try_lock().await? else {
///         return Ok(false);
///     };
///     guard.run(async { /* work; dropped when the lock is lost */ }).await?;
///     guard.release().await?;
///     Ok(true)
/// }
/// # async fn doc(client: lockset::Client) {
/// rebuild(&client.fair_lock("index")).await.unwrap();
/// rebuild(&client.rw_lock("index").write_side()).await.unwrap();
/// # }
/// ```
pub trait Lock: sealed::Lock + Clone + Debug + Send + Sync + 'static {
    /// The guard of this lock.
    type Guard: Guard;

    /// The name of the lock; of several, the name of the first.
    fn name(&self) -> &str;

    /// Asks for `owner`; as [`ReentrantLock::owner`](crate::ReentrantLock::owner).
    #[must_use]
    fn owner(self, owner: &Owner) -> Self;

    /// Sets a lease that is renewed; as [`ReentrantLock::lease`](crate::ReentrantLock::lease).
    #[must_use]
    fn lease(self, lease: Duration) -> Self;

    /// Sets a lease that is never renewed; as [`ReentrantLock::fixed_lease`](crate::ReentrantLock::fixed_lease).
    #[must_use]
    fn fixed_lease(self, lease: Duration) -> Self;

    /// Leaves the lock held for `span` from the grant, even if it is released before; as
    /// [`ReentrantLock::at_least`](crate::ReentrantLock::at_least).
    #[must_use]
    fn at_least(self, span: Duration) -> Self;

    /// Bounds how long a guard holds the lock; as [`ReentrantLock::max_hold`](crate::ReentrantLock::max_hold).
    #[must_use]
    fn max_hold(self, span: Duration) -> Self;

    /// Gives every new grant a fencing token; as [`ReentrantLock::fenced`](crate::ReentrantLock::fenced).
    #[must_use]
    fn fenced(self) -> Self;

    /// Requires replicas to confirm each grant; as [`ReentrantLock::replicated`](crate::ReentrantLock::replicated).
    #[must_use]
    fn replicated(self, count: u32, within: Duration) -> Self;

    /// Counts the calls of this handle in the group `name`; as [`ReentrantLock::group`](crate::ReentrantLock::group).
    #[must_use]
    fn group(self, name: &str) -> Self;

    /// Acquires the lock, waiting until it is free; as [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    fn lock(&self) -> impl Future<Output = Result<Self::Guard>> + Send;

    /// Acquires the lock if it is free; as [`ReentrantLock::try_lock`](crate::ReentrantLock::try_lock).
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;

    /// Acquires the lock, waiting at most `wait`; as [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;

    /// Acquires the lock, runs `body`, releases the lock; as
    /// [`ReentrantLock::with`](crate::ReentrantLock::with).
    ///
    /// For a lock whose type is known, the future is `Send` if the body is. A function over any lock cannot say so:
    /// spawn the future where the type is known.
    fn with<T, E, F>(
        &self,
        wait: impl Into<Wait>,
        body: F,
    ) -> impl Future<Output = Result<T, WithError<E>>>
    where
        F: AsyncFnOnce(&Self::Guard) -> Result<T, E>;

    /// Acquires the lock, runs `body`, releases the lock, and returns how the release ended; as
    /// [`ReentrantLock::with_completed`](crate::ReentrantLock::with_completed).
    fn with_completed<T, E, F>(
        &self,
        wait: impl Into<Wait>,
        body: F,
    ) -> impl Future<Output = Result<Completed<T>, WithError<E>>>
    where
        F: AsyncFnOnce(&Self::Guard) -> Result<T, E>;

    /// Returns the holder in the way; as [`ReentrantLock::busy`](crate::ReentrantLock::busy).
    fn busy(&self) -> impl Future<Output = Result<Option<Busy>>> + Send;
}

/// Any guard of this crate: the value that a [`Lock`] returns while it is held.
///
/// Behaviour, cancel safety and errors are as for the method of the same name on each type. Dropping any guard releases
/// in the background. The trait is sealed.
///
/// `Box<dyn Guard>` holds any guard, and is a guard itself:
///
/// ```
/// use lockset::{Client, Guard};
///
/// struct Session {
///     guard: Box<dyn Guard>,
/// }
///
/// async fn open(client: &Client, in_turn: bool) -> lockset::Result<Session> {
///     let guard: Box<dyn Guard> = if in_turn {
///         Box::new(client.fair_lock("desk").lock().await?)
///     } else {
///         Box::new(client.lock("desk").lock().await?)
///     };
///     Ok(Session { guard })
/// }
///
/// async fn close(session: Session) -> lockset::Result<()> {
///     println!("{} was held as {}", session.guard.name(), session.guard.holder_id());
///     session.guard.release().await
/// }
/// ```
pub trait Guard: sealed::Guard + Debug + Send + Sync + 'static {
    /// The name of the lock; of several, the name of the first.
    fn name(&self) -> &str;

    /// The owner that holds the lock.
    fn owner(&self) -> &Owner;

    /// The holder id of this hold at the server; of several, the id of the first.
    fn holder_id(&self) -> &str;

    /// How many guards of this owner share this hold.
    fn hold_count(&self) -> u32;

    /// The fencing token of this hold; `None` unless the handle is `fenced()`.
    fn fencing_token(&self) -> Option<FencingToken>;

    /// The fencing token of this hold, for code that cannot work without.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid): the handle is not `fenced()`.
    fn token(&self) -> Result<FencingToken> {
        FencingToken::required(self.fencing_token(), self.name())
    }

    /// How long the lock is certainly still held, by the local monotonic clock.
    fn remaining(&self) -> Duration;

    /// Whether the lock is lost. Once true, it stays true.
    fn is_lost(&self) -> bool;

    /// Waits until the lock is lost, and returns the reason. Cancel safe; may be called any number of times.
    fn lost(&self) -> Pin<Box<dyn Future<Output = LostReason> + Send + '_>>;

    /// Waits until a call waits for the lock. Cancel safe; may be called any number of times.
    fn recalled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Whether the lock is lost, for tasks and threads that do not have the guard.
    fn loss(&self) -> Loss;

    /// Runs `work` to its end, or drops it when the lock is lost.
    fn run<F>(&self, work: F) -> impl Future<Output = Result<F::Output, Lost>> + Send
    where
        F: Future<Output: Send> + Send,
        Self: Sized;

    /// Enters the lock once more for the same owner; never waits for another owner.
    fn reenter(&self) -> impl Future<Output = Result<Self>> + Send
    where
        Self: Sized;

    /// Releases this hold and waits for the server to confirm it.
    fn release(self) -> impl Future<Output = Result<()>> + Send
    where
        Self: Sized;

    /// Drops the guard without releasing: the lock stays held until its lease ends.
    fn forget(self)
    where
        Self: Sized;
}

mod sealed {
    use super::{Boxed, Busy, Future, Lost, Result};

    /// The part of a lock that `with` needs.
    pub trait Lock {
        /// Returns the holder in the way of a refused caller, as far as it is known after one more round trip.
        #[doc(hidden)]
        fn refused(&self) -> impl Future<Output = Busy> + Send;
    }

    /// The part of a guard that a boxed guard and `with` need.
    pub trait Guard {
        /// The lock that was lost, of one or of several.
        #[doc(hidden)]
        fn lost_now(&self) -> Option<Lost>;
        /// Waits for the loss, and returns the lock. Cancel safe.
        #[doc(hidden)]
        fn lost_lock(&self) -> Boxed<'_, Lost>;
        #[doc(hidden)]
        fn run_boxed<'a>(&'a self, work: Boxed<'a, ()>) -> Boxed<'a, Result<(), Lost>>;
        #[doc(hidden)]
        fn reenter_boxed(&self) -> Boxed<'_, Result<Box<dyn super::Guard>>>;
        #[doc(hidden)]
        fn release_boxed(self: Box<Self>) -> Boxed<'static, Result<()>>;
        #[doc(hidden)]
        fn forget_boxed(self: Box<Self>);
    }
}
