//! A correct program.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

#[locked("x:{id}", wait = "5s", fenced = token, guard = g)]
pub async fn right(locks: &Client, id: u64) -> Result<u64, Failed> {
    Ok(id + token.get() + g.remaining().as_secs() + u64::from(locks.id().is_empty()))
}
