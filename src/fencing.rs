//! Fencing tokens: what makes a lock safe where a lease alone cannot.

use std::fmt;
use std::num::{ParseIntError, TryFromIntError};
use std::str::FromStr;

/// A number that grows with every new grant of one lock.
///
/// Send it along with every write to the resource the lock protects, and with the reads those writes
/// rely on, and let the resource refuse a token smaller than the largest it has seen: then a holder
/// that was paused past its lease cannot overwrite the work of its successor (the rule is Martin
/// Kleppmann's, 2016).
///
/// Tokens of one lock compare with each other; tokens of different locks do not. A token is
/// `max(last + 1, microseconds of the server's clock)`, give or take 64, so that it keeps growing even
/// after a server has lost the end of its data, or has given no token of this lock [for 30
/// days](crate::ClientBuilder::token_retention). It stays below 2^53: it fits the signed 64-bit column of
/// a database, and a number of JSON.
///
/// On the way to the resource and in it a token is a number, or the digits of one:
///
/// ```
/// use lockset::FencingToken;
///
/// let token = FencingToken::from(1_763_800_000_000_000);
/// let column = i64::try_from(token)?;
/// let header = token.to_string();
///
/// assert_eq!(header.parse(), Ok(token));
/// assert_eq!(column, 1_763_800_000_000_000);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
///
/// With the feature `serde` it is serialized as that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
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

/// For one that comes back from a resource, or over a wire.
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

/// Never fails for a token that a lock has given.
impl TryFrom<FencingToken> for i64 {
    type Error = TryFromIntError;

    fn try_from(token: FencingToken) -> Result<Self, Self::Error> {
        token.0.try_into()
    }
}

/// The digits, as [`Display`](fmt::Display) writes them.
impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(digits: &str) -> Result<Self, Self::Err> {
        digits.parse().map(Self)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for FencingToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for FencingToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u64 = (1 << 53) - 1;

    #[test]
    fn a_token_is_a_number_wherever_it_goes() {
        let token = FencingToken::from(LARGEST);
        assert_eq!(u64::from(token), LARGEST);
        assert_eq!(i64::try_from(token), Ok((1 << 53) - 1));
        assert!(i64::try_from(FencingToken::from(u64::MAX)).is_err());
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
