//! A value in the key does not implement `Display`.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: "x:{what}"
// says: doesn't implement `std::fmt::Display`
#[locked("x:{what}")]
pub async fn wrong(_locks: &Client, what: Failed) -> Result<(), Failed> {
    drop(what);
    Ok(())
}
