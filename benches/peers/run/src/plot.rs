//! The plots.

use crate::results::Results;

/// Name of the file and what is in it.
pub(crate) fn all(_: &Results) -> Vec<(&'static str, String)> {
    Vec::new()
}
