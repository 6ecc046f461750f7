//! Runs a call: by plain commands if it has any, or by its script's SHA or text. Repeats it until it is answered or its
//! time is over.
//!
//! Invariant: a call is repeated unchanged. Both the answer and the failure say whether an earlier attempt may have
//! been executed.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::runtime::{self, Handle};

use super::call::{Answer, Call};
use super::failure::{Earlier, Executed, Failure, is_hopeless, missing_right};
use super::native::{self, NativePath, NativeState};
use crate::conn::error_reply::is_temporary;
use crate::conn::{Fault, Lane, Reason, Transport, sent};
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

    /// Whether the budget allows only a single attempt.
    pub(super) fn is_once(self) -> bool {
        self.retry == Retry::Never
    }

    /// Returns the time at which a call that was made at `asked` ends without an answer.
    pub(crate) fn end(self, asked: Tick) -> Tick {
        match self.retry {
            Retry::Never => self.deadline.min(asked.after(self.reply_timeout)),
            Retry::NotNow | Retry::Refusals => self.deadline,
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
        let answer = failure.fault.answer();
        answer.is_some_and(|error| !self.retries_after(error))
    }

    /// Whether a call is repeated after an error.
    pub(super) fn retries_after(self, error: &RedisError) -> bool {
        match self.retry {
            Retry::Never => false,
            Retry::NotNow => is_temporary(error),
            Retry::Refusals => is_temporary(error) || !is_hopeless(error),
        }
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

/// The range of the pauses between attempts, which doubles from the first to the longest. A pause is a random part of
/// it.
pub(crate) const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

/// The pause between two attempts of a plain question.
const ASK_PAUSE: Duration = Duration::from_millis(20);

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

    /// Runs `call` until it is answered or refused for good, or until the budget is used up.
    pub(crate) fn run(
        &self,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send {
        self.run_behind(None, self.clock.now(), lane, call, budget)
    }

    /// As [`run`](Self::run), with a send time that was read just before, without an `await` in between. `earlier` is
    /// a send of the same call that failed.
    pub(crate) async fn run_behind(
        &self,
        earlier: Option<Earlier>,
        mut sent: Tick,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> Result<Answer, Failure> {
        // The send time of the first attempt that the server may have executed.
        let mut first_sent = earlier.as_ref().and_then(Earlier::first_sent);
        let mut last = earlier.map(|earlier| earlier.fault);
        let mut pause = RETRY_PAUSE_FIRST;
        let fault = loop {
            let reply = budget.reply_timeout.min(sent.until(budget.deadline));
            if reply.is_zero() {
                let too_late = || Reason::timed_out("no time was left to ask".to_owned());
                break last.unwrap_or_else(|| Fault::Unsent(too_late()));
            }
            let fault = match self.once(call, lane, reply, sent.after(reply)).await {
                Ok(value) => {
                    self.observed.answered(lane as usize, sent, self.clock);
                    let repeated = first_sent.is_some();
                    let is_settled = || self.transport.earlier_commands_settled(lane, call.route());
                    return Ok(Answer {
                        value,
                        sent,
                        repeated,
                        is_in_doubt: repeated && !is_settled(),
                        first_sent: first_sent.unwrap_or(sent),
                    });
                }
                Err(fault) => fault,
            };
            let this = Executed::after(&fault);
            if this == Executed::Maybe {
                first_sent = first_sent.or(Some(sent));
            }
            let answer = fault.answer();
            if answer.is_some_and(|error| !budget.retries_after(error)) {
                break fault;
            }
            let now = self.clock.now();
            // The server took this long for its last error. Without time for another reply, that error is more useful
            // to the caller than a time-out.
            let needed = answer.map_or(Duration::ZERO, |_| sent.until(now));
            let fault = match last.take() {
                // Nothing was sent since, or the deadline cut the last attempt short: the earlier error is still the
                // latest answer that the server had time for.
                Some(said)
                    if said.answer().is_some()
                        && fault.answer().is_none()
                        && (this == Executed::No || reply < budget.reply_timeout) =>
                {
                    said
                }
                _ => fault,
            };
            let jittered = pause.mul_f64(fastrand::f64());
            pause = RETRY_PAUSE_MAX.min(pause * 2);
            if budget.retry == Retry::Never || now.after(jittered + needed) >= budget.deadline {
                break fault;
            }
            last = Some(fault);
            tokio::time::sleep(jittered).await;
            sent = self.clock.now();
        };
        let executed = Executed::maybe_if(first_sent.is_some());
        Err(self.failed(call, Failure::new(executed, fault)))
    }

    /// Sends a plain command on the command lane, and repeats it until `end` while the server is silent. Before each
    /// attempt, `limit` returns the time for its reply.
    pub(crate) async fn ask(
        &self,
        route: &str,
        command: &Cmd,
        limit: impl Fn() -> Duration,
        end: Tick,
    ) -> Result<Value, Failure> {
        let transport = &self.transport;
        loop {
            let sent = transport.send(Lane::Command, route, command, limit());
            let fault = match sent.await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let again = self.clock.now().after(ASK_PAUSE);
            if !fault.is_silence() || again >= end {
                return Err(Failure::from(fault).at_endpoint(transport.endpoint(route)));
            }
            self.clock.sleep_until(again).await;
        }
    }

    /// Runs scripts and then a command over one connection to the server of `route`, with nothing in between. Tries
    /// once more if the connection was lost. Returns the answers in order.
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
            // Repeats all commands, because the last one must follow every script.
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
        let sent = self.transport.exchange(lane, route, commands, reply);
        let answers = sent
            .await
            .map_err(|fault| Failure::from(fault).at_endpoint(self.transport.endpoint(route)))?;
        if answers.len() != commands.len() {
            return Err(Failure::silent("a reply is missing"));
        }
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }

    /// Notes the failure and adds the address of the server, and the right that the user lacks.
    pub(super) fn failed(&self, call: &Call, failure: Failure) -> Failure {
        self.observed.note(Fact::ScriptFailed);
        let answer = failure.fault.answer();
        Failure {
            missing: answer.and_then(|error| missing_right(call, error)),
            endpoint: Some(self.transport.endpoint(call.route())),
            ..failure
        }
    }

    /// Sends the plain commands of a release, if it has any. For other calls, and if the plain commands find nothing,
    /// sends the script: by its SHA, or by its text if the server does not know the SHA. The first command has `reply`,
    /// and all have until `end`.
    async fn once(
        &self,
        call: &Call,
        lane: Lane,
        reply: Duration,
        end: Tick,
    ) -> Result<Value, Fault> {
        let (transport, route) = (&self.transport, &*call.route);
        let left = || self.clock.now().until(end);
        // The first command has the whole reply time, because a connection counts as silent only after that.
        let mut limit = reply;
        if let Some(plain) = self.plain_release(call) {
            let replies = transport.exchange(lane, route, &plain, limit).await?;
            if let Some(value) = native::released(&replies).map_err(Fault::Answered)? {
                return Ok(value);
            }
            limit = left();
        }
        match transport.send(lane, route, call.by_sha(), limit).await {
            Err(Fault::Answered(error)) if error.code() == Some("NOSCRIPT") => {
                transport.send(lane, route, &call.by_text(), left()).await
            }
            other => other,
        }
    }
}

fn current_runtime() -> Option<runtime::Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// Drives `work`, and calls `then` once its first command was sent, or `work` has ended without sending any.
pub(crate) async fn once_sent<F: Future>(work: Pin<&mut F>, then: impl FnOnce()) -> F::Output {
    let (was_sent, mut then) = (AtomicBool::new(false), Some(then));
    let mut work = pin!(sent::track(&was_sent, work));
    std::future::poll_fn(|context| {
        let polled = work.as_mut().poll(context);
        if (polled.is_ready() || was_sent.load(Ordering::Relaxed))
            && let Some(then) = then.take()
        {
            then();
        }
        polled
    })
    .await
}
