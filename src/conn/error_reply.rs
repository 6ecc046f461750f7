//! The meaning of errors: whether anything was executed, whether to retry, and the advice for the caller.

use redis::RedisError;

use super::tls::tls_advice;
use super::transport::Fault;
use crate::api::error::{Error, Kind};

/// Codes of refusals for now: a later attempt may succeed. Nothing was executed, except for [`NON_LOCAL`].
const TEMPORARY: &[&str] = &[
    "LOADING",
    "BUSY",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "READONLY",
    "NOREPLICAS",
    "UNBLOCKED",
    NO_LOGIN,
];

/// The code of our own error about the login of a connection, for clients with a provider of credentials.
const NO_LOGIN: &str = "NOLOGIN";

/// Codes of refusals before anything was executed. This is true of `OOM` and `WRONGTYPE` because every script reads its
/// keys before it writes, and only its first write can be refused.
const REFUSED: &[&str] = &[
    "NOSCRIPT",
    "NOAUTH",
    "WRONGPASS",
    "DENIED",
    "NOPERM",
    "OOM",
    "WRONGTYPE",
    "MISCONF",
    "CROSSSLOT",
    "MOVED",
    "ASK",
];

/// In a moving slot, a script touched a key that is not in KEYS and has already moved. The sentence begins
/// differently in Redis and Valkey.
const NON_LOCAL: &str = "access a non local key";

/// Precedes the arguments of an unknown command, which the server repeats.
const ARGUMENTS: &str = ", with args beginning with";

/// Returns the code of an error. Redis 6 wraps the error of a command inside a script, with its code, in an `ERR`.
pub(crate) fn code(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    let detail = error.detail().unwrap_or_default();
    // This error's code differs between versions.
    if ["ACL failure in script", "The user executing the script"]
        .iter()
        .any(|words| detail.contains(words))
    {
        return Some("NOPERM-INSIDE");
    }
    if detail.contains(NON_LOCAL) {
        return Some("TRYAGAIN");
    }
    if code != "ERR" || !detail.contains("script") {
        return Some(code);
    }
    let inner = detail
        .split(' ')
        .map(|word| word.trim_start_matches('-'))
        .find(|word| TEMPORARY.contains(word) || REFUSED.contains(word));
    Some(inner.unwrap_or(code))
}

/// Whether a later attempt may succeed.
pub(crate) fn is_temporary(error: &RedisError) -> bool {
    code(error).is_some_and(|code| TEMPORARY.contains(&code)) || is_out_of_connections(error)
}

/// Whether it is certain that nothing was executed.
pub(crate) fn was_not_executed(error: &RedisError) -> bool {
    // A script that was stopped inside may have done a part of its work.
    let stopped_inside = says(error, NON_LOCAL);
    let code = code(error).filter(|_| !stopped_inside);
    code.is_some_and(|code| TEMPORARY.contains(&code) || REFUSED.contains(&code))
        || is_out_of_connections(error)
}

const ASKED_AGAIN: &str = "the next connection asks the provider of credentials again";

const COUNTER_STAYS: &str = "nothing was granted, and the counter is as it was";

