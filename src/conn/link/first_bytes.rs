//! The first bytes from a server, which tell why connecting failed.
//!
//! A server at its limit of clients replies so and closes the connection, and the close may be noticed first. A
//! server of another protocol shows it in its first line.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, Value};

/// Bytes to record. An error line is shorter: the one of Redis's protected mode takes half of this.
const RECORDED_MAX: usize = 2048;

/// Characters of a line that a message shows.
const SHOWN_MAX: usize = 100;

/// The first bytes that replies can have.
const TYPES: &[u8] = b"+-:$*_#,(!=%~>|";

/// The type of a TLS record that reports an error.
const TLS_ALERT: u8 = 0x15;

/// The bytes received so far, up to a bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

/// The meaning of the first bytes of a failed connection.
#[derive(Debug)]
pub(super) enum Meaning {
    /// No bytes were received.
    Silence,
    /// The bytes do not tell the reason.
    Nothing,
    /// An error and nothing else, or a protocol other than Redis's.
    Error(RedisError),
    /// The server speaks TLS.
    Tls,
}

impl FirstBytes {
    /// Adds bytes. Returns whether no more are needed.
    pub(super) fn record(&self, bytes: &[u8]) -> bool {
        let mut received = self.0.lock();
        let room = RECORDED_MAX - received.len();
        received.extend_from_slice(&bytes[..bytes.len().min(room)]);
        received.len() == RECORDED_MAX
    }

    pub(super) fn meaning(&self) -> Meaning {
        let received = self.0.lock();
        let Some(first) = received.first() else {
            return Meaning::Silence;
        };
        if *first == TLS_ALERT {
            return Meaning::Tls;
        }
        if !TYPES.contains(first) {
            let line = received.split(|byte| b"\r\n".contains(byte)).next();
            let shown = String::from_utf8_lossy(line.unwrap_or_default());
            let shown: String = shown.chars().take(SHOWN_MAX).collect();
            let what = "not the protocol of Redis";
            return Meaning::Error((ErrorKind::Parse, what, shown).into());
        }
        // Exactly one error reply.
        match redis::parse_redis_value(&received) {
            Ok(Value::ServerError(no))
                if received.iter().position(|byte| *byte == b'\n') == Some(received.len() - 1) =>
            {
                Meaning::Error(no.into())
            }
            _ => Meaning::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_say_why_connecting_failed() {
        let meaning =
            |received: &[u8]| FirstBytes(Arc::new(Mutex::new(received.to_vec()))).meaning();
        assert!(matches!(meaning(b""), Meaning::Silence));
        assert!(matches!(
            meaning(b"\x15\x03\x01\x00\x02\x02\x46"),
            Meaning::Tls
        ));
        for nothing in [
            &b"+OK\r\n"[..],
            b"-ERR cut in the mid",
            b"-NOPERM no such right\r\n+OK\r\n",
        ] {
            assert!(matches!(meaning(nothing), Meaning::Nothing), "{nothing:?}");
        }
        let Meaning::Error(full) = meaning(b"-ERR max number of clients reached\r\n") else {
            panic!("the reason is there");
        };
        assert_eq!(full.code(), Some("ERR"));
        assert!(full.to_string().contains("max number of clients"), "{full}");
        // About as long as the line of Redis's protected mode.
        let denied = format!(
            "-DENIED Redis is running in protected mode. {}\r\n",
            "x".repeat(1030)
        );
        let recorded = FirstBytes::default();
        assert!(!recorded.record(denied.as_bytes()));
        let Meaning::Error(denied) = recorded.meaning() else {
            panic!("the reason is there");
        };
        assert_eq!(denied.code(), Some("DENIED"));
        assert!(recorded.record(&[b'x'; RECORDED_MAX]));
        let Meaning::Error(web) = meaning(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n") else {
            panic!("the protocol is another one");
        };
        assert_eq!(web.kind(), ErrorKind::Parse);
        assert_eq!(web.detail(), Some("HTTP/1.1 400 Bad Request"));
    }
}
