//! Pure: the announcement of a client, as the server keeps it. The crate `lockset-operator` reads it.
//!
//! One line a fact, `name=value`, so that a person can read it with `GET`. Times are spans up to when it was
//! written, in ms, so that no two clocks are compared: the remaining time of the key says how long ago that was.

use std::fmt::Write;
use std::time::Duration;

/// The index of the clients that announce themselves.
pub const INDEX_KEY: &str = "lockset_clients";

/// The key of a client's announcement.
pub fn key_of(client: &str) -> String {
    format!("lockset_client:{{{client}}}")
}

/// The announcement of one client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The name of the machine.
    pub host: String,
    /// The number of the process.
    pub pid: u32,
    /// The file name of the program.
    pub program: String,
    /// The name that the program gave this client; empty if it gave none.
    pub label: String,
    /// The version of this library.
    pub version: String,
    /// How long there has been a client.
    pub up_for: Duration,
    /// How long the server keeps it.
    pub kept_for: Duration,
    /// The longest holds.
    pub holds: Vec<Entry>,
    /// The longest waits.
    pub waits: Vec<Entry>,
    /// Holds and waits beyond these.
    pub more: u64,
}

/// A hold or a wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// How long it has lasted.
    pub lasts: Duration,
    /// Without spaces; empty if there is none.
    pub holder: String,
    /// The key of the lock.
    pub key: String,
}

impl Record {
    /// The text that the server keeps.
    pub fn write(&self) -> String {
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
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\");
    text.replace('\n', "\\n").replace('\r', "\\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Next to why its holds were taken away, in one slot.
    #[test]
    fn each_client_has_a_key_of_its_own() {
        let key = key_of("4e3b8f2a");
        assert_eq!(key, "lockset_client:{4e3b8f2a}");
        let freed = crate::engine::keys::freed_key("4e3b8f2a:7").unwrap();
        assert!(freed.starts_with(&key));
    }
}
