//! The error type does not implement `From<lockset::Error>`.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: Result<(), Other>
// says: `Other` is not made from `lockset::Error`, and acquiring a lock can fail
// says: write `impl From<lockset::Error> for Other`
pub struct Other;

#[locked("x")]
pub async fn wrong(_locks: &Client) -> Result<(), Other> {
    Ok(())
}
