//! Text for people, without the control characters that act on a terminal.

use std::io::{self, Write};

/// Writes a line to standard error. Text from a server has to pass [`shown`] or [`quoted`] first.
pub(crate) fn complain(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr().lock(), "lockset: {text}");
}

/// A name in a message, in quotes: its end is seen, and control characters are escaped.
pub(crate) fn quoted(name: &str) -> String {
    format!("{name:?}")
}

/// A name or an id from a server, with control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    if text.chars().any(char::is_control) {
        text.escape_debug().to_string()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_server_cannot_control_the_terminal() {
        assert_eq!(shown("order:7"), "order:7");
        assert_eq!(shown("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(shown("größe"), "größe");
        assert_eq!(quoted("größe \x1b"), r#""größe \u{1b}""#);
    }
}
