//! A script that a server knows.
//!
//! Invariant: its SHA belongs to the loaded text, even if another text runs in its place.

use std::sync::Arc;

/// Changes the text of a script before it is run: for tests of the checks.
pub(crate) type Rewrite = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// A script, and what identifies its text.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) sha: Arc<str>,
    pub(super) key: Arc<str>,
    pub(super) text: Arc<str>,
}

impl Known {
    pub(super) fn new(sha: &str, text: &str, rewrite: Option<&Rewrite>) -> Self {
        let changed = rewrite
            .map(|rewrite| rewrite(text))
            .filter(|changed| changed != text);
        let sha: Arc<str> = sha.into();
        match changed {
            None => Self {
                key: Arc::clone(&sha),
                sha,
                text: text.into(),
            },
            Some(text) => Self {
                sha,
                key: sha_of(&text).into(),
                text: text.into(),
            },
        }
    }
}

pub(super) fn sha_of(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}
