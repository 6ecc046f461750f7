//! The announcement of a client at the server, for operators: its machine, process and label, its holds and its
//! waits.
//!
//! The watchdog's task writes it. Holds and waits are collected when an announcement is due, so acquiring a lock
//! records nothing. Invariants: no call for a lock runs this code; a client that uses no lock writes nothing, and makes
//! no connection for it; if the user lacks the right, the announcements end; no call depends on one.
//!
//! The crate `lockset-operator` reads it. One line a fact, `name=value`, so that a person can read it with `GET`. Times
//! are spans that end when the text was written, in ms. The remaining time of the key says how long ago that was, so
//! that no two clocks are compared.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use futures_util::future::join;
use parking_lot::Mutex;
use redis::Cmd;

use crate::api::error::{Error, Result};
use crate::conn::error_reply::code;
use crate::conn::{Fault, Lane, command};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::script::{Failure, Scripts, millis};

/// The index of the clients that announce themselves.
pub const INDEX_KEY: &str = "lockset_clients";

/// Returns the key of a client's announcement.
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
    /// How long the client has existed.
    pub up_for: Duration,
    /// How long the server keeps the announcement.
    pub kept_for: Duration,
    /// The longest holds.
    pub holds: Vec<Entry>,
    /// The longest waits.
    pub waits: Vec<Entry>,
    /// The number of holds and waits that are not listed.
    pub more: u64,
}

/// A hold or a wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// How long it has lasted.
    pub lasts: Duration,
    /// The holder id, which has no spaces; empty if there is none.
    pub holder: String,
    /// The key of the lock.
    pub key: String,
}

impl Record {
    /// Returns the text that the server keeps.
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

const OPERATION: &str = "announce";

/// The shortest interval between two announcements.
const EVERY_MIN: Duration = Duration::from_millis(100);

const DEFAULT_MIN: Duration = Duration::from_secs(10);
const DEFAULT_MAX: Duration = Duration::from_secs(60);

/// The lifetime of an announcement at the server, in intervals between two announcements.
const KEPT: u32 = 3;

/// A client without an announcement for this long leaves the index. Far more than clocks differ by.
const INDEX_KEPT: Duration = Duration::from_secs(600);

/// The most holds, and the most waits, that are listed. The others are counted.
const LISTED_MAX: usize = 200;

/// Returns the default interval: the interval of the renewals, within bounds.
pub(crate) fn default_every(lease: Duration) -> Duration {
    (lease / 3).clamp(DEFAULT_MIN, DEFAULT_MAX)
}

/// Checks an interval. `None`: the client never announces itself.
pub(crate) fn checked(every: Duration) -> Result<Option<Duration>> {
    Error::ensure(every >= EVERY_MIN, "connect", || {
        format!("a client cannot announce itself every {every:?}; use at least {EVERY_MIN:?}")
    })?;
    Ok((every < Duration::MAX).then_some(every.min(INDEX_KEPT / 2)))
}

/// The announcement of one client, kept with the client.
#[derive(Debug)]
pub(crate) struct Announcer {
    started: Tick,
    /// The constant facts.
    facts: Record,
    /// The waiters that were first in their queues at the last look, each with the time when it was first seen there.
    first: Mutex<HashMap<(usize, u64), Tick>>,
    /// Whether an announcement may be at the server.
    is_written: AtomicBool,
    /// Whether the client used a lock or had a permit at the last look.
    was_in_use: AtomicBool,
}

impl Announcer {
    /// Starts the announcements, in the task of the watchdog.
    pub(crate) fn start(core: &Arc<Core>, every: Duration, label: String) -> Arc<Self> {
        let announcer = Arc::new(Self {
            started: core.clock.now(),
            facts: Record {
                host: host(),
                pid: std::process::id(),
                program: program(),
                label,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                kept_for: every * KEPT,
                ..Record::default()
            },
            first: Mutex::default(),
            is_written: AtomicBool::new(false),
            was_in_use: AtomicBool::new(false),
        });
        let scripts = Arc::clone(&core.scripts);
        let work = run(Arc::clone(&announcer), Arc::downgrade(core), scripts, every);
        core.watchdog.drive_while_needed(work.boxed());
        announcer
    }

    /// Announces the client with every hold and wait that it has at this moment, however short.
    pub(crate) async fn now(&self, core: &Core) -> Result<()> {
        core.ensure_open(OPERATION)?;
        let record = self.sample(core, core.clock.now(), Duration::ZERO);
        let Some(record) = record else { return Ok(()) };
        self.is_written.store(true, Ordering::Release);
        let written = write(&core.scripts, core.id(), &record, core.timing.reply).await;
        written.map_err(|fault| Failure::from(fault).into_error(OPERATION))
    }

    /// Removes the announcement, because the client ends. Waits until `end` at most.
    pub(crate) async fn withdraw(&self, core: &Core, end: Tick) {
        if !self.is_written.swap(false, Ordering::AcqRel) {
            return;
        }
        let key = key_of(core.id());
        let limit = core.timing.reply.min(core.clock.now().until(end));
        let transport = &core.scripts.transport;
        let record = command(&["DEL", &key]);
        let index = command(&["ZREM", INDEX_KEY, core.id()]);
        // An announcement that is not removed expires.
        let _ = join(
            transport.send(Lane::Renewal, &key, &record, limit),
            transport.send(Lane::Renewal, INDEX_KEY, &index, limit),
        )
        .await;
    }

