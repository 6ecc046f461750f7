//! Questions to many keys, and their replies as the expected types. A value of another type counts as nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use lockset::Result;
pub(crate) use lockset::operator::command;
use lockset::operator::{Servers, text};
use redis::{Cmd, Value};

/// The most commands under way at once: a slice of a scan must not hold up other commands.
const TOGETHER_MAX: usize = 256;

/// A command, and a key of the server that has to answer it.
pub(crate) type Question = (Arc<str>, Cmd);

/// Asks all questions, right behind each other. The answers are in the order of the questions.
pub(crate) async fn ask_all(servers: &Servers, questions: &[Question]) -> Vec<Result<Value>> {
    let mut answers = Vec::with_capacity(questions.len());
    for some in questions.chunks(TOGETHER_MAX) {
        let asked = some
            .iter()
            .map(|(route, command)| servers.ask(route, command));
        answers.extend(join_all(asked).await);
    }
    answers
}

pub(crate) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}

/// Reads a number, also a score, which is a text in one protocol and a number in the other.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}

pub(crate) fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        _ => &[],
    }
}

/// Returns a server's time, the reply to `TIME`, in microseconds.
pub(crate) fn microseconds(time: &Value) -> i64 {
    let part = |at: usize| list(time).get(at).and_then(integer).unwrap_or_default();
    part(0).saturating_mul(1_000_000).saturating_add(part(1))
}

/// Returns it in milliseconds, to compare it with scores.
pub(crate) fn milliseconds(time: &Value) -> f64 {
    (microseconds(time) / 1000) as f64
}

/// Returns the span between two scores. A score may be any number, because others can write it.
pub(crate) fn span_of(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms.max(0.0) / 1000.0).unwrap_or(Duration::MAX)
}

/// Returns the values that are text: keys and fields of others need not be.
pub(crate) fn texts(value: &Value) -> Vec<String> {
    let texts = list(value).iter().filter_map(text);
    texts.map(str::to_owned).collect()
}

/// Returns pairs, from a list or from a map; `None` if one of them is not text.
pub(crate) fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    let pair = |a: &Value, b: &Value| Some((text(a)?.to_owned(), text(b)?.to_owned()));
    match value {
        Value::Map(map) => map.iter().map(|(a, b)| pair(a, b)).collect(),
        other => {
            let flat = list(other).chunks_exact(2);
            flat.map(|two| pair(&two[0], &two[1])).collect()
        }
    }
}

/// Returns members that are text with their scores, flat or in pairs.
pub(crate) fn scored(value: &Value) -> Vec<(String, f64)> {
    scored_as(value, |member| text(member).map(str::to_owned))
}

/// Returns members with their scores, without those that are not read.
pub(crate) fn scored_as(
    value: &Value,
    member: impl Fn(&Value) -> Option<String>,
) -> Vec<(String, f64)> {
    let values = list(value);
    let read = |a: &Value, b: &Value| Some((member(a)?, number(b)?));
    if values.iter().any(|value| matches!(value, Value::Array(_))) {
        let two = values.iter().map(list);
        return two
            .filter_map(|two| read(two.first()?, two.get(1)?))
            .collect();
    }
    let flat = values.chunks_exact(2);
    flat.filter_map(|two| read(&two[0], &two[1])).collect()
}

/// Returns names with counts, as `PUBSUB NUMSUB` replies.
pub(crate) fn counted(value: &Value) -> Vec<(String, u64)> {
    let count = |value: &Value| u64::try_from(integer(value)?).ok();
    match value {
        Value::Map(map) => map
            .iter()
            .filter_map(|(name, number)| Some((text(name)?.to_owned(), count(number)?)))
            .collect(),
        other => list(other)
            .chunks_exact(2)
            .filter_map(|two| Some((text(&two[0])?.to_owned(), count(&two[1])?)))
            .collect(),
    }
}
