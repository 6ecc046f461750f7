//! The key names a field that the argument does not have.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: "x:{what.ip}"
// says: no field `ip` on type `&What`
pub struct What {
    pub id: u32,
}

#[locked("x:{what.ip}")]
pub async fn wrong(_locks: &Client, what: &What) -> Result<u32, Failed> {
    Ok(what.id)
}
