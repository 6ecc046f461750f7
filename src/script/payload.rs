//! The payload for `RESTORE` that makes a lock: the server's own dump of a hash with one field.
//!
//! The format is the oldest in use, which all later servers read: type 4 (a hash of plain strings), one field, the
//! count 1, the format version and a checksum. Invariant: the result equals the key that `HSET` makes. Pure.

use smallvec::SmallVec;

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
const BEHIND: usize = COUNT_AND_FORMAT.len() + STRIDE;

/// Room for the longest dump, which has 78 bytes.
const DUMP_ROOM: usize = 96;

pub(super) type Dump = SmallVec<[u8; DUMP_ROOM]>;

/// The dump of a lock that this holder has once; `None` if the holder id is too long.
pub(super) fn of_one_hold(holder: &[u8]) -> Option<Dump> {
    let length = u8::try_from(holder.len()).ok()?;
    if holder.len() > HOLDER_BYTES_MAX {
        return None;
    }
    // Built in one piece, because every call does it.
    let mut dump = [0; DUMP_ROOM];
    let end = BEFORE + holder.len();
    let summed = end + COUNT_AND_FORMAT.len();
    dump[..BEFORE].copy_from_slice(&[HASH, 1, length]);
    dump[BEFORE..end].copy_from_slice(holder);
    dump[end..summed].copy_from_slice(&COUNT_AND_FORMAT);
    let sum = crc64(&dump[..summed]).to_le_bytes();
    dump[summed..end + BEHIND].copy_from_slice(&sum);
    Some(Dump::from_slice(&dump[..end + BEHIND]))
}

/// The checksum of the format: Jones' polynomial, reflected, starting at 0. Takes eight bytes at a time, because each
/// step waits for the one before.
fn crc64(bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<STRIDE>();
    let sum = eights.iter().fold(0, |sum: u64, eight| {
        let mixed = sum ^ u64::from_le_bytes(*eight);
        let mixed = mixed.to_le_bytes().into_iter().zip(TABLES.iter().rev());
        mixed.fold(0, |sum: u64, (byte, table)| sum ^ table[usize::from(byte)])
    });
    rest.iter().fold(sum, |sum: u64, byte| {
        TABLES[0][usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8)
    })
}

/// Bytes of a checksum.
const STRIDE: usize = 8;

/// The contribution of a byte to the checksum, by the number of bytes that follow it in its stride.
static TABLES: [[u64; 256]; STRIDE] = tables();

const fn tables() -> [[u64; 256]; STRIDE] {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    let mut tables = [[0; 256]; STRIDE];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (POLYNOMIAL * (sum & 1));
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut behind = 1;
    while behind < STRIDE {
        byte = 0;
        while byte < 256 {
            let sum: u64 = tables[behind - 1][byte];
            tables[behind][byte] = tables[0][(sum & 0xff) as usize] ^ (sum >> 8);
            byte += 1;
        }
        behind += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_sum_is_the_one_of_the_servers() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn however_many_bytes_at_a_time_the_sum_is_one() {
        let bytes: Vec<u8> = (0..=99).map(|byte: u8| byte.wrapping_mul(37)).collect();
        for length in 0..bytes.len() {
            let one_by_one = bytes[..length].iter().fold(0, |sum: u64, byte| {
                TABLES[0][usize::from(sum.to_le_bytes()[0] ^ byte)] ^ (sum >> 8)
            });
            assert_eq!(crc64(&bytes[..length]), one_by_one, "{length}");
        }
    }

    #[test]
    fn a_dump_is_as_long_as_was_planned_and_names_its_holder() {
        let holder_id = "4e3b8f2a-5c1d-4b7e-9a60-0123456789ab:7";
        let dump = of_one_hold(holder_id.as_bytes()).unwrap();
        assert_eq!(dump.len(), BEFORE + holder_id.len() + BEHIND);
        assert_eq!(dump[3..41], *holder_id.as_bytes());
        assert_eq!(dump[..3], [4, 1, 38]);
        assert_eq!(dump[41..45], [1, b'1', 6, 0]);
        assert_eq!(crc64(&dump), 0, "it ends with its own checksum");
        assert!(!of_one_hold(&[b'x'; 63]).unwrap().spilled());
        assert!(of_one_hold(&[b'x'; 64]).is_none());
    }
}
