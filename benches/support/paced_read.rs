//! A socket that is read in portions, for the floor's connection over the client library.
//!
//! The client library reads all available replies, wakes all their callers, and then sends the next commands of
//! those. In portions it does as lockset's own connections do (`src/conn/link/pace.rs`), so that the floor's best
//! setting is as good as theirs. A reader that has to yield is woken at once.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use pace::{LATE, few_in_flight, portion_of};

/// The library's own.
#[path = "../../src/conn/link/pace.rs"]
#[allow(unused, reason = "its tests are the library's")]
mod pace;

/// The assumed size of a reply in bytes, until it is measured. Most scripts reply with this.
const REPLY_SIZE: usize = 5;

/// Replies between two measurements of their size.
const SAMPLE: usize = 64;

/// The most yields of a reader in a row without a poll of the writing side. A client library that never polls it is
/// slowed down, but not stopped.
const YIELDS_MAX: usize = 64;

/// Counts the commands on a connection.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    done: AtomicUsize,
}

/// Commands in flight, until their reply arrives or their caller leaves.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    in_flight: &'a InFlight,
    commands: usize,
}

impl InFlight {
    pub(crate) fn add(&self, commands: usize) -> InFlightGuard<'_> {
        self.count.fetch_add(commands, Ordering::Relaxed);
        InFlightGuard {
            in_flight: self,
            commands,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.in_flight
            .count
            .fetch_sub(self.commands, Ordering::Relaxed);
        self.in_flight
            .done
            .fetch_add(self.commands, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct PacedRead<S> {
    stream: S,
    in_flight: Arc<InFlight>,
    few: usize,
    /// The rest of this turn's portion; `None` until something is read in this turn.
    remaining: Option<usize>,
    /// The time at which the reader first yielded after a portion, until the next portion begins.
    yielded_at: Option<Instant>,
    yields: usize,
    reply_size: usize,
    /// Bytes since the size of replies was last measured, and the number of completed commands at that time.
    bytes: usize,
    done: usize,
}

impl<S> PacedRead<S> {
    /// For a connection whose task runs on the current runtime.
    pub(crate) fn new(stream: S, in_flight: Arc<InFlight>) -> Self {
        Self {
            stream,
            in_flight,
            few: few_in_flight(),
            remaining: None,
            yielded_at: None,
            yields: 0,
            reply_size: REPLY_SIZE,
            bytes: 0,
            done: 0,
        }
    }

    /// The number of bytes to read in the turn that begins.
    fn portion(&mut self) -> usize {
        let yielded_at = self.yielded_at.take();
        let in_flight = self.in_flight.count();
        if in_flight < self.few || yielded_at.is_some_and(|at| at.elapsed() > LATE) {
            return usize::MAX;
        }
        portion_of(in_flight) * self.reply_size
    }

    /// Called when the writing side is polled, which the client library does last in each turn.
    fn end_turn(&mut self) {
        self.remaining = None;
        self.yields = 0;
    }

    fn yield_turn(&mut self, context: &Context<'_>) {
        self.yielded_at.get_or_insert_with(Instant::now);
        self.yields += 1;
        if self.yields == YIELDS_MAX {
            self.end_turn();
        }
        // The wake-up is queued behind all tasks that were woken before.
        context.waker().wake_by_ref();
    }

    fn count(&mut self, bytes: usize) {
        self.remaining = self.remaining.map(|rest| rest.saturating_sub(bytes));
        self.bytes += bytes;
        let done = self.in_flight.done.load(Ordering::Relaxed);
        let replies = done.wrapping_sub(self.done);
        if replies >= SAMPLE {
            self.reply_size = (self.bytes / replies).max(REPLY_SIZE);
            self.bytes = 0;
            self.done = done;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedRead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let remaining = match self.remaining {
            Some(remaining) => remaining,
            None => self.portion(),
        };
        self.remaining = Some(remaining);
        // A read of a few bytes would cost as much as any other.
        if remaining < self.reply_size / 2 {
            self.yield_turn(context);
            return Poll::Pending;
        }
        let stream = Pin::new(&mut self.stream);
        let bytes = if remaining < buffer.remaining() {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(remaining));
            ready!(stream.poll_read(context, &mut part))?;
            let bytes = part.filled().len();
            buffer.advance(bytes);
            bytes
        } else {
            let before = buffer.filled().len();
            ready!(stream.poll_read(context, buffer))?;
            buffer.filled().len() - before
        };
        self.count(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PacedRead<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.end_turn();
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.end_turn();
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end_turn();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
