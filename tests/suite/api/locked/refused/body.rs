//! A mistake in the body is shown in the body.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: 7
// says: mismatched types
#[locked("x")]
pub async fn wrong(_locks: &Client) -> Result<u32, Failed> {
    7
}
