//! Logins from a provider, which is asked for each connection, because tokens expire and passwords are replaced.
//!
//! Invariants: no password is shown. No failure of a provider is final, nor is a login that the server rejects: the next
//! connection asks again. A provider that hangs or panics fails one attempt to connect.

use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{ErrorKind, RedisConnectionInfo, RedisError};

use super::error_reply::{code, describe, no_login};
use crate::engine::clock::Clock;

/// A user with a password, or with a token in its place: the login of one connection, from a provider that
/// [`ClientBuilder::credentials`](crate::ClientBuilder::credentials) sets. `Debug` does not show the password.
#[derive(Clone)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// The login of this user. A server that has only a password, and no users, calls its user `default`.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        let (user, password) = (user.into(), password.into());
        Self { user, password }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Credentials");
        shown.field("user", &self.user).finish_non_exhaustive()
    }
}

/// The answer of a provider.
type Given = Result<Credentials, Box<dyn StdError + Send + Sync>>;

type Provide = dyn Fn() -> BoxFuture<'static, Given> + Send + Sync;

/// The provider of credentials, if the program has set one.
#[derive(Clone, Default)]
pub(crate) struct Provider(Option<Arc<Provide>>);

impl Provider {
    pub(crate) fn of<F>(provide: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Given> + Send + 'static,
    {
        Self(Some(Arc::new(move || provide().boxed())))
    }

    /// Returns the settings of one connection: with a login of the provider if there is one, otherwise with the URL's.
    pub(super) async fn settings(
        &self,
        of_url: &RedisConnectionInfo,
        clock: Clock,
        limit: Duration,
    ) -> Result<RedisConnectionInfo, RedisError> {
        let settings = of_url.clone();
        let Some(provide) = &self.0 else {
            return Ok(settings);
        };
        let asked = AssertUnwindSafe(async { provide().await }).catch_unwind();
        let why = match clock.within(limit, asked).await {
            Some(Ok(Ok(Credentials { user, password }))) => {
                return Ok(settings.set_username(user).set_password(password));
            }
            Some(Ok(Err(error))) => format!("failed: {}", with_causes(&*error)),
            Some(Err(_)) => "panicked".to_owned(),
            None => format!("gave none within {limit:?}"),
        };
        Err(no_login(format!("the provider of credentials {why}")))
    }

    /// Converts the error of a handshake. If the server rejected the login, the error is final only without a provider.
    pub(super) fn judged(&self, error: RedisError) -> RedisError {
        let is_about_login = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(code(&error), Some("WRONGPASS"));
        if self.0.is_some() && is_about_login {
            return no_login(describe(&error, ""));
        }
        error
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Provider").field(&self.0.is_some()).finish()
    }
}

/// Returns the text of an error with the texts of its causes in one line, each once.
fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said += &format!(": {more}");
        }
        cause = error.source();
    }
    said.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_is_told_with_its_causes_in_one_line() {
        let inside = || io::Error::other("the vault\nis sealed");
        let outside = Outside(inside());
        assert_eq!(with_causes(&outside), "no password: the vault is sealed");
        // This error has the same text as its cause.
        assert_eq!(
            with_causes(&io::Error::other(inside())),
            "the vault is sealed"
        );
    }

    #[derive(Debug)]
    struct Outside(io::Error);

    impl fmt::Display for Outside {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("no password")
        }
    }

    impl StdError for Outside {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn no_password_is_shown() {
        let given = Credentials::new("locker", "s3cret");
        let shown = format!("{given:?}");
        assert!(
            shown.contains("locker") && !shown.contains("s3cret"),
            "{shown}"
        );
    }
}
