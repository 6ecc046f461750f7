//! The function returns an `Option`, which cannot carry an error.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: Option<u32>
// says: `#[locked]` needs a function that returns a `Result`
// says: acquiring a lock can fail
#[locked("x", busy = skip)]
pub async fn wrong(_locks: &Client) -> Option<u32> {
    Some(1)
}
