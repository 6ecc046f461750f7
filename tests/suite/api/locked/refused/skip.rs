//! It skips, and has nothing to return then.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: Result
// says: `busy = skip` returns `Ok(None)` if the lock is held
// says: write `Result<Option<T>, E>`
#[locked("x", busy = skip)]
pub async fn wrong(_locks: &Client) -> Result<u32, Failed> {
    Ok(1)
}