    /// Collects the holds and waits. `None` if the client uses no lock and has no permit. The first look that finds
    /// this still returns a record: an empty one, which replaces the record before.
    fn sample(&self, core: &Core, now: Tick, least: Duration) -> Option<Record> {
        let locks = core.locals.in_use();
        let holds = locks.iter().flat_map(|lock| lock.holds());
        let holds = holds.map(|hold| (hold.requested().until(now), hold));
        let mut holds: Vec<_> = holds.filter(|(lasts, _)| *lasts >= least).collect();
        let mut waits = self.waits(&locks, now);
        waits.retain(|wait| wait.lasts >= least);
        let more = cut(&mut holds, |hold| hold.0) + cut(&mut waits, |wait| wait.lasts);
        let listed = holds.iter().map(|(lasts, hold)| Entry {
            lasts: *lasts,
            holder: hold.holder_id().to_owned(),
            key: hold.key().to_owned(),
        });
        // Permits have leases, too, but are not among the locks.
        let is_in_use = !locks.is_empty() || core.watchdog.enrolled() > 0;
        let was_in_use = self.was_in_use.swap(is_in_use, Ordering::Relaxed);
        (is_in_use || was_in_use).then(|| Record {
            up_for: self.started.until(now),
            holds: listed.collect(),
            waits,
            more,
            ..self.facts.clone()
        })
    }

    /// Returns the first waiter of each queue. Its wait counts from the look that first found it there.
    fn waits(&self, locks: &[Arc<LocalLock>], now: Tick) -> Vec<Entry> {
        let mut first = self.first.lock();
        let before = std::mem::take(&mut *first);
        let mut waits = Vec::new();
        for lock in locks {
            let Some(number) = lock.lock().queue().oldest() else {
                continue;
            };
            let id = (Arc::as_ptr(lock).addr(), number);
            let since = before.get(&id).copied().unwrap_or(now);
            first.insert(id, since);
            waits.push(Entry {
                lasts: since.until(now),
                holder: String::new(),
                key: lock.key().as_ref().into(),
            });
        }
        waits
    }
}

async fn run(announcer: Arc<Announcer>, core: Weak<Core>, scripts: Arc<Scripts>, every: Duration) {
    let clock = scripts.clock;
    let mut last = clock.now();
    loop {
        clock.sleep_until(last.after(every)).await;
        last = clock.now();
        let Some(core) = core.upgrade().filter(|core| !core.is_closed()) else {
            return;
        };
        let record = announcer.sample(&core, last, every * 3 / 4);
        let (id, limit) = (core.id().to_owned(), core.timing.reply);
        drop(core);
        let Some(record) = record else { continue };
        announcer.is_written.store(true, Ordering::Release);
        match write(&scripts, &id, &record, limit).await {
            // The user lacks the right.
            Err(Fault::Answered(error)) if code(&error) == Some("NOPERM") => return,
            _ => {}
        }
    }
}

async fn write(
    scripts: &Scripts,
    id: &str,
    record: &Record,
    limit: Duration,
) -> std::result::Result<(), Fault> {
    let key = key_of(id);
    let kept_ms = millis(record.kept_for).to_string();
    let set = command(&["SET", &key, &record.write(), "PX", &kept_ms]);
    let index = index_commands(id);
    let index = index.each_ref();
    let transport = &scripts.transport;
    let (own, _) = join(
        transport.send(Lane::Renewal, &key, &set, limit),
        transport.exchange(Lane::Renewal, INDEX_KEY, &index, limit),
    )
    .await;
    own.map(drop)
}

/// Makes the commands that put a client into the index, by its own clock. If its clock is far behind, other clients may
/// remove it, until its next announcement.
fn index_commands(id: &str) -> [Cmd; 3] {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = millis(since.unwrap_or_default());
    let kept = millis(INDEX_KEPT);
    let old = now.saturating_sub(kept);
    let [now, old, kept] = [now, old, kept].map(|number| number.to_string());
    [
        command(&["ZADD", INDEX_KEY, &now, id]),
        command(&["ZREMRANGEBYSCORE", INDEX_KEY, "-inf", &old]),
        command(&["PEXPIRE", INDEX_KEY, &kept]),
    ]
}

/// Keeps the entries that have lasted longest, in that order. Returns the number of the others.
fn cut<T>(entries: &mut Vec<T>, lasts: impl Fn(&T) -> Duration) -> u64 {
    let more = entries.len().saturating_sub(LISTED_MAX);
    entries.sort_by_key(|entry| Reverse(lasts(entry)));
    entries.truncate(LISTED_MAX);
    more as u64
}

fn host() -> String {
    let of_kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = of_kernel.or_else(|| std::env::var("HOSTNAME").ok());
    host.unwrap_or_default().trim().to_owned()
}

fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_renewals_within_bounds() {
        for (lease, expected) in [(1, 10), (30, 10), (60, 20), (180, 60), (3_600, 60)] {
            let every = default_every(Duration::from_secs(lease));
            assert_eq!(every, Duration::from_secs(expected), "{lease}");
        }
    }

    #[test]
    fn an_interval_is_refused_kept_or_shortened() {
        let (least, most) = (Duration::from_millis(100), Duration::from_secs(300));
        let instant = Duration::from_nanos(1);
        for every in [Duration::ZERO, least - instant] {
            assert!(checked(every).unwrap_err().is_invalid(), "{every:?}");
        }
        for (every, expected) in [
            (least, Some(least)),
            (most, Some(most)),
            (most + instant, Some(most)),
            (Duration::MAX - instant, Some(most)),
            (Duration::MAX, None),
        ] {
            assert_eq!(checked(every).unwrap(), expected, "{every:?}");
        }
    }

    /// In one slot with the keys that say why its holds were taken away.
    #[test]
    fn each_client_has_a_key_of_its_own() {
        let key = key_of("4e3b8f2a");
        assert_eq!(key, "lockset_client:{4e3b8f2a}");
        let freed = crate::engine::keys::freed_key("4e3b8f2a:7").unwrap();
        assert!(freed.starts_with(&key));
    }
}
