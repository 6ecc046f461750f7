//! Commands on sorted sets.

use super::typed::{Outcome, int, members, members_mut, positions};
use crate::number;
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

fn score_reply(score: f64) -> Reply {
    Reply::Bulk(number::text(score).into_bytes())
}

/// `ZADD key [XX | GT] score member ..`, without other options.
pub(super) fn add(store: &mut Store, words: &Words) -> Outcome {
    let option = |name: &[u8]| words.at(2).eq_ignore_ascii_case(name);
    let (only_known, only_greater) = (option(b"XX"), option(b"GT"));
    let first = 2 + usize::from(only_known || only_greater);
    let count = words.len() - first;
    if count == 0 || !count.is_multiple_of(2) {
        return Err(Reply::syntax());
    }
    let pairs: Result<Vec<(f64, &[u8])>, Reply> = (first..words.len())
        .step_by(2)
        .map(|at| {
            let score = number::float(words.at(at));
            let wrong = || Reply::error("ERR value is not a valid float");
            Ok((score.ok_or_else(wrong)?, words.at(at + 1)))
        })
        .collect();
    let pairs = pairs?;
    if only_known && members(store, words.at(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    let known = members_mut(store, words.at(1))?;
    let before = known.len();
    for (score, member) in pairs {
        let is_written = match known.score(member) {
            Some(old) => !only_greater || score > old,
            None => !only_known,
        };
        if is_written {
            known.insert(score, member);
        }
    }
    Ok(Reply::count(known.len() - before))
}

pub(super) fn len(store: &mut Store, words: &Words) -> Outcome {
    let known = members(store, words.at(1))?;
    Ok(Reply::count(known.map_or(0, |known| known.len())))
}

pub(super) fn score(store: &mut Store, words: &Words) -> Outcome {
    let known = members(store, words.at(1))?;
    let score = known.and_then(|known| known.score(words.at(2)));
    Ok(score.map_or(Reply::Nil, score_reply))
}

pub(super) fn scores(store: &mut Store, words: &Words) -> Outcome {
    let known = members(store, words.at(1))?;
    let score = |member| known.and_then(|known| known.score(member));
    let scores = words
        .from(2)
        .map(|member| score(member).map_or(Reply::Nil, score_reply));
    Ok(Reply::Array(scores.collect()))
}

pub(super) fn remove(store: &mut Store, words: &Words) -> Outcome {
    if members(store, words.at(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    let known = members_mut(store, words.at(1))?;
    let removed = words.from(2).filter(|member| known.remove(member)).count();
    store.tidy(words.at(1));
    Ok(Reply::count(removed))
}

/// An end of a range of scores, and whether it is itself outside.
fn bound(word: &[u8]) -> Result<(f64, bool), Reply> {
    let (is_outside, text) = match word.strip_prefix(b"(") {
        Some(text) => (true, text),
        None => (false, word),
    };
    let score = number::float(text);
    let wrong = || Reply::error("ERR min or max is not a float");
    Ok((score.ok_or_else(wrong)?, is_outside))
}

fn within(words: &Words) -> Result<impl Fn(f64) -> bool, Reply> {
    let (least, above) = bound(words.at(2))?;
    let (most, below) = bound(words.at(3))?;
    Ok(move |score: f64| {
        let reaches = if above { score > least } else { score >= least };
        reaches && if below { score < most } else { score <= most }
    })
}

pub(super) fn count(store: &mut Store, words: &Words) -> Outcome {
    let is_meant = within(words)?;
    let known = members(store, words.at(1))?;
    let found = known.map_or(0, |known| {
        known.iter().filter(|(score, _)| is_meant(*score)).count()
    });
    Ok(Reply::count(found))
}

pub(super) fn remove_by_score(store: &mut Store, words: &Words) -> Outcome {
    let is_meant = within(words)?;
    if members(store, words.at(1))?.is_none() {
        return Ok(Reply::Int(0));
    }
    let removed = members_mut(store, words.at(1))?.remove_if(is_meant);
    store.tidy(words.at(1));
    Ok(Reply::count(removed))
}

/// `ZRANGE key start stop [WITHSCORES]`, by positions.
pub(super) fn range(store: &mut Store, words: &Words) -> Outcome {
    let with_scores = match words.get(4) {
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"WITHSCORES") => true,
        Some(_) => return Err(Reply::syntax()),
    };
    let (start, stop) = (int(words.at(2))?, int(words.at(3))?);
    let Some(known) = members(store, words.at(1))? else {
        return Ok(Reply::Array(Vec::new()));
    };
    let range = positions(start, stop, known.len());
    let mut reply = Vec::new();
    for (score, member) in known.iter().skip(range.start).take(range.len()) {
        reply.push(Reply::bulk(member));
        if with_scores {
            reply.push(score_reply(score));
        }
    }
    Ok(Reply::Array(reply))
}
