//! There is no client: the attribute has none, no argument is one, and `self` has none.

use lockset::{Client, locked};

pub struct Failed;

impl From<lockset::Error> for Failed {
    fn from(_: lockset::Error) -> Self {
        Self
    }
}

// at: self
// says: no client for this method: `Shop` has none
// says: `client = EXPR` in the attribute, like `client = self.locks`
// says: an argument of type `&lockset::Client`
// says: `impl AsRef<lockset::Client> for Shop`
pub struct Shop;

impl Shop {
    #[locked("x")]
    pub async fn wrong(&self) -> Result<(), Failed> {
        Ok(())
    }
}
