//! The loss of a hold: why it happened, and how work stops at it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Why a guard no longer holds its lock.
///
/// ```no_run
/// # async fn doc(guard: lockset::ReentrantGuard) {
/// use lockset::LostReason;
///
/// match guard.lost().await {
///     LostReason::Expired => println!("the server did not answer for a lease"),
///     LostReason::Revoked => println!("the lock was freed by force, or its key deleted"),
///     LostReason::Closed => println!("this client was shut down"),
///     LostReason::MaxHold => println!("held for as long as its handle allows"),
///     reason => println!("lost: {reason}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The local deadline passed without a confirmed renewal, or a fixed lease ended.
    Expired,
    /// The server no longer has this holder: the lock was freed by force, its key was deleted, or the server
    /// lost its data.
    Revoked,
    /// The client was shut down while the guard was alive.
    Closed,
    /// It was held for as long as [`max_hold`](crate::ReentrantLock::max_hold) allows.
    MaxHold,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::Revoked => "the server no longer has this holder",
            Self::Closed => "the client was shut down",
            Self::MaxHold => "it was held for as long as its max_hold allows",
        })
    }
}

/// The error of [`run`](crate::ReentrantGuard::run): the lock was lost before the work ended, or while its
/// last step blocked the thread.
///
/// ```no_run
/// # async fn doc(guard: lockset::ReentrantGuard) {
/// if let Err(lost) = guard.run(async { /* work */ }).await {
///     eprintln!("{} was lost: {}", lost.lock_name(), lost.reason());
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    name: String,
    reason: LostReason,
}

impl Lost {
    pub(crate) fn new(name: &str, reason: LostReason) -> Self {
        Self {
            name: name.to_owned(),
            reason,
        }
    }

    /// Why the lock was lost.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// The name of the lock that was lost, as it was given to the client.
    #[must_use]
    pub fn lock_name(&self) -> &str {
        &self.name
    }
}

/// Runs `work` to its end, or drops it when the lock is lost.
///
/// `lost` may resolve late, because a blocked thread polls nothing. So `check` reads the clock before each
/// step of the work, and once more at its end.
pub(crate) async fn drive<T>(
    lost: impl Future<Output = Lost>,
    check: impl Fn() -> Option<Lost>,
    work: impl Future<Output = T>,
) -> Result<T, Lost> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(lost) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(lost));
        }
        if let Some(lost) = check() {
            return Poll::Ready(Err(lost));
        }
        let done = std::task::ready!(work.as_mut().poll(context));
        Poll::Ready(check().map_or(Ok(done), Err))
    })
    .await
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} was lost: {}", self.name, self.reason)
    }
}

impl std::error::Error for Lost {}
