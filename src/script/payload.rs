//! The payload for `RESTORE` that makes a lock: the server's own dump of a hash with one field.
//!
//! The format is the oldest in use, which all later servers read: type 4 (a hash of plain strings), one field, the
//! count 1, the format version and a checksum. Invariant: the result equals the key that `HSET` makes. Pure.

use crc::{CRC_64_REDIS, Crc, Table};
use smallvec::SmallVec;

/// The checksum of the format. Takes sixteen bytes at a time, because every call needs one.
static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 8;

/// The type of a hash, stored field by field.
const HASH: u8 = 4;

/// Versions 2.8 to 4.0 write this format or a later one, and every later version reads it.
const FORMAT: [u8; 2] = 6u16.to_le_bytes();

/// The largest length that fits into one byte.
const HOLDER_BYTES_MAX: usize = 63;

/// Bytes before the holder: type, number of fields, length.
const BEFORE: usize = 3;

/// Bytes after the holder: length and digit of the count, format version.
const COUNT_AND_FORMAT: [u8; 4] = [1, b'1', FORMAT[0], FORMAT[1]];

/// Bytes after the holder, with the checksum.
const BEHIND: usize = COUNT_AND_FORMAT.len() + CHECKSUM_BYTES;

/// Room for the longest dump, which has 78 bytes.
const DUMP_ROOM: usize = 96;

pub(super) type Dump = SmallVec<[u8; DUMP_ROOM]>;

/// Returns the dump of a lock that this holder has once; `None` if the holder id is too long.
pub(super) fn of_one_hold(holder: &[u8]) -> Option<Dump> {
    let length = u8::try_from(holder.len()).ok()?;
    if holder.len() > HOLDER_BYTES_MAX {
        return None;
    }
    // Built in an array of fixed size, because every call builds a dump.
    let mut dump = [0; DUMP_ROOM];
    let end = BEFORE + holder.len();
    let summed = end + COUNT_AND_FORMAT.len();
    dump[..BEFORE].copy_from_slice(&[HASH, 1, length]);
    dump[BEFORE..end].copy_from_slice(holder);
    dump[end..summed].copy_from_slice(&COUNT_AND_FORMAT);
    let sum = CHECKSUM.checksum(&dump[..summed]).to_le_bytes();
    dump[summed..end + BEHIND].copy_from_slice(&sum);
    Some(Dump::from_slice(&dump[..end + BEHIND]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_as_long_as_was_planned_and_names_its_holder() {
        let holder_id = "4e3b8f2a-5c1d-4b7e-9a60-0123456789ab:7";
        let dump = of_one_hold(holder_id.as_bytes()).unwrap();
        assert_eq!(dump.len(), BEFORE + holder_id.len() + BEHIND);
        assert_eq!(dump[3..41], *holder_id.as_bytes());
        assert_eq!(dump[..3], [4, 1, 38]);
        assert_eq!(dump[41..45], [1, b'1', 6, 0]);
        assert_eq!(CHECKSUM.checksum(&dump), 0, "it ends with its own checksum");
        assert!(!of_one_hold(&[b'x'; 63]).unwrap().spilled());
        assert!(of_one_hold(&[b'x'; 64]).is_none());
    }
}
