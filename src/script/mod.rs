//! The scripts and the one way to run them.
//!
//! A script is sent by its SHA; a server that does not know it (`NOSCRIPT`: restarted, failed over,
//! flushed) is sent the text of that one script, once. Invariant: every script may run twice. So a
//! call whose outcome is unknown is repeated as it is until its deadline, and what comes back says
//! whether that happened.

pub(crate) mod catalog;
#[cfg(test)]
mod contract;
mod missing;
pub(crate) mod preload;
pub(crate) mod reply;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, ToRedisArgs, Value};

use crate::clock::{Clock, Tick};
use crate::conn::error_reply::{advice, code, describe, is_temporary, was_not_executed};
use crate::conn::{Fault, Lane, Reason, Transport};
use crate::error::{Error, Kind};
pub(crate) use catalog::Script;

/// A script with its keys and arguments, ready to be sent any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    script: &'static Script,
    /// The key that decides which server of a cluster it goes to.
    route: Arc<str>,
    by_sha: Cmd,
}

impl Call {
    /// `route` must be the first of `keys`, or share its slot.
    pub(crate) fn new(script: &'static Script, route: &Arc<str>, keys: &[&str]) -> Self {
        let mut by_sha = Cmd::with_capacity(8 + keys.len(), 192);
        by_sha.arg("EVALSHA").arg(script.sha()).arg(keys.len());
        for key in keys {
            by_sha.arg(key);
        }
        Self {
            script,
            route: Arc::clone(route),
            by_sha,
        }
    }

    /// A script for many: the arguments it takes for all, and the keys and arguments of each.
    pub(crate) fn of_parts(
        script: &'static Script,
        for_all: &[&str],
        parts: impl Iterator<Item = Part>,
    ) -> Self {
        let parts: Vec<Part> = parts.collect();
        let keys: Vec<&str> = parts
            .iter()
            .flat_map(|part| &part.keys)
            .map(|key| &**key)
            .collect();
        let route = keys.first().copied().unwrap_or_default().into();
        let mut call = Self::new(script, &route, &keys);
        call.by_sha.arg(for_all);
        for part in &parts {
            call.by_sha.arg(&part.args);
        }
        call
    }

    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.by_sha.arg(arg);
        self
    }

    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    fn by_text(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(self.script.text());
        for arg in self.by_sha.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// The keys and arguments of one of many.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl Part {
    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub(crate) fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }
}

/// A reply, and when the attempt that got it was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Read before the bytes were handed over: leases are counted from here.
    pub(crate) sent: Tick,
    /// An earlier attempt got no reply and may have been executed too.
    pub(crate) repeated: bool,
    /// When the first attempt was sent that may have been executed.
    pub(crate) first_sent: Tick,
}

/// Why a call ended without a reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) executed: Executed,
    cause: Cause,
    /// What the user lacks the right to, if it is that and the server does not say it.
    missing: Option<String>,
    /// Where the server is, if it is known whose answer this is.
    at: Option<String>,
}

/// Whether the server executed any attempt of a call that got no reply, or still may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    No,
    Maybe,
}

#[derive(Clone, Debug)]
enum Cause {
    Answered(RedisError),
    Silent(Reason),
}

/// How long one call may take, and after which answers it is sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallBudget {
    /// No reply within this is taken as a broken connection.
    pub(crate) reply_timeout: Duration,
    /// No reply is waited for after this, and nothing is sent again.
    pub(crate) deadline: Tick,
    retry: Retry,
}

/// After what a call is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Never,
    /// After silence, and after answers that say "not now".
    NotNow,
    /// Also after refusals that a caller would be told. For work nobody waits for, which nothing but
    /// the server's consent ends.
    Refusals,
}

impl CallBudget {
    /// Attempts are repeated until `deadline`.
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

    /// For one attempt.
    pub(crate) fn once(reply_timeout: Duration) -> Self {
        Self {
            reply_timeout,
            deadline: Tick::NEVER,
            retry: Retry::Never,
        }
    }

