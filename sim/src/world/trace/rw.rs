//! Read-write locks: each script that reads, writes, downgrades, leaves or renews.
//!
//! The state of the server is `writer#readers#waiters#turn`: a `!` behind a reader whose own lease is over, an `r` or
//! `w` before a waiter, and `turn` while a free lock is kept for readers. The detail of an attempt is its heartbeat,
//! and behind that `+` if a writer was done since the caller began to wait.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::line::{Line, is_over, shown};
use crate::called::Called;
use crate::number;
use crate::reply::Reply;
use crate::store::{Bytes, Data, Store};
use crate::words::Words;

/// The longest times for which a waiter is known, and for which a free lock is kept for readers, in ms.
const HEARTBEAT_MAX: f64 = 3_000.0;
const TURN: f64 = 100.0;

/// One lock, as the server has it.
#[derive(Default)]
struct Lock {
    waiting_key: Bytes,
    ends_at: Option<i64>,
    writer: Option<Bytes>,
    /// With the ends of their own leases; 0: it has ended.
    readers: Vec<(Bytes, Option<i64>)>,
    waiting: Vec<(Bytes, f64)>,
    waiting_ends_at: Option<i64>,
}

#[derive(Default)]
pub(super) struct Rw {
    locks: BTreeMap<Bytes, Lock>,
}

/// A call about one lock.
struct Call<'a> {
    step: &'static str,
    key: &'a [u8],
    holder: &'a [u8],
    heartbeat: &'a [u8],
    waited_ms: f64,
    is_granted: bool,
}

