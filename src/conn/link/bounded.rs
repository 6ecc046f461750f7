//! A stream that bounds replies, because the client library accepts any reply.
//!
//! Nonsense from a server, or from a proxy in its place, costs the connection. So does a reply without a command,
//! because the next command would take it for its own. Invariant: the library never receives more of one reply than
//! [`framing`](super::framing) allows.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::ProtocolVersion;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::Framing;
use super::shared_tick::SharedTick;
use crate::conn::push::PushState;
use crate::engine::clock::Clock;

#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    commands: Framing,
    replies: Framing,
    /// Commands without a reply. A push confirms a subscription, which is not subtracted here, so on a push
    /// connection this is an upper bound.
    unanswered: u64,
    push: Arc<PushState>,
    /// The time of the last reply, even if its caller no longer waits.
    last_reply: SharedTick,
    clock: Clock,
}

impl<S> Bounded<S> {
    /// Notes each reply in `last_reply`, by this clock.
    pub(super) fn new(
        stream: S,
        protocol: ProtocolVersion,
        push: Arc<PushState>,
        (last_reply, clock): (SharedTick, Clock),
    ) -> Self {
        Self {
            stream,
            commands: Framing::new(ProtocolVersion::RESP2),
            replies: Framing::new(protocol),
            unanswered: 0,
            push,
            last_reply,
            clock,
        }
    }

    fn sent(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        while let Some(end) = self.commands.read(bytes)? {
            self.unanswered += 1;
            bytes = &bytes[end.at..];
        }
        Ok(())
    }

    fn received(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(end) = self.replies.read(bytes).map_err(refused)? {
            // Messages answer no command. Confirmations do, and the push handler notes them, because it knows the
            // requests.
            if !end.is_push {
                self.last_reply.set(self.clock.now());
                let rest = self.unanswered.checked_sub(1);
                self.unanswered = rest.ok_or_else(|| refused("a reply to no command"))?;
            }
            bytes = &bytes[end.at..];
        }
        Ok(())
    }
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.push.is_flooded() {
            let why = "confirmations of subscriptions that nobody asked for";
            return Poll::Ready(Err(refused(why)));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.received(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.sent(&bytes[..written]).map_err(refused)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
