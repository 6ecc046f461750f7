//! Commands on hashes.

use super::typed::{Draw, Fields, Outcome, hash, hash_mut, int};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

fn value<'a>(fields: Option<&'a Fields>, field: &[u8]) -> Option<&'a [u8]> {
    let found = fields?.iter().find(|(name, _)| **name == *field);
    found.map(|(_, value)| &**value)
}

fn or_nil(value: Option<&[u8]>) -> Reply {
    value.map_or(Reply::Nil, Reply::bulk)
}

pub(super) fn get(store: &mut Store, words: &Words) -> Outcome {
    Ok(or_nil(value(hash(store, words.at(1))?, words.at(2))))
}

pub(super) fn get_many(store: &mut Store, words: &Words) -> Outcome {
    let fields = hash(store, words.at(1))?;
    let values = words.from(2).map(|field| or_nil(value(fields, field)));
    Ok(Reply::Array(values.collect()))
}

fn flat<'a>(fields: impl Iterator<Item = &'a (Box<[u8]>, Box<[u8]>)>) -> Reply {
    let both = fields.flat_map(|(field, value)| [Reply::bulk(field), Reply::bulk(value)]);
    Reply::Array(both.collect())
}

pub(super) fn get_all(store: &mut Store, words: &Words) -> Outcome {
    let fields = hash(store, words.at(1))?;
    Ok(flat(fields.into_iter().flatten()))
}

pub(super) fn exists(store: &mut Store, words: &Words) -> Outcome {
    let found = value(hash(store, words.at(1))?, words.at(2));
    Ok(Reply::Int(found.is_some().into()))
}

pub(super) fn len(store: &mut Store, words: &Words) -> Outcome {
    Ok(Reply::count(hash(store, words.at(1))?.map_or(0, Vec::len)))
}

fn put(fields: &mut Fields, field: &[u8], value: &[u8]) -> bool {
    match fields.iter_mut().find(|(name, _)| **name == *field) {
        Some((_, old)) => {
            *old = value.into();
            false
        }
        None => {
            fields.push((field.into(), value.into()));
            true
        }
    }
}

pub(super) fn set(store: &mut Store, words: &Words) -> Outcome {
    if !words.len().is_multiple_of(2) {
        return Err(Reply::error(
            "ERR wrong number of arguments for 'hset' command",
        ));
    }
    let fields = hash_mut(store, words.at(1))?;
    let pairs = (2..words.len()).step_by(2);
    let added = pairs.filter(|at| put(fields, words.at(*at), words.at(at + 1)));
    Ok(Reply::count(added.count()))
}

pub(super) fn incr_by(store: &mut Store, words: &Words) -> Outcome {
    let step = int(words.at(3))?;
    let before = match value(hash(store, words.at(1))?, words.at(2)) {
        None => 0,
        Some(text) => crate::number::int(text)
            .ok_or_else(|| Reply::error("ERR hash value is not an integer"))?,
    };
    let overflow = || Reply::error("ERR increment or decrement would overflow");
    let after = before.checked_add(step).ok_or_else(overflow)?;
    let fields = hash_mut(store, words.at(1))?;
    put(fields, words.at(2), after.to_string().as_bytes());
    Ok(Reply::Int(after))
}

pub(super) fn del(store: &mut Store, words: &Words) -> Outcome {
    if hash(store, words.at(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    let fields = hash_mut(store, words.at(1))?;
    let before = fields.len();
    for field in words.from(2) {
        fields.retain(|(name, _)| **name != *field);
    }
    let removed = before - fields.len();
    store.tidy(words.at(1));
    Ok(Reply::count(removed))
}

/// `HRANDFIELD key count WITHVALUES`: some fields, in the order of the hash, as of a small one.
pub(super) fn random(store: &Store, words: &Words, draw: Draw<'_>) -> Outcome {
    let count = int(words.get(2).ok_or_else(Reply::syntax)?)?;
    let with_values = match words.get(3) {
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"WITHVALUES") => true,
        Some(_) => return Err(Reply::syntax()),
    };
    let Ok(count) = usize::try_from(count) else {
        return Err(Reply::error("ERR this server draws no field twice"));
    };
    let fields = hash(store, words.at(1))?.map_or(&[][..], Vec::as_slice);
    let mut left = count.min(fields.len());
    let mut chosen = Vec::with_capacity(left);
    for (at, field) in fields.iter().enumerate() {
        // Each of the remaining fields is equally likely.
        if left > 0 && draw(fields.len() - at) < left {
            chosen.push(field);
            left -= 1;
        }
    }
    if with_values {
        return Ok(flat(chosen.into_iter()));
    }
    let names = chosen.into_iter().map(|(field, _)| Reply::bulk(field));
    Ok(Reply::Array(names.collect()))
}
