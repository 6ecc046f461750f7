//! An error type in the body that does not convert is reported in the body.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: ?
// says: couldn't convert the error to `Failed`
#[locked("x")]
pub async fn wrong(_locks: &Client) -> Result<u32, Failed> {
    Ok("7".parse::<u32>()?)
}
