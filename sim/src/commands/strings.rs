//! Commands on strings.

use super::keys::end_of;
use super::typed::{Outcome, int};
use crate::reply::Reply;
use crate::store::{Data, Store};
use crate::words::Words;

fn text<'a>(store: &'a Store, key: &[u8]) -> Result<Option<&'a [u8]>, Reply> {
    match store.get(key) {
        None => Ok(None),
        Some(Data::Text(text)) => Ok(Some(text)),
        Some(_) => Err(Reply::wrong_type()),
    }
}

pub(super) fn get(store: &mut Store, words: &Words) -> Outcome {
    Ok(text(store, words.at(1))?.map_or(Reply::Nil, Reply::bulk))
}

#[derive(Default)]
struct Options {
    if_absent: bool,
    if_there: bool,
    keeps_end: bool,
    /// In ms from now.
    life: Option<i64>,
}

fn options(words: &Words) -> Result<Options, Reply> {
    let mut options = Options::default();
    let mut at = 3;
    while let Some(word) = words.get(at) {
        at += 1;
        match &*word.to_ascii_uppercase() {
            b"NX" if !options.if_there => options.if_absent = true,
            b"XX" if !options.if_absent => options.if_there = true,
            b"KEEPTTL" if options.life.is_none() => options.keeps_end = true,
            unit @ (b"PX" | b"EX") if options.life.is_none() && !options.keeps_end => {
                let scale = if unit == b"EX" { 1000 } else { 1 };
                let span = int(words.get(at).ok_or_else(Reply::syntax)?)?;
                at += 1;
                let life = span.checked_mul(scale).filter(|life| *life > 0);
                let wrong = || Reply::error("ERR invalid expire time in 'set' command");
                options.life = Some(life.ok_or_else(wrong)?);
            }
            _ => return Err(Reply::syntax()),
        }
    }
    Ok(options)
}

pub(super) fn set(store: &mut Store, words: &Words) -> Outcome {
    let key = words.at(1);
    let options = options(words)?;
    let end = match options.life {
        Some(life) => Some(end_of(store, life, "set")?),
        None => None,
    };
    let is_there = store.get(key).is_some();
    if options.if_absent && is_there || options.if_there && !is_there {
        return Ok(Reply::Nil);
    }
    let kept = store.ends_at(key).filter(|_| options.keeps_end && is_there);
    store.set(key, Data::Text(words.at(2).into()), end.or(kept));
    Ok(Reply::OK)
}

pub(super) fn incr(store: &mut Store, words: &Words) -> Outcome {
    add(store, words.at(1), 1)
}

pub(super) fn incr_by(store: &mut Store, words: &Words) -> Outcome {
    add(store, words.at(1), int(words.at(2))?)
}

fn add(store: &mut Store, key: &[u8], more: i64) -> Outcome {
    let before = text(store, key)?.map_or(Ok(0), int)?;
    let overflow = || Reply::error("ERR increment or decrement would overflow");
    let after = before.checked_add(more).ok_or_else(overflow)?;
    let end = store.get(key).and_then(|_| store.ends_at(key));
    store.set(key, Data::Text(after.to_string().into_bytes().into()), end);
    Ok(Reply::Int(after))
}
