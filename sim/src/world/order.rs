//! The order in which a server grants fair locks, by its own clock, independent of the clients' views.
//!
//! It goes by what the server was asked and has replied, and by who holds the lock then, not by its queues.

use std::collections::{BTreeMap, BTreeSet};

use crate::called::script;
use crate::reply::Reply;
use crate::store::{Bytes, Data, Store};
use crate::words::Words;

struct Waiting {
    holder: Bytes,
    /// Until when its place is kept, in ms of the server's clock.
    until_ms: i64,
}

/// One fair lock.
#[derive(Default)]
struct Lock {
    /// In the order of their first refusal.
    waiting: Vec<Waiting>,
    /// Waiters that asked after their places had ended: each may be at the end of the queue, or where it was.
    were_late: BTreeSet<Bytes>,
    holder: Option<Bytes>,
}

#[derive(Default)]
pub(super) struct Order {
    locks: BTreeMap<Bytes, Lock>,
}

impl Order {
    /// A command was done at `keys`. Returns the waiter that was passed over, if there is one.
    pub(super) fn done(&mut self, command: &Words, reply: &Reply, keys: &Store) -> Option<String> {
        let now_ms = keys.now_ms();
        if let Some((name @ ("fair_acquire" | "fair_release" | "fair_heartbeat"), key, args)) =
            script(command)
        {
            let lock = self.locks.entry(key.into()).or_default();
            match (name, reply) {
                ("fair_acquire", Reply::Array(refused)) => {
                    if let [_, Reply::Int(until_ms), ..] = refused[..] {
                        lock.refused(args[0], until_ms, now_ms);
                    }
                }
                // Behind the holder and three words stand those who had the lock in turn.
                ("fair_release", _) => lock.waiting.retain(|waits| {
                    let is_over = |place: &&[u8]| *waits.holder == **place;
                    !args.iter().take(1).chain(args.iter().skip(4)).any(is_over)
                }),
                // Behind four words stand the waiters.
                ("fair_heartbeat", Reply::Array(kept)) => {
                    for (waiter, kept) in args.iter().skip(4).zip(kept) {
                        if let Reply::Int(until_ms @ 1..) = kept {
                            lock.refused(waiter, *until_ms, now_ms);
                        }
                    }
                }
                _ => {}
            }
        }
        self.locks
            .iter_mut()
            .find_map(|(key, lock)| lock.look(key, keys))
    }
}

impl Lock {
    fn refused(&mut self, holder: &[u8], until_ms: i64, now_ms: i64) {
        let known = self
            .waiting
            .iter()
            .position(|waits| *waits.holder == *holder);
        match known {
            Some(at) if self.waiting[at].until_ms > now_ms => self.waiting[at].until_ms = until_ms,
            Some(at) => {
                let late = self.waiting.remove(at);
                self.were_late.insert(late.holder);
            }
            None if self.were_late.contains(holder) => {}
            None => self.waiting.push(Waiting {
                holder: holder.into(),
                until_ms,
            }),
        }
    }

    /// Whether a new holder has it although other waiters were first.
    fn look(&mut self, key: &[u8], keys: &Store) -> Option<String> {
        let holder = match keys.get(key) {
            Some(Data::Hash(fields)) => fields.first().map(|(holder, _)| holder),
            _ => None,
        };
        if holder == self.holder.as_ref() {
            return None;
        }
        let holder = holder.cloned();
        self.holder.clone_from(&holder);
        let holder = holder?;
        let at = self
            .waiting
            .iter()
            .position(|waits| waits.holder == holder)?;
        self.waiting.remove(at);
        let is_alive = |waits: &&Waiting| waits.until_ms > keys.now_ms() + 1;
        let passed_over = self.waiting[..at].iter().find(is_alive)?;
        let [lock, holder, first] =
            [key, &*holder, &*passed_over.holder].map(String::from_utf8_lossy);
        Some(format!(
            "{lock} goes to {holder}, and {first} was there before"
        ))
    }
}
