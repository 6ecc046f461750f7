//! Parses raw replies into typed ones. Only this file knows the status codes.

use std::time::Duration;

use redis::Value;

use super::call::Answer;
use crate::api::error::{Error, Kind};
use crate::api::fencing::FencingToken;
use crate::api::holder::{Holder, HolderId};
use crate::conn::value::{shown, text};
use crate::engine::Few;
use crate::engine::counts::Mode;

const YES: i64 = 1;
/// A release found that this holder does not hold the lock.
const NOT_HELD: i64 = -1;
/// The smallest value of PTTL: there is no such key.
const PTTL_MIN: i64 = -2;
/// A re-entry found that the hold is gone. Smaller than all values of PTTL.
const NO_SUCH_HOLD: i64 = PTTL_MIN - 1;

/// The reply to an attempt to take or re-enter one lock or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Acquired {
    /// All were taken, with these tokens.
    Held { tokens: Few<Option<FencingToken>> },
    /// None was taken, because of this member.
    Elsewhere {
        member: usize,
        /// Another holder has the member, for at most this long; `None` if its lease has no end.
        remaining: Option<Duration>,
        /// The place that this holder now has in the queue, if it has one.
        place: Option<Queued>,
    },
}

/// A place in the queue at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// The time until which the place is kept, in ms of the server's clock.
    pub(crate) until_ms: u64,
    /// The waiter or the holder directly ahead of the place, if the place is new.
    pub(crate) ahead: Option<HolderId>,
}

/// The reply to an attempt to lower a hold count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Done. This many connections received the notification, as far as the server knows.
    Done {
        receivers: u64,
    },
    NotHeld,
}

/// The holder of a lock, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    pub(crate) holder: Holder,
    pub(crate) mode: Mode,
}

pub(crate) fn acquired(value: &Value) -> Result<Acquired, Error> {
    match value {
        Value::Nil => Ok(held(None)),
        Value::Int(remaining @ PTTL_MIN..) => Ok(elsewhere(*remaining, None)),
        Value::Array(items) => match &**items {
            [
                Value::Int(remaining @ PTTL_MIN..),
                until_ms @ Value::Int(_),
                ahead @ ..,
            ] if ahead.len() <= 1 => {
                let place = Queued {
                    until_ms: natural(until_ms)?,
                    // A longer id is not one of ours.
                    ahead: ahead.first().and_then(text).and_then(HolderId::read),
                };
                Ok(elsewhere(*remaining, Some(place)))
            }
            _ => Err(unreadable(value)),
        },
        other => Ok(held(Some(token(other)?))),
    }
}

/// Makes the refusal of a call for one lock, which another holder has for this many ms.
fn elsewhere(remaining: i64, place: Option<Queued>) -> Acquired {
    Acquired::Elsewhere {
        member: 0,
        remaining: span(remaining),
        place,
    }
}

fn held(token: Option<FencingToken>) -> Acquired {
    Acquired::Held {
        tokens: Few::from_buf([token]),
    }
}

pub(crate) fn acquired_all(value: &Value, locks: usize) -> Result<Acquired, Error> {
    if *value == Value::Int(0) {
        let tokens = Few::from_elem(None, locks);
        return Ok(Acquired::Held { tokens });
    }
    match array(value)? {
        [Value::Int(0), tokens @ ..] if tokens.len() == locks => {
            let tokens = tokens.iter().map(|item| match text(item) {
                Some("") => Ok(None),
                _ => token(item).map(Some),
            });
            Ok(Acquired::Held {
                tokens: tokens.collect::<Result<_, _>>()?,
            })
        }
        [Value::Int(number @ 1..), Value::Int(remaining), ..] => {
            let member = usize::try_from(number - 1).ok();
            let member = member.filter(|member| *member < locks);
            let member = member.ok_or_else(|| unreadable(value))?;
            Ok(Acquired::Elsewhere {
                member,
                remaining: span(*remaining),
                place: None,
            })
        }
        _ => Err(unreadable(value)),
    }
}

pub(crate) fn released(value: &Value) -> Result<Released, Error> {
    match value {
        Value::Int(NOT_HELD) => Ok(Released::NotHeld),
        _ => Ok(Released::Done {
            receivers: natural(value)?,
        }),
    }
}

