//! Fencing tokens, which make a lock safe where a lease alone cannot.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

use crate::api::error::{Error, Result};

/// A number that grows with every grant of one lock.
///
/// Send it with every write to the resource that the lock protects, and with the reads those writes rely on.
/// Have the resource refuse a token smaller than the largest it has seen. Then a holder that was paused past
/// its lease cannot overwrite the work of its successor (the rule is Martin Kleppmann's, 2016).
///
/// Compare tokens of one lock only. A token is `max(last + 1, microseconds of the server's clock)`, give or take 64. So
/// tokens keep growing even after the server lost its latest writes, or dropped the counter because the lock was not
/// granted [for 30 days](crate::ClientBuilder::token_retention). A task that gets the lock by a hand-off within its
/// client gets the next token of that grant, so its token is as old as the hold. Tokens stay below 2^53, which fits a
/// signed 64-bit column and a JSON number; a counter that is damaged or has reached that bound is an
/// [error](crate::Error::is_wrong_type).
///
/// To the resource, a token is a number or its digits:
///
/// ```
/// use lockset::FencingToken;
///
/// let token = FencingToken::from(1_763_800_000_000_000);
/// let column = token.as_i64();
/// let header = token.to_string();
///
/// assert_eq!(header.parse(), Ok(token));
/// assert_eq!(column, 1_763_800_000_000_000);
/// ```
///
/// The module [`fence`](crate::fence) has the table and the statements for SQL databases.
///
/// With the feature `serde` it is serialized as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct FencingToken(u64);

impl FencingToken {
    /// The number to send to the resource.
    ///
    /// ```
    /// assert_eq!(lockset::FencingToken::from(42).get(), 42);
    /// ```
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number for a 64-bit column of an SQL database. No lock issues a token above `i64::MAX`; a token made from a
    /// larger number becomes `i64::MAX`.
    ///
    /// ```
    /// let token = lockset::FencingToken::from(42);
    /// assert_eq!(token.as_i64(), 42);
    /// ```
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Returns the token of a hold, or an error for a caller that cannot work without it.
    pub(crate) fn required(token: Option<Self>, lock: &str) -> Result<Self> {
        token.ok_or_else(|| {
            let message =
                "the hold has no fencing token; acquire the lock by a handle with `.fenced()`";
            Error::invalid("token", message).of_lock(lock)
        })
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Makes a token from its number, as read from a resource or from a message.
impl From<u64> for FencingToken {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// Never fails for a token that a lock has issued.
impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: FencingToken) -> std::result::Result<Self, Self::Error> {
        token.0.try_into()
    }
}

/// Parses the digits that [`Display`](fmt::Display) writes.
impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> std::result::Result<Self, Self::Err> {
        digits.parse().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u64 = (1 << 53) - 1;

    #[test]
    fn a_token_is_a_number_wherever_it_goes() {
        let token = FencingToken::from(LARGEST);
        assert_eq!((u64::from(token), token.get()), (LARGEST, LARGEST));
        assert_eq!(i64::try_from(token), Ok((1 << 53) - 1));
        assert!(i64::try_from(FencingToken::from(u64::MAX)).is_err());
        assert_eq!(token.as_i64(), (1 << 53) - 1);
        assert_eq!(FencingToken::from(u64::MAX).as_i64(), i64::MAX);
        assert_eq!(token.to_string(), "9007199254740991");
        assert_eq!(token.to_string().parse(), Ok(token));
        for not_one in ["", "-1", "1.5", "x", "18446744073709551616"] {
            assert!(not_one.parse::<FencingToken>().is_err(), "{not_one}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_token_is_a_number_of_json() {
        let token = FencingToken::from(LARGEST);
        let json = serde_json::to_string(&token).unwrap();
        assert_eq!(json, "9007199254740991");
        assert_eq!(serde_json::from_str::<FencingToken>(&json).unwrap(), token);
        assert!(serde_json::from_str::<FencingToken>("-1").is_err());
    }
}
