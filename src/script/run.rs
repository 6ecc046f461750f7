//! Runs a call: by plain commands if it has any, or by its script's SHA or text. Repeats it until it is answered or its
//! time is over.
//!
//! Invariant: a call is repeated unchanged. Both the answer and the failure say whether an earlier attempt may have
//! been executed.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use smallvec::SmallVec;
use tokio::runtime::{self, Handle};

use super::call::{Answer, Call};
use super::failure::{Cause, Executed, Failure, is_hopeless, missing_right};
use super::native::{self, NativePath, NativeState, Release, Restore};
use super::reply::{self, Released, Restored};
use crate::conn::error_reply::{is_out_of_connections, is_temporary};
use crate::conn::{Commands, Fault, Lane, Reason, Recipient, Replies, Transport};
use crate::engine::Few;
use crate::engine::clock::{Clock, Tick};
use crate::observe::counts::Fact;
use crate::observe::observer::Observed;

/// The time limits of one call, and the errors after which it is repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBudget {
    /// A connection without a reply for this long counts as broken.
    pub(crate) reply_timeout: Duration,
    /// After this, no reply is awaited and nothing is repeated.
    pub(crate) deadline: Tick,
    retry: Retry,
}

/// The errors after which a call is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Never,
    /// After a missing answer, and after errors that say "not now".
    NotNow,
    /// Also after refusals that would otherwise go to the caller. For work in the background that only the server's
    /// consent can finish.
    Refusals,
}

impl CallBudget {
    /// Repeats attempts until `deadline`.
    pub(crate) fn until(deadline: Tick, reply_timeout: Duration) -> Self {
        Self {
            reply_timeout,
            deadline,
            retry: Retry::NotNow,
        }
    }

    pub(crate) fn retrying_refusals(self) -> Self {
        Self {
            retry: Retry::Refusals,
            ..self
        }
    }

    /// Allows a single attempt.
    pub(crate) fn once(reply_timeout: Duration) -> Self {
        Self {
            reply_timeout,
            deadline: Tick::NEVER,
            retry: Retry::Never,
        }
    }

    /// Whether the call ends with this failure because the server answered.
    pub(crate) fn ends_with(self, failure: &Failure) -> bool {
        matches!(&failure.cause, Cause::Answered(error) if !self.retries_after(error))
    }

    fn retries_after(self, error: &RedisError) -> bool {
        match self.retry {
            Retry::Never => false,
            Retry::NotNow => is_temporary(error),
            Retry::Refusals => is_temporary(error) || !is_hopeless(error),
        }
    }
}

/// Whether a repeat on the same lane makes sense. At `maxclients`, a waiter that cannot get a connection for messages
/// continues without messages, on the command lane.
fn is_for_this_lane(lane: Lane, error: &RedisError) -> bool {
    lane != Lane::Push || !is_out_of_connections(error)
}

/// The time that another attempt needs at least. The server took this long for its last error. Without time for
/// another reply, that error is more useful to the caller than a time-out.
fn needed_again(cause: &Cause, sent: Tick, now: Tick) -> Duration {
    match cause {
        Cause::Answered(_) => sent.until(now),
        _ => Duration::ZERO,
    }
}

/// Runs scripts over a transport.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Clock,
    pub(crate) observed: Arc<Observed>,
    /// Whether plain commands may replace scripts.
    pub(crate) native: NativeState,
    /// The runtime of the connections.
    runtime: Option<runtime::Id>,
}

/// Pauses between attempts: doubled from the first to the last, with full jitter.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

