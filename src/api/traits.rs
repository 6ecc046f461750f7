//! The public traits [`Lock`] and [`Guard`], the methods that all locks and all guards share; and `with`, which
//! acquires a lock, runs a body and releases the lock in one call.
//!
//! The types have these methods themselves; the traits forward to them. They are sealed, so they can grow
//! with the types. Invariants of `with`: the body is dropped at the moment the lock is lost. The body is over before the
//! lock is released. The value of a body that ended with `Ok` is never dropped.

mod impls;

use std::error::Error as StdError;
use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::TryFutureExt;

use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::{Busy, Owner};
use crate::api::loss::{Loss, Lost, LostReason, drive};

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
        F: AsyncFnOnce(&Self::Guard) -> Result<T, E>,
    {
        self.with_completed(wait, body)
            .map_ok(|completed| completed.value)
    }

    /// Acquires the lock, runs `body`, releases the lock, and returns how the release ended; as
    /// [`ReentrantLock::with_completed`](crate::ReentrantLock::with_completed).
    fn with_completed<T, E, F>(
        &self,
        wait: impl Into<Wait>,
        body: F,
    ) -> impl Future<Output = Result<Completed<T>, WithError<E>>>
    where
        F: AsyncFnOnce(&Self::Guard) -> Result<T, E>,
    {
        complete(self, wait.into(), body)
    }

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

    /// How many guards of this owner share this hold, in the mode of this guard.
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
        Self: Sized,
    {
        drive(self.lost(), || self.lost_now(), work)
    }

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

pub(super) mod sealed {
    use super::{Boxed, Busy, Future, Lost, Result};

    /// The part of a lock that `with` needs. `#[locked]` also needs it of a semaphore.
    pub trait Lock {
        /// Returns the holder in the way of a refused caller, as far as it is known after one more round trip.
        #[doc(hidden)]
        fn refused(&self) -> impl Future<Output = Busy> + Send;
    }

    /// The part of a guard that a boxed guard and `with` need.
    pub trait Guard {
        /// Returns the lock that was lost, of one or of several.
        #[doc(hidden)]
        fn lost_now(&self) -> Option<Lost>;
        #[doc(hidden)]
        fn reenter_boxed(&self) -> Boxed<'_, Result<Box<dyn super::Guard>>>;
        #[doc(hidden)]
        fn release_boxed(self: Box<Self>) -> Boxed<'static, Result<()>>;
        #[doc(hidden)]
        fn forget_boxed(self: Box<Self>);
    }
}

/// How long [`with`](crate::ReentrantLock::with) waits for a lock that others hold.
///
/// A [`Duration`] converts into it, and zero is one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// One attempt.
    Try,
    /// At most this long.
    For(Duration),
    /// Until it is free.
    Forever,
}

impl From<Duration> for Wait {
    fn from(wait: Duration) -> Self {
        match wait {
            Duration::ZERO => Self::Try,
            wait => Self::For(wait),
        }
    }
}

/// The reason that [`with`](crate::ReentrantLock::with) has no value to return.
///
/// [`flatten`](Self::flatten) converts it to an error of the body's own type.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use lockset::WithError;
///
/// let report = client.lock("report");
/// let rows = report.with(Duration::from_secs(5), async |_| std::fs::read_to_string("rows")).await;
/// match rows {
///     Ok(rows) => println!("{rows}"),
///     Err(WithError::Busy(busy)) => println!("try again later: {busy}"),
///     Err(WithError::Lost { reason, .. }) => println!("stopped halfway: {reason}"),
///     Err(WithError::Work(error)) => println!("it did not work: {error}"),
///     Err(error) => println!("no lock: {error}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WithError<E> {
    /// Others held the lock for as long as the call waited. The body did not begin.
    Busy(Busy),
    /// The lock was lost while the body ran, and the body was dropped at that moment. Its work so far may have
    /// overlapped with another holder.
    #[non_exhaustive]
    Lost {
        /// The name of the lock that was lost, as it was given to the client.
        lock: String,
        /// Why it was lost.
        reason: LostReason,
    },
    /// The body ended with this error. Then the lock was released; if that failed, it continues in the background.
    Work(E),
    /// The lock could not be acquired. The body did not begin.
    Lock(Error),
}

