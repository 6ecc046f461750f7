//! Reading of reply values.

use std::fmt::{self, Write};

use redis::Value;

/// Bytes of a reply that a message shows.
const SHOWN_MAX: usize = 200;

/// A reply as a message shows it, cut to a bounded length.
pub(crate) fn shown(value: &Value) -> String {
    let mut shown = Shown(String::new());
    let all = write!(shown, "{value:?}");
    shown.0 + if all.is_err() { " .." } else { "" }
}

/// Takes at most [`SHOWN_MAX`] bytes.
struct Shown(String);

impl Write for Shown {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = SHOWN_MAX - self.0.len();
        if part.len() <= room {
            self.0.push_str(part);
            return Ok(());
        }
        let ends = part.char_indices().map(|(at, _)| at);
        let end = ends.take_while(|at| *at <= room).last().unwrap_or(0);
        self.0.push_str(&part[..end]);
        Err(fmt::Error)
    }
}

/// A reply as text, in any form that the protocol has for it.
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_each_form_of_the_protocol() {
        let verbatim = Value::VerbatimString {
            format: redis::VerbatimFormat::Text,
            text: "ok".to_owned(),
        };
        let simple = Value::SimpleString("ok".to_owned());
        for words in [Value::BulkString(b"ok".to_vec()), simple, verbatim] {
            assert_eq!(text(&words), Some("ok"), "{words:?}");
        }
        for other in [Value::BulkString(vec![0xff]), Value::Int(7), Value::Nil] {
            assert_eq!(text(&other), None, "{other:?}");
        }
    }

    #[test]
    fn what_is_shown_of_a_reply_is_short() {
        assert_eq!(shown(&Value::Array(vec![Value::Int(7)])), "array([int(7)])");
        for long in [
            Value::Array(vec![Value::Int(1); 1_000_000]),
            Value::SimpleString("ä".repeat(500)),
            Value::SimpleString(format!("a{}", "ä".repeat(500))),
        ] {
            let shown = shown(&long);
            assert!(shown.ends_with(" .."), "{shown}");
            let length = shown.len() - 3;
            assert!(length <= SHOWN_MAX && length > SHOWN_MAX - 5, "{shown}");
        }
    }
}
