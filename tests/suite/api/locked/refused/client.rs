//! The expression given as the client is not a client.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: name
// says: Client
#[locked("x", client = name)]
pub async fn wrong(name: u32) -> Result<u32, Failed> {
    Ok(name)
}
