//! Finds the end of a reply, refuses replies that are too long or of another protocol, and parses the others. Pure.
//!
//! The few forms that our commands are answered with are parsed here. The client library parses all others, so every
//! reply has the value that it would have there. Invariants: the result does not depend on how a connection splits a
//! reply. No byte is searched twice, so a long reply costs the same in many parts. A reply is
//! parsed once, when it is complete. An excess is refused when it is announced or reached, and nothing is kept of it.

#[cfg(test)]
mod tests;

use std::io;
use std::mem;
use std::str::FromStr;

use redis::{ErrorKind, ProtocolVersion, RedisError, Value};
use smallvec::SmallVec;

use crate::conn::error_reply::{USE_TLS, nonsense};

/// The state of a reply that has partly arrived.
#[derive(Debug)]
pub(super) struct Decoder {
    protocol: ProtocolVersion,
    /// Whether the server has shown that it speaks the protocol.
    is_known: bool,
    /// The bytes of its complete parts.
    at: usize,
    /// How many bytes behind them were searched for the end of a line.
    searched: usize,
    /// The number of missing parts at each depth.
    missing: SmallVec<[u64; 4]>,
    /// Its parts that were announced.
    parts: u64,
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
    let usual = match reply {
        b"$-1\r\n" => Some(Value::Nil),
        [b':' | b'*', ..] => usual(&mut &*reply),
        _ => None,
    };
    usual.map_or_else(|| redis::parse_redis_value(reply), Ok)
}

/// Takes the first of these values: an array of texts, numbers and arrays of them. `None` if it has any other part.
fn usual(rest: &mut &[u8]) -> Option<Value> {
    let end = rest.iter().position(|byte| *byte == b'\r')?;
    let line = &rest[..end];
    // The lines that were counted. A text that is read as parts could be nested without a bound.
    *rest = rest[end..].strip_prefix(b"\r\n")?;
    let (kind, digits) = line.split_first()?;
    let number: i64 = number(digits)?;
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

fn number<N: FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
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

const TOO_LONG: &str = "a reply that is longer than any of ours";
const UNREADABLE: &str = "a reply that cannot be read";

impl Decoder {
    pub(super) fn new(protocol: ProtocolVersion) -> Self {
        Self {
            protocol,
            is_known: false,
            at: 0,
            searched: 0,
            missing: SmallVec::new(),
            parts: 0,
        }
    }

    /// The first reply in `bytes` and its length; `None` if it is not complete yet. The next `bytes` must then begin
    /// with these.
    pub(super) fn first(&mut self, bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
        if self.at == 0
            && self.searched == 0
            && let Some(short) = short(bytes)
        {
            return Ok(Some(short));
        }
        if !self.is_known {
            check_protocol(bytes)?;
        }
        let Some(end) = self.end(bytes).map_err(nonsense)? else {
            return Ok(None);
        };
        self.is_known = true;
        let value = value(&bytes[..end]).map_err(|_| nonsense(UNREADABLE))?;
        Ok(Some((value, end)))
    }

    /// The length of the first reply; `None` if it is not complete yet. An error is the reason for a refusal, and
    /// nothing may be read after it.
    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        while let Some((length, is_part)) = self.part(&bytes[self.at..])? {
            self.at += length;
            if self.at > REPLY_MAX {
                return Err(TOO_LONG);
            }
            if is_part && self.is_last_part() {
                self.parts = 0;
                return Ok(Some(mem::take(&mut self.at)));
            }
        }
        Ok(None)
    }

    /// The length of the next line, with the text that it announces, and whether that is a part. Otherwise parts follow
    /// it. `None` if it is not complete yet.
    fn part(&mut self, bytes: &[u8]) -> Result<Option<(usize, bool)>, &'static str> {
        let line = &bytes[..bytes.len().min(LINE_MAX)];
        let newline = line[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(newline) = newline else {
            self.searched = line.len();
            return if line.len() < LINE_MAX {
                Ok(None)
            } else {
                Err(TOO_LONG)
            };
        };
        let line = &line[..=self.searched + newline];
        if !line.ends_with(b"\r\n") {
            return Err(UNREADABLE);
        }
        self.searched = 0;
        let (text, is_part) = self.begin_part(line)?;
        let length = line.len() + text;
        if length <= bytes.len() {
            return Ok(Some((length, is_part)));
        }
        if self.at + bytes.len() > REPLY_MAX {
            return Err(TOO_LONG);
        }
        Ok(None)
    }

    /// Reads the first line of a part. Returns the bytes of the text that follows it, and whether nothing else does.
    fn begin_part(&mut self, line: &[u8]) -> Result<(usize, bool), &'static str> {
        let is_resp2 = self.protocol == ProtocolVersion::RESP2;
        match line[0] {
            b'+' | b'-' | b':' => Ok((0, true)),
            b'$' | b'*' if line[1..] == *b"-1\r\n" => Ok((0, true)),
            b'$' => self.begin_text(line),
            b'*' => self.begin_parts(count_of(line)?),
            _ if is_resp2 => Err(UNREADABLE),
            b'_' | b',' | b'#' | b'(' => Ok((0, true)),
            b'!' | b'=' => self.begin_text(line),
            b'~' => self.begin_parts(count_of(line)?),
            b'%' => self.begin_parts(count_of(line)?.saturating_mul(2)),
            // The attributes, and the value that they are about.
            b'|' => self.begin_parts(count_of(line)?.saturating_mul(2).saturating_add(1)),
            b'>' if self.missing.is_empty() => self.begin_parts(count_of(line)?),
            _ => Err(UNREADABLE),
        }
    }

    /// A text, with the end of its line.
    fn begin_text(&self, line: &[u8]) -> Result<(usize, bool), &'static str> {
        let size = usize::try_from(count_of(line)?).unwrap_or(usize::MAX);
        if size > REPLY_MAX - self.at {
            return Err(TOO_LONG);
        }
        Ok((size + 2, true))
    }

    fn begin_parts(&mut self, count: u64) -> Result<(usize, bool), &'static str> {
        if count == 0 {
            return Ok((0, true));
        }
        self.parts = self.parts.saturating_add(count);
        if self.parts > PARTS_MAX {
            return Err(TOO_LONG);
        }
        if self.missing.len() == DEPTH_MAX {
            return Err(UNREADABLE);
        }
        self.missing.push(count);
        Ok((0, false))
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

/// The first bytes that replies can have.
const TYPES: &[u8] = b"+-:$*_#,(!=%~>|";

/// The type of a TLS record that reports an error.
const TLS_ALERT: u8 = 0x15;

/// Characters of a line that a message shows.
const SHOWN_MAX: usize = 100;

/// Whether the first bytes of a server are of Redis's protocol. The error says what they are instead: only this one is of
/// the kind `Parse`.
fn check_protocol(first_bytes: &[u8]) -> Result<(), RedisError> {
    match first_bytes.first() {
        Some(&TLS_ALERT) => Err(io::Error::other(format!("an alert of TLS{USE_TLS}")).into()),
        Some(kind) if !TYPES.contains(kind) => {
            let line = first_bytes.split(|byte| b"\r\n".contains(byte)).next();
            let shown = String::from_utf8_lossy(line.unwrap_or_default());
            let shown: String = shown.chars().take(SHOWN_MAX).collect();
            Err((ErrorKind::Parse, "not the protocol of Redis", shown).into())
        }
        _ => Ok(()),
    }
}

/// The number behind the kind.
fn count_of(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.get(1..).and_then(|rest| rest.strip_suffix(b"\r\n"));
    digits.and_then(number).ok_or(UNREADABLE)
}
