//! The reason why a call has no reply, whether the server may have executed it, and the right that a user lacks for it.
//!
//! Valkey names the command that a user may not call inside a script. Redis names the line of the script at best, and
//! no server names a key. So the right is named as exactly as the error allows.

use std::collections::BTreeSet;

use redis::RedisError;

use super::call::Call;
use crate::api::error::{Error, Kind};
use crate::conn::error_reply::{
    RUN_THE, code, explained, is_about_connection, is_about_keys, is_temporary, was_not_executed,
};
use crate::conn::{Fault, Reason, words};
use crate::engine::clock::Tick;

/// The reason why a call has no reply.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) executed: Executed,
    /// The fault of the last attempt that says why.
    pub(super) fault: Fault,
    /// The right that the user lacks, if the server denied the call without naming it.
    pub(super) missing: Option<String>,
    /// The address of the server, if it is known which server failed.
    pub(super) endpoint: Option<String>,
}

/// Whether the server executed an attempt of a call that has no reply, or may still execute it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    No,
    Maybe,
}

impl Executed {
    /// Returns whether an attempt with this fault may have been executed.
    pub(super) fn after(fault: &Fault) -> Self {
        Self::maybe_if(match fault {
            Fault::Answered(error) => !was_not_executed(error),
            Fault::Declined(_) | Fault::Unsent(_) => false,
            Fault::Unknown(_) => true,
        })
    }

    pub(super) fn maybe_if(may_be: bool) -> Self {
        if may_be { Self::Maybe } else { Self::No }
    }
}

/// A failed send of a call that is sent again.
#[derive(Debug)]
pub(crate) struct Earlier {
    pub(super) sent: Tick,
    pub(super) fault: Fault,
}

impl Earlier {
    pub(crate) fn may_be_executed(&self) -> bool {
        Executed::after(&self.fault) == Executed::Maybe
    }

    /// Whether the server said that the command may be sent again later.
    pub(crate) fn is_temporary(&self) -> bool {
        self.fault.answer().is_some_and(is_temporary)
    }

    pub(super) fn first_sent(&self) -> Option<Tick> {
        self.may_be_executed().then_some(self.sent)
    }
}

/// Whether the same call will always get this error.
pub(super) fn is_hopeless(error: &RedisError) -> bool {
    matches!(code(error), Some("WRONGTYPE" | "NOPERM" | "CROSSSLOT"))
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Fault::Answered(error).into()
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::new(Executed::after(&fault), fault)
    }
}

impl Failure {
    pub(super) fn new(executed: Executed, fault: Fault) -> Self {
        Self {
            executed,
            fault,
            missing: None,
            endpoint: None,
        }
    }

    pub(crate) fn at_endpoint(mut self, endpoint: String) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    pub(crate) fn silent(why: impl Into<Reason>) -> Self {
        Fault::Unknown(why.into()).into()
    }

    /// Whether the server itself refused the call, and would refuse it again.
    pub(crate) fn is_final_answer(&self) -> bool {
        let answer = self.fault.answer();
        answer.is_some_and(|error| !is_temporary(error))
    }

    /// Whether the server answered.
    pub(crate) fn is_answer(&self) -> bool {
        self.fault.answer().is_some()
    }

    /// Whether nothing was sent, because there was no connection in time or the server refused one.
    pub(crate) fn lacks_connection(&self) -> bool {
        let is_unsent = match &self.fault {
            Fault::Answered(error) | Fault::Declined(error) => is_about_connection(error),
            Fault::Unsent(_) => true,
            Fault::Unknown(_) => false,
        };
        self.executed == Executed::No && is_unsent
    }

    /// Whether another server has the key.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.fault.answer().and_then(code), Some("MOVED" | "ASK"))
    }

    /// Whether the user lacks a right.
    pub(crate) fn is_denied(&self) -> bool {
        self.fault.answer().and_then(code) == Some("NOPERM")
    }

    /// Whether a repeat can never succeed.
    pub(crate) fn is_hopeless(&self) -> bool {
        self.fault.answer().is_some_and(is_hopeless)
    }

    /// Whether other keys of the same call may succeed. A user may lack the right to one key only, and in a cluster
    /// one key may have moved to another node before the others.
    pub(crate) fn may_concern_some_keys(&self) -> bool {
        match self.fault.answer().and_then(code) {
            Some("TRYAGAIN") => true,
            // These errors are about the server, not about a key.
            Some("NOAUTH" | "WRONGPASS" | "MISCONF" | "OOM") => false,
            _ => self.is_final_answer(),
        }
    }

    /// Returns the index of the lock that the error is about, if a script for several locks named it.
    pub(crate) fn member(&self) -> Option<usize> {
        let text = self.fault.answer()?.detail()?;
        number_behind(" member ", text)?.checked_sub(1)
    }

    /// Makes the error that the caller of `operation` gets.
    pub(crate) fn into_error(self, operation: &'static str) -> Error {
        match self.fault {
            Fault::Unsent(why) | Fault::Unknown(why) => {
                let message = match why.kind {
                    Kind::Io => {
                        format!(
                            "no answer from the server: {why}; check that it is up and reachable"
                        )
                    }
                    _ => why.to_string(),
                };
                Error::new(why.kind, operation, message).caused_by_any(why.source)
            }
            Fault::Answered(error) | Fault::Declined(error) => {
                let endpoint = self.endpoint.unwrap_or_default();
                let (kind, mut message) = explained(&error, &endpoint);
                if let Some(missing) = self.missing {
                    message += &format!(" ({missing})");
                }
                Error::new(kind, operation, message).caused_by(error)
            }
        }
    }
}

