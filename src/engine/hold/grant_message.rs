//! The message by which a waiter learns that it holds the lock.
//!
//! Any other message only means "look again". `lua/includes/fair_handover.lua` writes this format; a message in any
//! other format is not a grant.

use std::time::Duration;

use crate::api::fencing::FencingToken;

/// A lock that was handed over, with its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GrantMessage {
    /// Identifies the place that got the grant: the time until which the server kept it, in ms of the server's clock.
    pub(crate) until_ms: u64,
    /// The lease: the rest of that time when the lock was granted.
    pub(crate) lease: Duration,
    pub(crate) token: Option<FencingToken>,
    /// The key of the lock, because several locks may share a channel.
    pub(crate) key: Box<str>,
}

impl GrantMessage {
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(message).ok()?.splitn(4, ' ');
        let (until_ms, left_ms) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let token = match words.next()? {
            "-" => None,
            token => Some(token.parse().ok()?),
        };
        Some(Self {
            until_ms,
            lease: Duration::from_millis(left_ms),
            token,
            key: words.next()?.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(until_ms: u64, left_ms: u64, token: Option<u64>, key in "(?s).{1,12}") {
            let written = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
            let message = format!("{until_ms} {left_ms} {written} {key}");
            let read = GrantMessage::parse(message.as_bytes());
            prop_assert_eq!(read, Some(GrantMessage {
                until_ms,
                lease: Duration::from_millis(left_ms),
                token: token.map(FencingToken::from),
                key: key.into(),
            }));
        }

        /// Each grant has exactly one written form, so a parsed grant equals the written one.
        #[test]
        fn nothing_else_is_a_grant(message in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            "[0-9 -]{0,24}".prop_map(String::into_bytes),
        ]) {
            if let Some(grant) = GrantMessage::parse(&message) {
                let words: Vec<&str> = std::str::from_utf8(&message).unwrap().split(' ').collect();
                prop_assert_eq!(words[0].parse(), Ok(grant.until_ms));
                prop_assert_eq!(words[1].parse().map(Duration::from_millis), Ok(grant.lease));
                prop_assert_eq!(words[2] == "-", grant.token.is_none());
                prop_assert_eq!(words[3..].join(" "), &*grant.key);
            }
        }
    }

    #[test]
    fn only_what_is_written_as_a_grant_is_one() {
        let message = GrantMessage {
            until_ms: 1_763_000_000_123,
            lease: Duration::from_millis(2_900),
            token: None,
            key: "a - b".into(),
        };
        let read = GrantMessage::parse(b"1763000000123 2900 - a - b");
        assert_eq!(read.as_ref(), Some(&message));
        let fenced = GrantMessage {
            token: Some(FencingToken::from(77)),
            ..message
        };
        assert_eq!(
            GrantMessage::parse(b"1763000000123 2900 77 a - b"),
            Some(fenced)
        );
        for other in [
            &b"0"[..],
            b"1",
            b"",
            b"5 ",
            b" 5",
            b"5 6",
            b"5 6 -",
            b"5 6 7",
            b"5 x - a",
            b"5 -1 - a",
            b"5 6 x a",
            b"5 6  a",
            b"5.5 6 - a",
            b"\xff 6 - a",
            b"18446744073709551616 1 - a",
        ] {
            assert_eq!(GrantMessage::parse(other), None, "{other:?}");
        }
    }
}
