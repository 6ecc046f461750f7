//! Reads the replies of a server as the expected types. Values of other types count as nothing. Pure.

use redis::Value;

use crate::conn::value::text;

pub(super) fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}

/// Reads a number, also a score, which is a text in one protocol and a number in the other.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Double(number) => Some(*number),
        other => text(other)?.parse().ok(),
    }
}

pub(super) fn list(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        _ => &[],
    }
}

/// Returns the values that are text: keys and fields of others need not be.
pub(super) fn texts(value: &Value) -> Vec<String> {
    let texts = list(value).iter().filter_map(text);
    texts.map(str::to_owned).collect()
}

/// Returns pairs, from a list or from a map; `None` if one of them is not text.
pub(super) fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    let pair = |a: &Value, b: &Value| Some((text(a)?.to_owned(), text(b)?.to_owned()));
    match value {
        Value::Map(map) => map.iter().map(|(a, b)| pair(a, b)).collect(),
        other => {
            let flat = list(other).chunks_exact(2);
            flat.map(|two| pair(&two[0], &two[1])).collect()
        }
    }
}

/// Returns members with their scores, flat or in pairs.
pub(super) fn scored(value: &Value) -> Vec<(String, f64)> {
    let values = list(value);
    let read = |a: &Value, b: &Value| Some((text(a)?.to_owned(), number(b)?));
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
pub(super) fn counted(value: &Value) -> Vec<(String, u64)> {
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
