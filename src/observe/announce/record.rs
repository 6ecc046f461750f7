//! Pure: the announcement of a client, as the server keeps it.
//!
//! One line a fact, `name=value`, so that a person can read it with `GET`. Times are spans up to when it was
//! written, in ms, so that no two clocks are compared: what is left of the key's time says how long ago that
//! was. Invariant: a record is read as it was written, with any names of locks; facts that a later version adds
//! are ignored.

use std::fmt::Write;
use std::time::Duration;

/// The index of the clients that announce themselves.
pub(crate) const INDEX_KEY: &str = "lockset_clients";

/// The key of a client's announcement.
pub(crate) fn key_of(client: &str) -> String {
    format!("lockset_client:{{{client}}}")
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The name that the program gave this client; empty if it gave none.
    pub(crate) label: String,
    pub(crate) version: String,
    pub(crate) up_for: Duration,
    /// How long the server keeps it.
    pub(crate) kept_for: Duration,
    pub(crate) holds: Vec<Entry>,
    pub(crate) waits: Vec<Entry>,
    /// Holds and waits beyond these.
    pub(crate) more: u64,
}

/// A hold or a wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) lasts: Duration,
    /// Without spaces; empty if there is none.
    pub(crate) holder: String,
    pub(crate) key: String,
}

impl Record {
    pub(crate) fn write(&self) -> String {
        let mut text = String::new();
        let facts = [
            ("host", escaped(&self.host)),
            ("pid", self.pid.to_string()),
            ("program", escaped(&self.program)),
            ("label", escaped(&self.label)),
            ("version", escaped(&self.version)),
            ("up_ms", self.up_for.as_millis().to_string()),
            ("kept_ms", self.kept_for.as_millis().to_string()),
            ("more", self.more.to_string()),
        ];
        for (name, value) in facts {
            // Writing to a text cannot fail.
            let _ = writeln!(text, "{name}={value}");
        }
        for (name, entries) in [("hold", &self.holds), ("wait", &self.waits)] {
            for Entry { lasts, holder, key } in entries {
                let (ms, key) = (lasts.as_millis(), escaped(key));
                let _ = writeln!(text, "{name}={ms} {holder} {key}");
            }
        }
        text
    }

    pub(crate) fn read(text: &str) -> Self {
        let mut record = Self::default();
        for (name, value) in text.lines().filter_map(|line| line.split_once('=')) {
            match name {
                "host" => record.host = unescaped(value),
                "pid" => record.pid = value.parse().unwrap_or_default(),
                "program" => record.program = unescaped(value),
                "label" => record.label = unescaped(value),
                "version" => record.version = unescaped(value),
                "up_ms" => record.up_for = span(value),
                "kept_ms" => record.kept_for = span(value),
                "more" => record.more = value.parse().unwrap_or_default(),
                "hold" => record.holds.extend(entry(value)),
                "wait" => record.waits.extend(entry(value)),
                _ => {}
            }
        }
        record
    }
}

fn span(ms: &str) -> Duration {
    Duration::from_millis(ms.parse().unwrap_or_default())
}

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.splitn(3, ' ');
    Some(Entry {
        lasts: span(words.next()?),
        holder: words.next()?.to_owned(),
        key: unescaped(words.next()?),
    })
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\");
    text.replace('\n', "\\n").replace('\r', "\\r")
}

fn unescaped(text: &str) -> String {
    let mut letters = text.chars();
    let mut unescaped = String::new();
    while let Some(letter) = letters.next() {
        unescaped.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some(other) => other,
                None => '\\',
            },
            other => other,
        });
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Another version, or any user, may have written it.
        #[test]
        fn whatever_is_there_is_read(text in "((host|pid|label|up_ms|hold|wait|more|x)=[ -~]{0,30}\n|(?s).{0,9})*") {
            let record = Record::read(&text);
            prop_assert!(record.holds.len() + record.waits.len() <= text.lines().count());
            prop_assert_eq!(Record::read(&record.write()), record);
        }

        #[test]
        fn what_is_read_is_what_was_written(host in ".*", keys in prop::collection::vec("(?s).{0,12}", 0..4)) {
            let entry = |(at, key): (usize, &String)| Entry {
                lasts: Duration::from_millis(at as u64),
                holder: if at == 0 { String::new() } else { format!("u:{at}") },
                key: key.clone(),
            };
            let record = Record {
                host,
                pid: 7,
                program: "seats = \n\\n".to_owned(),
                label: "./seats --show 1\n".to_owned(),
                version: "1".to_owned(),
                up_for: Duration::from_millis(5),
                kept_for: Duration::from_secs(30),
                holds: keys.iter().enumerate().map(entry).collect(),
                waits: keys.iter().enumerate().map(entry).collect(),
                more: 3,
            };
            prop_assert_eq!(Record::read(&record.write()), record);
        }

        #[test]
        fn anything_can_be_read(text in "(?s).*") {
            Record::read(&text);
        }
    }

    /// Next to why its holds were taken away, in one slot.
    #[test]
    fn each_client_has_a_key_of_its_own() {
        let key = key_of("4e3b8f2a");
        assert_eq!(key, "lockset_client:{4e3b8f2a}");
        let freed = crate::engine::keys::freed_key("4e3b8f2a:7").unwrap();
        assert!(freed.starts_with(&key));
    }

    #[test]
    fn what_a_later_version_adds_is_ignored() {
        let record = Record::read("mood=good\nhold=x\npid=12\n");
        assert_eq!((record.pid, record.holds.len()), (12, 0));
    }
}
