//! The settings of a client as a part of a program's configuration.
//!
//! Invariant: no value is shown, because some are secret.

use std::ffi::OsString;
use std::fmt;

use serde::Deserialize;

use super::environment;
use crate::api::error::Result;
use crate::client::ClientBuilder;

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
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientConfig {
    url: String,
    user: String,
    password: String,
    prefix: String,
    label: String,
    lease: String,
    give_up_after: String,
}

impl ClientConfig {
    /// A builder with these settings, for further settings.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid), with the name of the setting, as
    /// [`builder_from_env`](crate::Client::builder_from_env).
    pub fn builder(&self) -> Result<ClientBuilder> {
        let read = |name: &str| {
            let mut all = self.settings().into_iter();
            let found = all.find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        environment::builder(|(_, name)| name, read)
    }

    /// The settings by their names. One that is not set is empty.
    fn settings(&self) -> [(&'static str, &str); 7] {
        [
            ("url", &self.url),
            ("user", &self.user),
            ("password", &self.password),
            ("prefix", &self.prefix),
            ("label", &self.label),
            ("lease", &self.lease),
            ("give_up_after", &self.give_up_after),
        ]
    }
}

/// The names of the settings. Values may be secret.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.settings().into_iter();
        let given = given.filter(|(_, value)| !value.is_empty());
        f.debug_set().entries(given.map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
