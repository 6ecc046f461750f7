//! The value for a held lock is neither the error nor the whole result of the function.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: Result
// says: `busy = ..` is the error of the function, or all that it returns
#[locked("x", busy = "held")]
pub async fn wrong(_locks: &Client) -> Result<u32, Failed> {
    Ok(1)
}
