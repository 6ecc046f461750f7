//! Once per key and window: a claim that one caller in the whole system gets.
//!
//! At the server a claim is an ordinary hold with a fixed lease, which is never renewed. Invariants: a call that is
//! dropped before its grant leaves nothing behind; a grant stands for its window, even if its caller is gone, unless it
//! is undone.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::loss::LostReason;
use crate::api::options::{LEASE_MAX, LEASE_MIN};
use crate::client::Client;
use crate::engine::hold::Share;
use crate::reentrant::ReentrantLock;

impl Client {
    /// A key that one caller in the whole system gets per window, which [`per`](OnceKey::per) sets.
    ///
    /// For requests that may be sent twice (a double click, a repeated webhook), and for work that the first caller in
    /// a while should do. The caller need not be alive for the claim to stand. Two calls at the same moment get one
    /// claim; there is no gap where both find the key free.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use std::time::Duration;
    ///
    /// let once = client.once("signup:ada@example.org").per(Duration::from_secs(15));
    /// if once.claim().await?.is_none() {
    ///     println!("somebody did that within the last 15 s");
    /// }
    /// # Ok(()) }
    /// ```
    pub fn once(&self, key: impl AsRef<str>) -> OnceKey {
        OnceKey(self.lock(key))
    }
}

/// A key for [`Once`] that still needs a window; from [`Client::once`].
#[derive(Clone, Debug)]
#[must_use = "set the window with `per`"]
pub struct OnceKey(ReentrantLock);

impl OnceKey {
    /// Sets how long a claim stands: from 50 ms to a year.
    pub fn per(self, window: Duration) -> Once {
        Once {
            lock: self.0.fixed_lease(window),
            window,
            keeps_on_error: false,
        }
    }
}

/// A claim for one caller per key and window; from [`Client::once`].
///
/// A handle: cheap to make and to clone, it holds nothing.
///
/// The key is an ordinary lock of this name: with Redisson, `getLock(key).tryLock(0, 15, SECONDS)` without an unlock
/// shares it. So do not use the key as a [lock](Client::lock) too.
///
/// The server counts the window. This is not a lock: if work takes longer than its window, the next caller may do it at
/// the same time. For that, take a [`Job`](crate::Job).
///
/// ```no_run
/// # async fn order() -> lockset::Result<u64> { Ok(7) }
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use lockset::OnceRun;
///
/// let once = client.once("order:ada:basket-9").per(std::time::Duration::from_secs(15));
/// match once.run(order()).await? {
///     OnceRun::Ran(number) => println!("ordered: {number}"),
///     OnceRun::Duplicate { remaining } => println!("ordered already; not again for {remaining:?}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct Once {
    lock: ReentrantLock,
    window: Duration,
    keeps_on_error: bool,
}

impl Once {
    /// The key, as it was given to the client.
    #[must_use]
    pub fn key(&self) -> &str {
        self.lock.name()
    }

    /// Keeps the claim when the work of [`run`](Self::run) fails, panics or is dropped. Without this the key is free
    /// then.
    ///
    /// For work that must not be repeated once it has begun.
    pub fn keep_on_error(mut self) -> Self {
        self.keeps_on_error = true;
        self
    }

    /// Counts the claims in the group `name`; as [`ReentrantLock::group`].
    pub fn group(mut self, name: &str) -> Self {
        self.lock = self.lock.group(name);
        self
    }

    /// Sets how long a call continues without an answer from the server; as
    /// [`ReentrantLock::give_up_after`].
    pub fn give_up_after(mut self, span: Duration) -> Self {
        self.lock = self.lock.give_up_after(span);
        self
    }

    /// Claims the key for the window. `None`: another caller has claimed it, and that window is not over yet. One round
    /// trip.
    ///
    /// The claim stands for its whole window, even if it is dropped, its task ends or the process dies; only
    /// [`undo`](Claim::undo) ends it before.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: a claim under way is undone in the background.
    ///
    /// # Errors
    /// As for [`ReentrantLock::try_lock`]; [`is_invalid`](Error::is_invalid) also for a window that cannot work. After
    /// [`is_io`](Error::is_io) nothing is claimed: a grant of the server is undone in the background.
    ///
    /// ```no_run
    /// # async fn send() -> lockset::Result<()> { Ok(()) }
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let once = client.once("mail:invoice:7").per(std::time::Duration::from_secs(3600));
    /// if let Some(claim) = once.claim().await? {
    ///     if send().await.is_err() {
    ///         claim.undo().await?; // the next one may try
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn claim(&self) -> Result<Option<Claim>> {
        Ok(self.ask("claim").await?.ok())
    }

