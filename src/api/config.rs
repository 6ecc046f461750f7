//! The settings of a client as a part of a program's configuration.
//!
//! Invariant: no value is shown, because some are secret.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use super::environment::{self, NAMES};
use crate::api::builder::ClientBuilder;
use crate::api::error::Result;

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
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ClientConfig(BTreeMap<&'static str, String>);

impl ClientConfig {
    /// A builder with these settings, for further settings.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid), with the name of the setting, as
    /// [`builder_from_env`](crate::Client::builder_from_env).
    pub fn builder(&self) -> Result<ClientBuilder> {
        let read = |name: &str| self.0.get(name).map(OsString::from);
        environment::builder(|(_, name)| name, read)
    }
}

/// The names of the settings. Values may be secret.
impl fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

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
        // Among the settings of a program, too.
        #[derive(Debug, serde::Deserialize)]
        struct Program {
            #[serde(flatten)]
            client: ClientConfig,
        }
        let program = serde_json::from_str::<Program>;
        let read_by_it = program(r#"{ "url": "redis://h" }"#).unwrap().client;
        assert_eq!(read_by_it, read(r#"{ "url": "redis://h" }"#).unwrap());
        let unknown = program(r#"{ "url": "redis://h", "leese": "9s" }"#).unwrap_err();
        assert!(unknown.to_string().contains("leese"), "{unknown}");
        let bad = read(r#"{ "url": "redis://h", "lease": "10" }"#).unwrap();
        let bad = bad.builder().expect_err("a time without a unit");
        assert!(bad.to_string().contains("lease"), "{bad}");
    }
}
