//! The holds and waits of a client, collected when an announcement is due: acquiring a lock records nothing.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::record::{Entry, Record};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;

/// The number of holds, and of waits, that are listed. The others are counted.
const LISTED_MAX: usize = 200;

#[derive(Debug)]
pub(super) struct Sampler {
    started: Tick,
    /// The constant facts.
    facts: Record,
    /// Waiters that were the first of their queue at the last look, with when that was first seen.
    first: HashMap<(usize, u64), Tick>,
}

impl Sampler {
    pub(super) fn new(started: Tick, kept_for: Duration, label: String) -> Self {
        Self {
            started,
            facts: Record {
                host: host(),
                pid: std::process::id(),
                program: program(),
                label,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                kept_for,
                ..Record::default()
            },
            first: HashMap::new(),
        }
    }

    /// `None` for a client that uses no lock just now.
    pub(super) fn sample(&mut self, core: &Core, now: Tick, least: Duration) -> Option<Record> {
        let locks = core.locals.in_use();
        let holds = locks.iter().flat_map(|lock| lock.holds.live());
        let holds = holds.filter_map(|hold| {
            let (.., since) = hold.at_server()?;
            Some((since.until(now), hold))
        });
        let mut holds: Vec<_> = holds.filter(|(lasts, _)| *lasts >= least).collect();
        let mut waits = self.waits(&locks, now);
        waits.retain(|wait| wait.lasts >= least);
        let more = cut(&mut holds, |hold| hold.0) + cut(&mut waits, |wait| wait.lasts);
        let listed = holds.iter().filter_map(|(lasts, hold)| {
            let (holder, key, _) = hold.at_server()?;
            Some(Entry {
                lasts: *lasts,
                holder: holder.to_owned(),
                key: key.to_owned(),
            })
        });
        let holds = listed.collect();
        (!locks.is_empty()).then(|| Record {
            up_for: self.started.until(now),
            holds,
            waits,
            more,
            ..self.facts.clone()
        })
    }

    /// The first waiter of each queue that was there at an earlier look too.
    fn waits(&mut self, locks: &[Arc<LocalLock>], now: Tick) -> Vec<Entry> {
        let before = std::mem::take(&mut self.first);
        let mut waits = Vec::new();
        for lock in locks {
            let Some(number) = lock.queue.oldest() else {
                continue;
            };
            let id = (Arc::as_ptr(lock).addr(), number);
            let since = before.get(&id).copied().unwrap_or(now);
            self.first.insert(id, since);
            waits.push(Entry {
                lasts: since.until(now),
                holder: String::new(),
                key: lock.key(),
            });
        }
        waits
    }
}

/// Keeps those that have lasted longest, in that order. Returns the number of the others.
fn cut<T>(entries: &mut Vec<T>, lasts: impl Fn(&T) -> Duration) -> u64 {
    let more = entries.len().saturating_sub(LISTED_MAX);
    let longest_first = |entry: &T| Reverse(lasts(entry));
    if more > 0 {
        entries.select_nth_unstable_by_key(LISTED_MAX, longest_first);
        entries.truncate(LISTED_MAX);
    }
    entries.sort_by_key(longest_first);
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
