//! The first command of a connection, which logs in and chooses the protocol.

use redis::{Cmd, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError, ServerError, Value};

use crate::conn::error_reply::{code, is_out_of_connections, is_unknown_command};

/// The command; `None` if there is no password and the server begins with the right protocol.
pub(crate) fn greeting(settings: &RedisConnectionInfo) -> Option<Cmd> {
    let (user, password) = (settings.username(), settings.password());
    if settings.protocol() == ProtocolVersion::RESP2 {
        let mut login = redis::cmd("AUTH");
        login.arg(user).arg(password?);
        return Some(login);
    }
    let mut hello = redis::cmd("HELLO");
    hello.arg(3);
    if let Some(password) = password {
        hello
            .arg("AUTH")
            .arg(user.unwrap_or("default"))
            .arg(password);
    }
    Some(hello)
}

/// Checks its reply.
pub(crate) fn check(reply: Option<&Value>) -> Result<(), RedisError> {
    match reply {
        None | Some(Value::Okay | Value::Map(_)) => Ok(()),
        Some(Value::ServerError(no)) => Err(refusal(no)),
        Some(_) => Err(nonsense()),
    }
}

/// An error without a code of its own is about the user or the password.
fn refusal(no: &ServerError) -> RedisError {
    let error = RedisError::from(no.clone());
    let is_other = is_out_of_connections(&error) || is_unknown_command(&error);
    match error.detail() {
        Some(words) if code(&error) == Some("ERR") && !is_other => {
            let what = "authentication failed";
            (ErrorKind::AuthenticationFailed, what, words.to_owned()).into()
        }
        _ => error,
    }
}

/// The error for a reply that no server gives.
fn nonsense() -> RedisError {
    let what = "a reply that is none to this command";
    (ErrorKind::UnexpectedReturnType, what).into()
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    fn words(url: &str, protocol: ProtocolVersion) -> Option<Vec<u8>> {
        let info = url.into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_protocol(protocol);
        greeting(&settings).map(|command| {
            let words = command.args_iter().map(|word| match word {
                redis::Arg::Simple(word) => word,
                _ => b"?",
            });
            words.collect::<Vec<_>>().join(&b' ')
        })
    }

    #[test]
    fn it_logs_in_as_the_url_says() {
        use ProtocolVersion::{RESP2, RESP3};

        let cases = [
            ("redis://h", RESP2, None),
            ("redis://:pass@h", RESP2, Some("AUTH pass")),
            ("redis://user:pass@h", RESP2, Some("AUTH user pass")),
            ("redis://h", RESP3, Some("HELLO 3")),
            ("redis://:pass@h", RESP3, Some("HELLO 3 AUTH default pass")),
            ("redis://user:pass@h", RESP3, Some("HELLO 3 AUTH user pass")),
        ];
        for (url, protocol, expected) in cases {
            let expected = expected.map(|words| words.as_bytes().to_vec());
            assert_eq!(words(url, protocol), expected, "{url} {protocol:?}");
        }
    }

    #[test]
    fn a_refusal_keeps_the_words_of_the_server() {
        let refused = |line: &str| {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            check(Some(&reply)).unwrap_err()
        };
        let about_password = refused("ERR AUTH <password> called without any password configured");
        assert_eq!(about_password.kind(), ErrorKind::AuthenticationFailed);
        assert!(
            about_password
                .detail()
                .unwrap()
                .starts_with("AUTH <password>")
        );
        for (line, code) in [
            ("WRONGPASS invalid username-password pair", "WRONGPASS"),
            ("LOADING Redis is loading", "LOADING"),
            ("ERR max number of clients reached", "ERR"),
            ("ERR unknown command 'AUTH'", "ERR"),
        ] {
            assert_eq!(refused(line).code(), Some(code), "{line}");
        }
        for nonsense in [Value::Int(1), Value::Array(Vec::new()), Value::Nil] {
            assert!(check(Some(&nonsense)).is_err(), "{nonsense:?}");
        }
        assert!(check(Some(&Value::Okay)).is_ok() && check(None).is_ok());
    }
}
