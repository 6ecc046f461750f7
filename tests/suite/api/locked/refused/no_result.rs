//! The function does not return a `Result`.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: String
// says: `#[locked]` needs a function that returns a `Result`, and this one returns `String`
// says: write `Result<String, E>`, where `E: From<lockset::Error>`
#[locked("x")]
pub async fn wrong(_locks: &Client) -> String {
    String::new()
}
