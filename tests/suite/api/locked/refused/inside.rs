//! The body cannot access the variables that the attribute adds.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: __lockset_guard
// says: cannot find value `__lockset_guard`
#[locked("x")]
pub async fn wrong(_locks: &Client) -> Result<String, Failed> {
    Ok(__lockset_guard.name().to_owned())
}