/// Returns the kind of an error for the caller, with advice on what to do about it.
pub(crate) fn advice(error: &RedisError) -> (Kind, &'static str) {
    if let Some(advice) = tls_advice(error) {
        return (Kind::Invalid, advice);
    }
    match code(error) {
        Some("WRONGTYPE") if says(error, "fencing counter") => (Kind::WrongType, COUNTER_STAYS),
        Some("WRONGTYPE") => (
            Kind::WrongType,
            "a key of this lock holds something else, which was not changed; choose another name, \
             or a key_prefix for all locks",
        ),
        Some(NO_LOGIN) => (Kind::Refused, ASKED_AGAIN),
        Some("NOAUTH" | "WRONGPASS") => (Kind::Denied, "check user and password"),
        Some("NOPERM") if says(error, "run the 'select' command") => (
            Kind::Denied,
            "the URL names a database; give the user the right +select, or leave the database out",
        ),
        Some("NOPERM" | "NOPERM-INSIDE") => (
            Kind::Denied,
            "give the user the rights that docs/rights.md lists, on the keys and channels of the \
             lock",
        ),
        // Redis's protected mode.
        Some("DENIED") => (
            Kind::Denied,
            "it takes connections from other machines once it has a password (requirepass, or users), which \
             belongs into the URL",
        ),
        Some("OOM") => (
            Kind::Refused,
            "the server is out of memory; raise maxmemory or free some (held locks are still \
             renewed and released)",
        ),
        Some("MISCONF") => (Kind::Refused, "the server refuses all writes now"),
        Some("NOREPLICAS") => (
            Kind::Refused,
            "the server has fewer replicas than min-replicas-to-write, so it refuses all writes \
             now",
        ),
        Some("READONLY" | "MASTERDOWN") => (Kind::Refused, IS_REPLICA),
        Some("LOADING" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN") => {
            (Kind::Refused, "try again when the server has recovered")
        }
        Some("MOVED" | "ASK") => (
            Kind::Invalid,
            "this server is a node of a cluster: connect with redis+cluster://",
        ),
        _ if says(error, "SELECT is not allowed in cluster mode") => (
            Kind::Invalid,
            "this server is a node of a cluster: connect with redis+cluster://, without a database",
        ),
        _ if says(error, "DB index is out of range") => (
            Kind::Invalid,
            "the URL names a database that the server does not have; see its setting `databases`",
        ),
        _ if is_no_cluster(error) => (
            Kind::Invalid,
            "this server is not part of a cluster (cluster_enabled:0): connect with redis://",
        ),
        _ if is_foreign(error) => (Kind::Invalid, "check host and port in the URL"),
        _ if is_out_of_connections(error) => (
            Kind::Refused,
            "the server has reached maxclients; raise it, or close some connections",
        ),
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            (Kind::Denied, "check user and password")
        }
        _ if is_unknown_command(error) => (Kind::Invalid, advice_on_unknown(error)),
        _ => (Kind::Refused, "whatever it has done is being undone"),
    }
}

/// Returns the advice for a command that is missing or renamed.
fn advice_on_unknown(error: &RedisError) -> &'static str {
    let is = |command: &str| {
        ["'", "`"]
            .iter()
            .any(|quote| says(error, &format!("{quote}{command}{quote}")))
    };
    if is_unknown_in_script(error) {
        "the server lacks a command that lockset's scripts need: Redis 6.2 or later, or Valkey, with no command \
         renamed"
    } else if is("hello") {
        "lockset needs a server that speaks RESP3: Redis 6.2 or later, or Valkey, whose HELLO has kept its name"
    } else if is("auth") {
        "the URL names a password; lockset needs a server whose AUTH has kept its name"
    } else {
        "lockset needs a server that runs Lua scripts (EVAL and EVALSHA): Redis 6.2 or later, or Valkey, with \
         scripting enabled"
    }
}

/// Returns the error in the words of the server, with its `endpoint` if that is known.
pub(crate) fn describe(error: &RedisError, endpoint: &str) -> String {
    if tls_advice(error).is_some() {
        return format!("no connection to {endpoint} over TLS: {error}");
    }
    if code(error) == Some(NO_LOGIN) {
        let why = error.detail().unwrap_or_default();
        return format!("no login at {endpoint}: {why}");
    }
    if is_foreign(error) {
        let says = error.detail().map(|line| format!("; it says {line:?}"));
        let says = says.unwrap_or_default();
        return format!("what answers at {endpoint} is not Redis or Valkey{says}");
    }
    let is_about_login = error.kind() == redis::ErrorKind::AuthenticationFailed;
    let words = match (error.detail(), error.code()) {
        (Some(words), _) if is_about_login => words.to_owned(),
        (Some(words), Some(code)) => said(code, words),
        _ => error.to_string(),
    };
    if endpoint.is_empty() {
        return format!("the server says {words}");
    }
    format!("the server {endpoint} says {words}")
}

/// Returns the server's error without the position in our script.
fn said(code: &str, words: &str) -> String {
    // Redis 7 puts the position at the end, Redis 6 before the words.
    let words = match words.rsplit_once(" script: ") {
        Some((words, place)) if place.contains("on @user_script") => words,
        _ => words,
    };
    let words = match words.split_once("@user_script:") {
        Some((_, inside)) => inside.split_once(": ").map_or(inside, |(_, inside)| inside),
        None => words,
    };
    // The rest is a page of instructions.
    let words = match words.split_once(". ") {
        Some((first, _)) if code == "DENIED" => first,
        _ => words,
    };
    let words = words.trim_end_matches(['.', ' ']);
    if code == "ERR" || words.starts_with(code) {
        return words.to_owned();
    }
    format!("{code} {words}")
}

const IS_REPLICA: &str = "this server is a replica, or has become one; connect to the primary \
                          (redis+sentinel:// follows it through failovers)";

