//! The error reply of a node when another one serves the slot. Pure.

use redis::{RedisError, Value};

use crate::conn::address::Address;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// This node now serves the slot.
    Moved { slot: u16, to: Address },
    /// The slot is migrating: the other node has to be asked, for this command only.
    Ask { slot: u16, to: Address },
}

impl Redirect {
    /// Parses a redirection from the node `asked`. A redirection without a host means the same host.
    pub(super) fn of(error: &RedisError, asked: &Address) -> Option<Self> {
        let is_moved = match error.code()? {
            "MOVED" => true,
            "ASK" => false,
            _ => return None,
        };
        let mut words = error.detail()?.split_ascii_whitespace();
        let slot = words.next()?.parse().ok()?;
        // An IPv6 address contains colons.
        let (host, port) = words.next()?.rsplit_once(':')?;
        let host = match host {
            "" | "?" => &asked.host,
            host => host,
        };
        let to = Address {
            host: host.into(),
            port: port.parse().ok()?,
        };
        Some(if is_moved {
            Self::Moved { slot, to }
        } else {
            Self::Ask { slot, to }
        })
    }
}

/// Whether the first of two commands was executed and the second was redirected, because the slot moved in between.
/// Sent again, the first would not find what it removed.
pub(super) fn is_half_done(replies: &[Value]) -> bool {
    matches!(replies, [Value::Int(1), Value::ServerError(_)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    /// The `HDEL` of a release succeeded. Repeated at the other node, it would find no hold.
    #[test]
    fn what_was_released_is_not_released_again_elsewhere() {
        let error = |line: &[u8]| redis::parse_redis_value(line).unwrap();
        let moved = error(b"-MOVED 3999 127.0.0.1:6381\r\n");
        assert!(is_half_done(&[Value::Int(1), moved.clone()]));
        for replies in [
            vec![Value::Int(0), moved.clone()],
            vec![moved.clone(), moved.clone()],
            vec![Value::Int(1), Value::Int(0)],
            vec![moved],
        ] {
            assert!(!is_half_done(&replies), "{replies:?}");
        }
    }

    #[test]
    fn redirections_are_read() {
        let moved = |host, port| {
            let to = at(host, port);
            Some(Redirect::Moved { slot: 3999, to })
        };
        for (line, expected) in [
            ("MOVED 3999 127.0.0.1:6381", moved("127.0.0.1", 6381)),
            ("MOVED 3999 ::1:6381", moved("::1", 6381)),
            ("MOVED 3999 node.example:6381", moved("node.example", 6381)),
            ("MOVED 3999 :6381", moved("asked", 6381)),
            ("MOVED 3999 ?:6381", moved("asked", 6381)),
            (
                "ASK 3999 127.0.0.1:6381",
                Some(Redirect::Ask {
                    slot: 3999,
                    to: at("127.0.0.1", 6381),
                }),
            ),
            ("MOVED 3999", None),
            ("MOVED x 127.0.0.1:6381", None),
            ("MOVED 3999 127.0.0.1", None),
            ("TRYAGAIN Multiple keys request", None),
            ("CLUSTERDOWN The cluster is down", None),
        ] {
            let error = crate::testing::error(line);
            assert_eq!(Redirect::of(&error, &at("asked", 1)), expected, "{line}");
        }
    }
}
