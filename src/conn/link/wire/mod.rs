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
use std::time::Duration;

use redis::{Cmd, ProtocolVersion, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{self, Handle};

use self::driver::Driver;

pub(crate) use self::driver::{SharedTick, WireParams};
pub(super) use self::unanswered::{Carrier, Exchanged};
use self::unanswered::{Confirmation, Request, Shared, To};
use crate::conn::transport::{Recipient, Replies, words};
use crate::engine::clock::Tick;
use crate::engine::hint::Arrival;

#[derive(Debug)]
pub(crate) struct Wire {
    shared: Arc<Shared>,
    pub(super) params: WireParams,
    /// The runtime of the driver.
    runtime: runtime::Id,
}

impl Wire {
    /// Returns a wire and the future that drives it. Must be called on the runtime that will run the driver.
    pub(super) fn new<S>(
        stream: S,
        params: WireParams,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::<Shared>::default();
        let driver = Driver::new(stream, Arc::clone(&shared), params.clone());
        let wire = Self {
            shared,
            params,
            runtime: Handle::current().id(),
        };
        (wire, driver)
    }

    /// Sends these in one request, behind `loads`, which load scripts, and waits for the last reply; `None` if it does
    /// not arrive within `limit`. Only the last may be about a subscription. They are handed over at once. Cancel safe:
    /// their replies are skipped.
    pub(super) fn send(
        &self,
        loads: &[Cmd],
        commands: &[&Cmd],
        limit: Duration,
    ) -> impl Future<Output = Exchanged> + use<> {
        // Otherwise the caller needs a timer of its own.
        let on_the_wire = self.times(limit) && self.is_here();
        let arrival = Arc::<Arrival<Exchanged>>::default();
        let to = To::Caller(Arc::clone(&arrival));
        let added = self.add(loads, commands, on_the_wire, to);
        let clock = self.params.clock;
        async move {
            if let Err(why) = added {
                return Some(Err(why));
            }
            let ended = poll_fn(|context| arrival.poll(context));
            if on_the_wire {
                ended.await
            } else {
                // Boxed because few calls need a timer.
                Box::pin(clock.within(limit, ended)).await.flatten()
            }
        }
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
        let commands: Vec<&Cmd> = commands.iter().collect();
        let replies = self.send(&[], &commands, limit).await;
        let replies = replies.unwrap_or_else(|| Err(timed_out("answer", limit)));
        replies.map(Replies::into_vec)
    }

    /// Sends these in one request, and tells its end to `to`. If the connection has ended, it sends nothing and returns
    /// false.
    pub(super) fn submit(
        &self,
        loads: &[Cmd],
        commands: &[&Cmd],
        over: Arc<dyn Carrier>,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let to = To::Recipient {
            over,
            to,
            commands: loads.len() + commands.len(),
        };
        self.add(loads, commands, true, to).is_ok()
    }

    /// Adds a request to the table, and hands its commands to the driver.
    fn add(
        &self,
        loads: &[Cmd],
        commands: &[&Cmd],
        proves_silence: bool,
        to: To,
    ) -> Result<(), RedisError> {
        let takes_pushes = self.params.protocol != ProtocolVersion::RESP2;
        let confirmation = commands.last().filter(|_| takes_pushes);
        let confirmation = confirmation.and_then(|last| Confirmation::of(last));
        let driver = {
            let mut state = self.shared.lock();
            if let Some(why) = state.unanswered.ended() {
                return Err(why.clone());
            }
            for command in loads.iter().chain(commands.iter().copied()) {
                encode(command, &mut state.bytes);
            }
            state.unanswered.push(Request {
                to: Some(to),
                missing: loads.len() + commands.len(),
                loads: loads.len(),
                replies: Replies::default(),
                proves_silence,
                silent_at: Tick::ZERO,
                confirmation,
            });
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(())
    }

    /// Whether the connection has ended, so that nothing can be sent over it.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.lock().unanswered.ended().is_some()
    }

    /// Whether the driver ends a request with this limit in time.
    pub(super) fn times(&self, limit: Duration) -> bool {
        limit == self.params.silence
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

/// Ends a word or a count.
const END: &[u8] = b"\r\n";

/// Room for a short count of words or bytes, with the characters around it.
const COUNT_BYTES: usize = 8;

/// Encodes a command for the protocol, as the client library does but in fewer steps, because nearly all commands have
/// few and short words.
fn encode(command: &Cmd, bytes: &mut Vec<u8>) {
    let words = words(command);
    let sizes = words.clone().map(|word| COUNT_BYTES + word.len());
    bytes.reserve(COUNT_BYTES + sizes.sum::<usize>());
    count(b'*', words.len(), bytes);
    for word in words {
        count(b'$', word.len(), bytes);
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(END);
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