/// Makes the error for a server that takes no writes, when the client has only this server.
pub(crate) fn not_a_primary(endpoint: &str) -> Error {
    let message = format!("the server {endpoint} says that it takes no writes; {IS_REPLICA}");
    Error::new(Kind::Refused, "connect", message)
}

/// Returns the kind of an error, and its text with the advice.
pub(crate) fn explained(error: &RedisError, endpoint: &str) -> (Kind, String) {
    let (kind, advice) = advice(error);
    (kind, format!("{}; {advice}", describe(error, endpoint)))
}

/// Makes the error of a client that could not connect.
pub(crate) fn connect_error(fault: Fault, endpoint: &str) -> Error {
    match fault {
        Fault::Answered(error) | Fault::Declined(error) => {
            let (kind, message) = explained(&error, endpoint);
            Error::new(kind, "connect", message).caused_by(error)
        }
        Fault::Unsent(why) | Fault::Unknown(why) => {
            let advice = "; check the address, and that the server is up";
            let advice = if why.kind == Kind::Io { advice } else { "" };
            let message = format!("{why}{advice}");
            Error::new(why.kind, "connect", message).caused_by_any(why.source)
        }
    }
}

/// Removes the arguments from an error about an unknown command, because the arguments of `AUTH` and `HELLO` contain
/// user and password.
pub(super) fn without_arguments(error: RedisError) -> RedisError {
    let detail = error.detail();
    let Some((words, _)) = detail.and_then(|words| words.split_once(ARGUMENTS)) else {
        return error;
    };
    match error.code() {
        Some(code) => redis::make_extension_error(code.to_owned(), Some(words.to_owned())),
        None => (error.kind(), "the server says", words.to_owned()).into(),
    }
}

/// Makes the error for a connection without a login. A later connection may get a login.
pub(super) fn no_login(why: String) -> RedisError {
    redis::make_extension_error(NO_LOGIN.to_owned(), Some(why))
}

/// Makes the error for a reply that no server sends.
pub(super) fn nonsense(what: &'static str) -> RedisError {
    (redis::ErrorKind::UnexpectedReturnType, what).into()
}

/// The words before the name of a command that the user may not run, in the server's error.
pub(crate) const RUN_THE: &str = "run the '";

/// Whether an error about a missing right, with the text `said`, is about keys. The user's name may contain that word.
pub(crate) fn is_about_keys(said: &str) -> bool {
    said.contains("key") && !said.contains(RUN_THE)
}

/// Whether a server or a proxy lacks the command, or has renamed it.
pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    says(error, "unknown command") || is_unknown_in_script(error)
}

/// Whether the server lacks a command that a script calls. Redis and Valkey say so in different words.
fn is_unknown_in_script(error: &RedisError) -> bool {
    says(error, "unknown redis command called from") || says(error, "unknown command called from")
}

/// Whether the server speaks another protocol.
pub(super) fn is_foreign(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Parse
}

/// Whether the server has reached `maxclients`. It then replies with this error to a new connection, and executes
/// nothing.
pub(crate) fn is_out_of_connections(error: &RedisError) -> bool {
    says(error, "max number of clients")
}

/// Whether the server refuses a new connection while open connections may still serve: it has no room for another one,
/// or the login was replaced.
pub(crate) fn is_about_connection(error: &RedisError) -> bool {
    is_out_of_connections(error)
        || error.kind() == redis::ErrorKind::AuthenticationFailed
        || matches!(code(error), Some("WRONGPASS" | "NOAUTH" | NO_LOGIN))
}

/// Whether a server says that it is in no cluster.
pub(super) fn is_no_cluster(error: &RedisError) -> bool {
    says(error, "cluster support disabled")
}

/// Whether the server's text contains these words, ignoring case.
fn says(error: &RedisError, words: &str) -> bool {
    let detail = error.detail().unwrap_or_default();
    detail
        .to_ascii_lowercase()
        .contains(&words.to_ascii_lowercase())
}

/// A hint for a server that seems to speak TLS while the URL does not.
pub(super) const USE_TLS: &str = " (if it speaks TLS on this port, the URL starts with rediss)";