    fn retries_after(self, error: &RedisError) -> bool {
        match self.retry {
            Retry::Never => false,
            Retry::NotNow => is_temporary(error),
            Retry::Refusals => is_temporary(error) || !is_hopeless(error),
        }
    }
}

/// Whether nothing will change that answer by itself.
fn is_hopeless(error: &RedisError) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "NOPERM" | "CROSSSLOT"))
}

/// Runs scripts over a transport.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Clock,
}

/// Pauses between attempts: doubled from the first to the last, with full jitter.
const RETRY_PAUSE_FIRST: Duration = Duration::from_millis(5);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(200);

impl Scripts {
    /// Runs `call` until it is answered, refused for good, or the budget is used up.
    pub(crate) async fn run(
        &self,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> Result<Answer, Failure> {
        let answer = self.repeated(lane, call, budget).await;
        answer.map_err(|failure| failure.of(self.transport.endpoint(call.route())))
    }

    async fn repeated(
        &self,
        lane: Lane,
        call: &Call,
        budget: CallBudget,
    ) -> Result<Answer, Failure> {
        // When the first attempt was sent that the server may have executed.
        let mut first_sent = None;
        let mut last = None;
        let mut pause = RETRY_PAUSE_FIRST;
        loop {
            let sent = self.clock.now();
            let reply = budget.reply_timeout.min(sent.until(budget.deadline));
            if reply.is_zero() {
                let late =
                    || Cause::Silent(Reason::timed_out("no time was left to ask".to_owned()));
                return Err(Failure::new(
                    executed(first_sent),
                    last.unwrap_or_else(late),
                ));
            }
            let fault = match self.once(lane, call, reply).await {
                Ok(value) => {
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
                && !budget.retries_after(error)
            {
                let missing = missing::right(call, error);
                return Err(Failure {
                    missing,
                    ..Failure::new(executed(first_sent), cause)
                });
            }
            let rest = pause.mul_f64(fastrand::f64());
            pause = RETRY_PAUSE_MAX.min(pause * 2);
            let is_enough = budget.retry == Retry::Never;
            if is_enough || self.clock.now().after(rest) >= budget.deadline {
                return Err(Failure::new(executed(first_sent), cause));
            }
            last = Some(cause);
            tokio::time::sleep(rest).await;
        }
    }

    /// Runs scripts and behind them a command, over one connection and with nothing in between; once
    /// more if that connection was gone. Each answer in its place. All go to the server of `route`.
    pub(crate) async fn run_before(
        &self,
        lane: Lane,
        route: &str,
        calls: &[Call],
        last: &Cmd,
        reply: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, Failure> {
        let scripts = calls.iter().map(|call| call.by_sha.clone());
        let commands: Vec<Cmd> = scripts.chain([last.clone()]).collect();
        let end = self.clock.now().after(reply);
        let left = || self.clock.now().until(end);
        let mut answers = match self.together(lane, route, &commands, reply).await {
            Err(failure) if !failure.is_final_answer() && !left().is_zero() => {
                self.together(lane, route, &commands, left()).await?
            }
            answers => answers?,
        };
        let is_unknown = |answer: &Result<_, RedisError>| matches!(answer, Err(error) if error.code() == Some("NOSCRIPT"));
        if answers.iter().any(is_unknown) {
            // All once more: the command has to come behind all of them.
            let scripts = calls.iter().map(Call::by_text);
            let commands: Vec<Cmd> = scripts.chain([last.clone()]).collect();
            answers = self.together(lane, route, &commands, reply).await?;
        }
        Ok(answers)
    }

    async fn together(
        &self,
        lane: Lane,
        route: &str,
        commands: &[Cmd],
        reply: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, Failure> {
        let sent = self.transport.send_together(lane, route, commands, reply);
        let answers = sent
            .await
            .map_err(|fault| Failure::from(fault).of(self.transport.endpoint(route)))?;
        if answers.len() != commands.len() {
            return Err(Failure::silent("a reply is missing"));
        }
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }

    async fn once(&self, lane: Lane, call: &Call, reply: Duration) -> Result<Value, Fault> {
        let end = self.clock.now().after(reply);
        let by_sha = self.transport.send(lane, &call.route, &call.by_sha, reply);
        match by_sha.await {
            Err(Fault::Answered(error)) if error.code() == Some("NOSCRIPT") => {
                let by_text = call.by_text();
                let left = self.clock.now().until(end);
                self.transport.send(lane, &call.route, &by_text, left).await
            }
            other => other,
        }
    }
}

fn executed(first_sent: Option<Tick>) -> Executed {
    if first_sent.is_some() {
        Executed::Maybe
    } else {
        Executed::No
    }
}

/// Drives `work` and calls `then` once it has been polled for the first time: what it sends first
/// is on its way then.
pub(crate) async fn on_first_poll<F: Future>(work: F, then: impl FnOnce()) -> F::Output {
    // Unconstrained: a task that has used up its budget is told "not yet" by channels that have room.
    let mut work = pin!(tokio::task::unconstrained(work));
    let mut then = Some(then);
    std::future::poll_fn(move |context| {
        let polled = work.as_mut().poll(context);
        if let Some(then) = then.take() {
            then();
        }
        polled
    })
    .await
}

/// A duration as scripts take it, rounded up.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        let executed = if was_not_executed(&error) {
            Executed::No
        } else {
            Executed::Maybe
        };
        Self::new(executed, Cause::Answered(error))
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Answered(error) => error.into(),
            Fault::Declined(error) => Self::new(Executed::No, Cause::Answered(error)),
            Fault::Unsent(why) => Self::new(Executed::No, Cause::Silent(why)),
            Fault::Unknown(why) => Self::silent(why),
        }
    }
}

impl Failure {
    fn new(executed: Executed, cause: Cause) -> Self {
        Self {
            executed,
            cause,
            missing: None,
            at: None,
        }
    }

