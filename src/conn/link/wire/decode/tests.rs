//! Tests of the ends and the values of replies: as the client library finds them, however a connection splits them.

mod ends {
    use proptest::prelude::*;
    use redis::Value;

    use super::super::*;

    fn resp2(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        Decoder::new(ProtocolVersion::RESP2).end(bytes)
    }

    fn resp3(bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        Decoder::new(ProtocolVersion::RESP3).end(bytes)
    }

    /// A reply that arrives in parts.
    struct Arriving {
        decoder: Decoder,
        bytes: Vec<u8>,
    }

    impl Arriving {
        fn new(protocol: ProtocolVersion) -> Self {
            Self {
                decoder: Decoder::new(protocol),
                bytes: Vec::new(),
            }
        }

        /// The length of the reply, if this part ends it.
        fn read(&mut self, part: &[u8]) -> Result<Option<usize>, &'static str> {
            self.bytes.extend(part);
            self.decoder.end(&self.bytes)
        }
    }

    fn text(kind: char, words: &[u8]) -> Vec<u8> {
        let mut reply = format!("{kind}{}\r\n", words.len()).into_bytes();
        reply.extend(words);
        reply.extend(b"\r\n");
        reply
    }

    /// A reply as a server writes it in RESP3, which has all forms of RESP2.
    fn replies() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            Just(b"+OK\r\n".to_vec()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            Just(b"_\r\n".to_vec()),
            Just(b"#t\r\n".to_vec()),
            Just(b",1.5\r\n".to_vec()),
            Just(b"(3492890328409238509324850943850943825024385\r\n".to_vec()),
            Just(b"=5\r\ntxt:a\r\n".to_vec()),
            Just(b"!6\r\nERR no\r\n".to_vec()),
            "[+][A-Z ]{0,40}\r\n".prop_map(String::into_bytes),
            "-[A-Z]{2,9} [a-z ]{0,40}\r\n".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(|words| text('$', &words)),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            (
                prop::sample::select("*~%|".chars().collect::<Vec<_>>()),
                proptest::collection::vec(inner, 1..5),
            )
                .prop_map(|(kind, mut items)| {
                    let count = match kind {
                        '%' | '|' => items.len() / 2,
                        _ => items.len(),
                    };
                    match kind {
                        '%' => items.truncate(count * 2),
                        '|' if items.len() == count * 2 => items.push(b":7\r\n".to_vec()),
                        _ => {}
                    }
                    let mut reply = format!("{kind}{count}\r\n").into_bytes();
                    reply.extend(items.concat());
                    reply
                })
        })
    }

    proptest! {
        #[test]
        fn a_reply_ends_where_it_does_for_the_client_library(
            reply in replies(),
            more in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let read: Result<Value, _> = redis::parse_redis_value(&reply);
            prop_assert!(read.is_ok(), "{:?}", String::from_utf8_lossy(&reply));
            let longer = [&*reply, &[more]].concat();
            prop_assert_eq!(resp3(&longer), Ok(Some(reply.len())));
            prop_assert_eq!(resp3(&reply[..reply.len() - 1]), Ok(None));
            let (first, rest) = longer.split_at(cut.index(reply.len()));
            let mut arriving = Arriving::new(ProtocolVersion::RESP3);
            prop_assert_eq!(arriving.read(first), Ok(None));
            prop_assert_eq!(arriving.read(rest), Ok(Some(reply.len())));
        }

        /// The result does not depend on the size of the parts.
        #[test]
        fn cuts_change_nothing(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(b"+-:$*>%|=\r\n0123".to_vec()),
            ], 0..64),
            cut in 1..9usize,
        ) {
            let whole = resp3(&bytes);
            let mut arriving = Arriving::new(ProtocolVersion::RESP3);
            let mut read = Ok(None);
            for part in bytes.chunks(cut) {
                read = arriving.read(part);
                if read != Ok(None) {
                    break;
                }
            }
            prop_assert_eq!(read, whole);
        }
    }

    #[test]
    fn pushes_are_told_from_replies() {
        let push = b">2\r\n+message\r\n:1\r\n";
        let mut decoder = Decoder::new(ProtocolVersion::RESP3);
        let (value, length) = decoder.first(push).unwrap().unwrap();
        assert!(matches!(value, Value::Push { .. }) && length == push.len());
        assert_eq!(decoder.first(b":1\r\n").unwrap(), Some((Value::Int(1), 4)));
        assert_eq!(resp2(push), Err(UNREADABLE));
        assert_eq!(resp3(b"*1\r\n>1\r\n"), Err(UNREADABLE), "a push is no part");
    }

    /// An excess is refused as soon as it is announced.
    #[test]
    fn what_is_too_long_is_refused() {
        for announced in [
            &b"$1073741824\r\n"[..],
            b"*1073741824\r\n",
            b"*1\r\n$9223372036854775807\r\n",
            b"*1000\r\n*1000000\r\n*1000000\r\n",
            b"$18446744073709551615\r\n",
        ] {
            assert_eq!(resp2(announced), Err(TOO_LONG), "{announced:?}");
        }
        for announced in [
            &b">9223372036854775807\r\n"[..],
            b"%9223372036854775807\r\n",
            b"|18446744073709551615\r\n",
            b"~1048577\r\n",
            b"=1073741824\r\n",
        ] {
            assert_eq!(resp3(announced), Err(TOO_LONG), "{announced:?}");
        }
        assert_eq!(resp2(format!("${REPLY_MAX}\r\n").as_bytes()), Ok(None));
        let mut line = vec![b'+'; LINE_MAX - 1];
        assert_eq!(resp2(&line), Ok(None));
        line.push(b'+');
        assert_eq!(resp2(&line), Err(TOO_LONG), "an endless line");
    }

    /// The exact limits: 16 MiB, 131 072 parts, and 64 KiB in a line.
    #[test]
    fn what_is_as_long_as_may_be_is_read() {
        let announced = |reply: &str| resp2(format!("{reply}\r\n").as_bytes());
        for (longest, too_long) in [
            ("$16777216", "$16777217"),
            ("*1\r\n$16777212", "*1\r\n$16777213"),
            ("*131072", "*131073"),
        ] {
            assert_eq!(announced(longest), Ok(None), "{longest}");
            assert_eq!(announced(too_long), Err(TOO_LONG), "{too_long}");
        }
        // The limit includes the bytes around the text.
        let chunk = vec![b'x'; 1 << 20];
        for (size, ends) in [(16_777_203, true), (16_777_204, false)] {
            let mut arriving = Arriving::new(ProtocolVersion::RESP2);
            let head = format!("${size}\r\n");
            assert_eq!(arriving.read(head.as_bytes()), Ok(None));
            let mut left = size + 2;
            let last = loop {
                let part = &chunk[..chunk.len().min(left)];
                left -= part.len();
                let read = arriving.read(part);
                if left == 0 {
                    break read;
                }
                assert_eq!(read, Ok(None));
            };
            assert_eq!(matches!(last, Ok(Some(_))), ends, "{last:?}");
            assert_eq!(last == Err(TOO_LONG), !ends, "{last:?}");
        }
        // In one part and in two.
        for (length, ends) in [(65_536, true), (65_537, false)] {
            let mut line = vec![b'+'; length];
            line[length - 2..].copy_from_slice(b"\r\n");
            let expected = match ends {
                true => Ok(Some(length)),
                false => Err(TOO_LONG),
            };
            assert_eq!(resp2(&line), expected);
            let mut arriving = Arriving::new(ProtocolVersion::RESP2);
            assert_eq!(arriving.read(&line[..40_000]), Ok(None));
            assert_eq!(arriving.read(&line[40_000..]).is_ok(), ends);
        }
    }

    /// Each part is short, and their sum exceeds the limit.
    #[test]
    fn what_becomes_too_long_is_refused_in_time() {
        let item = text('$', &[b'x'; 60_000]);
        let mut arriving = Arriving::new(ProtocolVersion::RESP2);
        assert_eq!(arriving.read(b"*125000\r\n"), Ok(None));
        let mut come = 0;
        let refused = loop {
            match arriving.read(&item) {
                Ok(end) => assert_eq!(end, None),
                Err(why) => break why,
            }
            come += item.len();
        };
        assert_eq!(refused, TOO_LONG);
        assert!(come <= REPLY_MAX, "{come}");
    }

    #[test]
    fn what_no_server_says_is_refused() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"+OK\n",
            b"\n",
            b"\r\n",
            b"$x\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b"*\r\n",
            b"$1234567890123456789012345\r\n",
        ] {
            assert_eq!(resp3(bytes), Err(UNREADABLE), "{bytes:?}");
            let mut arriving = Arriving::new(ProtocolVersion::RESP3);
            let ended = bytes.iter().find_map(|byte| arriving.read(&[*byte]).err());
            assert_eq!(ended, Some(UNREADABLE), "{bytes:?}");
        }
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 1);
        assert_eq!(resp2(&deep), Err(UNREADABLE));
        assert_eq!(resp2(&deep[4..]), Ok(None));
    }
}

