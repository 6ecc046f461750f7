//! Our own end of a connection: commands into one buffer, replies in order, and one timer for all.
//!
//! The client library makes the connection and introduces it; then the socket is ours. What a call costs
//! is a copy of its bytes and a place in a table. The task that drives the connection knows the oldest
//! command without a reply, and so when the connection is silent: no call needs a timer for that.
//!
//! Invariants: what was handed over is sent in that order, unless the connection breaks; a caller who waits
//! on another runtime than the driver's has a timer of its own, as the driver may stand still.

mod decode;
mod driver;
mod shared;
mod unanswered;

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{self, Handle};

use self::driver::Driver;
use self::shared::Shared;
use self::unanswered::{Ended, Number};
use super::last_reply::LastReply;
use crate::clock::Clock;

#[derive(Debug)]
pub(super) struct Wire {
    shared: Arc<Shared>,
    clock: Clock,
    /// Without a reply for so long, the connection is silent.
    silence: Duration,
    /// That of the driver.
    runtime: runtime::Id,
}

impl Wire {
    /// To be called on the runtime on which the driver is to run, with the future that drives it.
    pub(super) fn new<S>(
        stream: S,
        clock: Clock,
        silence: Duration,
        last_reply: LastReply,
    ) -> (Self, impl Future<Output = ()> + Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::<Shared>::default();
        let wire = Self {
            shared: Arc::clone(&shared),
            clock,
            silence,
            runtime: Handle::current().id(),
        };
        let driver = Driver::new(stream, shared, clock, silence, last_reply);
        (wire, driver)
    }

    /// Sends these in one request and waits for the last reply; `None` if it does not come within `limit`.
    /// Cancel safe: what was sent is answered, and the replies are passed over.
    pub(super) async fn send<T>(
        &self,
        commands: impl ExactSizeIterator<Item = &Cmd>,
        limit: Duration,
        read: impl FnOnce(&mut Vec<Value>) -> T,
    ) -> Option<Result<T, RedisError>> {
        let on_the_wire = limit == self.silence && self.is_here();
        let waiting = match self.hand_over(commands, on_the_wire) {
            Ok(waiting) => waiting,
            Err(why) => return Some(Err(why)),
        };
        let ended = poll_fn(|context| {
            let mut state = self.shared.0.lock();
            state.unanswered.poll(waiting.number, context)
        });
        let ended = if on_the_wire {
            ended.await
        } else {
            // Boxed, as few have one.
            Box::pin(self.clock.within(limit, ended)).await?
        };
        match ended {
            Ended::Answered => {
                let mut state = self.shared.0.lock();
                Some(Ok(read(state.unanswered.replies(waiting.number))))
            }
            Ended::Silent => None,
            Ended::Broken(why) => Some(Err(why)),
        }
    }

    /// Whether this is polled on the runtime of the driver.
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|runtime| runtime.id() == self.runtime)
    }

    fn hand_over<'a>(
        &self,
        commands: impl ExactSizeIterator<Item = &'a Cmd>,
        proves_silence: bool,
    ) -> Result<Waiting<'_>, RedisError> {
        let (number, driver) = {
            let mut state = self.shared.0.lock();
            if let Some(why) = state.unanswered.ended() {
                return Err(why.clone());
            }
            let number = state.unanswered.push(commands.len(), proves_silence);
            for command in commands {
                command.write_packed_command(&mut state.bytes);
            }
            (number, state.driver.take())
        };
        if let Some(driver) = driver {
            driver.wake();
        }
        Ok(Waiting {
            shared: &self.shared,
            number,
        })
    }
}

/// A place in the table, given up when dropped.
struct Waiting<'a> {
    shared: &'a Shared,
    number: Number,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.shared.0.lock().unanswered.leave(self.number);
    }
}

#[cfg(test)]
mod tests;
