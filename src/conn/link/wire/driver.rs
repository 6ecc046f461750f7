//! The task behind a connection: it writes the callers' commands, reads replies, and detects silence. It records the
//! time of the last reply.
//!
//! In each turn it writes everything, and then passes on a portion of the replies (see `pace.rs`). The callers
//! that it wakes hand over their next commands before its next turn, which writes them at once. Invariants: the
//! caller that hands over the first command since its last turn wakes it; the connection counts as silent only if
//! there is nothing left to read, or was for as long; a server that never stops sending does not keep it in one turn.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use redis::{ConnectionInfo, ProtocolVersion, PushInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::decode::Decoder;
use super::unanswered::{NewlyEnded, Shared};
use crate::conn::link::pace::{LATE, few_in_flight, portion_of};
use crate::conn::push::PushState;
use crate::conn::setup::Setup;
use crate::conn::transport::EventHandler;
use crate::engine::clock::{Clock, Tick};

/// Bytes of the largest read.
const READ_MAX: usize = 16 * 1024;

/// The most reads in one turn.
const READS_MAX: usize = 4;

/// The capacity that an empty buffer keeps.
const KEPT_MAX: usize = 64 * 1024;

/// The settings of a wire.
#[derive(Clone, Debug)]
pub(crate) struct WireParams {
    pub(crate) clock: Clock,
    pub(crate) protocol: ProtocolVersion,
    /// A connection without a reply for this long is silent.
    pub(crate) silence: Duration,
    /// Records when the server last replied to a command.
    pub(crate) last_reply: SharedTick,
    /// Takes what comes without a request.
    pub(crate) push: Arc<PushState>,
}

impl WireParams {
    /// For a connection with these settings. `events`: takes messages, if it is a connection for them.
    pub(crate) fn new(
        info: &ConnectionInfo,
        setup: &Setup,
        events: Option<Arc<dyn EventHandler>>,
    ) -> Self {
        Self {
            clock: setup.clock,
            protocol: info.redis_settings().protocol(),
            silence: setup.silence,
            last_reply: SharedTick::default(),
            push: Arc::new(PushState::new(events)),
        }
    }
}

pub(super) struct Driver<S> {
    stream: S,
    shared: Arc<Shared>,
    params: WireParams,
    /// With fewer commands in flight, everything available is read.
    few: usize,
    outgoing: Buffer,
    incoming: Buffer,
    decoder: Decoder,
    /// The target of each read.
    space: Box<[u8]>,
    /// The time at which it last yielded between replies.
    yielded_at: Option<Tick>,
    /// There is more to read since then, or since it last looked for silence.
    reads_since: Option<Tick>,
    /// For the oldest command without a reply.
    timer: Option<Pin<Box<Sleep>>>,
    ended: NewlyEnded,
    /// Pushes, and whether each confirms a command.
    pushed: Vec<(PushInfo, bool)>,
}

/// Bytes, with the number that have been used.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    used: usize,
}

impl Buffer {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Adds bytes. Those that were used make room once they are more than the rest, so that few bytes are moved.
    fn append(&mut self, more: &mut Vec<u8>) {
        if self.used > self.rest().len() {
            self.bytes.drain(..mem::take(&mut self.used));
        }
        self.bytes.append(more);
    }

