//! What a server knows a hold by.

use std::fmt::{self, Debug};
use std::io::Write;
use std::ops::Deref;

/// A UUID, a colon and the longest number have 57.
const BYTES_MAX: usize = 63;

/// A holder id: Redisson's `uuid:number`. A value, as there is a new one for each hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct HolderId {
    bytes: [u8; BYTES_MAX],
    length: u8,
}

impl HolderId {
    /// The hold of this client with this number.
    ///
    /// # Panics
    /// If the id of the client is longer than 42 bytes.
    pub(crate) fn new(client: &str, number: u64) -> Self {
        let mut bytes = [0; BYTES_MAX];
        let mut room = &mut bytes[..];
        write!(room, "{client}:{number}").expect("the id of a client is a UUID");
        let length = BYTES_MAX - room.len();
        Self {
            bytes,
            length: u8::try_from(length).expect("a length below 64"),
        }
    }
}

impl Deref for HolderId {
    type Target = str;

    fn deref(&self) -> &str {
        let text = str::from_utf8(&self.bytes[..usize::from(self.length)]);
        text.expect("it was made of text")
    }
}

impl Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_redisson_writes_it() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let client = "6f2a5b0e-6f0f-4f0e-9b7e-2f1c6e5a9d10";
            assert_eq!(
                &*HolderId::new(client, number),
                format!("{client}:{number}")
            );
        }
    }
}
