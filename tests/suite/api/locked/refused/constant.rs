//! A constant of the key is not there.

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
