//! The server's replies.

#[cfg(test)]
use redis::Value;

/// The reply to a command, inside or outside of a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Bulk(Vec<u8>),
    Status(&'static str),
    /// Code and text.
    Error(String),
    Array(Vec<Reply>),
    /// Names and values in turns: a map in the newer protocol, an array in the older.
    Pairs(Vec<Reply>),
    /// A message about a channel: its type, the channel, and more.
    Push(Vec<Reply>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Status("OK");

    pub(crate) fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(bytes.to_vec())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Int(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    /// A message about a channel: `subscribe`, `message` and the like.
    pub(crate) fn push(what: &str, channel: &[u8], more: Self) -> Self {
        Self::Push(vec![Self::bulk(what.as_bytes()), Self::bulk(channel), more])
    }

    pub(crate) fn wrong_type() -> Self {
        Self::error("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    pub(crate) fn no_integer() -> Self {
        Self::error("ERR value is not an integer or out of range")
    }

    pub(crate) fn syntax() -> Self {
        Self::error("ERR syntax error")
    }

    /// As the client library would have read it.
    #[cfg(test)]
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Nil => Value::Nil,
            Self::Int(number) => Value::Int(number),
            Self::Bulk(bytes) => Value::BulkString(bytes),
            Self::Status("OK") => Value::Okay,
            Self::Status(text) => Value::SimpleString(text.to_owned()),
            Self::Error(text) => error_value(&text),
            Self::Push(_) => Value::Okay,
            Self::Array(items) | Self::Pairs(items) => {
                Value::Array(items.into_iter().map(Self::into_value).collect())
            }
        }
    }
}

/// An error in the place of a value.
#[cfg(test)]
fn error_value(text: &str) -> Value {
    let line = format!("-{}\r\n", text.replace(['\r', '\n'], " "));
    redis::parse_redis_value(line.as_bytes()).expect("one line that begins with a minus")
}