impl Scripts {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        clock: Clock,
        observed: Arc<Observed>,
        native: NativePath,
    ) -> Self {
        Self {
            transport,
            clock,
            observed,
            native: NativeState::new(native),
            runtime: current_runtime(),
        }
    }

    /// Whether this is called on the runtime of the connections.
    pub(crate) fn is_here(&self) -> bool {
        self.runtime.is_some() && self.runtime == current_runtime()
    }

    /// Sends one command. An error reply is a fault. With a single server that needs no boxed future, as long as it is
    /// connected.
    async fn send(
        &self,
        lane: Lane,
        route: &str,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let (transport, command) = (&self.transport, Commands::One([command]));
        if self.is_here()
            && let Some(submitted) = transport.submitted(lane, command, limit)
        {
            return submitted.await?.one();
        }
        transport.exchange(lane, route, command, limit).await?.one()
    }

    /// Runs `call` until it is answered or refused for good, or until the budget is used up.
    pub(crate) fn run(
        &self,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send {
        self.run_at(self.clock.now(), lane, call, budget)
    }

    /// Runs `call`, with a send time that was read just before, without an `await` in between.
    pub(crate) async fn run_at(
        &self,
        mut sent: Tick,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> Result<Answer, Failure> {
        // The send time of the first attempt that the server may have executed.
        let mut first_sent = None;
        let mut last = None;
        let mut pause = RETRY_PAUSE_FIRST;
        loop {
            let reply = budget.reply_timeout.min(sent.until(budget.deadline));
            if reply.is_zero() {
                let cause = last.unwrap_or_else(too_late);
                return Err(self.failed(call, Failure::new(executed(first_sent), cause)));
            }
            let end = sent.after(reply);
            let attempt = Attempt { lane, end };
            let fault = match self.once(call, attempt, reply).await {
                Ok(value) => {
                    self.observed.answered(lane as usize, sent, self.clock);
                    return Ok(Answer {
                        value,
                        sent,
                        repeated: first_sent.is_some(),
                        first_sent: first_sent.unwrap_or(sent),
                    });
                }
                Err(fault) => fault,
            };
            let Failure {
                executed: this,
                cause,
                ..
            } = Failure::from(fault);
            if this == Executed::Maybe {
                first_sent = first_sent.or(Some(sent));
            }
            if let Cause::Answered(error) = &cause
                && !(budget.retries_after(error) && is_for_this_lane(lane, error))
            {
                let missing = missing_right(call, error);
                let failure = Failure::new(executed(first_sent), cause).missing(missing);
                return Err(self.failed(call, failure));
            }
            let now = self.clock.now();
            let needed = needed_again(&cause, sent, now);
            let cause = match last.take() {
                // Nothing was sent since, or the deadline cut the last attempt short: the earlier error is still the
                // latest answer that the server had time for.
                Some(said @ Cause::Answered(_))
                    if cause.is_silence()
                        && (this == Executed::No || reply < budget.reply_timeout) =>
                {
                    said
                }
                _ => cause,
            };
            let jittered = pause.mul_f64(fastrand::f64());
            pause = RETRY_PAUSE_MAX.min(pause * 2);
            if budget.retry == Retry::Never || now.after(jittered + needed) >= budget.deadline {
                return Err(self.failed(call, Failure::new(executed(first_sent), cause)));
            }
            last = Some(cause);
            tokio::time::sleep(jittered).await;
            sent = self.clock.now();
        }
    }

    /// Takes a free lock by a plain command, once, at a time that was read just before.
    pub(crate) async fn restore(
        &self,
        sent: Tick,
        route: &str,
        restore: &Restore,
        limit: Duration,
    ) -> Restored {
        let end = self
            .send(Lane::Command, route, restore.command(), limit)
            .await;
        if let Err(Fault::Answered(error)) = &end {
            self.native.refused(error);
        }
        if matches!(end, Ok(_) | Err(Fault::Answered(_))) {
            let lane = Lane::Command as usize;
            self.observed.answered(lane, sent, self.clock);
        }
        reply::restored(end)
    }

    /// Hands releases on one server over to the connection, once and in one write; see [`Transport::submit`]. If plain
    /// commands do not suffice, `all` is the script for all of them. [`released`](Self::released) reads their end.
    pub(crate) fn submit_releases(
        &self,
        lane: Lane,
        calls: &[Call],
        all: impl FnOnce() -> Call,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let submit = |route, commands| self.transport.submit(lane, route, commands, limit, to);
        let plain = calls.iter().filter_map(|call| self.plain_release(call));
        let plain: SmallVec<[&Cmd; 2]> = plain.flatten().collect();
        match calls {
            [first, ..] if plain.len() == 2 * calls.len() => {
                submit(first.route(), Commands::Several(&plain))
            }
            [call] => submit(call.route(), Commands::One([call.by_sha()])),
            _ => {
                let all = all();
                submit(all.route(), Commands::One([all.by_sha()]))
            }
        }
    }

    /// The plain commands of a release, if the server allows them.
    fn plain_release<'a>(&self, call: &'a Call) -> Option<[&'a Cmd; 2]> {
        let Release { hdel, tell } = call.native.as_ref()?;
        self.native.may_release().then_some([hdel, tell])
    }

    /// Reads the end of as many releases that were submitted at `sent`. Returns the reply for each hold, or whether the
    /// release of a hold without a reply may have been executed.
    pub(crate) fn released(
        &self,
        lane: Lane,
        sent: Tick,
        outcome: Result<Replies, Fault>,
        holds: usize,
    ) -> Result<Few<Result<Released, Executed>>, Failure> {
        let replies = outcome?;
        self.observed.answered(lane as usize, sent, self.clock);
        let replies = match replies.values() {
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

    /// Notes the failure and adds the address of the server.
    fn failed(&self, call: &Call, failure: Failure) -> Failure {
        self.observed.note(Fact::ScriptFailed);
        failure.at_endpoint(self.transport.endpoint(call.route()))
    }

    /// Runs scripts and then a command over one connection, with nothing in between. Tries once more if the
    /// connection was lost. Returns the answers in order. All go to the server of `route`.
    pub(crate) async fn run_before(
        &self,
        lane: Lane,
        route: &str,
        calls: &[Call],
        last: &Cmd,
        reply: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, Failure> {
        let scripts = calls.iter().map(Call::by_sha);
        let commands: Vec<&Cmd> = scripts.chain([last]).collect();
        let end = self.clock.now().after(reply);
        let left = || self.clock.now().until(end);
        let mut answers = match self.send_all(lane, route, &commands, reply).await {
            Err(failure) if !failure.is_final_answer() && !left().is_zero() => {
                self.send_all(lane, route, &commands, left()).await?
            }
            answers => answers?,
        };
        let is_unknown = |answer: &Result<_, RedisError>| matches!(answer, Err(error) if error.code() == Some("NOSCRIPT"));
        if answers.iter().any(is_unknown) {
            // Repeats all of them, because the command must follow every script.
            let scripts: Vec<Cmd> = calls.iter().map(Call::by_text).collect();
            let commands: Vec<&Cmd> = scripts.iter().chain([last]).collect();
            answers = self.send_all(lane, route, &commands, reply).await?;
        }
        Ok(answers)
    }

    /// Sends commands in one write. Returns the answers in order.
    async fn send_all(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        reply: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, Failure> {
        let sent = self.transport.send_together(lane, route, commands, reply);
        let answers = sent
            .await
            .map_err(|fault| Failure::from(fault).at_endpoint(self.transport.endpoint(route)))?;
        if answers.len() != commands.len() {
            return Err(Failure::silent("a reply is missing"));
        }
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }

    /// Sends the plain commands of a release. Sends the script of other calls, and where plain commands find nothing.
    async fn once(&self, call: &Call, attempt: Attempt, reply: Duration) -> Result<Value, Fault> {
        let Some(plain) = self.plain_release(call) else {
            return self.by_script(call, attempt, reply).await;
        };
        let replies = self
            .transport
            .send_together(attempt.lane, &call.route, &plain, reply)
            .await?;
        match native::released(&replies).map_err(Fault::Answered)? {
            Some(value) => Ok(value),
            // Boxed because it is large and seldom polled.
            None => {
                let left = self.clock.now().until(attempt.end);
                Box::pin(self.by_script(call, attempt, left)).await
            }
        }
    }

    /// Runs the script by its SHA, or by its text if the server does not know the SHA.
    async fn by_script(
        &self,
        call: &Call,
        attempt: Attempt,
        reply: Duration,
    ) -> Result<Value, Fault> {
        let by_sha = self.send(attempt.lane, &call.route, call.by_sha(), reply);
        match by_sha.await {
            Err(Fault::Answered(error)) if error.code() == Some("NOSCRIPT") => {
                let by_text = call.by_text();
                let left = self.clock.now().until(attempt.end);
                self.send(attempt.lane, &call.route, &by_text, left).await
            }
            other => other,
        }
    }
}

fn current_runtime() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// One attempt to have a call answered.
#[derive(Clone, Copy)]
struct Attempt {
    lane: Lane,
    end: Tick,
}

fn too_late() -> Cause {
    Cause::Silent(Reason::timed_out("no time was left to ask".to_owned()))
}

fn executed(first_sent: Option<Tick>) -> Executed {
    if first_sent.is_some() {
        Executed::Maybe
    } else {
        Executed::No
    }
}

/// Drives `work`, and calls `then` after its first poll. Its first command has been queued for sending at that point.
pub(crate) async fn on_first_poll<F: Future>(work: Pin<&mut F>, then: impl FnOnce()) -> F::Output {
    // Unconstrained: without budget, a task would get "pending" even from channels that have room.
    let mut work = tokio::task::unconstrained(work);
    let mut then = Some(then);
    std::future::poll_fn(move |context| {
        let polled = Pin::new(&mut work).poll(context);
        if let Some(then) = then.take() {
            then();
        }
        polled
    })
    .await
}