    fn of(mut self, at: String) -> Self {
        self.at = Some(at);
        self
    }

    pub(crate) fn silent(why: impl Into<Reason>) -> Self {
        Self::new(Executed::Maybe, Cause::Silent(why.into()))
    }

    /// Whether the server itself said no, and would say it again.
    pub(crate) fn is_final_answer(&self) -> bool {
        matches!(&self.cause, Cause::Answered(error) if !is_temporary(error))
    }

    /// Whether the server answered.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.cause, Cause::Answered(_))
    }

    /// Whether it is no use to ask the server again.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(&self.cause, Cause::Answered(error) if is_hopeless(error))
    }

    /// Whether it may be the matter of some of several keys, and not of the others: one that a user
    /// has no right to, or that has moved to another node of a cluster before the others.
    pub(crate) fn may_be_of_some(&self) -> bool {
        let tries_again =
            matches!(&self.cause, Cause::Answered(error) if code(error) == Some("TRYAGAIN"));
        let is_about_the_server = matches!(
            &self.cause,
            Cause::Answered(error)
                if matches!(code(error), Some("NOAUTH" | "WRONGPASS" | "MISCONF" | "OOM"))
        );
        tries_again || (self.is_final_answer() && !is_about_the_server)
    }

    /// Which of many it speaks of, if it says so.
    pub(crate) fn member(&self) -> Option<usize> {
        let Cause::Answered(error) = &self.cause else {
            return None;
        };
        let text = error.detail()?;
        let (_, number) = text.rsplit_once(" member ")?;
        let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<usize>().ok()?.checked_sub(1)
    }

    /// The failure as the caller of `operation` sees it.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        match self.cause {
            Cause::Silent(why) => Error::new(
                Kind::Io,
                operation,
                format!("no answer from the server: {why}; check that it is up and reachable"),
            )
            .caused_by_any(why.source),
            Cause::Answered(error) => {
                let (kind, advice) = advice(&error);
                let missing = self.missing.map(|what| format!(" ({what})"));
                let missing = missing.unwrap_or_default();
                let at = self.at.unwrap_or_default();
                let message = format!("{}; {advice}{missing}", describe(&error, &at));
                Error::new(kind, operation, message).caused_by(error)
            }
        }
    }
}
