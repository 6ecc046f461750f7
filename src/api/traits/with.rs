//! Lock, body, release: one call for all of it.
//!
//! Invariants: the body is dropped at the moment the lock is lost; it is over before the lock is released;
//! what a body that ended with `Ok` returned is never dropped.

use super::{Guard, Lock};
use crate::api::lost::{Lost, drive};
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
    // A guard that is lost has nothing to release that is worth waiting for.
    let ended = ended.map_err(|lost| WithError::Lost {
        lock: lost.lock_name().to_owned(),
        reason: lost.reason(),
    })?;
    let released = guard.release().await;
    let value = ended.map_err(WithError::Work)?;
    Ok(Completed { value, released })
}

/// Drives the body to its end, or drops it when the lock is lost. What it returned is kept even if the lock
/// was lost while its last step blocked the thread.
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

/// Stamps `with` onto a public handle that is a [`Lock`].
macro_rules! with_methods {
    ($lock:ident, $guard:ident) => {
        impl $lock {
            /// Acquires the lock, runs `body`, releases the lock: one call, and one error that tells apart what
            /// went wrong.
            ///
            /// * `wait` is how long to wait for a lock that others hold: a [`Duration`], of which zero is one
            ///   attempt, or a [`Wait`]($crate::Wait). After a refusal the server is asked who holds it, one
            ///   more round trip.
            /// * `body` gets the guard by reference. It is dropped at the moment the lock is lost, so commit
            ///   what it does before it ends. Tasks that it spawns go on:
            ///   [`loss`]($crate::ReentrantGuard::loss) is for them.
            /// * Then the lock is released, also after an error of the body, and this waits for the server to
            ///   confirm it.
            ///
            /// `Ok` means that the body ended with `Ok`, whatever became of the release: what was done was
            /// done. [`with_completed`](Self::with_completed) says whether the lock was held to the end.
            ///
            /// The future is `Send` if `body` and what it awaits are, so this works in spawned tasks and in
            /// handlers of a web server.
            ///
            /// # Cancel safety
            /// Dropping the future drops the body; then the lock is released in the background. So it is if
            /// the body panics.
            ///
            /// # Errors
            /// [`WithError`]($crate::WithError): others held the lock, it was lost, the body ended with an
            /// error, or the lock could not be acquired.
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

            /// As [`with`](Self::with), and says with what the body returned how the release ended: whether the
            /// lock was held until then.
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