/// The reply to a heartbeat, for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heartbeat {
    /// The waiter's place is kept until this time, in ms of the server's clock.
    Kept { until_ms: u64 },
    /// The waiter has to ask by itself, as if there were no heartbeat.
    NotKept,
    /// The waiter has no place.
    Gone,
}

pub(crate) fn heartbeats(value: &Value, waiters: usize) -> Result<Vec<Heartbeat>, Error> {
    let read = |item: &Value| match item {
        Value::Int(-1) => Ok(Heartbeat::NotKept),
        Value::Int(0) => Ok(Heartbeat::Gone),
        _ => Ok(Heartbeat::Kept {
            until_ms: natural(item)?,
        }),
    };
    one_for_each(value, waiters)?.iter().map(read).collect()
}

/// The reply to a request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permitted {
    Taken,
    /// Not enough permits are free. The first lease of a permit ends in this time.
    Refused {
        first_end: Option<Duration>,
    },
    /// The number of permits has not been declared.
    NotDeclared,
    /// The semaphore has this total, and the caller declared another one.
    Otherwise {
        total: i64,
    },
}

pub(crate) fn permitted(value: &Value) -> Result<Permitted, Error> {
    match value {
        Value::Int(YES) => Ok(Permitted::Taken),
        Value::Int(-1) => Ok(Permitted::NotDeclared),
        Value::Array(items) => match &**items {
            // The number of free permits may be negative after a `resize`.
            [Value::Int(-1), Value::Int(total), Value::Int(_)] => {
                Ok(Permitted::Otherwise { total: *total })
            }
            [Value::Int(_), Value::Int(wait)] => Ok(Permitted::Refused {
                first_end: span(*wait),
            }),
            _ => Err(unreadable(value)),
        },
        other => Err(unreadable(other)),
    }
}

/// Returns how many of the named permits were taken and are now released.
pub(crate) fn permits_released(value: &Value) -> Result<u64, Error> {
    match array(value)? {
        [count, ..] => natural(count),
        [] => Err(unreadable(value)),
    }
}

/// Returns the number of free permits, and the taken permits with the rest of their leases; `None` if the number of
/// permits has not been declared.
pub(crate) fn permits(value: &Value) -> Result<Option<(i64, Vec<Holder>)>, Error> {
    if *value == Value::Int(-1) {
        return Ok(None);
    }
    let [Value::Int(free), taken @ ..] = array(value)? else {
        return Err(unreadable(value));
    };
    let taken = taken.chunks(2).map(|permit| {
        let [Value::BulkString(id), Value::Int(remaining)] = permit else {
            return Err(unreadable(value));
        };
        Ok(Holder {
            id: permit_id(id),
            hold_count: 1,
            remaining: span(*remaining).unwrap_or(Duration::MAX),
        })
    });
    Ok(Some((*free, taken.collect::<Result<_, _>>()?)))
}

/// The bytes of a permit id of Redisson.
const REDISSON_PERMIT_LEN: usize = 16;

