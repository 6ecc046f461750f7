//! The first words that a server says on a connection, for when it comes to nothing.
//!
//! A server that takes no more clients says so and hangs up: what is noticed first may be that it hung
//! up. And what speaks another protocol than Redis says in its first line which.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use redis::{ErrorKind, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A line that says what is wrong is not longer.
const WORDS_MAX: usize = 200;

/// So much of a line is shown.
const SHOWN_MAX: usize = 100;

/// What every reply begins with.
const TYPES: &[u8] = b"+-:$*_#,(!=%~>|";

/// The type of a record in which TLS says that it understands nothing.
const TLS_ALERT: u8 = 0x15;

/// What was heard so far, up to a bound.
#[derive(Clone, Debug, Default)]
pub(super) struct Words(Arc<Mutex<Vec<u8>>>);

/// What the first words of a connection that came to nothing say.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Nothing was said.
    Silence,
    /// They do not say why.
    Nothing,
    /// They are an error, and all that was said; or no words of a Redis server.
    Error(RedisError),
    /// It speaks TLS.
    Tls,
}

impl Words {
    /// The first line, if it is an error.
    pub(super) fn refusal(&self) -> Option<String> {
        let heard = self.0.lock();
        let line = heard
            .strip_prefix(b"-")?
            .split(|byte| *byte == b'\r')
            .next()?;
        Some(String::from_utf8_lossy(line).into_owned())
    }

    pub(super) fn meaning(&self) -> Meaning {
        let heard = self.0.lock();
        let Some(first) = heard.first() else {
            return Meaning::Silence;
        };
        if *first == TLS_ALERT {
            return Meaning::Tls;
        }
        if !TYPES.contains(first) {
            let line = heard.split(|byte| b"\r\n".contains(byte)).next();
            let shown = String::from_utf8_lossy(line.unwrap_or_default());
            let shown: String = shown.chars().take(SHOWN_MAX).collect();
            let what = "not the protocol of Redis";
            return Meaning::Error((ErrorKind::Parse, what, shown).into());
        }
        // An error behind which nothing came: a whole reply and no more.
        match redis::parse_redis_value(&heard) {
            Ok(Value::ServerError(no))
                if heard.iter().position(|byte| *byte == b'\n') == Some(heard.len() - 1) =>
            {
                Meaning::Error(no.into())
            }
            _ => Meaning::Nothing,
        }
    }
}

/// A stream that notes the first words.
#[derive(Debug)]
pub(super) struct Heard<S> {
    stream: S,
    /// Until enough is noted.
    words: Option<Words>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Heard<S> {
    pub(super) fn new(stream: S, words: Words) -> Self {
        Self {
            stream,
            words: Some(words),
        }
    }

    fn note(&mut self, bytes: &[u8]) {
        if let Some(Words(words)) = &self.words {
            let mut words = words.lock();
            let room = WORDS_MAX - words.len();
            words.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if words.len() == WORDS_MAX {
                drop(words);
                self.words = None;
            }
        }
    }

    /// What cannot be written to may have said why before.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        written: io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if written.is_err() && self.words.is_some() {
            let mut space = [0; WORDS_MAX];
            let mut rest = ReadBuf::new(&mut space);
            let _ = Pin::new(&mut self.stream).poll_read(context, &mut rest);
            self.note(rest.filled());
        }
        Poll::Ready(written)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        if self.words.is_some() {
            self.note(&buffer.filled()[before..]);
        }
        Poll::Ready(read)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heard<S> {
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
    fn first_words_mean_what_they_say() {
        let meaning = |heard: &[u8]| Words(Arc::new(Mutex::new(heard.to_vec()))).meaning();
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
        let refused = Words(Arc::new(Mutex::new(
            b"-WRONGPASS no\r\n-NOAUTH no\r\n".to_vec(),
        )));
        assert_eq!(refused.refusal().as_deref(), Some("WRONGPASS no"));
        assert_eq!(Words::default().refusal(), None);
        let Meaning::Error(full) = meaning(b"-ERR max number of clients reached\r\n") else {
            panic!("it says why");
        };
        assert_eq!(full.code(), Some("ERR"));
        assert!(full.to_string().contains("max number of clients"), "{full}");
        let Meaning::Error(web) = meaning(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n") else {
            panic!("it is no Redis");
        };
        assert_eq!(web.kind(), ErrorKind::Parse);
        assert_eq!(web.detail(), Some("HTTP/1.1 400 Bad Request"));
    }
}
