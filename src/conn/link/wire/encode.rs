//! Encodes a command for the protocol.
//!
//! Produces the bytes of the client library in fewer steps, because nearly all commands have few and short words.

use redis::{Arg, Cmd};

/// Ends a word or a count.
const END: &[u8] = b"\r\n";

/// Room for a short count of words or bytes, with the characters around it.
const COUNT_BYTES: usize = 8;

pub(super) fn encode(command: &Cmd, bytes: &mut Vec<u8>) {
    if command.in_scan_mode() {
        // A cursor replaces one of the words.
        command.write_packed_command(bytes);
        return;
    }
    let words = command.args_iter();
    let sizes = words.clone().map(|word| COUNT_BYTES + simple(word).len());
    bytes.reserve(COUNT_BYTES + sizes.sum::<usize>());
    count(b'*', words.len(), bytes);
    for word in words.map(simple) {
        count(b'$', word.len(), bytes);
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(END);
    }
}

fn simple(word: Arg<&[u8]>) -> &[u8] {
    match word {
        Arg::Simple(word) => word,
        _ => b"",
    }
}

fn count(kind: u8, count: usize, bytes: &mut Vec<u8>) {
    let digit = |number: usize| b'0' + (number % 10) as u8;
    match count {
        0..10 => bytes.extend_from_slice(&[kind, digit(count), END[0], END[1]]),
        10..100 => {
            bytes.extend_from_slice(&[kind, digit(count / 10), digit(count), END[0], END[1]]);
        }
        _ => {
            bytes.push(kind);
            bytes.extend_from_slice(count.to_string().as_bytes());
            bytes.extend_from_slice(END);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn assert_same(command: &Cmd) {
        let mut bytes = b"before".to_vec();
        encode(command, &mut bytes);
        assert_eq!(bytes[6..], command.get_packed_command());
    }

    proptest! {
        #[test]
        fn every_command_reads_as_the_client_library_writes_it(
            words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..120), 1..14)
        ) {
            let mut command = Cmd::new();
            command.arg(words);
            assert_same(&command);
        }
    }

    #[test]
    fn so_do_scans_and_large_ones() {
        assert_same(redis::cmd("SCAN").cursor_arg(42).arg("MATCH").arg("*"));
        assert_same(
            redis::cmd("EVAL")
                .arg(vec![b'x'; 12_345])
                .arg(vec!["k"; 300]),
        );
    }
}
