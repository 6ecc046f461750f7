//! `busy = skip` needs a function that returns an `Option`.

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
