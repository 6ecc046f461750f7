//! The token is only available if the attribute names it.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: token
// says: cannot find value `token`
#[locked("x", fenced)]
pub async fn wrong(_locks: &Client) -> Result<u64, Failed> {
    Ok(token.get())
}
