//! The owner is not an `Owner`.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: me
// says: expected `&Owner`, found `u64`
#[locked("x", owner = me)]
pub async fn wrong(_locks: &Client, me: u64) -> Result<(), Failed> {
    Ok(())
}
