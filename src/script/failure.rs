//! The reason why a call has no reply, and whether the server may have executed it.

use redis::RedisError;

use crate::api::error::{Error, Kind};
use crate::conn::error_reply::{advice, code, describe, is_temporary, was_not_executed};
use crate::conn::{Fault, Reason};

/// The reason why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) executed: Executed,
    pub(super) cause: Cause,
    /// The right that the user lacks, if the server denied the call without naming it.
    missing: Option<String>,
    /// The address of the server, if it is known which server failed.
    endpoint: Option<String>,
}

/// Whether the server executed an attempt of a call that has no reply, or may still execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    No,
    Maybe,
}

#[derive(Clone, Debug)]
pub(super) enum Cause {
    Answered(RedisError),
    Silent(Reason),
}

impl Cause {
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Silent(_))
    }
}

/// Whether the same call will always get this error.
pub(super) fn is_hopeless(error: &RedisError) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "NOPERM" | "CROSSSLOT"))
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
    pub(super) fn new(executed: Executed, cause: Cause) -> Self {
        Self {
            executed,
            cause,
            missing: None,
            endpoint: None,
        }
    }

    pub(super) fn missing(mut self, right: Option<String>) -> Self {
        self.missing = right;
        self
    }

    pub(crate) fn at_endpoint(mut self, endpoint: String) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    pub(crate) fn silent(why: impl Into<Reason>) -> Self {
        Self::new(Executed::Maybe, Cause::Silent(why.into()))
    }

    /// Whether the server itself refused the call, and would refuse it again.
    pub(crate) fn is_final_answer(&self) -> bool {
        matches!(&self.cause, Cause::Answered(error) if !is_temporary(error))
    }

    /// Whether the server answered.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self.cause, Cause::Answered(_))
    }

    /// Whether a repeat can never succeed.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(&self.cause, Cause::Answered(error) if is_hopeless(error))
    }

    /// Whether other keys of the same call may succeed. A user may lack the right to one key only, and in a cluster
    /// one key may have moved to another node before the others.
    pub(crate) fn may_concern_some_keys(&self) -> bool {
        let tries_again =
            matches!(&self.cause, Cause::Answered(error) if code(error) == Some("TRYAGAIN"));
        let is_about_the_server = matches!(
            &self.cause,
            Cause::Answered(error)
                if matches!(code(error), Some("NOAUTH" | "WRONGPASS" | "MISCONF" | "OOM"))
        );
        tries_again || (self.is_final_answer() && !is_about_the_server)
    }

    /// The index of the lock that the error is about, if a script for several locks named it.
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
                let endpoint = self.endpoint.unwrap_or_default();
                let message = format!("{}; {advice}{missing}", describe(&error, &endpoint));
                Error::new(kind, operation, message).caused_by(error)
            }
        }
    }
}
