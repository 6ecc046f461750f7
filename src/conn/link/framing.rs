//! Finds the ends of replies, regardless of how a connection splits them, and refuses some.
//!
//! Invariants: each byte is looked at once, so a long reply costs no more in many parts. An excess is refused when it
//! is announced or reached, and nothing is kept here.

#[cfg(test)]
mod tests;

use std::mem;

use redis::ProtocolVersion;
use smallvec::SmallVec;

/// The deepest nesting of our replies.
const DEPTH_MAX: usize = 32;

/// The length of our longest line.
const LINE_MAX: usize = 64 * 1024;

/// The size of our longest reply. No more of a server's data is kept.
pub(super) const REPLY_MAX: usize = 16 * 1024 * 1024;

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
pub(super) struct Framing {
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
pub(super) struct End {
    /// The number of bytes that belong to it.
    pub(super) at: usize,
    /// Whether it may have arrived without a request.
    pub(super) is_push: bool,
}

impl Framing {
    pub(super) fn new(protocol: ProtocolVersion) -> Self {
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
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<Option<End>, &'static str> {
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
            Some(b'*') => self.begin_parts(number(line)?),
            _ if is_resp2 => Err(UNREADABLE),
            Some(b'_' | b',' | b'#' | b'(') => Ok(true),
            Some(b'!' | b'=') => self.begin_text(line),
            Some(b'~') => self.begin_parts(number(line)?),
            Some(b'%') => self.begin_parts(number(line)?.saturating_mul(2)),
            // The attributes, and the value that they are about.
            Some(b'|') => self.begin_parts(number(line)?.saturating_mul(2).saturating_add(1)),
            Some(b'>') if self.missing.is_empty() => {
                self.is_push = true;
                self.begin_parts(number(line)?)
            }
            _ => Err(UNREADABLE),
        }
    }

    fn begin_text(&mut self, line: &[u8]) -> Result<bool, &'static str> {
        let size = usize::try_from(number(line)?).unwrap_or(usize::MAX);
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

fn number(line: &[u8]) -> Result<u64, &'static str> {
    let digits = line.get(1..).and_then(|rest| rest.strip_suffix(b"\r\n"));
    let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    digits
        .and_then(|digits| digits.parse().ok())
        .ok_or(UNREADABLE)
}
