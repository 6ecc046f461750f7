//! Commands on keys of any type.

use super::typed::{Outcome, int};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

pub(super) fn del(store: &mut Store, words: &Words) -> Outcome {
    let removed = words.from(1).filter(|key| store.remove(key)).count();
    Ok(Reply::count(removed))
}

pub(super) fn exists(store: &mut Store, words: &Words) -> Outcome {
    let there = words.from(1).filter(|key| store.get(key).is_some()).count();
    Ok(Reply::count(there))
}

/// The end of a lease of `span` ms, if a lock may have one: as the server checks it.
pub(super) fn end_of(store: &Store, span: i64, verb: &str) -> Result<i64, Reply> {
    let end = store.now_ms().checked_add(span);
    end.ok_or_else(|| Reply::error(format!("ERR invalid expire time in '{verb}' command")))
}

pub(super) fn pexpire(store: &mut Store, words: &Words) -> Outcome {
    let key = words.at(1);
    let span = int(words.at(2))?;
    let mut is_greater = false;
    for option in words.from(3) {
        // Only the options that our scripts use.
        if !option.eq_ignore_ascii_case(b"GT") {
            return Err(Reply::error(format!(
                "ERR Unsupported option {}",
                String::from_utf8_lossy(option)
            )));
        }
        is_greater = true;
    }
    let end = end_of(store, span, "pexpire")?;
    if store.get(key).is_none() {
        return Ok(Reply::Int(0));
    }
    // A key without an end has a longer life than any.
    if is_greater && store.ends_at(key).is_none_or(|before| end <= before) {
        return Ok(Reply::Int(0));
    }
    if end <= store.now_ms() {
        store.remove(key);
    } else {
        store.set_end(key, Some(end));
    }
    Ok(Reply::Int(1))
}

pub(super) fn pttl(store: &mut Store, words: &Words) -> Outcome {
    let key = words.at(1);
    if store.get(key).is_none() {
        return Ok(Reply::Int(-2));
    }
    let end = store.ends_at(key);
    Ok(Reply::Int(
        end.map_or(-1, |end| (end - store.now_ms()).max(0)),
    ))
}

pub(super) fn persist(store: &mut Store, words: &Words) -> Outcome {
    let key = words.at(1);
    let had_end = store.get(key).is_some() && store.ends_at(key).is_some();
    if had_end {
        store.set_end(key, None);
    }
    Ok(Reply::Int(had_end.into()))
}

pub(super) fn kind(store: &mut Store, words: &Words) -> Outcome {
    let kind = store.get(words.at(1)).map_or("none", |data| data.kind());
    Ok(Reply::Status(kind))
}

/// Every key, or those with a prefix: `KEYS *` and `KEYS prefix*`.
pub(super) fn all(store: &mut Store, words: &Words) -> Outcome {
    let pattern = words.at(1);
    let Some(prefix) = pattern.strip_suffix(b"*") else {
        return Err(Reply::error(
            "ERR this server knows patterns of the form 'prefix*' alone",
        ));
    };
    let keys = store.keys();
    let keys = keys.iter().filter(|key| key.starts_with(prefix));
    Ok(Reply::Array(keys.map(|key| Reply::bulk(key)).collect()))
}

pub(super) fn count(store: &mut Store, _words: &Words) -> Outcome {
    Ok(Reply::count(store.keys().len()))
}

pub(super) fn flush(store: &mut Store, _words: &Words) -> Outcome {
    store.clear();
    Ok(Reply::OK)
}

pub(super) fn time(store: &mut Store, _words: &Words) -> Outcome {
    let now = store.now_us();
    let part = |number: u64| Reply::Bulk(number.to_string().into_bytes());
    Ok(Reply::Array(vec![
        part(now / 1_000_000),
        part(now % 1_000_000),
    ]))
}
