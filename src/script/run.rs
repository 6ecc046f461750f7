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
use tokio::runtime::{self, Handle};

use super::call::{Answer, Call};
use super::failure::{Cause, Executed, Failure, is_hopeless, missing_right};
use super::native::{self, Native, NativePath, NativeState, Release, Restore};
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

    /// Hands a release over to the connection, once; see [`Transport::submit`]. [`released`](Self::released) reads its
    /// end.
    pub(crate) fn submit_release(
        &self,
        lane: Lane,
        call: &Call,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let submit = |commands| {
            let transport = &self.transport;
            transport.submit(lane, &call.route, commands, limit, to)
        };
        match &call.native {
            Some(Native::Release(Release { hdel, tell })) if self.native.may_release() => {
                submit(Commands::Several(&[hdel, tell]))
            }
            Some(Native::ReleaseAll(all)) if self.native.may_release() => {
                submit(Commands::Several(&in_order(all)))
            }
            _ => submit(Commands::One([call.by_sha()])),
        }
    }

    /// Reads the end of a release that was submitted at `sent`. Returns the reply for each hold, or `None` if the server
    /// has to be asked.
    pub(crate) fn released(
        &self,
        lane: Lane,
        sent: Tick,
        outcome: Result<Replies, Fault>,
        holds: usize,
    ) -> Result<Few<Option<Released>>, Failure> {
        let replies = outcome?;
        self.observed.answered(lane as usize, sent, self.clock);
        let read = |value: Option<Value>| reply::released(&value?).ok();
        if let [reply] = replies.values() {
            // Of the script.
            let value = reply.clone().extract_error()?;
            let each = match holds {
                1 => reply::released(&value).map(|released| Few::from_buf([released])),
                _ => reply::released_each(&value, holds),
            };
            return Ok(match each {
                Ok(each) => each.into_iter().map(Some).collect(),
                Err(_) => Few::from_elem(None, holds),
            });
        }
        if holds == 1 {
            return Ok(Few::from_buf([read(native::released(replies.values())?)]));
        }
        let each = native::released_each(replies.values(), holds);
        Ok(each.into_iter().map(read).collect())
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

    /// Sends the plain commands of the call if it has any, and falls back to the script if they do not settle it.
    async fn once(&self, call: &Call, attempt: Attempt, reply: Duration) -> Result<Value, Fault> {
        let answer = match &call.native {
            Some(Native::Release(Release { hdel, tell })) if self.native.may_release() => {
                let (lane, pair) = (attempt.lane, [&**hdel, &**tell]);
                let replies = self
                    .transport
                    .send_together(lane, &call.route, &pair, reply);
                native::released(&replies.await?).map_err(Fault::Answered)?
            }
            Some(Native::ReleaseAll(all)) if self.native.may_release() => {
                return Box::pin(self.release_all(call, all, attempt, reply)).await;
            }
            _ => return self.by_script(call, attempt, reply).await,
        };
        match answer {
            Some(value) => Ok(value),
            // Boxed because it is large and seldom polled.
            None => {
                let left = self.clock.now().until(attempt.end);
                Box::pin(self.by_script(call, attempt, left)).await
            }
        }
    }

    /// Releases several holds by plain commands, in one write.
    ///
    /// The server does not execute them in one step, and need not, because the holds are independent. Invariants: all
    /// holds are released before the first notification, because a waiter for several locks asks again as soon as it is
    /// notified; the script returns the reason for each hold that was missing; a hold that was released here does not
    /// count as lost when the call is repeated.
    async fn release_all(
        &self,
        call: &Call,
        all: &[Release],
        attempt: Attempt,
        reply: Duration,
    ) -> Result<Value, Fault> {
        let (transport, commands) = (&self.transport, in_order(all));
        let replies = transport.send_together(attempt.lane, &call.route, &commands, reply);
        let released = native::released_each(&replies.await?, all.len());
        if released.iter().all(Option::is_some) {
            return Ok(Value::Array(released.into_iter().flatten().collect()));
        }
        let left = self.clock.now().until(attempt.end);
        match self.by_script(call, attempt, left).await {
            Ok(said) => Ok(native::merged(released, said)),
            // A repeat will not find the holds that were released here, as after a lost answer.
            Err(fault) if released.iter().any(Option::is_some) => Err(match fault {
                Fault::Unsent(why) => Fault::Unknown(why),
                Fault::Declined(error) => Fault::Unknown(error.into()),
                Fault::Answered(error) if is_temporary(&error) => Fault::Unknown(error.into()),
                fault => fault,
            }),
            Err(fault) => Err(fault),
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

/// The commands of these releases: all holds are released before the first notification.
fn in_order(all: &[Release]) -> Vec<&Cmd> {
    let given_up = all.iter().map(|each| &*each.hdel);
    let told = all.iter().map(|each| &*each.tell);
    given_up.chain(told).collect()
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
