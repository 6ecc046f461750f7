//! The arguments and results of `with`: how long it waits, and how it can end.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::holder::Busy;
use crate::api::loss::{Lost, LostReason};

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
    /// The body ended with this error. The lock was released.
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
            Self::Busy(busy) => busy.fmt(f),
            Self::Lost { lock, reason } => {
                write!(
                    f,
                    "lock {lock:?} was lost during the work, which was stopped: {reason}"
                )
            }
            Self::Work(error) => error.fmt(f),
            Self::Lock(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for WithError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // The texts of the others are complete.
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
