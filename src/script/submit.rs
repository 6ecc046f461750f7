//! Commands that are handed over to a connection, once. The task of the connection reports their end, and the functions
//! here read it.
//!
//! Invariant: each end is a clear answer, a failure to report, or a failure after which the same call has to be sent
//! again.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;

use super::call::Call;
use super::failure::{Earlier, Executed, Failure};
use super::native::{self, Release};
use super::reply::{self, Released};
use super::run::{CallBudget, Scripts};
use crate::conn::error_reply::code;
use crate::conn::{Fault, Lane, Recipient, Replies};
use crate::engine::Few;
use crate::engine::clock::Tick;

/// Whether the same call may succeed when it is sent in another way: with the text of its script, or to another server
/// of a topology, which then learns of the error.
fn is_for_another_send(error: &RedisError, is_single_server: bool) -> bool {
    match code(error) {
        Some("NOSCRIPT" | "MOVED" | "ASK") => true,
        Some("CLUSTERDOWN" | "READONLY" | "MASTERDOWN") => !is_single_server,
        _ => false,
    }
}

impl Scripts {
    /// Reads the reply to a call that was submitted at `sent`.
    ///
    /// # Errors
    /// A failure after which the call has to be sent again, by [`run_behind`](Self::run_behind), or a failure
    /// to report.
    pub(crate) fn submitted(
        &self,
        call: impl FnOnce() -> Call,
        sent: Tick,
        reply: Result<Value, Fault>,
        budget: CallBudget,
    ) -> Result<Value, Result<Earlier, Failure>> {
        self.first(sent, reply).map_err(|earlier| {
            let is_over = match earlier.fault.answer() {
                Some(error) => {
                    !is_for_another_send(error, self.transport.is_single_server())
                        && !budget.retries_after(error)
                }
                None => budget.is_once() && earlier.may_be_executed(),
            };
            if is_over {
                return Err(self.failed(&call(), earlier.fault.into()));
            }
            Ok(earlier)
        })
    }

    /// As [`submitted`](Self::submitted), for the plain command that takes a free lock. After an error the script has
    /// to be asked. The error has the failed send if that may have been executed.
    pub(crate) fn restored(
        &self,
        sent: Tick,
        reply: Result<Value, Fault>,
    ) -> Result<Value, Option<Earlier>> {
        if let Err(Fault::Answered(error)) = &reply {
            self.native.refused(error);
        }
        let read = self.first(sent, native::restored(reply));
        read.map_err(|earlier| Some(earlier).filter(Earlier::may_be_executed))
    }

    fn first(&self, sent: Tick, reply: Result<Value, Fault>) -> Result<Value, Earlier> {
        let value = reply.map_err(|fault| Earlier { sent, fault })?;
        let lane = Lane::Command as usize;
        self.observed.answered(lane, sent, self.clock);
        Ok(value)
    }

    /// Hands releases on one server over to the connection, once and in one write; see
    /// [`Transport::submit`](crate::conn::Transport::submit). If plain commands do not suffice, `all` is the script
    /// for all of them. [`released`](Self::released) reads their end.
    pub(crate) fn submit_releases(
        &self,
        calls: &[Call],
        all: impl FnOnce() -> Call,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let lane = Lane::Command;
        let submit = |route: &str, commands: &[&Cmd]| {
            self.transport.submit(lane, route, commands, limit, to)
        };
        let plain = calls.iter().filter_map(|call| self.plain_release(call));
        let plain: SmallVec<[&Cmd; 2]> = plain.flatten().collect();
        match calls {
            [first, ..] if plain.len() == 2 * calls.len() => submit(first.route(), &plain),
            [call] => submit(call.route(), &[call.by_sha()]),
            _ => {
                let all = all();
                submit(all.route(), &[all.by_sha()])
            }
        }
    }

    /// Returns the plain commands of a release, if the server allows them.
    pub(super) fn plain_release<'a>(&self, call: &'a Call) -> Option<[&'a Cmd; 2]> {
        let Release { hdel, tell } = call.native.as_ref()?;
        self.native.may_release().then_some([hdel, tell])
    }

    /// Reads the end of the releases of this many `holds`, submitted at `sent`. Returns the reply for each hold, or,
    /// without a reply, whether its release may have been executed.
    pub(crate) fn released(
        &self,
        sent: Tick,
        outcome: Result<Replies, Fault>,
        holds: usize,
    ) -> Result<Few<Result<Released, Executed>>, Failure> {
        let replies = outcome?;
        let lane = Lane::Command as usize;
        self.observed.answered(lane, sent, self.clock);
        let replies = match &*replies {
            [Value::ServerError(no)] => return Err(RedisError::from(no.clone()).into()),
            [Value::Array(each)] => each,
            replies => replies,
        };
        let of_each = replies.len() / holds;
        if of_each == 0 || replies.len() % holds != 0 {
            return Ok(Few::from_elem(Err(Executed::Maybe), holds));
        }
        let read = replies.chunks(of_each).map(|replies| match replies {
            [by_script] => reply::released(by_script).map_err(|_| Executed::Maybe),
            plain => match native::released(plain) {
                Ok(Some(value)) => reply::released(&value).map_err(|_| Executed::Maybe),
                Ok(None) => Err(Executed::No),
                Err(error) => Err(Failure::from(error).executed),
            },
        });
        Ok(read.collect())
    }
}
