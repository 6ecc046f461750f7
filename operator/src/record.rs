//! Pure: reads the announcement of a client.
//!
//! Invariant: a record is read as it was written, with any names of locks; facts that a later version adds are ignored.

use std::time::Duration;

use lockset::operator::{Entry, Record};

/// Reads the text that [`Record::write`] makes.
pub(crate) fn read(text: &str) -> Record {
    let mut record = Record::default();
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
            let record = read(&text);
            prop_assert!(record.holds.len() + record.waits.len() <= text.lines().count());
            prop_assert_eq!(read(&record.write()), record);
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
            prop_assert_eq!(read(&record.write()), record);
        }

        #[test]
        fn anything_can_be_read(text in "(?s).*") {
            read(&text);
        }
    }

    #[test]
    fn what_a_later_version_adds_is_ignored() {
        let record = read("mood=good\nhold=x\npid=12\n");
        assert_eq!((record.pid, record.holds.len()), (12, 0));
    }
}
