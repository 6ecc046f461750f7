//! Fencing tokens: what makes a lock safe where a lease alone cannot.

use std::fmt;

/// A number that grows with every new grant of one lock.
///
/// Send it along with every write to the resource the lock protects, and with the reads those writes
/// rely on, and let the resource refuse a token smaller than the largest it has seen: then a holder
/// that was paused past its lease cannot overwrite the work of its successor (the rule is Martin
/// Kleppmann's, 2016).
///
/// Tokens of one lock compare with each other; tokens of different locks do not. A token is
/// `max(last + 1, microseconds of the server's clock)`, so that it keeps growing even after a server
/// has lost the end of its data, and it stays below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    pub(crate) fn new(value: u64) -> Self {
        Self(value)
    }

    /// The number to hand to the resource.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
