//! From raw replies to typed ones: the only place that knows status codes.

use std::time::Duration;

use redis::Value;

use crate::error::{Error, Kind};
use crate::fencing::FencingToken;

const DONE: i64 = 1;
const ELSEWHERE: i64 = 0;
const NOT_HELD: i64 = 0;
const NO_SUCH_HOLD: i64 = -1;

/// What an attempt to take or to re-enter a lock was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    Held {
        token: Option<FencingToken>,
    },
    /// Held by somebody else, for at most this long; `None` if its lease has no end.
    Elsewhere {
        remaining: Option<Duration>,
    },
    /// The hold that was to be re-entered does not exist any more.
    NoSuchHold,
}

/// What an attempt to lower a hold count was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Done; `told` connections heard that the lock is free, as far as the server knows.
    Done {
        told: u64,
    },
    NotHeld,
}

/// Who holds a lock, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) holder: String,
    pub(crate) hold_count: u32,
    pub(crate) remaining: Option<Duration>,
}

pub(crate) fn acquired(value: &Value) -> Result<Acquired, Error> {
    let items = array(value)?;
    match (int(items.first())?, items.get(1)) {
        (DONE, token) => Ok(Acquired::Held {
            token: text(token)
                .filter(|token| !token.is_empty())
                .map(|token| token.parse().map(FencingToken::new))
                .transpose()
                .map_err(|_| unreadable(value))?,
        }),
        (ELSEWHERE, remaining) => Ok(Acquired::Elsewhere {
            remaining: span(int(remaining)?),
        }),
        (NO_SUCH_HOLD, _) => Ok(Acquired::NoSuchHold),
        _ => Err(unreadable(value)),
    }
}

pub(crate) fn released(value: &Value) -> Result<Released, Error> {
    let items = array(value)?;
    match int(items.first())? {
        DONE => Ok(Released::Done {
            told: u64::try_from(int(items.get(1))?).unwrap_or(0),
        }),
        NOT_HELD => Ok(Released::NotHeld),
        _ => Err(unreadable(value)),
    }
}

pub(crate) fn inspected(value: &Value) -> Result<Option<Inspected>, Error> {
    let items = array(value)?;
    if items.is_empty() {
        return Ok(None);
    }
    let (Some(holder), Some(count)) = (text(items.first()), text(items.get(1))) else {
        return Err(unreadable(value));
    };
    let Ok(hold_count) = count.parse() else {
        return Err(Error::new(
            Kind::WrongType,
            "reply",
            "the key of this lock holds a hash that is not a lock of this kind, which was not \
             touched: choose another name",
        ));
    };
    Ok(Some(Inspected {
        holder: holder.to_owned(),
        hold_count,
        remaining: span(int(items.get(2))?),
    }))
}

/// One entry for each hold of a batch: whether it was renewed.
pub(crate) fn renewed(value: &Value, holds: usize) -> Result<Vec<bool>, Error> {
    let items = array(value)?;
    if items.len() != holds {
        return Err(unreadable(value));
    }
    items
        .iter()
        .map(|item| int(Some(item)).map(|status| status == DONE))
        .collect()
}

pub(crate) fn flag(value: &Value) -> Result<bool, Error> {
    int(Some(value)).map(|status| status == DONE)
}

/// A PTTL: negative means that there is no end.
fn span(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn array(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(unreadable(other)),
    }
}

fn int(value: Option<&Value>) -> Result<i64, Error> {
    match value {
        Some(Value::Int(number)) => Ok(*number),
        other => Err(unreadable(other.unwrap_or(&Value::Nil))),
    }
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
        Some(Value::SimpleString(text)) => Some(text),
        _ => None,
    }
}

fn unreadable(value: &Value) -> Error {
    Error::new(
        Kind::Refused,
        "reply",
        format!("a script answered what it never should: {value:?}; is a proxy changing replies?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: &[Value]) -> Value {
        Value::Array(items.to_vec())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn acquire_replies() {
        let granted = |token| Ok::<_, ()>(Acquired::Held { token });
        let read = |value: &Value| acquired(value).map_err(drop);
        assert_eq!(read(&list(&[Value::Int(1), bulk("")])), granted(None));
        assert_eq!(
            read(&list(&[Value::Int(1), bulk("9007199254740991")])),
            granted(Some(FencingToken::new(9_007_199_254_740_991)))
        );
        assert_eq!(
            read(&list(&[Value::Int(0), Value::Int(29_999)])),
            Ok(Acquired::Elsewhere {
                remaining: Some(Duration::from_millis(29_999))
            })
        );
        assert_eq!(
            read(&list(&[Value::Int(0), Value::Int(-1)])),
            Ok(Acquired::Elsewhere { remaining: None })
        );
        assert_eq!(read(&list(&[Value::Int(-1)])), Ok(Acquired::NoSuchHold));
        for bad in [Value::Nil, list(&[]), list(&[Value::Int(7)]), bulk("1")] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn release_and_renew_replies() {
        let done = released(&list(&[Value::Int(1), Value::Int(3)])).unwrap();
        assert_eq!(done, Released::Done { told: 3 });
        let untold = released(&list(&[Value::Int(1), Value::Int(-1)])).unwrap();
        assert_eq!(untold, Released::Done { told: 0 });
        assert_eq!(
            released(&list(&[Value::Int(0)])).unwrap(),
            Released::NotHeld
        );
        assert_eq!(
            renewed(&list(&[Value::Int(1), Value::Int(0)]), 2).unwrap(),
            [true, false]
        );
        assert!(renewed(&list(&[Value::Int(1)]), 2).is_err());
    }

    #[test]
    fn a_foreign_hash_is_told_from_a_lock() {
        let foreign = list(&[bulk("mode"), bulk("read"), Value::Int(5)]);
        assert!(inspected(&foreign).unwrap_err().is_wrong_type());
        assert_eq!(inspected(&list(&[])).unwrap(), None);
    }
}