/// The largest number of keys that an error message names.
const KEYS_NAMED: usize = 8;

/// Returns the right that the user needs for this call; `None` if `error` is about something else, or names the right.
pub(super) fn missing_right(call: &Call, error: &RedisError) -> Option<String> {
    let is_inside = match code(error)? {
        "NOPERM" => false,
        "NOPERM-INSIDE" => true,
        _ => return None,
    };
    let said = error.detail().unwrap_or_default();
    if is_about_keys(said) {
        return Some(format!("its keys are {}", keys(call)));
    }
    if !is_inside || said.contains(RUN_THE) {
        return None;
    }
    let text = call.script.text();
    // Redis 6 writes a space before the number, and writes it twice.
    let number = number_behind("user_script:", said);
    let line = number.and_then(|number| text.lines().nth(number.checked_sub(1)?));
    let at_line = line.map(commands).filter(|named| !named.is_empty());
    let named = at_line.unwrap_or_else(|| commands(text));
    let named: Vec<String> = named.iter().map(|name| format!("+{name}")).collect();
    Some(match &*named {
        [one] => format!("the right is {one}"),
        _ => format!("the right is one of {}", named.join(" ")),
    })
}

fn keys(call: &Call) -> String {
    let words = words(call.by_sha()).skip(2);
    let mut words = words.map(String::from_utf8_lossy);
    let count: usize = words
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or_default();
    let mut keys: Vec<String> = words
        .take(count.min(KEYS_NAMED))
        .map(|key| format!("{key:?}"))
        .collect();
    if count > KEYS_NAMED {
        keys.push(format!("{} more", count - KEYS_NAMED));
    }
    if call.script.text().contains(":rwlock_timeout:") {
        keys.push("those like *:rwlock_timeout:*".to_owned());
    }
    keys.join(", ")
}

/// Returns the number that follows these words.
fn number_behind(words: &str, said: &str) -> Option<usize> {
    let (_, behind) = said.rsplit_once(words)?;
    let behind = behind.trim_start();
    behind
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

/// Returns the commands that this part of a script calls, in lower case.
fn commands(text: &str) -> BTreeSet<String> {
    let calls = text.split("call('").skip(1);
    let names = calls.filter_map(|behind| behind.split_once('\''));
    names.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::catalog;
    use crate::testing::error;

    fn right_of(answer: &str) -> Option<String> {
        let call = Call::new(
            &catalog::REENTRANT_ACQUIRE,
            &"app:x".into(),
            &["app:x", "t:{app:x}"],
        );
        missing_right(&call, &error(answer))
    }

    #[test]
    fn what_is_missing_is_named_as_exactly_as_the_server_lets_it() {
        let text = catalog::REENTRANT_ACQUIRE.text();
        let at = text
            .lines()
            .position(|line| line.contains("'PEXPIRE'"))
            .unwrap()
            + 1;
        let denied = "The user executing the script can't run this command or subcommand";
        for answer in [
            format!("ERR {denied} script: 5b68, on @user_script:{at}."),
            format!(
                "ERR Error running script (call to f_5b68): @user_script:{at}: @user_script: {at}: {denied}"
            ),
        ] {
            assert_eq!(
                right_of(&answer).as_deref(),
                Some("the right is +pexpire"),
                "{answer}"
            );
        }
        let any = right_of(&format!("ERR {denied}")).unwrap();
        for name in ["+hset", "+pexpire", "+get", "+time"] {
            assert!(any.contains(name), "{any}");
        }
        for answer in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
        ] {
            let keys = right_of(answer).unwrap();
            assert!(keys.contains("\"app:x\", \"t:{app:x}\""), "{keys}");
        }
        for answer in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "NOPERM User keycloak has no permissions to run the 'evalsha' command",
            "ERR ACL failure in script: User keycloak has no permissions to run the 'hset' command script: on @user_script:1.",
            "ERR unknown command 'EVAL'",
            "READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(right_of(answer), None, "{answer}");
        }
    }

    #[test]
    fn of_many_keys_a_few_are_named() {
        let keys: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let call = Call::new(&catalog::RW_FORCE_UNLOCK, &"k0".into(), &keys);
        let told = missing_right(&call, &error("NOPERM No permissions to access a key")).unwrap();
        assert!(told.contains("\"k7\", 92 more, those like"), "{told}");
    }
}
