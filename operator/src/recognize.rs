//! Recognizes the hashes that are locks, and their holders. Pure.
//!
//! Invariant: a hash that is shown as a lock has a lease, holders named like Redisson's, and no other field. So an
//! application's hash is never shown as a lock.

use lockset::operator::within_braces;

use crate::info::{HoldMode, LockHolder};

/// The length of a UUID.
const UUID_BYTES: usize = 36;

/// The contents of a lock's fields.
#[derive(Debug, PartialEq)]
pub(crate) struct Recognized {
    pub(crate) is_read_write: bool,
    pub(crate) holders: Vec<LockHolder>,
}

/// Returns the id of the client in a holder id, if it is one.
pub(crate) fn client_of(holder: &str) -> Option<&str> {
    let (client, rest) = holder.split_at_checked(UUID_BYTES)?;
    let is_uuid = client.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let number = rest.strip_prefix(':')?;
    let number = number.strip_prefix('-').unwrap_or(number);
    (is_uuid && number.starts_with(|c: char| c.is_ascii_digit())).then_some(client)
}

/// Returns the key whose helper key, or channel, of this library's own has this prefix; `None` if it is no such helper.
/// A second colon marks names with braces.
pub(crate) fn name_behind<'a>(prefix: &str, helper: &'a str) -> Option<&'a str> {
    let rest = helper.strip_prefix(prefix)?.strip_prefix(':')?;
    let tagged = rest.strip_prefix(':').filter(|key| key.contains('{'));
    tagged.or_else(|| within_braces(rest))
}

/// Whether a field may belong to a lock.
pub(crate) fn may_be_of_lock(field: &str) -> bool {
    field == "mode" || client_of(field).is_some()
}

/// Reads the fields of a hash with a lease; `None` if it is not a lock.
pub(crate) fn recognize(fields: &[(String, String)]) -> Option<Recognized> {
    let mode = fields.iter().find(|(field, _)| field == "mode");
    let is_read_write = mode.is_some();
    if let Some((_, mode)) = mode
        && !["read", "write"].contains(&mode.as_str())
    {
        return None;
    }
    let mut holders = Vec::new();
    for (field, count) in fields.iter().filter(|(field, _)| field != "mode") {
        client_of(field)?;
        let hold_count = count.parse().ok().filter(|count| *count > 0)?;
        let (id, mode) = match field.strip_suffix(":write") {
            Some(id) if is_read_write => (id, HoldMode::Write),
            _ if is_read_write => (field.as_str(), HoldMode::Read),
            _ => (field.as_str(), HoldMode::Exclusive),
        };
        holders.push(LockHolder {
            id: id.to_owned(),
            mode,
            hold_count,
            remaining: None,
            held_for: None,
            client: None,
        });
    }
    holders.sort_by(|a, b| a.id.cmp(&b.id));
    (!holders.is_empty()).then_some(Recognized {
        is_read_write,
        holders,
    })
}

#[cfg(test)]
mod tests {
    use lockset::operator::{HOLDS_OF_PERMITS, LockName};

    use super::*;
    use crate::barrier;

    #[test]
    fn a_helper_leads_back_to_its_key() {
        for key in ["abc", "{abc}", "a{b}c", ":{abc}", ":x:", "ключ"] {
            let name = LockName::new("", key).unwrap();
            for (prefix, helper) in [
                (HOLDS_OF_PERMITS, name.semaphore_holds_key()),
                (barrier::ARRIVALS, name.barrier_arrivals_key()),
                (barrier::CHANNEL, name.barrier_key()),
            ] {
                assert_eq!(name_behind(prefix, &helper), Some(key), "{helper}");
            }
        }
        for other in [
            "lockset_sem_holds",
            "lockset_sem_holds:x",
            "lockset_sem_holds::x",
            "lockset_sem_holds_of:{x}",
            "x",
        ] {
            assert_eq!(name_behind(HOLDS_OF_PERMITS, other), None, "{other}");
        }
    }

    const CLIENT: &str = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60";

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let pairs = pairs.iter();
        pairs
            .map(|(field, value)| (field.replace('U', CLIENT), (*value).to_owned()))
            .collect()
    }

    fn modes(pairs: &[(&str, &str)]) -> Option<Vec<(HoldMode, u32)>> {
        let holders = recognize(&fields(pairs))?.holders.into_iter();
        Some(holders.map(|h| (h.mode, h.hold_count)).collect())
    }

    #[test]
    fn locks_of_every_kind_are_recognized() {
        assert_eq!(modes(&[("U:7", "1")]), Some(vec![(HoldMode::Exclusive, 1)]));
        assert_eq!(
            modes(&[("U:-7:tx", "2")]),
            Some(vec![(HoldMode::Exclusive, 2)])
        );
        assert_eq!(
            modes(&[("mode", "read"), ("U:1", "1"), ("U:2", "3")]),
            Some(vec![(HoldMode::Read, 1), (HoldMode::Read, 3)])
        );
        // Without a mode, the field is a whole holder id.
        let plain = recognize(&fields(&[("U:1:write", "1")])).unwrap();
        assert_eq!(plain.holders[0].mode, HoldMode::Exclusive);
        assert_eq!(plain.holders[0].id, format!("{CLIENT}:1:write"));
        let both = recognize(&fields(&[
            ("mode", "write"),
            ("U:1", "1"),
            ("U:1:write", "1"),
        ]))
        .unwrap();
        assert!(both.is_read_write);
        assert_eq!(both.holders[1].mode, HoldMode::Write);
        assert_eq!(both.holders[1].id, format!("{CLIENT}:1"));
    }

    #[test]
    fn the_hashes_of_applications_are_not() {
        for foreign in [
            &[("state", "shipped")][..],
            &[("U:1", "1"), ("state", "shipped")],
            &[("U:1", "zero")],
            &[("U:1", "0")],
            &[("U", "1")],
            &[("U:x", "1")],
            &[("mode", "read")],
            &[("mode", "dark"), ("U:1", "1")],
            &[("1", "1")],
            &[],
        ] {
            assert_eq!(modes(foreign), None, "{foreign:?}");
        }
        // Ids of another length, or cut inside a character.
        assert_eq!(client_of("é".repeat(30).as_str()), None);
        assert!(may_be_of_lock("mode") && !may_be_of_lock("modes"));
    }
}
