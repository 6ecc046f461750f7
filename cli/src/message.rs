//! Text for people that cannot harm their terminal.

use std::io::{self, Write};

/// A line on standard error; what comes from elsewhere cannot add lines or terminal sequences to it.
pub(crate) fn complain(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(io::stderr().lock(), "lockset: {text}");
}

/// A name in a message, in quotes: its end is seen, and control characters are escaped.
pub(crate) fn quoted(name: &str) -> String {
    format!("{name:?}")
}

/// A name or an id from a server as it can be shown: control characters are escaped.
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
