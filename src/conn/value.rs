//! Reading of reply values: as text, as a message shows one, and of the process that sent it. Pure.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::engine::clock::Tick;

/// Bytes of a reply that a message shows.
const SHOWN_MAX: usize = 200;

/// Returns a reply as a message shows it, cut to a bounded length.
pub(crate) fn shown(value: &Value) -> String {
    let mut space = [0; SHOWN_MAX];
    let mut room = &mut space[..];
    let end = match write!(room, "{value:?}") {
        Ok(()) => "",
        Err(_) => " ..",
    };
    let used = SHOWN_MAX - room.len();
    // The last character may be cut.
    let whole = space[..used].utf8_chunks().next();
    whole.map_or("", |whole| whole.valid()).to_owned() + end
}

/// Returns a reply as text, in any form that the protocol has for texts.
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Returns a field in a reply of lines like `name:value`.
pub(super) fn field<'a>(lines: &'a Value, name: &str) -> Option<&'a str> {
    let mut lines = text(lines)?.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

/// One run of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Different for each run of each server.
    pub(crate) run_id: Arc<str>,
    /// The server was started no later than this.
    pub(crate) up_since: Tick,
}

impl Process {
    /// Whether both are the same run of the same server.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }

    /// Parses a reply to `INFO server` that arrived at `now`. The server counts whole seconds from a whole second, so
    /// its uptime may be too large by up to one second. It is based on the time of day. If that was set back since
    /// the server started, the uptime is negative, and only `now` is a safe bound.
    pub(super) fn of(lines: &Value, now: Tick) -> Option<Self> {
        let uptime: i64 = field(lines, "uptime_in_seconds")?.parse().ok()?;
        let uptime = u64::try_from(uptime).unwrap_or(0);
        Some(Self {
            run_id: field(lines, "run_id")?.into(),
            up_since: now.before(Duration::from_secs(uptime.saturating_sub(1))),
        })
    }

    /// Combines this reply, read at `now`, with the last one. For the same run, the earlier of the two bounds holds.
    /// Another run counts from `now`, because it may have been up elsewhere before, for example as a replica that
    /// took over without all writes.
    pub(super) fn after(mut self, before: Option<&Self>, now: Tick) -> Self {
        self.up_since = match before {
            Some(before) if before.is_same_run(&self) => self.up_since.min(before.up_since),
            Some(_) => now,
            None => self.up_since,
        };
        self
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

    #[test]
    fn a_process_is_no_younger_than_it_says() {
        let seconds = |count| Tick::ZERO.after(Duration::from_secs(count));
        let info = |run: &str, uptime: i64| {
            let lines = format!(
                "# Server\r\nredis_version:7.0.15\r\nrun_id:{run}\r\nuptime_in_seconds:{uptime}\r\n"
            );
            Value::BulkString(lines.into_bytes())
        };
        let seen = |uptime, now| Process::of(&info("a", uptime), seconds(now)).unwrap();
        assert_eq!(seen(30, 100).up_since, seconds(71));
        assert_eq!(seen(1, 100).up_since, seconds(100));
        assert_eq!(seen(0, 100).up_since, seconds(100));
        // The time of day was set back.
        assert_eq!(seen(-7000, 100).up_since, seconds(100));
        let set_back = seen(-6980, 120).after(Some(&seen(-7000, 100)), seconds(120));
        assert_eq!(set_back.up_since, seconds(100));
        let (first, later) = (seen(0, 100), seen(10, 111));
        let both = later.clone().after(Some(&first), seconds(111));
        assert_eq!(both.up_since, seconds(100));
        let other = Process::of(&info("b", 90), seconds(120)).unwrap();
        assert_eq!(other.clone().after(None, seconds(120)), other);
        let other = other.after(Some(&later), seconds(120));
        assert_eq!(other.up_since, seconds(120), "another run");
        assert_eq!(Process::of(&Value::Nil, seconds(1)), None);
    }
}
