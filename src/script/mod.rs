//! The scripts and the one way to run them.
//!
//! A script is sent by its SHA; a server that does not know it (`NOSCRIPT`: restarted, failed over,
//! flushed) is sent the text of that one script, once. Invariant: every script may run twice. So a
//! call whose outcome is unknown is repeated as it is until its deadline, and what comes back says
//! whether that happened.

pub(crate) mod catalog;
#[cfg(test)]
mod contract;
pub(crate) mod reply;

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use redis::{Cmd, RedisError, ToRedisArgs, Value};

use crate::clock::{Clock, Tick};
use crate::conn::{Fault, Lane, Transport};
use crate::error::{Error, Kind};

/// One Lua file with the shared pieces it names, as sent to the server.
#[derive(Debug)]
pub(crate) struct Script {
    text: &'static str,
    sha: OnceLock<String>,
}

impl Script {
    const fn new(text: &'static str) -> Self {
        Self {
            text,
            sha: OnceLock::new(),
        }
    }

    fn sha(&self) -> &str {
        self.sha
            .get_or_init(|| redis::Script::new(self.text).get_hash().to_owned())
    }
}

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

    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.by_sha.arg(arg);
        self
    }

    fn by_text(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(self.script.text);
        for arg in self.by_sha.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
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
}

/// Why a call ended without a reply.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Some attempt may have been executed, or may still be.
    pub(crate) unknown: bool,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Answered(RedisError),
    Silent(String),
}

/// How long one call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// No reply within this is taken as a broken connection.
    pub(crate) reply: Duration,
    /// Attempts are repeated until here; there is always one.
    pub(crate) until: Tick,
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
    /// Runs `call` until it is answered, refused for good, or out of patience.
    pub(crate) async fn run(
        &self,
        lane: Lane,
        call: &Call,
        patience: Patience,
    ) -> Result<Answer, Failure> {
        let mut unknown = false;
        let mut pause = RETRY_PAUSE_FIRST;
        loop {
            let sent = self.clock.now();
            let cause = match self.once(lane, call, patience.reply).await {
                Ok(value) => {
                    return Ok(Answer {
                        value,
                        sent,
                        repeated: unknown,
                    });
                }
                Err(Fault::Answered(error)) if !passing(&error) => {
                    return Err(Failure {
                        unknown,
                        cause: Cause::Answered(error),
                    });
                }
                Err(Fault::Answered(error)) => Cause::Answered(error),
                Err(Fault::Unsent(why)) => Cause::Silent(why),
                Err(Fault::Unknown(why)) => {
                    unknown = true;
                    Cause::Silent(why)
                }
            };
            let rest = pause.mul_f64(fastrand::f64());
            pause = RETRY_PAUSE_MAX.min(pause * 2);
            if self.clock.now().after(rest) >= patience.until {
                return Err(Failure { unknown, cause });
            }
            tokio::time::sleep(rest).await;
        }
    }

    async fn once(&self, lane: Lane, call: &Call, reply: Duration) -> Result<Value, Fault> {
        let by_sha = self.transport.send(lane, &call.route, &call.by_sha, reply);
        match by_sha.await {
            Err(Fault::Answered(error)) if error.code() == Some("NOSCRIPT") => {
                let by_text = call.by_text();
                self.transport
                    .send(lane, &call.route, &by_text, reply)
                    .await
            }
            other => other,
        }
    }
}

/// Answers that say "not now": nothing was executed, and a later attempt may succeed.
fn passing(error: &RedisError) -> bool {
    matches!(
        error.code(),
        Some(
            "LOADING"
                | "BUSY"
                | "TRYAGAIN"
                | "CLUSTERDOWN"
                | "MASTERDOWN"
                | "READONLY"
                | "UNBLOCKED"
        )
    )
}

impl Failure {
    /// The failure as the caller of `operation` sees it.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        match self.cause {
            Cause::Silent(why) => Error::new(
                Kind::Io,
                operation,
                format!("no answer from the server: {why}; check that it is up and reachable"),
            ),
            Cause::Answered(error) => {
                let (kind, advice) = advice(&error);
                Error::new(
                    kind,
                    operation,
                    format!("the server says {error}; {advice}"),
                )
                .caused_by(error)
            }
        }
    }
}

/// What an error answer means and what to do about it.
pub(crate) fn advice(error: &RedisError) -> (Kind, &'static str) {
    match error.code() {
        Some("WRONGTYPE") => (
            Kind::WrongType,
            "the key of this lock holds something else, which was not touched: choose another name",
        ),
        Some("NOAUTH" | "WRONGPASS") => (Kind::Denied, "check user and password in the URL"),
        Some("NOPERM") => (
            Kind::Denied,
            "give the user the right that is named, for the keys and channels of the lock",
        ),
        Some("OOM") => (
            Kind::Refused,
            "the server is full: raise maxmemory or free some; held locks still renew and release",
        ),
        Some("MISCONF" | "NOREPLICAS") => (Kind::Refused, "the server refuses all writes now"),
        Some("READONLY" | "MASTERDOWN") => (
            Kind::Refused,
            "this server is a replica: connect to the primary",
        ),
        Some("LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN") => {
            (Kind::Refused, "try again when the server has recovered")
        }
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            (Kind::Denied, "check user and password in the URL")
        }
        _ if is_unknown_command(error) => (
            Kind::Invalid,
            "lockset needs a server that runs Lua scripts (EVAL and EVALSHA): Redis 6.2 or later, \
             or Valkey, with scripting enabled",
        ),
        _ => (Kind::Refused, "nothing was changed"),
    }
}

fn is_unknown_command(error: &RedisError) -> bool {
    error
        .detail()
        .is_some_and(|detail| detail.to_ascii_lowercase().contains("unknown command"))
}
