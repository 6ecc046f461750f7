//! Acquires a lock, runs a body and releases the lock, in one call.
//!
//! Invariants: the body is dropped at the moment the lock is lost. The body is over before the lock is released. The
//! value of a body that ended with `Ok` is never dropped.

use super::{Guard, Lock};
use crate::api::loss::{Lost, drive};
use crate::api::with::{Completed, Wait, WithError};

/// Acquires the lock, runs the body, releases the lock.
pub(super) async fn complete<L, T, E, F>(
    lock: &L,
    wait: Wait,
    body: F,
) -> Result<Completed<T>, WithError<E>>
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
    // A lost guard has no release to wait for.
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
    let driven = drive(guard.lost_lock(), || guard.lost_now(), work).await;
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

pub(super) use with_methods;
