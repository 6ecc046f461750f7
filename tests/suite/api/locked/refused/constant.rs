//! The key names a constant that does not exist.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: "x:{PLACE}"
// says: cannot find value `PLACE`
#[locked("x:{PLACE}")]
pub async fn wrong(_locks: &Client) -> Result<(), Failed> {
    Ok(())
}
