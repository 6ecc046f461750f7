//! The failure of a verb: one line on standard error, and a status.

use std::fmt::{self, Display};

use lockset::{Error, ErrorKind};
use redis::RedisError;

use crate::message::complain;
use crate::status::{self, Exit};

/// The end of a verb: a status, or a failure.
pub(crate) type Outcome = Result<Exit, Failure>;

/// A status and the line that explains it.
#[derive(Debug)]
pub(crate) struct Failure {
    status: Exit,
    message: String,
    /// Advice for a person. It is printed behind the message.
    hint: Option<&'static str>,
    /// Whether the server refuses the user or the password, so that it tells nothing of rights.
    is_login_refused: bool,
}

const DOCTOR: &str = "`lockset doctor` lists the rights that are missing";

impl Failure {
    pub(crate) fn new(status: Exit, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            hint: None,
            is_login_refused: false,
        }
    }

    /// Wrong arguments, options or URL.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(status::USAGE, message)
    }

    /// A failure of this machine, such as a missing thread.
    pub(crate) fn internal(error: impl Display) -> Self {
        Self::new(status::INTERNAL, error.to_string())
    }

    /// The failure of one server, which hides nothing at the others. Any other error ends the verb.
    pub(crate) fn of_one_server(error: Error) -> Result<Self, Self> {
        match is_of_one_server(&error) {
            true => Ok(error.into()),
            false => Err(error.into()),
        }
    }

    /// Whether the arguments, the options or the URL are wrong.
    pub(crate) fn is_usage(&self) -> bool {
        self.status == status::USAGE
    }

    /// Whether the user lacks a right. One whose password is refused cannot be asked about rights.
    pub(crate) fn is_without_rights(&self) -> bool {
        self.status == status::DENIED && !self.is_login_refused
    }

    /// Whether the key holds something else than a lock.
    pub(crate) fn is_not_a_lock(&self) -> bool {
        self.status == status::NOT_A_LOCK
    }

    /// Whether the server cannot be reached, or cannot serve now.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == status::UNAVAILABLE
    }

    /// Whether a lock was lost under a command.
    pub(crate) fn is_lost(&self) -> bool {
        self.status == status::LOST
    }

    /// The status for scripts.
    pub(crate) fn status(&self) -> Exit {
        self.status
    }

    /// Writes the line, and returns the status.
    pub(crate) fn report(self) -> Exit {
        match self.hint {
            Some(hint) => complain(&format!("{self}; {hint}")),
            None => complain(&self.message),
        }
        self.status
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Denied => status::DENIED,
            ErrorKind::WrongType => status::NOT_A_LOCK,
            ErrorKind::NotHeld => status::LOST,
            ErrorKind::Quorum if error.is_wrong_type() => status::NOT_A_LOCK,
            ErrorKind::Io | ErrorKind::Refused | ErrorKind::Quorum | ErrorKind::NotReplicated => {
                status::UNAVAILABLE
            }
            ErrorKind::Invalid | ErrorKind::Upgrade => status::USAGE,
            _ => status::INTERNAL,
        };
        let is_login_refused = is_login_refused(&error);
        Self {
            hint: (status == status::DENIED && !is_login_refused).then_some(DOCTOR),
            is_login_refused,
            ..Self::new(status, error.to_string())
        }
    }
}

/// Whether a server cannot be reached, or cannot serve now.
pub(crate) fn is_of_one_server(error: &Error) -> bool {
    error.is_io() || error.is_refused()
}

fn is_login_refused(error: &Error) -> bool {
    let said = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    said.is_some_and(|said: &RedisError| {
        said.kind() == redis::ErrorKind::AuthenticationFailed
            || matches!(said.code(), Some("NOAUTH" | "WRONGPASS" | "DENIED"))
    })
}
