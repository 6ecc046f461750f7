//! A client from environment variables, as programs in containers are configured.
//!
//! Invariant: an error names the setting and never repeats a URL, a user or a password.

use std::env;
use std::ffi::OsString;
use std::time::Duration;

use crate::api::builder::ClientBuilder;
use crate::api::error::{Error, Result};
use crate::api::options::{check_give_up, check_lease};
use crate::client::Client;

const OPERATION: &str = "connect";

/// A setting: its environment variable, and its name in a configuration.
pub(super) type Setting = (&'static str, &'static str);

const URL: Setting = ("LOCKSET_URL", "url");
const USER: Setting = ("LOCKSET_USER", "user");
const PASSWORD: Setting = ("LOCKSET_PASSWORD", "password");
const PREFIX: Setting = ("LOCKSET_PREFIX", "prefix");
const LABEL: Setting = ("LOCKSET_LABEL", "label");
const LEASE: Setting = ("LOCKSET_LEASE", "lease");
const GIVE_UP_AFTER: Setting = ("LOCKSET_GIVE_UP_AFTER", "give_up_after");

impl Client {
    /// Connects with the settings of the environment: [`builder_from_env`](Self::builder_from_env), then
    /// [`build`](ClientBuilder::build).
    ///
    /// # Cancel safety
    /// As for [`connect`](Self::connect).
    ///
    /// # Errors
    /// As for [`builder_from_env`](Self::builder_from_env) and [`connect`](Self::connect).
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::from_env().await?; // LOCKSET_URL=redis://127.0.0.1:6379
    /// # drop(client); Ok(()) }
    /// ```
    pub async fn from_env() -> Result<Self> {
        Self::builder_from_env()?.build().await
    }

    /// A builder with the settings of the environment, for further settings. The command line reads the first four
    /// variables too.
    ///
    /// | variable | setting |
    /// |---|---|
    /// | `LOCKSET_URL` | the server; the URLs of [`connect`](Self::connect). Required |
    /// | `LOCKSET_USER`, `LOCKSET_PASSWORD` | the login, as it is and not percent-encoded. A login in the URL goes before it |
    /// | `LOCKSET_PREFIX` | [`key_prefix`](ClientBuilder::key_prefix) |
    /// | `LOCKSET_LABEL` | [`label`](ClientBuilder::label) |
    /// | `LOCKSET_LEASE` | [`lease`](ClientBuilder::lease), with a unit: `500ms`, `10s`, `1m` |
    /// | `LOCKSET_GIVE_UP_AFTER` | [`give_up_after`](ClientBuilder::give_up_after), with a unit |
    ///
    /// An empty variable counts as unset. Certificates are not read from the environment: set them on the builder, with
    /// `tls`.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid), with the name of the variable: `LOCKSET_URL` is missing, cannot work or names
    /// several servers, a user has no password, a time has no unit or cannot work, or a value is not UTF-8. No message
    /// repeats the URL or the password.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder_from_env()?.lazy().build().await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn builder_from_env() -> Result<ClientBuilder> {
        builder(|(variable, _)| variable, |name| env::var_os(name))
    }
}

/// The names in a configuration.
#[cfg(feature = "serde")]
pub(super) const NAMES: &[&str] = &[
    URL.1,
    USER.1,
    PASSWORD.1,
    PREFIX.1,
    LABEL.1,
    LEASE.1,
    GIVE_UP_AFTER.1,
];