impl<'a> Call<'a> {
    fn all(command: &'a Words, called: &Called<'a>, reply: &Reply) -> Vec<Self> {
        let (name, key, args) = called;
        let one = |step, key, holder, is_granted| Self {
            step,
            key,
            holder,
            heartbeat: b"0",
            waited_ms: 0.0,
            is_granted,
        };
        let is_granted = matches!(reply, Reply::Nil | Reply::Bulk(_));
        match (*name, &args[..]) {
            ("read_acquire", [holder, _, _, heartbeat, waited, ..]) => vec![Self {
                heartbeat,
                waited_ms: number::int(waited).unwrap_or(0) as f64,
                ..one("rw_read", *key, holder, is_granted)
            }],
            ("write_acquire", [holder, _, _, heartbeat, ..]) => vec![Self {
                heartbeat,
                ..one("rw_write", *key, holder, is_granted)
            }],
            ("rw_release", [holder, ..]) => vec![one("rw_release", *key, holder, false)],
            ("rw_downgrade", [holder, ..]) => {
                let is_done = matches!(reply, Reply::Int(0..));
                vec![one("rw_downgrade", *key, holder, is_done)]
            }
            ("rw_renew", _) => {
                let Reply::Array(replies) = reply else {
                    return Vec::new();
                };
                let locks = command.from(3).zip(args.chunks(2)).zip(replies);
                let renewed = locks.map(|((key, args), reply)| {
                    one("rw_renew", key, args[0], *reply == Reply::Int(1))
                });
                renewed.collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Rw {
    /// A command was done.
    pub(super) fn done(
        &mut self,
        command: &Words,
        called: Option<&Called<'_>>,
        reply: &Reply,
        keys: &Store,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        let calls = called.map(|called| Call::all(command, called, reply));
        for call in calls.into_iter().flatten() {
            let is_known = self.locks.contains_key(call.key);
            if call.step != "rw_renew" {
                let lock = self.locks.entry(call.key.into()).or_default();
                lock.waiting_key = command.at(4).into();
            }
            // A renewal follows an acquire.
            let Some(lock) = self.locks.get_mut(call.key) else {
                continue;
            };
            let before = lock.shown(keys);
            let saw_end = lock.saw_writer_end(&call, keys);
            lock.look(call.key, keys);
            if is_known && !matches!(reply, Reply::Error(_)) {
                let heartbeat = shown(call.heartbeat);
                lines.push(Line {
                    step: call.step,
                    key: shown(call.key),
                    holder: shown(call.holder),
                    detail: format!("{heartbeat}{}", if saw_end { "+" } else { "" }),
                    is_granted: call.is_granted,
                    before,
                    after: lock.shown(keys),
                });
            }
        }
        for (key, lock) in &mut self.locks {
            lock.look(key, keys);
        }
        lines
    }
}

/// The key of the lease of one read hold, as Redisson names it. No lock of a world has braces in its name.
fn lease_of(key: &[u8], holder: &[u8]) -> Vec<u8> {
    [b"{", key, b"}:", holder, b":rwlock_timeout:1"].concat()
}

impl Lock {
    fn look(&mut self, key: &[u8], keys: &Store) {
        self.ends_at = keys.ends_at(key);
        self.writer = None;
        self.readers.clear();
        if let Some(Data::Hash(fields)) = keys.get(key) {
            for (field, _) in fields.iter().filter(|(field, _)| **field != *b"mode") {
                if let Some(writer) = field.strip_suffix(b":write") {
                    self.writer = Some(writer.into());
                    continue;
                }
                let lease = lease_of(key, field);
                let ends_at = keys.get(&lease).and(keys.ends_at(&lease));
                self.readers.push((field.clone(), ends_at.or(Some(0))));
            }
        }
        self.waiting_ends_at = keys.ends_at(&self.waiting_key);
        self.waiting.clear();
        if let Some(Data::Sorted(waiting)) = keys.get(&self.waiting_key) {
            let known = waiting.iter().map(|(score, who)| (who.into(), score));
            self.waiting.extend(known);
        }
    }

    fn noted(&self, who: &[u8], keys: &Store) -> Option<f64> {
        let mut waiting = self.waiting.iter();
        let found = waiting.find(|(known, _)| **known == *who);
        found
            .filter(|_| !is_over(self.waiting_ends_at, keys))
            .map(|(_, score)| *score)
    }

    /// When the last writer was done, if others waited then.
    fn writer_end(&self, keys: &Store) -> Option<f64> {
        let now = keys.now_ms() as f64;
        self.noted(b"done", keys).filter(|done| *done <= now)
    }

    /// Whether that was after the caller was refused last, or began to wait in its client.
    fn saw_writer_end(&self, call: &Call<'_>, keys: &Store) -> bool {
        let Some(done) = self.writer_end(keys) else {
            return false;
        };
        let asked = self.noted(call.holder, keys);
        asked.is_some_and(|asked| -asked <= done) || keys.now_ms() as f64 - call.waited_ms < done
    }

    /// By now.
    fn shown(&self, keys: &Store) -> String {
        let now = keys.now_ms() as f64;
        let mut text = String::new();
        let is_held = !is_over(self.ends_at, keys);
        let writer = self.writer.as_ref().filter(|_| is_held);
        let _ = write!(text, "{}#", writer.map_or("-".into(), |it| shown(it)));
        for (reader, end) in self.readers.iter().filter(|_| is_held) {
            let dead = if is_over(*end, keys) { "!" } else { "" };
            let _ = write!(text, "{}{dead},", shown(reader));
        }
        text.push('#');
        let is_known = !is_over(self.waiting_ends_at, keys);
        for (who, score) in self.waiting.iter().filter(|_| is_known) {
            if [&b"turn"[..], b"done"].contains(&&**who) {
                continue;
            }
            let (kind, since_or_left) = if *score < 0.0 {
                ('r', now + score)
            } else {
                ('w', score - now)
            };
            let is_alive = match kind {
                'r' => (0.0..=HEARTBEAT_MAX).contains(&since_or_left),
                _ => since_or_left > 0.0 && since_or_left <= HEARTBEAT_MAX,
            };
            if is_alive {
                let _ = write!(text, "{kind}{},", shown(who));
            }
        }
        text.push('#');
        let left = self.writer_end(keys).map(|done| done + TURN - now);
        let is_kept = left.is_some_and(|left| left > 0.0);
        if is_kept && self.noted(b"turn", keys).is_some() {
            text.push_str("turn");
        }
        text
    }
}
