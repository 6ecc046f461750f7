//! The login from the environment, put into a URL that has none.

use std::env::{self, VarError};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::failure::Failure;

/// No option, because `ps` shows command lines.
const VARIABLE: &str = "LOCKSET_PASSWORD";

/// A user of the server and its password, encoded for a URL. No `Debug`: it has the password.
pub(crate) struct Login {
    user: String,
    password: String,
}

impl Login {
    /// The login of `user`, or of the default user, if there is a password.
    pub(crate) fn from_environment(user: Option<&str>) -> Result<Option<Self>, Failure> {
        let user = user.unwrap_or_default();
        match env::var(VARIABLE) {
            Ok(password) if !password.is_empty() => Ok(Some(Self::new(user, &password))),
            Err(VarError::NotUnicode(_)) => Err(Failure::usage(format!("{VARIABLE} is not UTF-8"))),
            _ if user.is_empty() => Ok(None),
            _ => Err(Failure::usage(format!(
                "a user is named, but no password: set {VARIABLE} as well"
            ))),
        }
    }

    fn new(user: &str, password: &str) -> Self {
        let encoded = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        Self {
            user: encoded(user),
            password: encoded(password),
        }
    }

    /// The URL with this login. A URL that has a login is returned unchanged.
    pub(crate) fn put_into(&self, url: &str) -> String {
        let Self { user, password } = self;
        let Some((scheme, rest)) = url.split_once(':') else {
            return url.to_owned();
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "unix" || scheme.ends_with("+unix") {
            let (_, query) = rest.split_once('?').unwrap_or_default();
            let mut pairs = query.split('&');
            if pairs.any(|pair| pair.starts_with("user=") || pair.starts_with("pass=")) {
                return url.to_owned();
            }
            let sign = if rest.contains('?') { '&' } else { '?' };
            return format!("{url}{sign}user={user}&pass={password}");
        }
        match rest.strip_prefix("//") {
            Some(rest) if !rest.contains('@') => format!("{scheme}://{user}:{password}@{rest}"),
            _ => url.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_login_gets_one() {
        let login = Login::new("u", "p@");
        for (url, expected) in [
            ("redis://h:1/2", "redis://u:p%40@h:1/2"),
            ("rediss+cluster://a,b", "rediss+cluster://u:p%40@a,b"),
            (
                "redis+sentinel://a:1/main?sentinel_password=x",
                "redis+sentinel://u:p%40@a:1/main?sentinel_password=x",
            ),
            ("unix:///s", "unix:///s?user=u&pass=p%40"),
            ("redis+unix:/s?db=1", "redis+unix:/s?db=1&user=u&pass=p%40"),
            ("redis://v:q@h", "redis://v:q@h"),
            ("unix:///s?pass=q", "unix:///s?pass=q"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(login.put_into(url), expected);
        }
        assert_eq!(Login::new("", "p").put_into("redis://h"), "redis://:p@h");
    }
}
