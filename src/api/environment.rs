//! The settings of a client from outside the code: from environment variables, or from a part of a configuration.
//!
//! Programs in containers are configured by variables. Invariants: an error names the setting and never repeats a URL, a
//! user or a password. No value of a configuration is shown, because some are secret.

#[cfg(feature = "serde")]
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
#[cfg(feature = "serde")]
use std::fmt;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::client::{Client, ClientBuilder};

const OPERATION: &str = "connect";

/// A setting: its variable, and its name in a configuration.
type Setting = (&'static str, &'static str);

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
    /// [`is_invalid`](Error::is_invalid), with the name of the variable: `LOCKSET_URL` is missing or cannot work, a user
    /// has no password, a time has no unit, or a value is not UTF-8. No message repeats the URL or the password.
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

/// The settings of a client, as a part of a program's configuration. It is read from TOML, JSON
/// and their like. With the feature `serde`.
///
/// It has the settings of [`builder_from_env`](crate::Client::builder_from_env), by the names `url`, `user`, `password`,
/// `prefix`, `label`, `lease` and `give_up_after`. All values are texts; times have units. Only `url` is required.
///
/// ```
/// let config = r#"{ "url": "redis://127.0.0.1:6379", "prefix": "shop:", "lease": "10s" }"#;
/// let config: lockset::ClientConfig = serde_json::from_str(config)?;
/// let builder = config.builder()?; // then `.build().await`
/// # drop(builder);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "serde")]
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientConfig(BTreeMap<&'static str, String>);

#[cfg(feature = "serde")]
impl ClientConfig {
    /// A builder with these settings, for further settings.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid), with the name of the setting, as
    /// [`builder_from_env`](crate::Client::builder_from_env).
    pub fn builder(&self) -> Result<ClientBuilder> {
        let read = |name: &str| self.0.get(name).map(OsString::from);
        builder(|(_, name)| name, read)
    }
}

/// The names of the settings. Values may be secret.
#[cfg(feature = "serde")]
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ClientConfig {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        struct Settings;

        impl<'de> serde::de::Visitor<'de> for Settings {
            type Value = ClientConfig;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the settings of a client")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut settings: A,
            ) -> std::result::Result<ClientConfig, A::Error> {
                use serde::de::Error;

                let mut config = ClientConfig::default();
                while let Some(name) = settings.next_key::<String>()? {
                    let known = NAMES.iter().find(|known| **known == name);
                    let known = known.ok_or_else(|| A::Error::unknown_field(&name, NAMES))?;
                    if config.0.insert(known, settings.next_value()?).is_some() {
                        return Err(A::Error::duplicate_field(known));
                    }
                }
                Ok(config)
            }
        }
        deserializer.deserialize_map(Settings)
    }
}

/// The names in a configuration.
#[cfg(feature = "serde")]
const NAMES: &[&str] = &[
    URL.1,
    USER.1,
    PASSWORD.1,
    PREFIX.1,
    LABEL.1,
    LEASE.1,
    GIVE_UP_AFTER.1,
];

/// Reads the settings by `read`. `name` chooses the name that `read` and errors go by.
fn builder(
    name: fn(Setting) -> &'static str,
    read: impl Fn(&str) -> Option<OsString>,
) -> Result<ClientBuilder> {
    let text = |setting: Setting| text(name(setting), read(name(setting)));
    let wrong = |setting: Setting, message: &str| wrong(name(setting), message);
    let span = |setting: Setting, text: &str| span(name(setting), text);
    let Some(url) = text(URL)? else {
        return Err(wrong(
            URL,
            "it is not set; set it to the server, such as redis://127.0.0.1:6379",
        ));
    };
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
        builder = builder.lease(span(LEASE, &lease)?);
    }
    if let Some(limit) = text(GIVE_UP_AFTER)? {
        builder = builder.give_up_after(span(GIVE_UP_AFTER, &limit)?);
    }
    Ok(builder)
}

fn wrong(name: &str, message: &str) -> Error {
    Error::invalid(OPERATION, message).at(name)
}

/// The value of a variable, unless it is empty.
fn text(name: &str, value: Option<OsString>) -> Result<Option<String>> {
    let value = value.map(OsString::into_string).transpose();
    let value = value.map_err(|_| wrong(name, "it is not UTF-8"))?;
    Ok(value.filter(|value| !value.is_empty()))
}

/// A time as people write it: a whole number and its unit.
fn span(name: &str, text: &str) -> Result<Duration> {
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
    Ok(Duration::from_millis(millis))
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
        let empty = of(&[(URL.0, "redis://h"), (PREFIX.0, ""), (LEASE.0, "")]);
        assert!(format!("{:?}", empty.unwrap()).contains("lease: 30s"));
    }

    #[test]
    fn an_error_names_the_variable_and_no_secret() {
        const AT: (&str, &str) = (URL.0, "redis://h");
        let cases: [(&[(&str, &str)], &str); 10] = [
            (&[], URL.0),
            (&[(URL.0, "")], URL.0),
            (&[(URL.0, "redis://u:secret@h:port")], URL.0),
            (&[(URL.0, "secret")], URL.0),
            (&[(URL.0, "unix://secret"), (PASSWORD.0, "secret")], URL.0),
            (&[AT, (USER.0, "secret")], USER.0),
            (&[AT, (LEASE.0, "10")], LEASE.0),
            (&[AT, (LEASE.0, "1.5s")], LEASE.0),
            (&[AT, (LEASE.0, "18446744073709551615h")], LEASE.0),
            (&[AT, (GIVE_UP_AFTER.0, "soon")], GIVE_UP_AFTER.0),
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

    #[cfg(feature = "serde")]
    #[test]
    fn a_configuration_has_the_settings_by_their_names() {
        let read = |text: &str| serde_json::from_str::<ClientConfig>(text);
        let config = read(
            r#"{ "url": "redis://h", "user": "u", "password": "secret", "prefix": "shop:",
                 "label": "nightly", "lease": "9s", "give_up_after": "1500ms" }"#,
        );
        let config = config.unwrap();
        assert!(!format!("{config:?}").contains("secret"), "{config:?}");
        let builder = format!("{:?}", config.builder().unwrap());
        for part in [
            "lease: 9s",
            "key_prefix: \"shop:\"",
            "give_up_after: Some(1.5s)",
        ] {
            assert!(builder.contains(part), "{part} in {builder}");
        }
        let unknown = read(r#"{ "url": "redis://h", "leese": "9s" }"#).unwrap_err();
        assert!(
            unknown.to_string().contains("unknown field `leese`"),
            "{unknown}"
        );
        let twice = read(r#"{ "url": "redis://h", "url": "redis://h" }"#).unwrap_err();
        assert!(
            twice.to_string().contains("duplicate field `url`"),
            "{twice}"
        );
        let bad = read(r#"{ "url": "redis://h", "lease": "10" }"#).unwrap();
        let bad = bad.builder().expect_err("a time without a unit");
        assert!(bad.to_string().contains("lease"), "{bad}");
    }
}
