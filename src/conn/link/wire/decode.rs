//! Finds the end of a reply, and parses it.
//!
//! The few forms that our commands are answered with are parsed here. The client library parses all others, so every
//! reply has the value that it would have there. Invariants: a reply is parsed once, when it is complete; nothing is
//! kept of a reply that [`framing`](crate::conn::link::framing) refuses.

use std::mem;

use redis::{ErrorKind, ProtocolVersion, RedisError, Value};

use crate::conn::link::framing::Framing;

/// The state of a reply that has partly arrived.
#[derive(Debug)]
pub(super) struct Decoder {
    framing: Framing,
    /// The number of its bytes that have been looked at.
    seen: usize,
}

impl Decoder {
    pub(super) fn new(protocol: ProtocolVersion) -> Self {
        Self {
            framing: Framing::new(protocol),
            seen: 0,
        }
    }

    /// The first reply in `bytes` and its length; `None` if it is not complete yet. The next `bytes` must then begin
    /// with these.
    pub(super) fn first(&mut self, bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
        if self.seen == 0
            && let Some(short) = short(bytes)
        {
            return Ok(Some(short));
        }
        let end = self.framing.read(&bytes[self.seen..]);
        let Some(end) = end.map_err(|why| (ErrorKind::Parse, why))? else {
            self.seen = bytes.len();
            return Ok(None);
        };
        let length = mem::take(&mut self.seen) + end.at;
        Ok(Some((value(&bytes[..length])?, length)))
    }
}

/// The first reply, if it has one of the most frequent forms, which need no state.
fn short(bytes: &[u8]) -> Option<(Value, usize)> {
    match bytes {
        [b'+', b'O', b'K', b'\r', b'\n', ..] => Some((Value::Okay, 5)),
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((Value::Int(i64::from(digit - b'0')), 4))
        }
        _ => None,
    }
}

fn value(reply: &[u8]) -> Result<Value, RedisError> {
    match reply {
        b"$-1\r\n" => Ok(Value::Nil),
        [b':', digits @ .., b'\r', b'\n'] => Ok(Value::Int(number(digits)?)),
        [b'*', ..] => match usual(&mut &*reply) {
            Some(array) => Ok(array),
            None => redis::parse_redis_value(reply),
        },
        _ => redis::parse_redis_value(reply),
    }
}

/// Takes the first of these values: an array of texts, numbers and arrays of them. `None` if it has any other part.
fn usual(rest: &mut &[u8]) -> Option<Value> {
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let (line, more) = (&rest[..end], rest.get(end + 2..)?);
    *rest = more;
    let (kind, digits) = line.split_first()?;
    let number = number(digits).ok()?;
    let count = usize::try_from(number);
    match (kind, count) {
        (b':', _) => Some(Value::Int(number)),
        (b'$', Ok(size)) => {
            let (text, more) = rest.split_at_checked(size)?;
            *rest = more.strip_prefix(b"\r\n")?;
            Some(Value::BulkString(text.to_vec()))
        }
        (b'*', Ok(count)) => {
            // Each part has three bytes or more.
            let mut parts = Vec::with_capacity(count.min(rest.len() / 3));
            for _ in 0..count {
                parts.push(usual(rest)?);
            }
            Some(Value::Array(parts))
        }
        _ => None,
    }
}

fn number(digits: &[u8]) -> Result<i64, RedisError> {
    let digits = std::str::from_utf8(digits).ok();
    let number = digits.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| (ErrorKind::Parse, "a number that cannot be read").into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
        Decoder::new(ProtocolVersion::RESP2).first(bytes)
    }

    /// A reply as a server writes it.
    fn replies() -> impl Strategy<Value = Vec<u8>> {
        let word = proptest::collection::vec(any::<u8>(), 0..20);
        let bulk = word.prop_map(|word| {
            let mut reply = format!("${}\r\n", word.len()).into_bytes();
            reply.extend(word);
            reply.extend(b"\r\n");
            reply
        });
        let line = prop_oneof![
            Just(b"+OK\r\n".to_vec()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            "[+][A-Z ]{0,9}\r\n".prop_map(String::into_bytes),
            "-[A-Z]{2,9} [a-z ]{0,9}\r\n".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        ];
        let leaf = prop_oneof![line, bulk];
        leaf.prop_recursive(4, 24, 4, |inner| {
            proptest::collection::vec(inner, 0..4).prop_map(|items| {
                let mut reply = format!("*{}\r\n", items.len()).into_bytes();
                reply.extend(items.concat());
                reply
            })
        })
    }

    proptest! {
        #[test]
        fn every_reply_is_what_the_client_library_reads(
            all in proptest::collection::vec(replies(), 1..6)
        ) {
            let bytes = all.concat();
            let mut at = 0;
            for reply in &all {
                let (value, length) = first(&bytes[at..]).unwrap().unwrap();
                prop_assert_eq!(length, reply.len());
                prop_assert_eq!(value, redis::parse_redis_value(reply).unwrap());
                at += length;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn a_part_of_a_reply_is_none(reply in replies(), cut in any::<prop::sample::Index>()) {
            let part = &reply[..cut.index(reply.len())];
            prop_assert!(first(part).unwrap().is_none());
        }

        #[test]
        fn replies_are_the_same_wherever_a_connection_cuts_them(
            all in proptest::collection::vec(replies(), 1..6),
            cuts in proptest::collection::vec(1..12usize, 1..20),
        ) {
            let bytes = all.concat();
            let mut decoder = Decoder::new(ProtocolVersion::RESP2);
            let (mut come, mut at, mut read) = (0, 0, Vec::new());
            for cut in cuts.iter().cycle() {
                come = bytes.len().min(come + cut);
                while let Some((value, length)) = decoder.first(&bytes[at..come]).unwrap() {
                    read.push(value);
                    at += length;
                }
                if come == bytes.len() {
                    break;
                }
            }
            let expected: Vec<_> = all.iter().map(|reply| redis::parse_redis_value(reply).unwrap()).collect();
            prop_assert_eq!(read, expected);
        }

        /// The result does not depend on how a connection splits the bytes.
        #[test]
        fn more_bytes_change_nothing_that_was_read(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(b"+-:$*\r\n0123".to_vec()),
            ], 0..64),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = first(&bytes);
            match first(&bytes[..cut.index(bytes.len() + 1)]) {
                Ok(None) => {}
                Ok(Some(read)) => prop_assert_eq!(whole.unwrap().unwrap(), read),
                Err(_) => prop_assert!(whole.is_err()),
            }
        }

        #[test]
        fn whatever_comes_is_a_reply_a_part_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = first(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    /// The most frequent replies leave no state, even if more bytes follow.
    #[test]
    fn replies_of_one_digit_and_ok_need_no_state() {
        for more in ["", ":12\r\n"] {
            for (reply, value) in [("+OK\r\n", Value::Okay), (":7\r\n", Value::Int(7))] {
                let bytes = format!("{reply}{more}");
                assert_eq!(short(bytes.as_bytes()), Some((value, reply.len())));
            }
        }
        for other in ["+OK\r", ":12\r\n", ":-\r\n", "$-1\r\n", ""] {
            assert_eq!(short(other.as_bytes()), None, "{other:?}");
        }
    }

    #[test]
    fn what_no_server_says_is_an_error() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"+OK\n",
            b"$x\r\n",
            b"$-2\r\n",
            b":\r\n",
            b"\r\n",
        ] {
            assert!(first(bytes).is_err(), "{bytes:?}");
        }
    }
}
