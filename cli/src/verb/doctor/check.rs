//! The result of one check of a server.

use serde::Serialize;

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One check of one server.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(super) server: String,
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    /// The advice, unless the verdict is ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

impl Check {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            server: String::new(),
            check,
            verdict: Verdict::Ok,
            found: found.into(),
            advice: None,
        }
    }

    pub(super) fn wrong(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            verdict,
            advice: Some(advice.into()),
            ..Self::ok(check, found)
        }
    }

    pub(super) fn at(self, server: &str) -> Self {
        Self {
            server: server.to_owned(),
            ..self
        }
    }
}
