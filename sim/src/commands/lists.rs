//! Commands on lists.

use super::typed::{Outcome, int, list, list_mut, positions};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

pub(super) fn index(store: &mut Store, words: &Words) -> Outcome {
    let items = list(store, words.at(1))?;
    let Some(items) = items else {
        return Ok(Reply::Nil);
    };
    let at = int(words.at(2))?;
    let at = if at < 0 {
        at + i64::try_from(items.len()).unwrap_or(i64::MAX)
    } else {
        at
    };
    let item = usize::try_from(at).ok().and_then(|at| items.get(at));
    Ok(item.map_or(Reply::Nil, |item| Reply::bulk(item)))
}

pub(super) fn len(store: &mut Store, words: &Words) -> Outcome {
    Ok(Reply::count(
        list(store, words.at(1))?.map_or(0, |items| items.len()),
    ))
}

pub(super) fn pop(store: &mut Store, words: &Words) -> Outcome {
    if list(store, words.at(1))?.is_none() {
        return Ok(Reply::Nil);
    }
    let first = list_mut(store, words.at(1))?.pop_front();
    store.tidy(words.at(1));
    Ok(first.map_or(Reply::Nil, |item| Reply::bulk(&item)))
}

/// With the bound `MAXLEN` or without; 0 is none.
pub(super) fn position(store: &mut Store, words: &Words) -> Outcome {
    let most = match (words.len(), words.get(3)) {
        (3, _) => 0,
        (5, Some(option)) if option.eq_ignore_ascii_case(b"MAXLEN") => int(words.at(4))?,
        _ => return Err(Reply::syntax()),
    };
    let most = match usize::try_from(most) {
        Ok(0) => usize::MAX,
        Ok(most) => most,
        Err(_) => return Err(Reply::error("ERR MAXLEN can't be negative")),
    };
    let items = list(store, words.at(1))?.into_iter().flatten();
    let at = items.take(most).position(|item| **item == *words.at(2));
    Ok(at.map_or(Reply::Nil, Reply::count))
}

pub(super) fn range(store: &mut Store, words: &Words) -> Outcome {
    let (start, stop) = (int(words.at(2))?, int(words.at(3))?);
    let Some(items) = list(store, words.at(1))? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let items = items.range(positions(start, stop, items.len()));
    Ok(Reply::Array(items.map(|item| Reply::bulk(item)).collect()))
}

/// The first `count` of them, the last if it is negative, all if it is 0.
pub(super) fn remove(store: &mut Store, words: &Words) -> Outcome {
    let count = int(words.at(2))?;
    if list(store, words.at(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    let items = list_mut(store, words.at(1))?;
    let most = match usize::try_from(count.unsigned_abs()) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(most) => most,
    };
    let mut found: Vec<usize> = (0..items.len())
        .filter(|at| *items[*at] == *words.at(3))
        .collect();
    if count < 0 {
        found.reverse();
    }
    found.truncate(most);
    found.sort_unstable();
    for at in found.iter().rev() {
        items.remove(*at);
    }
    store.tidy(words.at(1));
    Ok(Reply::count(found.len()))
}

pub(super) fn push(store: &mut Store, words: &Words) -> Outcome {
    let items = list_mut(store, words.at(1))?;
    items.extend(words.from(2).map(Into::into));
    Ok(Reply::count(items.len()))
}

pub(super) fn push_front(store: &mut Store, words: &Words) -> Outcome {
    let items = list_mut(store, words.at(1))?;
    words.from(2).for_each(|item| items.push_front(item.into()));
    Ok(Reply::count(items.len()))
}
