//! Our end of a connection: how a caller hands over its commands and gets their replies.
//!
//! A call costs a copy of its bytes and a place in a table. The task that drives the connection knows the oldest
//! command without a reply, and so detects silence. No call needs its own timer for that.
//!
//! Invariants: commands are sent in the order in which they were handed over, unless the connection breaks; a caller
//! on another runtime than the driver's has its own timer, because the driver may stand still.
//!
//! ```text
//! unanswered.rs   the table of requests without a reply, which callers and the driver share
//! driver.rs       the task that writes commands and reads replies, with its settings and its records
//! decode.rs       pure: where a reply ends, and which value it has
//! ```

mod decode;
mod driver;

#[cfg(test)]
mod tests;
mod unanswered;

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{Arg, Cmd, ProtocolVersion, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{self, Handle};

use self::driver::Driver;

pub(crate) use self::driver::{FirstBytes, Meaning, SharedTick, WireParams};
use self::unanswered::{Confirmation, Ended, Number, Shared};
use crate::engine::clock::Clock;

#[derive(Debug)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
    clock: Clock,
    /// A connection without a reply for this long is silent.
    silence: Duration,
    /// The runtime of the driver.
    runtime: runtime::Id,
    /// Whether a push confirms a command about a subscription.
    takes_pushes: bool,
}

impl Wire {
    /// Returns a wire and the future that drives it. Must be called on the runtime that will run the driver.
    pub(super) fn new<S>(
        stream: S,
        terms: WireParams,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::<Shared>::default();
        let wire = Self {
            shared: Arc::clone(&shared),
            clock: terms.clock,
            silence: terms.silence,
            runtime: Handle::current().id(),
            takes_pushes: terms.protocol != ProtocolVersion::RESP2,
        };
        let driver = Driver::new(stream, shared, terms);
        (wire, driver)
    }

    /// Sends these in one request and waits for the last reply; `None` if it does not arrive within `limit`. Only the
    /// last may be about a subscription. Cancel safe: the commands stay sent, and their replies are skipped.
    pub(super) async fn send<'a, T>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
        limit: Duration,
        read: fn(&mut Vec<Value>) -> T,
    ) -> Option<Result<T, RedisError>> {
        let on_the_wire = self.times(limit);
        let mut place = Place::new(self);
        let mut commands = Some(commands);
        let ended = poll_fn(|context| match commands.take() {
            Some(commands) => match place.hand_over(commands, on_the_wire, context) {
                Ok(()) => Poll::Pending,
                Err(why) => Poll::Ready(Ended::Broken(why)),
            },
            None => place.poll(read, context),
        });
        let ended = if on_the_wire {
            ended.await
        } else {
            // Boxed because few calls need a timer.
            Box::pin(self.clock.within(limit, ended)).await?
        };
        ended.outcome()
    }

    /// Whether the driver sees to it that a request with this limit ends in time. Others need a timer of their own.
    pub(super) fn times(&self, limit: Duration) -> bool {
        limit == self.silence && self.is_here()
    }

    /// Sends these in one request, and returns their replies, errors among them.
    pub(crate) async fn ask(
        &self,
        commands: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, RedisError> {
        if commands.is_empty() {
            return Ok(Vec::new());
        }
        let replies = self.send(commands.iter(), limit, std::mem::take).await;
        replies.unwrap_or_else(|| Err(timed_out("answer", limit)))
    }

    /// Whether this is polled on the runtime of the driver.
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|runtime| runtime.id() == self.runtime)
    }
}

/// The error for a step that took longer than its limit.
pub(super) fn timed_out(what: &str, limit: Duration) -> RedisError {
    let why = format!("no {what} within {limit:?}");
    io::Error::new(io::ErrorKind::TimedOut, why).into()
}

/// What a request goes over, and keeps until it ends.
pub(super) trait HasWire {
    fn wire(&self) -> &Wire;
}

impl HasWire for &Wire {
    fn wire(&self) -> &Wire {
        self
    }
}

/// A place in the table, released on drop. A request takes the mutex twice: when it is handed over, and when its
/// replies are read.
pub(super) struct Place<W: HasWire> {
    pub(super) on: W,
    /// `None` before the request is handed over, and after its replies are read.
    number: Option<Number>,
}

impl<W: HasWire> Place<W> {
    pub(super) fn new(on: W) -> Self {
        Self { on, number: None }
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> Option<Number> {
        self.number
    }

    /// Hands these over as one request.
    pub(super) fn hand_over<'a>(
        &mut self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
        proves_silence: bool,
        context: &Context<'_>,
    ) -> Result<(), RedisError> {
        let wire = self.on.wire();
        let driver = {
            let mut state = wire.shared.lock();
            if let Some(why) = state.unanswered.ended() {
                return Err(why.clone());
            }
            let waker = context.waker().clone();
            let number = state.unanswered.push(commands.len(), proves_silence, waker);
            self.number = Some(number);
            let mut last = None;
            for command in commands {
                encode(command, &mut state.bytes);
                last = Some(command);
            }
            if wire.takes_pushes {
                let confirmation = last.and_then(Confirmation::of);
                state.unanswered.expect(number, confirmation);
            }
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    /// The end of the request that was handed over.
    pub(super) fn poll<T>(
        &mut self,
        read: fn(&mut Vec<Value>) -> T,
        context: &Context<'_>,
    ) -> Poll<Ended<T>> {
        let number = self.number.expect("it was handed over");
        let mut state = self.on.wire().shared.lock();
        let ended = state.unanswered.poll(number, read, context);
        if let Poll::Ready(Ended::Answered(_)) = ended {
            // The place may already belong to another request.
            self.number = None;
        }
        ended
    }
}

impl<W: HasWire> Drop for Place<W> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.on.wire().shared.lock().unanswered.leave(number);
        }
    }
}

/// Ends a word or a count.
const END: &[u8] = b"\r\n";

/// Room for a short count of words or bytes, with the characters around it.
const COUNT_BYTES: usize = 8;

/// Encodes a command for the protocol, as the client library does but in fewer steps, because nearly all commands have
/// few and short words.
fn encode(command: &Cmd, bytes: &mut Vec<u8>) {
    if command.in_scan_mode() {
        // A cursor replaces one of the words.
        command.write_packed_command(bytes);
        return;
    }
    let words = command.args_iter();
    let sizes = words.clone().map(|word| COUNT_BYTES + simple(word).len());
    bytes.reserve(COUNT_BYTES + sizes.sum::<usize>());
    count(b'*', words.len(), bytes);
    for word in words.map(simple) {
        count(b'$', word.len(), bytes);
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(END);
    }
}

fn simple(word: Arg<&[u8]>) -> &[u8] {
    match word {
        Arg::Simple(word) => word,
        _ => b"",
    }
}

fn count(kind: u8, count: usize, bytes: &mut Vec<u8>) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    match count {
        0..10 => bytes.extend_from_slice(&[kind, digit(count), END[0], END[1]]),
        10..100 => {
            bytes.extend_from_slice(&[kind, digit(count / 10), digit(count), END[0], END[1]]);
        }
        _ => {
            bytes.push(kind);
            bytes.extend_from_slice(count.to_string().as_bytes());
            bytes.extend_from_slice(END);
        }
    }
}