    fn use_up(&mut self, count: usize) {
        self.used += count;
        if self.used == self.bytes.len() {
            self.used = 0;
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_MAX);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Makes a driver. Must be called on the runtime that will run it.
    pub(super) fn new(stream: S, shared: Arc<Shared>, params: WireParams) -> Self {
        Self {
            stream,
            shared,
            few: few_in_flight(),
            outgoing: Buffer::default(),
            incoming: Buffer::default(),
            decoder: Decoder::new(params.protocol),
            params,
            space: vec![0; READ_MAX].into(),
            yielded_at: None,
            reads_since: None,
            timer: None,
            ended: NewlyEnded::default(),
            pushed: Vec::new(),
        }
    }

    fn turn(&mut self, context: &mut Context<'_>) -> Result<(), RedisError> {
        let now = self.params.clock.now();
        let in_flight = self.take_commands(now, context);
        let written = self.write(context);
        // After a failed write too, because the server may have said why it ended the connection.
        let has_more = self.read(now, in_flight, context)?;
        written?;
        if has_more {
            self.yielded_at = Some(now);
            // The wake-up is queued behind all tasks that were woken before.
            context.waker().wake_by_ref();
        }
        let reads_since = *self.reads_since.get_or_insert(now);
        if !has_more || reads_since.until(now) > self.params.silence {
            self.reads_since = None;
            self.watch(now, context);
        }
        Ok(())
    }

    /// Takes the commands that callers have handed over. Returns the number of requests in flight.
    fn take_commands(&mut self, now: Tick, context: &Context<'_>) -> usize {
        let mut state = self.shared.lock();
        if !state.bytes.is_empty() {
            if self.outgoing.rest().is_empty() {
                // Returns the empty buffer with its capacity.
                mem::swap(&mut state.bytes, &mut self.outgoing.bytes);
            } else {
                self.outgoing.append(&mut state.bytes);
            }
            state.unanswered.sent(now.after(self.params.silence));
        }
        match &mut state.driver {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        state.unanswered.len()
    }

    fn write(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        while !self.outgoing.rest().is_empty() {
            let stream = Pin::new(&mut self.stream);
            match stream.poll_write(context, self.outgoing.rest()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.outgoing.use_up(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => return Ok(()),
            }
        }
        // A stream over TLS keeps what its socket does not take at once.
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(flushed) => flushed,
            Poll::Pending => Ok(()),
        }
    }

    /// Reads and passes on a portion of the replies. Returns whether there may be more to read.
    fn read(
        &mut self,
        now: Tick,
        in_flight: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, RedisError> {
        let yielded_at = self.yielded_at.take();
        let was_late = yielded_at.is_some_and(|at| at.until(now) > LATE);
        let mut left = if in_flight < self.few || was_late {
            usize::MAX
        } else {
            portion_of(in_flight)
        };
        for _ in 0..READS_MAX {
            left -= self.pass_on(now, left)?;
            if left == 0 {
                return Ok(true);
            }
            match self.fill(context) {
                Poll::Ready(Ok(0)) => {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads what is available. Returns the number of bytes.
    fn fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut space = ReadBuf::new(&mut self.space);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut space);
        let read = space.filled();
        let Buffer { bytes, used } = &mut self.incoming;
        if *used > 0 {
            bytes.drain(..mem::take(used));
        }
        bytes.extend_from_slice(read);
        polled.map_ok(|()| read.len())
    }

    /// Passes on the available replies, for at most `most` requests. Returns the number of requests.
    fn pass_on(&mut self, now: Tick, most: usize) -> Result<usize, RedisError> {
        let (mut requests, mut replies) = (0, 0);
        let mut passed = Ok(());
        if !self.incoming.rest().is_empty() {
            let mut state = self.shared.lock();
            while requests < most {
                match self.decoder.first(self.incoming.rest()) {
                    Ok(Some((Value::Push { kind, data }, length))) => {
                        self.incoming.use_up(length);
                        let info = PushInfo { kind, data };
                        let is_asked = state.unanswered.confirm(&info, &mut self.ended);
                        self.pushed.push((info, is_asked));
                        let confirmed = usize::from(is_asked);
                        (replies, requests) = (replies + confirmed, requests + confirmed);
                    }
                    Ok(Some((value, length))) => {
                        self.incoming.use_up(length);
                        replies += 1;
                        match state.unanswered.reply(value, &mut self.ended) {
                            Ok(is_last) => requests += usize::from(is_last),
                            Err(error) => passed = Err(error),
                        }
                    }
                    Ok(None) => break,
                    Err(error) => passed = Err(error),
                }
                if passed.is_err() {
                    break;
                }
            }
        }
        if replies > 0 {
            self.params.last_reply.set(now);
        }
        // Without the mutex, because a message wakes others. Before the callers, who may ask what is subscribed.
        for (info, is_asked) in self.pushed.drain(..) {
            let received = self.params.push.receive(&info, is_asked);
            passed = passed.and(received);
        }
        self.ended.tell();
        passed.map(|()| requests)
    }

    /// Wakes the callers whose time is over, and schedules a turn for the next one.
    fn watch(&mut self, now: Tick, context: &mut Context<'_>) {
        let next = {
            let mut state = self.shared.lock();
            state.unanswered.next_silence(now, &mut self.ended)
        };
        self.ended.tell();
        let Some(next) = next else { return };
        // A timer that fires early is reset then, not for each command.
        if self.timer.as_ref().is_none_or(|timer| timer.is_elapsed()) {
            let mut timer = Box::pin(tokio::time::sleep(now.until(next)));
            if timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
            self.timer = Some(timer);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match self.turn(context) {
            Ok(()) => Poll::Pending,
            Err(why) => {
                self.end(why);
                self.params.push.report_gap();
                Poll::Ready(())
            }
        }
    }
}

impl<S> Driver<S> {
    fn end(&mut self, why: RedisError) {
        let mut state = self.shared.lock();
        state.unanswered.end(why, &mut self.ended);
        state.bytes = Vec::new();
        drop(state);
        self.ended.tell();
    }
}

impl<S> Drop for Driver<S> {
    /// Ends with its task, or with its runtime.
    fn drop(&mut self) {
        self.end(io::Error::from(io::ErrorKind::BrokenPipe).into());
    }
}

/// A time that several tasks share, such as the last reply: the driver sets it, and callers check it. Zero at first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedTick(Arc<AtomicU64>);

impl SharedTick {
    pub(crate) fn set(&self, now: Tick) {
        self.0.store(now.nanos(), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Tick {
        Tick::ZERO.after(Duration::from_nanos(self.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_was_written_is_forgotten_though_more_waits_all_the_time() {
        const SIZE: usize = 64;
        let (ours, mut server) = tokio::io::duplex(SIZE);
        let params = WireParams {
            clock: Clock::System,
            protocol: ProtocolVersion::RESP3,
            silence: Duration::from_secs(20),
            last_reply: SharedTick::default(),
            push: Arc::default(),
        };
        let shared = Arc::<Shared>::default();
        let mut driver = Driver::new(ours, Arc::clone(&shared), params);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1_000 {
            let waits = driver.outgoing.rest().len();
            shared.lock().bytes.extend([0; SIZE]);
            assert!(Pin::new(&mut driver).poll(&mut context).is_pending());
            if waits > SIZE {
                server.read_exact(&mut [0; SIZE]).await.unwrap();
            }
            tokio::task::yield_now().await;
        }
        let kept = driver.outgoing.bytes.len();
        assert!(kept <= SIZE * 8, "{kept} bytes are kept");
    }
}
