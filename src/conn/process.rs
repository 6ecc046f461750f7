//! One run of a server: which one it is and since when it is up, as far as it says.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::value::text;
use crate::clock::Tick;

/// One run of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Different for each run of each server.
    pub(crate) run_id: Arc<str>,
    /// It was not started after this.
    pub(crate) up_since: Tick,
}

impl Process {
    /// Whether both are the same run of the same server.
    pub(crate) fn is_same_run(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }

    /// From a reply to `INFO server` that arrived at `now`. The server counts whole seconds from a whole
    /// second, so its uptime may be up to one too large. It goes by the time of day: if that was set back
    /// since the server started, the uptime is negative, and all that is known is that it is up now.
    pub(super) fn of(lines: &Value, now: Tick) -> Option<Self> {
        let lines = text(lines)?;
        let field = |name: &str| {
            lines
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        let uptime: i64 = field("uptime_in_seconds")?.trim().parse().ok()?;
        let uptime = u64::try_from(uptime).unwrap_or(0);
        Some(Self {
            run_id: field("run_id")?.trim().into(),
            up_since: now.before(Duration::from_secs(uptime.saturating_sub(1))),
        })
    }

    /// As it is seen at `now`, where `before` was seen last: the earlier of two bounds, if both are the
    /// same run. Another run counts from now: it may have been up elsewhere all the time, such as a replica
    /// that has taken over without all that was written.
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
