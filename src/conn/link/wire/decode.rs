//! Finds the end of a reply, refuses replies that are too long, and parses the others. Pure.
//!
//! The few forms that our commands are answered with are parsed here. The client library parses all others, so every
//! reply has the value that it would have there. Invariants: the result does not depend on how a connection splits a
//! reply. The search for the end looks at each byte once, so a long reply costs no more in many parts. A reply is
//! parsed once, when it is complete. An excess is refused when it is announced or reached, and nothing is kept of it.

#[cfg(test)]
mod tests;

use std::mem;

use redis::{ErrorKind, ProtocolVersion, RedisError, Value};
use smallvec::SmallVec;

/// The state of a reply that has partly arrived.
#[derive(Debug)]
pub(super) struct Decoder {
    framing: Framing,
    /// The number of its bytes that have been looked at.
    seen: usize,
}

impl Decoder {
    pub(super) fn new(protocol: ProtocolVersion) -> Self {
        Self {
            framing: Framing::new(protocol),
            seen: 0,
        }
    }

    /// The first reply in `bytes` and its length; `None` if it is not complete yet. The next `bytes` must then begin
    /// with these.
    pub(super) fn first(&mut self, bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
        if self.seen == 0
            && let Some(short) = short(bytes)
        {
            return Ok(Some(short));
        }
        let end = self.framing.read(&bytes[self.seen..]);
        let Some(end) = end.map_err(|why| (ErrorKind::Parse, why))? else {
            self.seen = bytes.len();
            return Ok(None);
        };
        let length = mem::take(&mut self.seen) + end.at;
        Ok(Some((value(&bytes[..length])?, length)))
    }
}

/// The first reply, if it has one of the most frequent forms, which need no state.
fn short(bytes: &[u8]) -> Option<(Value, usize)> {
    match bytes {
        [b'+', b'O', b'K', b'\r', b'\n', ..] => Some((Value::Okay, 5)),
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((Value::Int(i64::from(digit - b'0')), 4))
        }
        _ => None,
    }
}

fn value(reply: &[u8]) -> Result<Value, RedisError> {
    match reply {
        b"$-1\r\n" => Ok(Value::Nil),
        [b':', digits @ .., b'\r', b'\n'] => Ok(Value::Int(number(digits)?)),
        [b'*', ..] => match usual(&mut &*reply) {
            Some(array) => Ok(array),
            None => redis::parse_redis_value(reply),
        },
        _ => redis::parse_redis_value(reply),
    }
}

/// Takes the first of these values: an array of texts, numbers and arrays of them. `None` if it has any other part.
fn usual(rest: &mut &[u8]) -> Option<Value> {
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let (line, more) = (&rest[..end], rest.get(end + 2..)?);
    *rest = more;
    let (kind, digits) = line.split_first()?;
    let number = number(digits).ok()?;
    let count = usize::try_from(number);
    match (kind, count) {
        (b':', _) => Some(Value::Int(number)),
        (b'$', Ok(size)) => {
            let (text, more) = rest.split_at_checked(size)?;
            *rest = more.strip_prefix(b"\r\n")?;
            Some(Value::BulkString(text.to_vec()))
        }
        (b'*', Ok(count)) => {
            // Each part has three bytes or more.
            let mut parts = Vec::with_capacity(count.min(rest.len() / 3));
            for _ in 0..count {
                parts.push(usual(rest)?);
            }
            Some(Value::Array(parts))
        }
        _ => None,
    }
}

fn number(digits: &[u8]) -> Result<i64, RedisError> {
    let digits = std::str::from_utf8(digits).ok();
    let number = digits.and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| (ErrorKind::Parse, "a number that cannot be read").into())
}

/// The deepest nesting of our replies.
const DEPTH_MAX: usize = 32;

/// The length of our longest line.
const LINE_MAX: usize = 64 * 1024;

/// The size of our longest reply. No more of a server's data is kept.
const REPLY_MAX: usize = 16 * 1024 * 1024;

/// The most parts of a reply. Each takes about 60 bytes after parsing, however short it is, and all are parsed in one
/// turn, for which other tasks of the thread wait. A queue of a hundred thousand waiters fits, and so does the map of a
/// cluster that is cut into ten thousand ranges.
const PARTS_MAX: u64 = 1 << 17;

/// The kind and a number, with the end of the line.
const HEAD_MAX: usize = 24;

const TOO_LONG: &str = "a reply that is longer than any of ours";
const UNREADABLE: &str = "a reply that cannot be read";

/// The state of a reply that has partly arrived.
#[derive(Debug)]
struct Framing {
    protocol: ProtocolVersion,
    /// The number of missing parts at each depth.
    missing: SmallVec<[u64; 4]>,
    /// The missing bytes of a text, with the end of its line.
    text: usize,
    /// The bytes of a line without its end so far, its first bytes, and its last byte.
    line: usize,
    head: [u8; HEAD_MAX],
    last: u8,
    /// The bytes of the reply that have arrived, and its parts that were announced.
    length: usize,
    parts: u64,
    is_push: bool,
}