mod values {
    use proptest::prelude::*;

    use super::super::*;

    fn first(bytes: &[u8]) -> Result<Option<(Value, usize)>, RedisError> {
        Decoder::new(ProtocolVersion::RESP2).first(bytes)
    }

    /// A reply as a server writes it.
    fn replies() -> impl Strategy<Value = Vec<u8>> {
        let word = proptest::collection::vec(any::<u8>(), 0..20);
        let bulk = word.prop_map(|word| {
            let mut reply = format!("${}\r\n", word.len()).into_bytes();
            reply.extend(word);
            reply.extend(b"\r\n");
            reply
        });
        let line = prop_oneof![
            Just(b"+OK\r\n".to_vec()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            "[+][A-Z ]{0,9}\r\n".prop_map(String::into_bytes),
            "-[A-Z]{2,9} [a-z ]{0,9}\r\n".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        ];
        let leaf = prop_oneof![line, bulk];
        leaf.prop_recursive(4, 24, 4, |inner| {
            proptest::collection::vec(inner, 0..4).prop_map(|items| {
                let mut reply = format!("*{}\r\n", items.len()).into_bytes();
                reply.extend(items.concat());
                reply
            })
        })
    }

    proptest! {
        #[test]
        fn every_reply_is_what_the_client_library_reads(
            all in proptest::collection::vec(replies(), 1..6)
        ) {
            let bytes = all.concat();
            let mut at = 0;
            for reply in &all {
                let (value, length) = first(&bytes[at..]).unwrap().unwrap();
                prop_assert_eq!(length, reply.len());
                prop_assert_eq!(value, redis::parse_redis_value(reply).unwrap());
                at += length;
            }
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn a_part_of_a_reply_is_none(reply in replies(), cut in any::<prop::sample::Index>()) {
            let part = &reply[..cut.index(reply.len())];
            prop_assert!(first(part).unwrap().is_none());
        }

        #[test]
        fn replies_are_the_same_wherever_a_connection_cuts_them(
            all in proptest::collection::vec(replies(), 1..6),
            cuts in proptest::collection::vec(1..12usize, 1..20),
        ) {
            let bytes = all.concat();
            let mut decoder = Decoder::new(ProtocolVersion::RESP2);
            let (mut come, mut at, mut read) = (0, 0, Vec::new());
            for cut in cuts.iter().cycle() {
                come = bytes.len().min(come + cut);
                while let Some((value, length)) = decoder.first(&bytes[at..come]).unwrap() {
                    read.push(value);
                    at += length;
                }
                if come == bytes.len() {
                    break;
                }
            }
            let expected: Vec<_> = all.iter().map(|reply| redis::parse_redis_value(reply).unwrap()).collect();
            prop_assert_eq!(read, expected);
        }

        /// The result does not depend on how a connection splits the bytes.
        #[test]
        fn more_bytes_change_nothing_that_was_read(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(),
                prop::sample::select(b"+-:$*\r\n0123".to_vec()),
            ], 0..64),
            cut in any::<prop::sample::Index>(),
        ) {
            let whole = first(&bytes);
            match first(&bytes[..cut.index(bytes.len() + 1)]) {
                Ok(None) => {}
                Ok(Some(read)) => prop_assert_eq!(whole.unwrap().unwrap(), read),
                Err(_) => prop_assert!(whole.is_err()),
            }
        }

        #[test]
        fn whatever_comes_is_a_reply_a_part_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = first(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    /// The most frequent replies leave no state, even if more bytes follow.
    #[test]
    fn replies_of_one_digit_and_ok_need_no_state() {
        for more in ["", ":12\r\n"] {
            for (reply, value) in [("+OK\r\n", Value::Okay), (":7\r\n", Value::Int(7))] {
                let bytes = format!("{reply}{more}");
                assert_eq!(short(bytes.as_bytes()), Some((value, reply.len())));
            }
        }
        for other in ["+OK\r", ":12\r\n", ":-\r\n", "$-1\r\n", ""] {
            assert_eq!(short(other.as_bytes()), None, "{other:?}");
        }
    }

    /// If a line could end in two ways, a text in a reply might be read as parts that are nested without a bound.
    #[test]
    fn a_reply_is_read_in_the_lines_that_were_counted() {
        let text = "*1\r\n".repeat(100_000);
        let reply = format!("*3\r\n:1\rX$7\r\n${}\r\n{text}\r\n:1\r\n", text.len());
        assert!(first(reply.as_bytes()).is_err());
    }

    #[test]
    fn what_no_server_says_is_an_error() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"+OK\n",
            b"$x\r\n",
            b"$-2\r\n",
            b":\r\n",
            b"\r\n",
        ] {
            assert!(first(bytes).is_err(), "{bytes:?}");
        }
    }
}

#[test]
fn the_first_bytes_say_which_protocol_it_is() {
    use redis::{ErrorKind, ProtocolVersion};

    let first = |bytes: &[u8]| super::Decoder::new(ProtocolVersion::RESP2).first(bytes);
    for ours in [
        &b""[..],
        b"-ERR cut in the mid",
        b"-NOPERM no such right\r\n+OK\r\n",
        b"+OK\r\n",
    ] {
        assert!(first(ours).is_ok(), "{ours:?}");
    }
    let tls = first(b"\x15\x03\x01\x00\x02\x02\x46").unwrap_err();
    assert!(tls.to_string().contains("rediss"), "{tls}");
    for more in ["\r\nServer: x\r\n", ""] {
        let web = first(format!("HTTP/1.1 400 Bad Request{more}").as_bytes()).unwrap_err();
        assert_eq!(web.kind(), ErrorKind::Parse);
        assert_eq!(web.detail(), Some("HTTP/1.1 400 Bad Request"));
    }
    let unreadable = first(b":seven\r\n").unwrap_err();
    assert_ne!(unreadable.kind(), ErrorKind::Parse);
}
