//! Where a reply ends, and what it says.
//!
//! The few forms that our commands are answered with are read here; the client library reads all others,
//! so that every reply has the value it would have there. Invariant: a reply is read when all of it is
//! there, and never twice.

use redis::{ErrorKind, RedisError, Value};

/// No reply of ours nests deeper.
const DEPTH_MAX: usize = 32;

/// No line of ours, and no reply, is longer: whatever a server says, no more of it is kept.
const LINE_MAX: usize = 64 * 1024;
const REPLY_MAX: usize = 64 * 1024 * 1024;

/// The first reply in `bytes` and how many of them it takes; `None` if it has not all come yet.
pub(super) fn first(bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
    let Some(end) = end(bytes, DEPTH_MAX)? else {
        return if bytes.len() < REPLY_MAX {
            Ok(None)
        } else {
            Err(too_long())
        };
    };
    Ok(Some((value(&bytes[..end])?, end)))
}

fn value(reply: &[u8]) -> Result<Value, RedisError> {
    match reply {
        b"+OK\r\n" => Ok(Value::Okay),
        b"$-1\r\n" => Ok(Value::Nil),
        [b':', ..] => Ok(Value::Int(number(&reply[1..reply.len() - 2])?)),
        _ => redis::parse_redis_value(reply),
    }
}

/// Where the reply ends that begins `bytes`.
fn end(bytes: &[u8], depth: usize) -> Result<Option<usize>, RedisError> {
    let line = &bytes[..bytes.len().min(LINE_MAX)];
    let Some(newline) = line.iter().position(|byte| *byte == b'\n') else {
        return if line.len() < LINE_MAX {
            Ok(None)
        } else {
            Err(too_long())
        };
    };
    let behind = newline + 1;
    let (kind, size) = match &bytes[..behind] {
        [kind, size @ .., b'\r', b'\n'] => (*kind, size),
        _ => return Err(unreadable()),
    };
    match kind {
        b'+' | b'-' | b':' => Ok(Some(behind)),
        b'$' => match number(size)? {
            -1 => Ok(Some(behind)),
            size => {
                let size = usize::try_from(size).map_err(|_| unreadable())?;
                if size > REPLY_MAX {
                    return Err(too_long());
                }
                let end = behind + size + 2;
                Ok((bytes.len() >= end).then_some(end))
            }
        },
        b'*' => array_end(bytes, behind, number(size)?, depth),
        _ => Err(unreadable()),
    }
}

fn array_end(
    bytes: &[u8],
    begin: usize,
    items: i64,
    depth: usize,
) -> Result<Option<usize>, RedisError> {
    if depth == 0 {
        return Err(unreadable());
    }
    let mut at = begin;
    for _ in 0..items {
        match end(&bytes[at..], depth - 1)? {
            Some(length) => at += length,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

fn number(digits: &[u8]) -> Result<i64, RedisError> {
    let digits = std::str::from_utf8(digits).ok();
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(unreadable)
}

fn too_long() -> RedisError {
    (ErrorKind::Parse, "a reply that is longer than any of ours").into()
}

fn unreadable() -> RedisError {
    (ErrorKind::Parse, "a reply that cannot be read").into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

        /// Wherever a connection cuts it.
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

    /// What is kept of nonsense has a bound.
    #[test]
    fn what_is_too_long_is_an_error_before_it_has_come() {
        assert!(first(b"$1073741824\r\n").is_err(), "1 GB is announced");
        assert!(first(b"*1\r\n$9223372036854775807\r\n").is_err());
        assert!(
            first(format!("${REPLY_MAX}\r\n").as_bytes())
                .unwrap()
                .is_none()
        );
        let mut line = vec![b'+'; LINE_MAX - 1];
        assert!(first(&line).unwrap().is_none());
        line.push(b'+');
        assert!(first(&line).is_err(), "a line without an end");
        // Each part is short, and there is no end of them.
        let item = [b"$60000\r\n", &*vec![b'x'; 60_000], b"\r\n"].concat();
        let mut endless = b"*9223372036854775807\r\n".to_vec();
        endless.extend(item.repeat(1_000));
        assert!(first(&endless).unwrap().is_none());
        endless.extend(item.repeat(200));
        assert!(first(&endless).is_err(), "an array without an end");
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
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        assert!(first(&deep).is_err());
    }
}
