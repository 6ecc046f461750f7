//! Slots of a cluster: which a key has, and which keys a command names. Pure.

use crate::words::Words;

pub(crate) const SLOTS: u16 = 16_384;

/// The slot of the text between its first `{` and the next `}`, if there is any, or of the whole key.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum: u16, _| {
            let shifted = sum << 1;
            if sum >> 15 == 1 {
                shifted ^ 0x1021
            } else {
                shifted
            }
        })
    })
}

/// The keys by whose slot a node judges a command: sharded channels are such keys too.
pub(crate) fn keys_of<'a>(verb: &[u8], words: &'a Words) -> Vec<&'a [u8]> {
    match verb {
        b"EVAL" | b"EVALSHA" => {
            let count = words.get(2).and_then(crate::number::int).unwrap_or(0);
            let count = usize::try_from(count).unwrap_or(0);
            words.from(3).take(count).collect()
        }
        b"DEL" | b"UNLINK" | b"EXISTS" | b"SSUBSCRIBE" | b"SUNSUBSCRIBE" => words.from(1).collect(),
        b"SPUBLISH" => words.get(1).into_iter().collect(),
        b"KEYS" | b"DBSIZE" | b"FLUSHALL" | b"FLUSHDB" | b"TIME" => Vec::new(),
        verb if crate::commands::Command::named(verb).is_some() => {
            words.get(1).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12_182);
        assert_eq!(slot_of(b"{foo}.bar"), slot_of(b"foo"));
        assert_ne!(slot_of(b"{}foo"), slot_of(b""));
    }
}
