//! The protocol of a stream: commands as clients write them, replies as servers do. Pure.

use crate::reply::Reply;
use crate::words::Words;

/// Takes the commands that are complete out of what was written.
pub(super) fn take_commands(written: &mut Vec<u8>) -> Vec<Words> {
    let mut commands = Vec::new();
    let mut used = 0;
    while let Some((words, length)) = command(&written[used..]) {
        commands.push(words);
        used += length;
    }
    written.drain(..used);
    commands
}

/// The first command, and how long it is.
fn command(bytes: &[u8]) -> Option<(Words, usize)> {
    let (count, mut at) = number(bytes, 0, b'*')?;
    let mut words = Words::default();
    for _ in 0..count {
        let (length, start) = number(bytes, at, b'$')?;
        words.push(bytes.get(start..start + length)?);
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}

/// A line with a number behind its sign, and where it ends.
fn number(bytes: &[u8], from: usize, sign: u8) -> Option<(usize, usize)> {
    let line = bytes.get(from..)?;
    let length = line.iter().position(|byte| *byte == b'\n')?;
    let text = std::str::from_utf8(&line[..length]).ok();
    let digits = text.and_then(|text| text.strip_prefix(char::from(sign))?.strip_suffix('\r'));
    let count = digits.and_then(|digits| digits.parse().ok());
    Some((
        count.expect("commands as client libraries write them"),
        from + length + 1,
    ))
}

/// Writes a reply in one of the two protocols.
pub(super) fn write(reply: &Reply, is_newer: bool, to: &mut Vec<u8>) {
    let mut line = |sign: char, text: &str| to.extend(format!("{sign}{text}\r\n").as_bytes());
    match reply {
        Reply::Nil if is_newer => line('_', ""),
        Reply::Nil => line('$', "-1"),
        Reply::Int(number) => line(':', &number.to_string()),
        Reply::Status(text) => line('+', text),
        Reply::Error(text) => line('-', &text.replace(['\r', '\n'], " ")),
        Reply::Bulk(bytes) => {
            line('$', &bytes.len().to_string());
            to.extend(bytes);
            to.extend(b"\r\n");
        }
        Reply::Array(items) | Reply::Pairs(items) | Reply::Push(items) => {
            let (sign, count) = match reply {
                Reply::Push(_) if is_newer => ('>', items.len()),
                Reply::Pairs(_) if is_newer => ('%', items.len() / 2),
                _ => ('*', items.len()),
            };
            line(sign, &count.to_string());
            items.iter().for_each(|item| write(item, is_newer, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_once_they_are_complete() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$3\r\na\r\n\r\n*1\r\n$4\r\nPING\r\n";
        let mut written = Vec::new();
        let mut taken = Vec::new();
        for byte in bytes {
            written.push(*byte);
            taken.extend(take_commands(&mut written));
        }
        assert!(written.is_empty());
        let words: Vec<Vec<&[u8]>> = taken.iter().map(|words| words.from(0).collect()).collect();
        assert_eq!(words, [vec![b"GET".as_slice(), b"a\r\n"], vec![b"PING"]]);
    }

    #[test]
    fn a_reply_is_read_as_it_was_meant() {
        let reply = Reply::Array(vec![
            Reply::Nil,
            Reply::Int(-3),
            Reply::bulk(b"a\r\nb"),
            Reply::OK,
            Reply::error("WRONGTYPE no"),
        ]);
        for is_newer in [false, true] {
            let mut bytes = Vec::new();
            write(&reply, is_newer, &mut bytes);
            let read = redis::parse_redis_value(&bytes).unwrap();
            assert_eq!(read, reply.clone().into_value());
        }
    }
}