    /// Does `work` if no caller has claimed the key in this window. If the work fails, panics or is dropped, the key is
    /// free for the next caller; see [`keep_on_error`](Self::keep_on_error).
    ///
    /// One round trip, and a second one if the work fails. `work` is not polled before the claim is granted. Await it
    /// before the client is [shut down](crate::Client::shutdown): work that fails later cannot free its key.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and frees the key in the background, even if what `work` has sent to a database
    /// is still done there. A web server drops a handler when its client goes away: run this in a task of its own.
    ///
    /// # Errors
    /// The error of `work`; or an error of [`claim`](Self::claim), converted by [`From`] to the error type of `work`.
    ///
    /// ```no_run
    /// # async fn book() -> lockset::Result<u64> { Ok(7) }
    /// # async fn doc(once: lockset::Once) -> lockset::Result<()> {
    /// use lockset::OnceRun::{Duplicate, Ran};
    ///
    /// match once.run(book()).await? {
    ///     Ran(seat) => println!("seat {seat}"),
    ///     Duplicate { remaining } => println!("429, Retry-After: {}", remaining.as_secs().max(1)),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn run<T, E, F>(&self, work: F) -> Result<OnceRun<T>, E>
    where
        F: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let mut claim = match self.ask("run").await? {
            Ok(claim) => claim,
            Err(remaining) => return Ok(OnceRun::Duplicate { remaining }),
        };
        claim.stands = self.keeps_on_error;
        match work.await {
            Ok(value) => {
                claim.stands = true;
                Ok(OnceRun::Ran(value))
            }
            Err(error) => {
                if !self.keeps_on_error {
                    // The work's error is the one to return. If the undo cannot be sent, it continues in the background.
                    let _ = claim.undo().await;
                }
                Err(error)
            }
        }
    }

    /// Asks for the key: a claim, or how long another caller's claim still stands.
    async fn ask(&self, operation: &'static str) -> Result<Result<Claim, Duration>> {
        let window = self.window;
        let checked = Error::ensure((LEASE_MIN..=LEASE_MAX).contains(&window), operation, || {
            format!("a window of {window:?} cannot work; use {LEASE_MIN:?} to a year")
        });
        checked.map_err(|error| error.of_lock(self.key()))?;
        let asked = self.lock.0.try_or_remaining(operation).await?;
        Ok(asked.map(|share| Claim {
            share: Some(share),
            stands: true,
        }))
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once")
            .field("key", &self.key())
            .field("per", &self.window)
            .finish_non_exhaustive()
    }
}

/// The outcome of [`Once::run`]. `use lockset::OnceRun::{Duplicate, Ran}` makes for short matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnceRun<T> {
    /// The work was done, with this result.
    Ran(T),
    /// Another caller has claimed the key, and the work was not begun.
    Duplicate {
        /// How long that claim still stands, as the server saw it.
        remaining: Duration,
    },
}

impl<T> OnceRun<T> {
    /// The result, if the work was done.
    pub fn ran(self) -> Option<T> {
        match self {
            Self::Ran(value) => Some(value),
            Self::Duplicate { .. } => None,
        }
    }
}

/// A key that was claimed for a window; from [`Once::claim`]. Dropping it changes nothing.
pub struct Claim {
    share: Option<Share>,
    /// Whether the claim stands if this is dropped.
    stands: bool,
}

impl Claim {
    /// The key, as it was given to the client.
    #[must_use]
    pub fn key(&self) -> &str {
        self.share().name()
    }

    /// How long the claim certainly still stands, by the local monotonic clock.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.share().remaining()
    }

    /// Frees the key before its window is over, for the next caller. One round trip. `Ok` also if the window is over; a
    /// later claim of another caller is never touched.
    ///
    /// # Cancel safety
    /// If the future is dropped, the key is freed in the background.
    ///
    /// # Errors
    /// As for [`ReentrantGuard::release`](crate::ReentrantGuard::release), but a claim that is no longer held is no error,
    /// unless the client was [shut down](crate::Client::shutdown) in the meantime: then the key stays claimed for its
    /// window.
    pub async fn undo(mut self) -> Result<()> {
        let Some(share) = self.share.take() else {
            return Ok(());
        };
        let loss = share.loss_view();
        match share.release().await {
            // The key of a client that was shut down stays claimed.
            Err(error) if error.is_not_held() && loss.reason() != Some(LostReason::Closed) => {
                Ok(())
            }
            released => released.map_err(|error| error.during("undo")),
        }
    }

    fn share(&self) -> &Share {
        // Only methods that consume the claim take it out.
        self.share.as_ref().expect("a claim has its hold")
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("key", &self.key())
            .field("remaining", &self.remaining())
            .finish()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A dropped share is released in the background.
        if let Some(share) = self.share.take()
            && self.stands
        {
            share.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::testing::{Answer, Scripted, granted};

    /// The key stays claimed for its window, and the caller believes that others may claim it now.
    #[tokio::test(start_paused = true)]
    async fn an_undo_after_a_shutdown_is_an_error_and_one_after_the_window_is_none() {
        for is_shut in [true, false] {
            let server = Scripted::new(|sent| match sent.is_release() {
                true => Answer::Value(Value::Int(-1)),
                false => Answer::Value(granted()),
            });
            let client = Client::over(&server, Duration::from_secs(30));
            let window = Duration::from_secs(60);
            let claim = client.once("x").per(window).claim().await.unwrap().unwrap();
            if is_shut {
                client.clone().shutdown().await.unwrap();
            } else {
                tokio::time::sleep(window).await;
            }
            let undone = claim.undo().await;
            assert_eq!(undone.is_err_and(|error| error.is_not_held()), is_shut);
        }
    }
}
