//! The first bytes from a server, which tell why connecting failed.
//!
//! A server at its limit of clients replies so and closes the connection, and the close may be noticed first. A
//! server of another protocol shows it in its first line.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
    /// The first line, if it is an error.
    pub(super) fn refusal(&self) -> Option<String> {
        let received = self.0.lock();
        let line = received
            .strip_prefix(b"-")?
            .split(|byte| *byte == b'\r')
            .next()?;
        Some(String::from_utf8_lossy(line).into_owned())
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

/// A stream that records the first bytes.
#[derive(Debug)]
pub(super) struct Recorder<S> {
    stream: S,
    /// `None` once enough is recorded.
    first: Option<FirstBytes>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Recorder<S> {
    pub(super) fn new(stream: S, first: FirstBytes) -> Self {
        Self {
            stream,
            first: Some(first),
        }
    }

    fn record(&mut self, bytes: &[u8]) {
        if let Some(FirstBytes(first)) = &self.first {
            let mut first = first.lock();
            let room = RECORDED_MAX - first.len();
            first.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if first.len() == RECORDED_MAX {
                drop(first);
                self.first = None;
            }
        }
    }

    /// After a failed write, reads what the server sent before, because that may contain the reason.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if written.is_err() && self.first.is_some() {
            let mut space = [0; RECORDED_MAX];
            let mut rest = ReadBuf::new(&mut space);
            let _ = Pin::new(&mut self.stream).poll_read(context, &mut rest);
            self.record(rest.filled());
        }
        Poll::Ready(written)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Recorder<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if self.first.is_some() {
            self.record(&buffer.filled()[before..]);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Recorder<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, bytes));
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
        let refused = FirstBytes(Arc::new(Mutex::new(
            b"-WRONGPASS no\r\n-NOAUTH no\r\n".to_vec(),
        )));
        assert_eq!(refused.refusal().as_deref(), Some("WRONGPASS no"));
        assert_eq!(FirstBytes::default().refusal(), None);
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
        let mut recorder = Recorder::new(tokio::io::empty(), recorded.clone());
        recorder.record(denied.as_bytes());
        let Meaning::Error(denied) = recorded.meaning() else {
            panic!("the reason is there");
        };
        assert_eq!(denied.code(), Some("DENIED"));
        let Meaning::Error(web) = meaning(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n") else {
            panic!("the protocol is another one");
        };
        assert_eq!(web.kind(), ErrorKind::Parse);
        assert_eq!(web.detail(), Some("HTTP/1.1 400 Bad Request"));
    }
}
