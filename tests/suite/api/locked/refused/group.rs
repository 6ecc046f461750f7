//! The group is not a string.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

const ORDERS: u64 = 7;

// at: ORDERS
// says: expected `&str`, found `u64`
#[locked("x", group = ORDERS)]
pub async fn wrong(_locks: &Client) -> Result<(), Failed> {
    Ok(())
}