/// Returns a permit id as text. The ids of lockset are text; Redisson's are bytes, which it shows as hexadecimal
/// digits.
pub fn permit_id(id: &[u8]) -> String {
    match str::from_utf8(id) {
        Ok(text) if id.len() != REDISSON_PERMIT_LEN => text.to_owned(),
        _ => id.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Returns the bytes that the server has for a permit id from [`permits`].
pub(crate) fn permit_member(id: &str) -> Vec<u8> {
    let digits = id.as_bytes().chunks(2).map(str::from_utf8);
    let bytes = digits.map(|digits| u8::from_str_radix(digits.ok()?, 16).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    bytes
        .filter(|bytes| bytes.len() == REDISSON_PERMIT_LEN)
        .unwrap_or_else(|| id.as_bytes().to_vec())
}

pub(crate) fn inspected(value: &Value) -> Result<Option<Inspected>, Error> {
    match array(value)? {
        [] => Ok(None),
        [holder, hold_count, remaining, ..] => {
            inspected_hold(value, [holder, hold_count, remaining], Mode::Exclusive).map(Some)
        }
        _ => Err(unreadable(value)),
    }
}

/// Returns all readers and writers.
pub(crate) fn inspected_all(value: &Value) -> Result<Vec<Inspected>, Error> {
    let holds = array(value)?.chunks(4).map(|hold| {
        let [holder, mode, hold_count, remaining] = hold else {
            return Err(unreadable(value));
        };
        let mode = match text(mode) {
            Some("read") => Mode::Shared,
            Some("write") => Mode::Exclusive,
            _ => return Err(unreadable(value)),
        };
        inspected_hold(value, [holder, hold_count, remaining], mode)
    });
    holds.collect()
}

fn inspected_hold(
    value: &Value,
    [holder, hold_count, remaining]: [&Value; 3],
    mode: Mode,
) -> Result<Inspected, Error> {
    let (Some(id), Some(hold_count)) = (text(holder), text(hold_count)) else {
        return Err(unreadable(value));
    };
    let Ok(hold_count) = hold_count.parse() else {
        return Err(Error::new(
            Kind::WrongType,
            "reply",
            "the key of this lock holds a hash that is not a lock of this kind, which was not \
             changed; choose another name",
        ));
    };
    let holder = Holder {
        id: id.to_owned(),
        hold_count,
        remaining: span(int(remaining)?).unwrap_or(Duration::MAX),
    };
    Ok(Inspected { holder, mode })
}

/// Returns a list of ids, in order.
pub(crate) fn texts(value: &Value) -> Result<Vec<String>, Error> {
    let items = array(value)?.iter();
    items.map(|item| word(item).map(str::to_owned)).collect()
}

/// Whether each hold of a batch was renewed.
pub(crate) fn renewed(value: &Value, holds: usize) -> Result<Vec<bool>, Error> {
    one_for_each(value, holds)?.iter().map(flag).collect()
}

/// Returns the place in a queue, counted from 1, if it was found.
pub(crate) fn place(value: &Value) -> Option<usize> {
    usize::try_from(int(value).ok()?).ok()
}

fn flag(value: &Value) -> Result<bool, Error> {
    int(value).map(|status| status == YES)
}

impl Answer {
    pub(crate) fn flag(&self) -> Result<bool, Error> {
        flag(&self.value)
    }

    /// Whether a call that takes effect once has done so. A repeat finds that nothing is left to do if an earlier
    /// attempt without an answer was executed.
    pub(crate) fn is_done(&self) -> Result<bool, Error> {
        Ok(self.flag()? || self.repeated)
    }
}

/// Returns the id, token and value of the current leader of an election, if there is one.
pub(crate) fn leader(value: &Value) -> Result<Option<(String, FencingToken, String)>, Error> {
    match array(value)? {
        [] => Ok(None),
        [id, its_token, said] => Ok(Some((
            word(id)?.to_owned(),
            token(its_token)?,
            word(said)?.to_owned(),
        ))),
        _ => Err(unreadable(value)),
    }
}

/// The reply to a party at a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// The party waits. This many parties have arrived.
    Waits(u64),
    /// All parties arrived. One of them is the leader of the round.
    Passed { is_leader: bool },
    /// This party died or left, which broke the round.
    Broken { party: String, is_dead: bool },
    /// The waiting parties declared this other number of parties.
    Parties(u64),
}

pub(crate) fn arrived(value: &Value) -> Result<Arrived, Error> {
    if let Value::Int(number) = value {
        let count = number.unsigned_abs();
        return Ok(match *number {
            1.. => Arrived::Waits(count),
            _ => Arrived::Parties(count),
        });
    }
    let said = word(value)?;
    match said.split_once(':') {
        None if said == "leads" => Ok(Arrived::Passed { is_leader: true }),
        None if said == "passed" => Ok(Arrived::Passed { is_leader: false }),
        Some((how @ ("died" | "left"), party)) => Ok(Arrived::Broken {
            party: party.to_owned(),
            is_dead: how == "died",
        }),
        _ => Err(unreadable(value)),
    }
}

/// Returns the number of count-downs that are left, and the call that opened the latch last.
pub(crate) fn latch_count(value: &Value) -> Result<(u64, String), Error> {
    let [Value::Int(left), opened] = array(value)? else {
        return Err(unreadable(value));
    };
    Ok((u64::try_from(*left).unwrap_or(0), word(opened)?.to_owned()))
}

/// The outcome of a count-down.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    No,
    /// An earlier run of the same call has counted.
    Earlier,
    Now {
        /// The call that opened the latch last before this call counted.
        opened: String,
    },
}

pub(crate) fn latch_counted(value: &Value) -> Result<Counted, Error> {
    match value {
        Value::Int(0) => Ok(Counted::No),
        Value::Int(YES) => Ok(Counted::Earlier),
        opened => Ok(Counted::Now {
            opened: word(opened)?.to_owned(),
        }),
    }
}

/// Returns the token that a hold was given. `None` if there is no such hold.
pub(crate) fn taken_token(value: &Value) -> Result<Option<FencingToken>, Error> {
    if *value == Value::Int(NO_SUCH_HOLD) {
        return Ok(None);
    }
    token(value).map(Some)
}

/// Returns the time in a PTTL reply; `None` if there is no end.
fn span(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn array(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(unreadable(other)),
    }
}

/// Returns the items of a list of this length.
fn one_for_each(value: &Value, count: usize) -> Result<&[Value], Error> {
    let items = array(value)?;
    if items.len() != count {
        return Err(unreadable(value));
    }
    Ok(items)
}

fn word(value: &Value) -> Result<&str, Error> {
    text(value).ok_or_else(|| unreadable(value))
}

fn token(value: &Value) -> Result<FencingToken, Error> {
    let token = text(value).and_then(|token| token.parse().ok());
    token.ok_or_else(|| unreadable(value))
}

/// A number that is not negative.
fn natural(value: &Value) -> Result<u64, Error> {
    u64::try_from(int(value)?).map_err(|_| unreadable(value))
}

/// A number that may be negative.
pub(crate) fn int(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(unreadable(other)),
    }
}

