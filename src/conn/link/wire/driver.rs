//! The task behind a connection: it writes the callers' commands, reads replies, and detects silence. It records the
//! time of the last reply, and the first bytes that the server sent.
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

use parking_lot::Mutex;
use redis::{ConnectionInfo, ErrorKind, ProtocolVersion, PushInfo, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::decode::Decoder;
use super::unanswered::{NewlyEnded, Shared};
use crate::conn::error_reply::nonsense;
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
    /// Records what the server sends first.
    pub(crate) first_bytes: FirstBytes,
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
            first_bytes: FirstBytes::default(),
        }
    }
}

pub(super) struct Driver<S> {
    stream: S,
    shared: Arc<Shared>,
    params: WireParams,
    /// Whether more of the first bytes are needed.
    records_first: bool,
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
            records_first: true,
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
        self.records_first = self.records_first && !self.params.first_bytes.record(read);
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
                            Some(is_last) => requests += usize::from(is_last),
                            None => passed = Err(nonsense("a reply to no command")),
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

/// Bytes to record. An error line is shorter: the one of Redis's protected mode takes half of this.
const RECORDED_MAX: usize = 2048;

/// Characters of a line that a message shows.
const SHOWN_MAX: usize = 100;

/// The first bytes that replies can have.
const TYPES: &[u8] = b"+-:$*_#,(!=%~>|";

/// The type of a TLS record that reports an error.
const TLS_ALERT: u8 = 0x15;

/// The first bytes from a server, up to a bound. They tell why connecting failed: a server at its limit of clients
/// replies so and closes the connection, and the close may be noticed first. A server of another protocol shows it in
/// its first line.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

/// The meaning of the first bytes of a failed connection.
#[derive(Debug)]
pub(crate) enum Meaning {
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

    pub(crate) fn meaning(&self) -> Meaning {
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
            first_bytes: FirstBytes::default(),
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
