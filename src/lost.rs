//! How the loss of a lease is told.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

/// Why a guard no longer holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The local deadline passed without a confirmed renewal, or a fixed lease came to its end.
    Expired,
    /// The server says that this holder does not hold the lock: it was freed by force, deleted, or
    /// lost with the server's data.
    Revoked,
    /// The client was shut down while the guard was alive.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::Revoked => "the server no longer has this holder",
            Self::Closed => "the client was shut down",
        })
    }
}

/// The error of [`run`](crate::ReentrantGuard::run): the lock was lost before the work was done, or
/// while its last step blocked the thread.
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

    /// Why.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// Which lock.
    #[must_use]
    pub fn lock_name(&self) -> &str {
        &self.name
    }
}

/// Drives `work` to its end, or drops it when the lock is lost.
///
/// `lost` resolves when it is, but may be late: a thread that was blocked polls nothing. So `look` reads
/// the clock before each step of the work, and once more at its end.
pub(crate) async fn drive<T>(
    lost: impl Future<Output = Lost>,
    look: impl Fn() -> Option<Lost>,
    work: impl Future<Output = T>,
) -> Result<T, Lost> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    poll_fn(|context| {
        if let Poll::Ready(lost) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(lost));
        }
        if let Some(lost) = look() {
            return Poll::Ready(Err(lost));
        }
        let done = std::task::ready!(work.as_mut().poll(context));
        Poll::Ready(look().map_or(Ok(done), Err))
    })
    .await
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} was lost: {}", self.name, self.reason)
    }
}

impl std::error::Error for Lost {}