pub(crate) fn unreadable(value: &Value) -> Error {
    let what = shown(value);
    Error::new(
        Kind::Refused,
        "reply",
        format!("a script returned what it never should: {what}; is a proxy changing replies?"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_is_found_by_the_id_that_is_shown() {
        let ours = b"8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:57";
        let utf8 = b"these:are:bytes!";
        for member in [&ours[..], &[0xff; 16], &[0; 16], utf8] {
            assert_eq!(permit_member(&permit_id(member)), member);
        }
        assert_eq!(permit_id(utf8), "74686573653a6172653a627974657321");
    }

    fn list(items: &[Value]) -> Value {
        Value::Array(items.to_vec())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn acquire_replies() {
        let granted = |token| Ok::<_, ()>(held(token));
        let queued = |remaining, place| {
            Ok::<_, ()>(Acquired::Elsewhere {
                member: 0,
                remaining,
                place,
            })
        };
        let elsewhere = |remaining| queued(remaining, None);
        let read = |value: &Value| acquired(value).map_err(drop);
        assert_eq!(read(&Value::Nil), granted(None));
        assert_eq!(
            read(&bulk("9007199254740991")),
            granted(Some(FencingToken::from(9_007_199_254_740_991)))
        );
        let rest = Duration::from_millis(29_999);
        assert_eq!(read(&Value::Int(29_999)), elsewhere(Some(rest)));
        for no_end in [-1, -2] {
            assert_eq!(read(&Value::Int(no_end)), elsewhere(None));
        }
        let (until_ms, long) = (1_763_000_000_123, "x".repeat(64));
        for (words, ahead) in [
            (&[][..], None),
            (&["a:1"], HolderId::read("a:1")),
            (&[&*long], None),
        ] {
            let mut reply = vec![Value::Int(-1), Value::Int(1_763_000_000_123)];
            reply.extend(words.iter().map(|word| bulk(word)));
            let place = Queued { until_ms, ahead };
            let expected = queued(None, Some(place));
            assert_eq!(read(&Value::Array(reply)), expected, "{words:?}");
        }
        for bad in [
            list(&[Value::Int(5)]),
            list(&[Value::Int(-3), Value::Int(5)]),
            list(&[Value::Int(5), Value::Int(-5)]),
            list(&[Value::Int(5), Value::Int(5), bulk("a"), bulk("b")]),
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
        for bad in [
            list(&[]),
            Value::Int(-3),
            Value::Int(-7),
            bulk("x"),
            Value::Okay,
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn replies_about_several_locks() {
        let read = |value: &Value| acquired_all(value, 2).map_err(drop);
        let held = |tokens: [Option<u64>; 2]| {
            let tokens = tokens.map(|token| token.map(FencingToken::from));
            Ok(Acquired::Held {
                tokens: tokens.into_iter().collect(),
            })
        };
        let elsewhere = |member, remaining: Option<u64>| {
            Ok(Acquired::Elsewhere {
                member,
                remaining: remaining.map(Duration::from_millis),
                place: None,
            })
        };
        let [zero, one, two, three] = [0, 1, 2, 3].map(Value::Int);
        assert_eq!(read(&zero), held([None, None]));
        let tokens = list(&[zero.clone(), bulk(""), bulk("7")]);
        assert_eq!(read(&tokens), held([None, Some(7)]));
        let first = list(&[one.clone(), Value::Int(-1)]);
        assert_eq!(read(&first), elsewhere(0, None));
        let second = list(&[two, Value::Int(9)]);
        assert_eq!(read(&second), elsewhere(1, Some(9)));
        for bad in [
            list(&[]),
            list(&[zero.clone(), bulk("7")]),
            list(&[zero.clone(), bulk("7"), bulk("8"), bulk("9")]),
            list(&[zero.clone(), bulk("7"), bulk("x")]),
            list(&[zero, bulk("7"), Value::Nil]),
            list(&[three, Value::Int(9)]),
            list(&[Value::Int(-1), Value::Int(9)]),
            list(std::slice::from_ref(&one)),
            one,
        ] {
            assert!(read(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn replies_of_every_other_kind() {
        let ints =
            |numbers: &[i64]| Value::Array(numbers.iter().copied().map(Value::Int).collect());
        let ids = list(&[bulk("a:1"), bulk("b:2")]);
        assert_eq!(texts(&ids).unwrap(), ["a:1", "b:2"]);
        assert!(texts(&ints(&[1])).is_err());
        assert_eq!(place(&Value::Int(3)), Some(3));
        assert_eq!((place(&Value::Nil), place(&Value::Int(-1))), (None, None));
        let flags = [1, 0].map(|number| flag(&Value::Int(number)).unwrap());
        assert_eq!(flags, [true, false]);
        assert!(flag(&Value::Nil).is_err());
    }

    #[test]
    fn all_who_read_or_write_are_read() {
        let hold =
            |mode, count, remaining| [bulk("u:7"), bulk(mode), bulk(count), Value::Int(remaining)];
        let all = [hold("read", "2", 5), hold("write", "1", -1)].concat();
        let seen = |hold_count, remaining, mode| Inspected {
            holder: Holder {
                id: "u:7".to_owned(),
                hold_count,
                remaining,
            },
            mode,
        };
        let expected = [
            seen(2, Duration::from_millis(5), Mode::Shared),
            seen(1, Duration::MAX, Mode::Exclusive),
        ];
        assert_eq!(inspected_all(&list(&all)).unwrap(), expected);
        assert_eq!(inspected_all(&list(&[])).unwrap(), []);
        for bad in [&hold("dark", "1", 5)[..], &all[..5]] {
            assert!(inspected_all(&list(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn release_and_renew_replies() {
        let read = |number| released(&Value::Int(number)).map_err(drop);
        assert_eq!(read(3), Ok(Released::Done { receivers: 3 }));
        assert_eq!(read(0), Ok(Released::Done { receivers: 0 }));
        assert_eq!(read(-1), Ok(Released::NotHeld));
        assert!(read(-2).is_err());
        assert_eq!(
            renewed(&list(&[Value::Int(1), Value::Int(0)]), 2).unwrap(),
            [true, false]
        );
        assert!(renewed(&list(&[Value::Int(1)]), 2).is_err());
    }

    #[test]
    fn a_foreign_hash_is_no_lock() {
        let foreign = list(&[bulk("mode"), bulk("read"), Value::Int(5)]);
        assert!(inspected(&foreign).unwrap_err().is_wrong_type());
        assert_eq!(inspected(&list(&[])).unwrap(), None);
    }
}
