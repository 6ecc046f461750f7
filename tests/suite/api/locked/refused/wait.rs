//! A computed wait is not a `Duration`.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: seconds
// says: expected `Duration`, found `u64`
#[locked("x", wait = seconds)]
pub async fn wrong(_locks: &Client, seconds: u64) -> Result<(), Failed> {
    Ok(())
}