impl<E> WithError<E> {
    /// Others held the lock for as long as the call waited.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_))
    }

    /// The lock was lost while the body ran.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The body ended with an error.
    #[must_use]
    pub fn is_work(&self) -> bool {
        matches!(self, Self::Work(_))
    }

    /// The lock could not be acquired.
    #[must_use]
    pub fn is_lock(&self) -> bool {
        matches!(self, Self::Lock(_))
    }

    /// Converts it to an error of the body's type: its own, or one made from an [`Error`], which is
    /// [`is_busy`](Error::is_busy) if others held the lock and [`is_not_held`](Error::is_not_held) if it was lost.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use lockset::WithError;
    ///
    /// type Failure = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// let work = async |_: &lockset::ReentrantGuard| -> Result<u32, Failure> { Ok("7".parse()?) };
    /// let seven = client.lock("report").with(Duration::ZERO, work).await;
    /// let seven = seven.map_err(WithError::flatten)?;
    /// # drop(seven); Ok(()) }
    /// ```
    pub fn flatten(self) -> E
    where
        E: From<Error>,
    {
        match self {
            Self::Busy(busy) => Error::from(busy).into(),
            Self::Lost { lock, reason } => Error::from(Lost::new(&lock, reason)).into(),
            Self::Work(error) => error,
            Self::Lock(error) => error.into(),
        }
    }
}

impl<E> From<Error> for WithError<E> {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

impl<E: fmt::Display> fmt::Display for WithError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(busy) => fmt::Display::fmt(busy, f),
            Self::Lost { lock, reason } => {
                write!(
                    f,
                    "lock {lock:?} was lost during the work, which was stopped: {reason}"
                )
            }
            Self::Work(error) => fmt::Display::fmt(error, f),
            Self::Lock(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl<E: StdError + 'static> StdError for WithError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The texts of the other errors are complete.
        match self {
            Self::Work(error) => error.source(),
            Self::Lock(error) => error.source(),
            Self::Busy(_) | Self::Lost { .. } => None,
        }
    }
}

/// A body that ended with `Ok`, and the end of its hold; from [`with_completed`](crate::ReentrantLock::with_completed).
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed<T> {
    /// The value that the body returned.
    pub value: T,
    /// The result of [`release`](crate::ReentrantGuard::release). `Ok`: the lock was held to the end, as far as this
    /// client knows. [`is_not_held`](Error::is_not_held): it was lost before, so the body's work may have overlapped
    /// with another holder. Other errors: the release continues in the background.
    pub released: Result<()>,
}

impl<T> Completed<T> {
    /// Whether the lock is known to have been lost before its release.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(&self.released, Err(error) if error.is_not_held())
    }
}

/// Acquires the lock, runs the body, releases the lock.
async fn complete<L, T, E, F>(lock: &L, wait: Wait, body: F) -> Result<Completed<T>, WithError<E>>
where
    L: Lock,
    F: AsyncFnOnce(&L::Guard) -> Result<T, E>,
{
    let guard = match wait {
        Wait::Try => lock.try_lock().await?,
        Wait::For(wait) => lock.try_lock_for(wait).await?,
        Wait::Forever => Some(lock.lock().await?),
    };
    let Some(guard) = guard else {
        return Err(WithError::Busy(lock.refused().await));
    };
    let ended = run(&guard, body).await;
    // For a lost guard there is no release to wait for.
    let ended = ended.map_err(|lost| WithError::Lost {
        lock: lost.lock_name().to_owned(),
        reason: lost.reason(),
    })?;
    let released = guard.release().await;
    let value = ended.map_err(WithError::Work)?;
    Ok(Completed { value, released })
}

/// Drives the body to its end, or drops it when the lock is lost. A value that the body returned is kept even if the
/// lock was lost while the last step blocked the thread.
async fn run<G, T, E, F>(guard: &G, body: F) -> Result<Result<T, E>, Lost>
where
    G: Guard,
    F: AsyncFnOnce(&G) -> Result<T, E>,
{
    let mut ended = None;
    let work = async {
        ended = Some(body(guard).await);
    };
    let driven = drive(guard.lost(), || guard.lost_now(), work).await;
    match ended {
        Some(ended) => Ok(ended),
        None => Err(driven.expect_err("a body that did not end was dropped")),
    }
}

