//! The callers that wait for replies on one connection, in the order of their commands.
//!
//! Invariants: the n-th reply belongs to the n-th command, even if its caller no longer waits; only its last reply
//! removes a command from this order. A sent command cannot be taken back.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use redis::{RedisError, Value};

use crate::engine::clock::Tick;

/// One request in the table: one command, or several that are answered together.
pub(super) type Number = usize;

#[derive(Debug)]
enum Wait {
    /// The place is free.
    Unused,
    /// `None`: the caller was woken.
    Waiting(Option<Waker>),
    /// The caller no longer waits for its sent commands.
    Left,
    Answered,
    /// The connection has been silent for too long. The answer may still arrive.
    Silent,
}

#[derive(Debug)]
struct Request {
    wait: Wait,
    /// Commands without a reply.
    missing: usize,
    replies: Vec<Value>,
    /// Whether a missing answer shows that the connection is silent.
    proves_silence: bool,
}

/// The result of a request.
#[derive(Debug)]
pub(super) enum Ended<T> {
    /// The value read from the replies.
    Answered(T),
    Silent,
    Broken(RedisError),
}

#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: Vec<Request>,
    unused: Vec<Number>,
    order: VecDeque<(Number, Tick)>,
    /// The number of requests at the front of the order whose time is over.
    silent: usize,
    /// The number of requests at its end that the driver has not seen.
    fresh: usize,
    end: Option<RedisError>,
}

impl Unanswered {
    /// Adds a request of this many commands to the end of the order.
    pub(super) fn push(&mut self, commands: usize, proves_silence: bool, waker: Waker) -> Number {
        let number = self.unused.pop().unwrap_or_else(|| {
            self.requests.push(Request {
                wait: Wait::Unused,
                missing: 0,
                replies: Vec::new(),
                proves_silence,
            });
            self.requests.len() - 1
        });
        let request = &mut self.requests[number];
        // Room for a command or a pair, as either may come next.
        request.replies.reserve_exact(commands.max(2));
        request.wait = Wait::Waiting(Some(waker));
        request.missing = commands;
        request.proves_silence = proves_silence;
        self.order.push_back((number, Tick::NEVER));
        self.fresh += 1;
        number
    }

    /// The number of requests without an answer.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// The new requests are now on their way. Without a reply until `then`, the connection is silent.
    pub(super) fn sent(&mut self, then: Tick) {
        let seen = self.order.len() - self.fresh;
        for (number, until) in self.order.range_mut(seen..) {
            if self.requests[*number].proves_silence {
                *until = then;
            }
        }
        self.fresh = 0;
    }

    /// Assigns the next reply. If that ends a request, adds its caller to `woken`. Returns whether it does.
    pub(super) fn reply(&mut self, value: Value, woken: &mut Vec<Waker>) -> Result<bool, Value> {
        let Some(&(number, _)) = self.order.front() else {
            return Err(value);
        };
        let request = &mut self.requests[number];
        request.replies.push(value);
        request.missing -= 1;
        if request.missing > 0 {
            return Ok(false);
        }
        self.order.pop_front();
        self.silent = self.silent.saturating_sub(1);
        self.fresh = self.fresh.min(self.order.len());
        let request = &mut self.requests[number];
        match std::mem::replace(&mut request.wait, Wait::Answered) {
            Wait::Waiting(waker) => woken.extend(waker),
            Wait::Left => self.free(number),
            Wait::Silent | Wait::Answered | Wait::Unused => {}
        }
        Ok(true)
    }

    /// The time at which the oldest request becomes silent. Wakes the callers of requests that already are.
    pub(super) fn next_silence(&mut self, now: Tick, woken: &mut Vec<Waker>) -> Option<Tick> {
        while let Some(&(number, until)) = self.order.get(self.silent) {
            if until != Tick::NEVER && until > now {
                return Some(until);
            }
            if self.silent >= self.order.len() - self.fresh {
                return None;
            }
            self.silent += 1;
            let request = &mut self.requests[number];
            if until != Tick::NEVER
                && let Wait::Waiting(waker) = &mut request.wait
            {
                woken.extend(waker.take());
                request.wait = Wait::Silent;
            }
        }
        None
    }

    /// Ends the connection: no further reply will arrive.
    pub(super) fn end(&mut self, why: RedisError, woken: &mut Vec<Waker>) {
        if self.end.is_some() {
            return;
        }
        self.end = Some(why);
        for request in &mut self.requests {
            if let Wait::Waiting(waker) = &mut request.wait {
                woken.extend(waker.take());
            }
        }
    }

    pub(super) fn ended(&self) -> Option<&RedisError> {
        self.end.as_ref()
    }

    /// The state of a request. Reading its replies frees its place.
    pub(super) fn poll<T>(
        &mut self,
        number: Number,
        read: fn(&mut Vec<Value>) -> T,
        context: &Context<'_>,
    ) -> Poll<Ended<T>> {
        let request = &mut self.requests[number];
        match &mut request.wait {
            Wait::Answered => {
                let replies = read(&mut request.replies);
                self.free(number);
                Poll::Ready(Ended::Answered(replies))
            }
            Wait::Silent => Poll::Ready(Ended::Silent),
            Wait::Waiting(waker) => {
                if let Some(why) = &self.end {
                    return Poll::Ready(Ended::Broken(why.clone()));
                }
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
            Wait::Unused | Wait::Left => unreachable!("the place belongs to its caller"),
        }
    }

    /// The caller has left.
    pub(super) fn leave(&mut self, number: Number) {
        let request = &mut self.requests[number];
        if request.missing == 0 || self.end.is_some() {
            self.free(number);
        } else {
            request.wait = Wait::Left;
        }
    }

    fn free(&mut self, number: Number) {
        let request = &mut self.requests[number];
        request.wait = Wait::Unused;
        request.replies.clear();
        // Shrinks a place that held many replies.
        request.replies.shrink_to(2);
        self.unused.push(number);
    }
}
