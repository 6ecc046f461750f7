//! Those who wait for replies on one connection, in the order in which their commands were sent.
//!
//! Invariants: the n-th reply is for the n-th command, whether anybody still waits for it or not; a command
//! leaves this order with its last reply alone. What has been sent cannot be taken back.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use redis::{RedisError, Value};

use crate::clock::Tick;

/// One request in the table: one command, or several that are answered together.
pub(super) type Number = usize;

#[derive(Debug)]
enum Wait {
    /// Nobody has it.
    Unused,
    /// `None`: was woken.
    Waiting(Option<Waker>),
    /// Nobody waits any more for what was sent.
    Left,
    Answered,
    /// The connection has been silent for too long; the answer may still come.
    Silent,
}

#[derive(Debug)]
struct Request {
    wait: Wait,
    /// Commands that have no reply yet.
    missing: usize,
    replies: Vec<Value>,
    /// Whether the connection is silent if there is no answer in time.
    proves_silence: bool,
}

/// What a request came to.
#[derive(Debug)]
pub(super) enum Ended<T> {
    /// What was read of the replies.
    Answered(T),
    Silent,
    Broken(RedisError),
}

#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: Vec<Request>,
    unused: Vec<Number>,
    order: VecDeque<(Number, Tick)>,
    /// So many at the front of the order have had their time.
    silent: usize,
    /// So many at its end have not been seen by the driver yet.
    fresh: usize,
    end: Option<RedisError>,
}

impl Unanswered {
    /// A request of so many commands is the next to be sent.
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
        // For one command or a pair, whichever is next.
        request.replies.reserve_exact(commands.max(2));
        request.wait = Wait::Waiting(Some(waker));
        request.missing = commands;
        request.proves_silence = proves_silence;
        self.order.push_back((number, Tick::NEVER));
        self.fresh += 1;
        number
    }

    /// How many requests have no answer.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// What came is on its way from `now`; without a reply until `then` the connection is silent.
    pub(super) fn sent(&mut self, then: Tick) {
        let seen = self.order.len() - self.fresh;
        for (number, until) in self.order.range_mut(seen..) {
            if self.requests[*number].proves_silence {
                *until = then;
            }
        }
        self.fresh = 0;
    }

    /// The next reply has come. True if that ended a request; who waited for it is to be woken.
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

    /// When the oldest request has had its time; those that have are told.
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

    /// Nothing comes any more.
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

    /// What a request has come to. When its replies were read, its place is free.
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
            Wait::Unused | Wait::Left => unreachable!("it belongs to who polls it"),
        }
    }

    /// Whoever waited has gone.
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
        // What many replies took is given back.
        request.replies.shrink_to(2);
        self.unused.push(number);
    }
}
