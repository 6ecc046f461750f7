//! How the loss of a lease is told.

use std::fmt;

/// Why a guard no longer holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// The error of [`run`](crate::ReentrantGuard::run): the lock was lost before the work was done.
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

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?} was lost: {}", self.name, self.reason)
    }
}

impl std::error::Error for Lost {}
