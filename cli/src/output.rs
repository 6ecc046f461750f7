//! The output of the verbs: text for people, or one JSON object a line.
//!
//! Answers go to standard output, everything else to standard error. No terminal sequence goes anywhere but
//! to a terminal.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;
pub(crate) use crate::message::{complain, quoted, shown};

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    Always,
    Never,
}

/// How to write a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
        }
    }
}

/// Where answers go and how they look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    colour: Colour,
}

impl Output {
    pub(crate) fn new(json: bool, colour: Colour) -> Self {
        Self { json, colour }
    }

    /// One answer: `fact` as an object on a line of its own, or `text` for people. False as for
    /// [`is_read`](Self::is_read).
    pub(crate) fn say(
        &self,
        fact: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<bool, Failure> {
        if self.json {
            self.is_read(&serde_json::to_string(fact).map_err(Failure::internal)?)
        } else {
            self.is_read(&text())
        }
    }

    /// One line of the answer as it is.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        self.is_read(text).map(drop)
    }

    /// As [`line`](Self::line); false if the reader has closed the pipe, like `head`.
    pub(crate) fn is_read(&self, text: &str) -> Result<bool, Failure> {
        match writeln!(io::stdout().lock(), "{text}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            written => written.map(|()| true).map_err(Failure::internal),
        }
    }

    /// A note beside the answer, on standard error.
    pub(crate) fn note(&self, text: &str) {
        let text = self.styled(&io::stderr(), Style::Dim, text);
        complain(&text);
    }

    /// An event while another program has the standard output: as [`say`](Self::say), on standard error.
    pub(crate) fn tell(&self, fact: &impl Serialize, text: &str) {
        if self.json {
            let fact = serde_json::to_string(fact).unwrap_or_default();
            // Standard error may be closed.
            let _ = writeln!(io::stderr().lock(), "{fact}");
        } else {
            complain(text);
        }
    }

    /// `text` in colour on standard output, if colours are wanted there.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        self.styled(&io::stdout(), style, text)
    }

    fn styled(&self, stream: &impl IsTerminal, style: Style, text: &str) -> String {
        if self.is_coloured(stream) {
            format!("\x1b[{}m{text}\x1b[0m", style.code())
        } else {
            text.to_owned()
        }
    }

    fn is_coloured(&self, stream: &impl IsTerminal) -> bool {
        match self.colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                // As no-color.org has it: set and not empty.
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                !refused && stream.is_terminal()
            }
        }
    }
}

/// Text on standard output as it is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has closed the pipe, like `head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(Failure::internal),
    }
}