/// Adds `with` and `with_completed` to a public handle that is a [`Lock`].
macro_rules! with_methods {
    ($lock:ident, $guard:ident) => {
        impl $lock {
            /// Acquires the lock, runs `body`, releases the lock: one call, and one error type for everything that can
            /// fail.
            ///
            /// * `wait` is how long to wait for a lock that others hold: a [`Duration`], where zero means one attempt,
            ///   or a [`Wait`]($crate::Wait). After a refusal the server is asked for the holders, which takes one more
            ///   round trip.
            /// * `body` gets the guard by reference. It is dropped at the moment the lock is lost, so commit its work
            ///   before it ends. Tasks that it spawns go on, and can watch
            ///   [`loss`]($crate::ReentrantGuard::loss).
            /// * Then the lock is released, also after an error of the body. The call waits for the server to confirm
            ///   the release.
            ///
            /// `Ok` means that the body ended with `Ok`, even if the release failed, because the work is done.
            /// [`with_completed`](Self::with_completed) also reports whether the lock was held to the end.
            ///
            /// The future is `Send` if `body` and its awaited futures are. It works in spawned tasks and in handlers of
            /// a web server.
            ///
            /// # Cancel safety
            /// Dropping the future drops the body, and then the lock is released in the background. A panic of the body
            /// has the same effect.
            ///
            /// # Errors
            /// [`WithError`]($crate::WithError): others held the lock, it was lost, the body ended with an error, or
            /// the lock could not be acquired.
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// use std::time::Duration;
            ///
            /// use lockset::WithError;
            ///
            /// let fenced = lock.fenced();
            /// let sold = fenced.with(Duration::from_secs(5), async |guard| -> std::io::Result<u32> {
            ///     println!("{} is held, with token {:?}", guard.name(), guard.fencing_token());
            ///     Ok(7) // after the commit
            /// });
            /// match sold.await {
            ///     Ok(seats) => println!("{seats} sold"),
            ///     Err(WithError::Busy(busy)) => println!("try again later: {busy}"),
            ///     Err(error) => println!("not sold: {error}"),
            /// }
            /// # }
            /// ```
            pub async fn with<T, E, F>(
                &self,
                wait: impl Into<$crate::Wait>,
                body: F,
            ) -> ::std::result::Result<T, $crate::WithError<E>>
            where
                F: AsyncFnOnce(&$guard) -> ::std::result::Result<T, E>,
            {
                let completed = complete(self, wait.into(), body).await?;
                Ok(completed.value)
            }

            /// Like [`with`](Self::with), and also returns the outcome of the release, which shows whether the lock was
            /// held to the end.
            ///
            /// # Cancel safety
            /// As for [`with`](Self::with).
            ///
            /// # Errors
            /// As for [`with`](Self::with).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// use lockset::Wait;
            ///
            /// let work = async |_: &_| Ok::<_, std::io::Error>(7);
            /// let done = lock.with_completed(Wait::Forever, work).await.expect("it is sold");
            /// if done.is_lost() {
            ///     println!("check {}: another process may have sold it too", done.value);
            /// }
            /// # }
            /// ```
            pub async fn with_completed<T, E, F>(
                &self,
                wait: impl Into<$crate::Wait>,
                body: F,
            ) -> ::std::result::Result<$crate::Completed<T>, $crate::WithError<E>>
            where
                F: AsyncFnOnce(&$guard) -> ::std::result::Result<T, E>,
            {
                complete(self, wait.into(), body).await
            }
        }
    };
}

use with_methods;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_everything_once() {
        let of_work = std::io::Error::other("the disk is full");
        let errors = [
            WithError::Busy(Busy::new("a")),
            WithError::Lost {
                lock: "a".to_owned(),
                reason: LostReason::Revoked,
            },
            WithError::Work(of_work),
            WithError::Lock(Error::closed("with").of_lock("a")),
        ];
        let said = errors.map(|error| {
            assert!(error.source().is_none(), "{error}");
            error.to_string()
        });
        assert!(said[0].contains("held elsewhere"), "{}", said[0]);
        assert!(said[1].contains("no longer has"), "{}", said[1]);
        assert_eq!(said[2], "the disk is full");
        assert!(said[3].contains("shut down"), "{}", said[3]);
    }

    #[test]
    fn flat_errors_keep_what_they_are() {
        let busy = WithError::<Error>::Busy(Busy::new("a")).flatten();
        assert!(busy.is_busy() && busy.lock_name() == Some("a"));
        let lost = WithError::<Error>::Lost {
            lock: "a".to_owned(),
            reason: LostReason::Expired,
        };
        let lost = lost.flatten();
        assert!(
            lost.is_not_held() && lost.lock_name() == Some("a"),
            "{lost}"
        );
        let closed = Error::closed("with");
        assert!(WithError::Work(closed.clone()).flatten().is_closed());
        assert!(WithError::<Error>::Lock(closed).flatten().is_closed());
    }

    #[test]
    fn zero_is_one_attempt() {
        assert_eq!(Wait::from(Duration::ZERO), Wait::Try);
        assert_eq!(
            Wait::from(Duration::from_nanos(1)),
            Wait::For(Duration::from_nanos(1))
        );
    }
}
