//! `RESTORE key ttl payload`: a small hash from its serialized form.
//!
//! The server accepts many encodings; this one takes the oldest, a plain hash of short strings, which a
//! client can write without knowing more of the server than its name.

use super::typed::{Outcome, int};
use crate::reply::Reply;
use crate::store::{Data, Store};
use crate::words::Words;

const HASH: u8 = 4;

/// Version and checksum.
const FOOTER: usize = 10;

/// The newest version whose payloads are accepted.
const VERSION_MAX: u16 = 10;

/// The polynomial of Jones, its bits in reverse.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u64::from(*byte), |sum: u64, _| {
            if sum & 1 == 1 {
                sum >> 1 ^ POLYNOMIAL
            } else {
                sum >> 1
            }
        })
    })
}

/// The content, if version and checksum fit.
fn checked(payload: &[u8]) -> Option<&[u8]> {
    let (body, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER)?)?;
    let version = u16::from_le_bytes(footer[..2].try_into().ok()?);
    let sum = u64::from_le_bytes(footer[2..].try_into().ok()?);
    let is_intact = checksum(&payload[..payload.len() - 8]) == sum;
    (version <= VERSION_MAX && is_intact).then_some(body)
}

/// A length of 6 or 14 bits, or a string that has such a length.
fn length(bytes: &mut &[u8]) -> Option<usize> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    match first >> 6 {
        0 => Some(usize::from(*first)),
        1 => {
            let (second, rest) = bytes.split_first()?;
            *bytes = rest;
            Some(usize::from(first & 0x3f) << 8 | usize::from(*second))
        }
        _ => None,
    }
}

fn string(bytes: &mut &[u8]) -> Option<Box<[u8]>> {
    // A number of one byte, which the server writes for short numbers.
    if let [0xc0, number, rest @ ..] = *bytes {
        *bytes = rest;
        return Some(i8::from_le_bytes([*number]).to_string().into_bytes().into());
    }
    let len = length(bytes)?;
    let (text, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(text.into())
}

fn hash(body: &[u8]) -> Option<Data> {
    let (HASH, mut rest) = body.split_first().map(|(kind, rest)| (*kind, rest))? else {
        return None;
    };
    let count = length(&mut rest)?;
    let fields: Option<Vec<_>> = (0..count)
        .map(|_| Some((string(&mut rest)?, string(&mut rest)?)))
        .collect();
    let fields = fields.filter(|fields| !fields.is_empty() && rest.is_empty())?;
    Some(Data::Hash(fields))
}

pub(super) fn restore(store: &mut Store, words: &Words) -> Outcome {
    let (key, life) = (words.at(1), int(words.at(2))?);
    let replaces = match words.get(4).map(<[u8]>::to_ascii_uppercase) {
        None => false,
        Some(word) if word == b"REPLACE" => true,
        Some(_) => return Err(Reply::syntax()),
    };
    if !replaces && store.get(key).is_some() {
        return Err(Reply::error("BUSYKEY Target key name already exists."));
    }
    if life < 0 {
        return Err(Reply::error("ERR Invalid TTL value, must be >= 0"));
    }
    let wrong = || Reply::error("ERR DUMP payload version or checksum are wrong");
    let body = checked(words.at(3)).ok_or_else(wrong)?;
    let data = hash(body).ok_or_else(|| Reply::error("ERR Bad data format"))?;
    let end = (life > 0).then(|| store.now_ms().saturating_add(life));
    store.set(key, data, end);
    Ok(Reply::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_server() {
        assert_eq!(checksum(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }
}