/// The end of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// The number of bytes that belong to it.
    at: usize,
    /// Whether it may have arrived without a request.
    is_push: bool,
}

impl Framing {
    fn new(protocol: ProtocolVersion) -> Self {
        Self {
            protocol,
            missing: SmallVec::new(),
            text: 0,
            line: 0,
            head: [0; HEAD_MAX],
            last: 0,
            length: 0,
            parts: 0,
            is_push: false,
        }
    }

    /// Reads until a reply ends; `None` if it is not complete yet. An error is the reason for a refusal, and nothing
    /// may be read after it.
    fn read(&mut self, bytes: &[u8]) -> Result<Option<End>, &'static str> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (taken, is_part_over) = match self.text {
                0 => self.read_line(rest)?,
                missing => {
                    let taken = missing.min(rest.len());
                    self.text -= taken;
                    (taken, taken == missing)
                }
            };
            at += taken;
            self.length += taken;
            if self.length > REPLY_MAX {
                return Err(TOO_LONG);
            }
            if is_part_over && self.is_last_part() {
                (self.length, self.parts) = (0, 0);
                let is_push = mem::take(&mut self.is_push);
                return Ok(Some(End { at, is_push }));
            }
        }
        Ok(None)
    }

    /// The number of bytes that belong to the line, and whether it is a complete part.
    fn read_line(&mut self, bytes: &[u8]) -> Result<(usize, bool), &'static str> {
        let bytes = &bytes[..bytes.len().min(LINE_MAX - self.line)];
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let Some(newline) = newline else {
            self.keep(bytes);
            return if self.line < LINE_MAX {
                Ok((bytes.len(), false))
            } else {
                Err(TOO_LONG)
            };
        };
        let end = &bytes[..=newline];
        let before = match (newline, self.line) {
            (0, 0) => None,
            (0, _) => Some(self.last),
            (at, _) => Some(end[at - 1]),
        };
        if before != Some(b'\r') {
            return Err(UNREADABLE);
        }
        let is_over = if self.line == 0 {
            self.begin_part(end)?
        } else {
            self.keep(end);
            let (head, length) = (self.head, mem::take(&mut self.line));
            self.begin_part(&head[..length.min(HEAD_MAX)])?
        };
        Ok((end.len(), is_over))
    }

    fn keep(&mut self, bytes: &[u8]) {
        if let Some(room) = self.head.get_mut(self.line..) {
            let kept = room.len().min(bytes.len());
            room[..kept].copy_from_slice(&bytes[..kept]);
        }
        self.line += bytes.len();
        self.last = bytes.last().copied().unwrap_or(self.last);
    }

    /// Begins a part with its first line, whose end may be missing if the line is long. Returns whether the line is
    /// all of it.
    fn begin_part(&mut self, line: &[u8]) -> Result<bool, &'static str> {
        let is_resp2 = self.protocol == ProtocolVersion::RESP2;
        match line.first() {
            Some(b'+' | b'-' | b':') => Ok(true),
            Some(b'$') if line == b"$-1\r\n" => Ok(true),
            Some(b'$') => self.begin_text(line),
            Some(b'*') if line == b"*-1\r\n" => Ok(true),
            Some(b'*') => self.begin_parts(count_of(line)?),
            _ if is_resp2 => Err(UNREADABLE),
            Some(b'_' | b',' | b'#' | b'(') => Ok(true),
            Some(b'!' | b'=') => self.begin_text(line),
            Some(b'~') => self.begin_parts(count_of(line)?),
            Some(b'%') => self.begin_parts(count_of(line)?.saturating_mul(2)),
            // The attributes, and the value that they are about.
            Some(b'|') => self.begin_parts(count_of(line)?.saturating_mul(2).saturating_add(1)),
            Some(b'>') if self.missing.is_empty() => {
                self.is_push = true;
                self.begin_parts(count_of(line)?)
            }
            _ => Err(UNREADABLE),
        }
    }

    fn begin_text(&mut self, line: &[u8]) -> Result<bool, &'static str> {
        let size = usize::try_from(count_of(line)?).unwrap_or(usize::MAX);
        if size > REPLY_MAX - self.length {
            return Err(TOO_LONG);
        }
        self.text = size + 2;
        Ok(false)
    }

    fn begin_parts(&mut self, count: u64) -> Result<bool, &'static str> {
        if count == 0 {
            return Ok(true);
        }
        self.parts = self.parts.saturating_add(count);
        if self.parts > PARTS_MAX {
            return Err(TOO_LONG);
        }
        if self.missing.len() == DEPTH_MAX {
            return Err(UNREADABLE);
        }
        self.missing.push(count);
        Ok(false)
    }

    /// Ends a part. Returns whether the reply has ended as well.
    fn is_last_part(&mut self) -> bool {
        while let Some(missing) = self.missing.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.missing.pop();
        }
        true
    }
}

/// The number behind the kind.
fn count_of(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.get(1..).and_then(|rest| rest.strip_suffix(b"\r\n"));
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or(UNREADABLE)
}
