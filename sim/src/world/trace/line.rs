//! One line of the history, and what stands in it.

use std::fmt;

use crate::store::Store;

/// One call.
pub(crate) struct Line {
    pub(super) step: &'static str,
    pub(super) key: String,
    pub(super) holder: String,
    pub(super) detail: String,
    /// Whether the caller was told that it has what it asked for.
    pub(super) is_granted: bool,
    pub(super) before: String,
    pub(super) after: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            key,
            holder,
            detail,
            is_granted,
            before,
            after,
        } = self;
        write!(
            f,
            "server|{step}|{key}|{holder}|{detail}|{is_granted}|{before}|{after}"
        )
    }
}

pub(super) fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

/// Whether the time of something is over that ends then, as the server sees it.
pub(super) fn is_over(ends_at: Option<i64>, keys: &Store) -> bool {
    ends_at.is_some_and(|end| keys.now_ms() > end)
}
