//! A socket that gives answers in portions, so that a connection of many tasks never stands still.
//!
//! The client library reads all answers there are, wakes all who wait for them, and then sends what
//! those ask next: in one write, so that the server waits for the client and the client for the
//! server in turns; or, where the woken run on another thread, with one write for each. With small
//! portions it gets its turn again behind the few that one portion has woken: their next commands
//! leave together in one write, and the server works on them while the next portion is read. It also
//! keeps what a few tasks work on in the processor's cache.
//!
//! Nothing that is written is held back, there is no timer, and few commands under way are answered
//! as ever. Invariant: whoever is refused a read is woken at once, so that nothing waits for an event
//! that may not come; and every byte is passed on once, in order. All that is counted here is advice:
//! if it is wrong, portions are of another size.

// A bench includes this file, and finds no use for its tests.
#[cfg(test)]
#[path = "portions/tests.rs"]
#[allow(unused, reason = "in a bench")]
mod tests;

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::{Handle, RuntimeFlavor};

/// With fewer commands under way there is nothing to gain. On a runtime of one thread there is more
/// to lose: there the library puts all commands that are ready into one write by itself.
const FEW: usize = 4;
const FEW_ON_ONE_THREAD: usize = 16;

/// As much of all that is under way is a portion that is the least that can be: enough that the
/// client and the server always have one each.
const PARTS_MIN: usize = 4;
/// A portion of so many answers is worth its system calls, and small enough to be done with soon.
const ENOUGH: usize = 8;
/// As much of all that is under way is a portion that is more than enough.
const PARTS: usize = 8;

/// No portion has more answers: more would not be cheaper, and leave the processor's cache.
const PORTION_MAX: usize = 16;

/// If the next turn comes so late, others are in line for the processor, and waiting behind them
/// once more for each portion would cost more than portions save.
const LATE: Duration = Duration::from_millis(1);

/// Bytes of one answer, until it is known better: that of most scripts.
const ANSWER_SIZE: usize = 5;

/// Answers after which their size is looked at again.
const SAMPLE: usize = 64;

/// How often a read is refused in a row, if the writing side is never polled in between: a client
/// library that does not do that is slowed down, but not stopped.
const REFUSALS_MAX: usize = 64;

/// The commands on a connection.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    under_way: AtomicUsize,
    done: AtomicUsize,
}

/// Commands under way, until they are answered or given up.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    traffic: &'a Traffic,
    commands: usize,
}

impl Traffic {
    pub(crate) fn asked(&self, commands: usize) -> Asked<'_> {
        self.under_way.fetch_add(commands, Ordering::Relaxed);
        Asked {
            traffic: self,
            commands,
        }
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.traffic
            .under_way
            .fetch_sub(self.commands, Ordering::Relaxed);
        self.traffic
            .done
            .fetch_add(self.commands, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Portions<S> {
    stream: S,
    traffic: Arc<Traffic>,
    few: usize,
    /// What is left of this turn's portion; `None` until something is read in this turn.
    left: Option<usize>,
    /// When a portion first came to its end that was not followed by another yet.
    refused_at: Option<Instant>,
    refusals: usize,
    answer_size: usize,
    /// Bytes since the size of an answer was last looked at, and the commands done until then.
    bytes: usize,
    done: usize,
}

/// How many answers make a portion, with so many commands under way.
fn portion_of(under_way: usize) -> usize {
    let least = (under_way / PARTS_MIN).min(ENOUGH);
    least.max(under_way / PARTS).clamp(1, PORTION_MAX)
}

impl<S> Portions<S> {
    /// For a connection whose task runs on the runtime that this is called on.
    pub(crate) fn new(stream: S, traffic: Arc<Traffic>) -> Self {
        let few = match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
            Ok(RuntimeFlavor::CurrentThread) => FEW_ON_ONE_THREAD,
            _ => FEW,
        };
        Self {
            stream,
            traffic,
            few,
            left: None,
            refused_at: None,
            refusals: 0,
            answer_size: ANSWER_SIZE,
            bytes: 0,
            done: 0,
        }
    }

    /// How much is read in the turn that begins.
    fn portion(&mut self) -> usize {
        let refused_at = self.refused_at.take();
        let under_way = self.traffic.under_way();
        if under_way < self.few || refused_at.is_some_and(|at| at.elapsed() > LATE) {
            return usize::MAX;
        }
        portion_of(under_way) * self.answer_size
    }

    /// The client library polls the writing side last in each of its turns.
    fn end_turn(&mut self) {
        self.left = None;
        self.refusals = 0;
    }

    fn refuse(&mut self, context: &Context<'_>) {
        self.refused_at.get_or_insert_with(Instant::now);
        self.refusals += 1;
        if self.refusals == REFUSALS_MAX {
            self.end_turn();
        }
        // In the runtime's queue that is behind all who were woken before.
        context.waker().wake_by_ref();
    }

    fn count(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes));
        self.bytes += bytes;
        let done = self.traffic.done.load(Ordering::Relaxed);
        let answers = done.wrapping_sub(self.done);
        if answers >= SAMPLE {
            self.answer_size = (self.bytes / answers).max(ANSWER_SIZE);
            self.bytes = 0;
            self.done = done;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Portions<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = match self.left {
            Some(left) => left,
            None => self.portion(),
        };
        self.left = Some(left);
        // A read of a few bytes would cost as much as any.
        if left < self.answer_size / 2 {
            self.refuse(context);
            return Poll::Pending;
        }
        let stream = Pin::new(&mut self.stream);
        let bytes = if left < buffer.remaining() {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(left));
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

impl<S: AsyncWrite + Unpin> AsyncWrite for Portions<S> {
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