/// A hint for a URL with TLS and a server without a readable answer.
pub(super) const CHECK_TLS: &str =
    " (does it speak TLS on this port, and does it ask for a client certificate?)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_the_words_of_the_server() {
        for (line, words) in [
            (
                "OOM command not allowed. script: 3e3d, on @user_script:98.",
                "OOM command not allowed",
            ),
            (
                "ERR WRONGTYPE no lock script: 3e3d, on @user_script:19.",
                "WRONGTYPE no lock",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:3: -OOM not allowed",
                "-OOM not allowed",
            ),
            ("READONLY You can't write.", "READONLY You can't write"),
            (
                "DENIED Redis is running in protected mode because there is none. In this mode 1) Just",
                "DENIED Redis is running in protected mode because there is none",
            ),
            // From Valkey.
            (
                "NOPERM ACL failure in script: User u may not run 'get' script: on @user_script:9.",
                "NOPERM ACL failure in script: User u may not run 'get'",
            ),
        ] {
            let told = describe(&crate::testing::error(line), "h:1");
            assert_eq!(told, format!("the server h:1 says {words}"));
        }
    }

    /// The arguments of `AUTH` and `HELLO` contain user and password.
    #[test]
    fn the_arguments_of_a_command_are_not_repeated() {
        let line =
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'u' 's3cret' ";
        let error = without_arguments(crate::testing::error(line));
        assert_eq!(
            (error.code(), error.detail()),
            (Some("ERR"), Some("unknown command 'HELLO'"))
        );
        assert!(advice(&error).1.contains("RESP3"), "{error}");
        let words = "ERR unknown command `AUTH`, with args beginning with: `s3cret`, ".to_owned();
        let error = (
            redis::ErrorKind::AuthenticationFailed,
            "authentication failed",
            words,
        );
        let error = without_arguments(error.into());
        let told = describe(&error, "h:1");
        assert_eq!(told, "the server h:1 says ERR unknown command `AUTH`");
        assert!(!format!("{error:?}").contains("s3cret"));
        let other = without_arguments(crate::testing::error("WRONGPASS no"));
        assert_eq!(other.code(), Some("WRONGPASS"));
    }

    #[test]
    fn errors_mean_what_they_say() {
        for (line, kind, not_executed, temporary) in [
            (
                "WRONGTYPE Operation against a key",
                Kind::WrongType,
                true,
                false,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:3: WRONGTYPE Operation",
                Kind::WrongType,
                true,
                false,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:3: -OOM command not allowed",
                Kind::Refused,
                true,
                false,
            ),
            (
                "ERR Error running script (call to f_1): -READONLY You can't write",
                Kind::Refused,
                true,
                true,
            ),
            (
                "OOM command not allowed when used memory",
                Kind::Refused,
                true,
                false,
            ),
            (
                "READONLY You can't write against a read only replica.",
                Kind::Refused,
                true,
                true,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Kind::Refused,
                true,
                true,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                Kind::Refused,
                true,
                true,
            ),
            (
                "BUSY Redis is busy running a script.",
                Kind::Refused,
                true,
                true,
            ),
            ("NOAUTH Authentication required.", Kind::Denied, true, false),
            (
                "NOLOGIN the provider of credentials panicked",
                Kind::Refused,
                true,
                true,
            ),
            (
                "DENIED Redis is running in protected mode. And so on",
                Kind::Denied,
                true,
                false,
            ),
            (
                "NOPERM this user has no permissions",
                Kind::Denied,
                true,
                false,
            ),
            (
                "ERR The user executing the script can't run this command script: 1",
                Kind::Denied,
                false,
                false,
            ),
            (
                "ERR user_script:7: attempt to compare script: 1",
                Kind::Refused,
                false,
                false,
            ),
            // From Redis and Valkey.
            (
                "ERR Script attempted to access a non local key in a cluster node script: 1",
                Kind::Refused,
                false,
                true,
            ),
            (
                "ERR Attempted to access a non local key in a cluster node script: 1",
                Kind::Refused,
                false,
                true,
            ),
            ("ERR unknown command 'EVAL'", Kind::Invalid, false, false),
            // From Redis 7, Redis 6 and Valkey. The script may have written before.
            (
                "ERR Unknown Redis command called from script script: 1, on @user_script:9.",
                Kind::Invalid,
                false,
                false,
            ),
            (
                "ERR Error running script (call to f_1): @user_script:9: @user_script: 9: Unknown Redis command \
                 called from Lua script",
                Kind::Invalid,
                false,
                false,
            ),
            (
                "ERR Unknown command called from script script: 1, on @user_script:9.",
                Kind::Invalid,
                false,
                false,
            ),
            (
                "ERR This instance has cluster support disabled",
                Kind::Invalid,
                false,
                false,
            ),
            ("MOVED 7 127.0.0.1:7001", Kind::Invalid, true, false),
        ] {
            let error = crate::testing::error(line);
            assert_eq!(advice(&error).0, kind, "{line}");
            assert_eq!(was_not_executed(&error), not_executed, "{line}");
            assert_eq!(is_temporary(&error), temporary, "{line}");
        }
    }
}
