//! Fair locks: each script that asks for one once, or gives it back.
//!
//! The state of the server is `holder#waiters`, with a `!` behind a place that is over. The detail of an attempt is its
//! heartbeat.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::line::{Line, shown};
use crate::called::Called;
use crate::reply::Reply;
use crate::store::{Bytes, Data, Store};
use crate::words::Words;

/// One lock, as the server has it.
#[derive(Default)]
struct Lock {
    queue: Bytes,
    alive: Bytes,
    /// With the end of its lease.
    holder: Option<(Bytes, i64)>,
    /// With the end of each place; dead ones too.
    waiting: Vec<(Bytes, f64)>,
}

#[derive(Default)]
pub(super) struct Fair {
    locks: BTreeMap<Bytes, Lock>,
}

impl Fair {
    /// A command was done.
    pub(super) fn done(
        &mut self,
        command: &Words,
        called: Option<&Called<'_>>,
        reply: &Reply,
        keys: &Store,
    ) -> Option<Line> {
        let mut line = None;
        if let Some((name @ ("fair_acquire" | "fair_release"), key, args)) = called {
            // The state before the first call is unknown.
            let is_known = self.locks.contains_key(*key);
            let lock = self.locks.entry((*key).into()).or_default();
            // Both scripts have the same keys.
            lock.queue = command.at(4).into();
            lock.alive = command.at(6).into();
            // A release with used places is, for the model, one of a queue without them.
            let used = args.get(4..).filter(|_| *name == "fair_release");
            let used = used.unwrap_or_default();
            let is_used = |waiter: &Bytes| used.iter().any(|place| **waiter == **place);
            lock.waiting.retain(|(waiter, _)| !is_used(waiter));
            let is_holders = lock
                .holder
                .as_ref()
                .is_some_and(|(holder, _)| **holder == *args[0]);
            let is_known = is_known && (used.is_empty() || is_holders);
            let before = lock.shown(keys);
            lock.look(key, keys);
            if is_known && !matches!(reply, Reply::Error(_)) {
                let heartbeat = if *name == "fair_acquire" {
                    args[3]
                } else {
                    b"0"
                };
                line = Some(Line {
                    step: name,
                    key: shown(key),
                    holder: shown(args[0]),
                    detail: shown(heartbeat),
                    is_granted: matches!(reply, Reply::Nil | Reply::Bulk(_)),
                    before,
                    after: lock.shown(keys),
                });
            }
        }
        for (key, lock) in &mut self.locks {
            lock.look(key, keys);
        }
        line
    }
}

impl Lock {
    fn look(&mut self, key: &[u8], keys: &Store) {
        let ends_at = keys.ends_at(key).unwrap_or(i64::MAX);
        self.holder = match keys.get(key) {
            Some(Data::Hash(fields)) => fields.first().map(|(holder, _)| (holder.clone(), ends_at)),
            _ => None,
        };
        let alive = match keys.get(&self.alive) {
            Some(Data::Sorted(alive)) => Some(alive),
            _ => None,
        };
        let until = |waiter: &[u8]| alive.and_then(|alive| alive.score(waiter)).unwrap_or(0.0);
        self.waiting = match keys.get(&self.queue) {
            Some(Data::List(queue)) => queue
                .iter()
                .map(|waiter| (waiter.clone(), until(waiter)))
                .collect(),
            _ => Vec::new(),
        };
    }

    /// By now.
    fn shown(&self, keys: &Store) -> String {
        let now_ms = keys.now_ms();
        let holder = self.holder.as_ref().filter(|(_, end)| *end >= now_ms);
        let holder = holder.map_or("-".into(), |(holder, _)| String::from_utf8_lossy(holder));
        let mut shown = format!("{holder}#");
        for (waiter, until) in &self.waiting {
            let waiter = String::from_utf8_lossy(waiter);
            let is_over = *until <= now_ms as f64;
            let _ = write!(shown, "{waiter}{},", if is_over { "!" } else { "" });
        }
        shown
    }
}