/// Makes a builder with the settings that `read` returns. `name` chooses which name of a setting `read` and errors use.
pub(super) fn builder(
    name: fn(Setting) -> &'static str,
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<ClientBuilder> {
    let text = |setting: Setting| text(name(setting), read(name(setting)));
    let wrong = |setting: Setting, message: &str| wrong(name(setting), message);
    let span = |setting: Setting, text: &str, check| span(name(setting), text, check);
    let Some(url) = text(URL)? else {
        return Err(wrong(
            URL,
            "it is not set; set it to the server, such as redis://127.0.0.1:6379",
        ));
    };
    // A password in the query may have any sign.
    let before_query = url.split('?').next();
    if before_query.is_some_and(|url| url.matches("://").count() > 1) {
        let message = "it names several servers; make a `Redlock` of a client for each";
        return Err(wrong(URL, message));
    }
    let mut builder = Client::builder(&url);
    match (text(USER)?, text(PASSWORD)?) {
        (user, Some(password)) => builder = builder.login(user, password),
        (Some(_), None) => {
            let password = name(PASSWORD);
            let message = format!("it names a user without a password; set {password} as well");
            return Err(wrong(USER, &message));
        }
        (None, None) => {}
    }
    builder.check_url().map_err(|error| error.at(name(URL)))?;
    if let Some(prefix) = text(PREFIX)? {
        builder = builder.key_prefix(&prefix);
    }
    if let Some(label) = text(LABEL)? {
        builder = builder.label(&label);
    }
    if let Some(lease) = text(LEASE)? {
        builder = builder.lease(span(LEASE, &lease, check_lease)?);
    }
    if let Some(limit) = text(GIVE_UP_AFTER)? {
        builder = builder.give_up_after(span(GIVE_UP_AFTER, &limit, check_give_up)?);
    }
    Ok(builder)
}

fn wrong(name: &str, message: &str) -> Error {
    Error::invalid(OPERATION, message).at(name)
}

/// Returns the value of a variable, unless it is empty.
fn text(name: &str, value: Option<OsString>) -> Result<Option<String>> {
    let value = value.map(OsString::into_string).transpose();
    let value = value.map_err(|_| wrong(name, "it is not UTF-8"))?;
    Ok(value.filter(|value| !value.is_empty()))
}

/// Parses a time as people write it, a whole number and its unit, and checks it.
fn span(name: &str, text: &str, check: fn(Duration) -> Result<()>) -> Result<Duration> {
    let text = text.trim();
    let unit_at = text.find(|sign: char| !sign.is_ascii_digit());
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let millis = match unit.trim() {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let millis = millis.zip(number).and_then(|(unit, n)| n.checked_mul(unit));
    let millis = millis.ok_or_else(|| {
        let message = format!("{text:?} is no time; write a whole number and ms, s, m or h: 10s");
        wrong(name, &message)
    })?;
    let span = Duration::from_millis(millis);
    check(span).map_err(|error| error.during(OPERATION).at(name))?;
    Ok(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<ClientBuilder> {
        let read = |name: &str| {
            let mut all = variables.iter();
            let found = all.find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        builder(|(variable, _)| variable, read)
    }

    #[test]
    fn every_setting_is_read() {
        let builder = of(&[
            (URL.0, "redis://h"),
            (USER.0, "u"),
            (PASSWORD.0, "secret"),
            (PREFIX.0, "shop:"),
            (LABEL.0, "nightly"),
            (LEASE.0, "9s"),
            (GIVE_UP_AFTER.0, "1500ms"),
        ]);
        let shown = format!("{:?}", builder.unwrap());
        for part in [
            "lease: 9s",
            "key_prefix: \"shop:\"",
            "label: \"nightly\"",
            "give_up_after: Some(1.5s)",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert!(!shown.contains("secret"), "{shown}");
        let empty = of(&[
            (URL.0, "unix:///h?user=u&pass=a ://b"),
            (PREFIX.0, ""),
            (LEASE.0, ""),
        ]);
        assert!(format!("{:?}", empty.unwrap()).contains("lease: 30s"));
    }

    #[test]
    fn an_error_names_the_variable_and_no_secret() {
        const AT: (&str, &str) = (URL.0, "redis://h");
        let cases: [(&[(&str, &str)], &str); 13] = [
            (&[], URL.0),
            (&[(URL.0, "")], URL.0),
            (&[(URL.0, "redis://u:secret@h:port")], URL.0),
            (&[(URL.0, "secret")], URL.0),
            (&[(URL.0, "unix://secret"), (PASSWORD.0, "secret")], URL.0),
            (&[AT, (USER.0, "secret")], USER.0),
            (&[AT, (LEASE.0, "10")], LEASE.0),
            (&[AT, (LEASE.0, "1.5s")], LEASE.0),
            (&[AT, (LEASE.0, "18446744073709551615h")], LEASE.0),
            (&[AT, (LEASE.0, "10ms")], LEASE.0),
            (&[AT, (GIVE_UP_AFTER.0, "soon")], GIVE_UP_AFTER.0),
            (&[AT, (GIVE_UP_AFTER.0, "0s")], GIVE_UP_AFTER.0),
            (&[(URL.0, "redis://secret redis://b")], "several servers"),
        ];
        for (variables, name) in cases {
            let error = of(variables).expect_err(name);
            assert!(error.is_invalid(), "{error}");
            let message = format!("{error} {error:?}");
            assert!(message.contains(name), "{name} in {message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let read = |name: &str| (name == URL.0).then(|| OsString::from_vec(vec![0xff]));
        let error = builder(|(variable, _)| variable, read).unwrap_err();
        assert!(error.to_string().contains(URL.0));
    }
}
