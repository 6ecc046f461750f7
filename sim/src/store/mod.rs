//! The keys of a server: four types, leases, and a clock that is set before each command.
//!
//! Invariant: a key whose lease is over does not exist for any command, even if its memory is still in use; neither
//! does a list, hash or sorted set without a member.

mod sorted_set;

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

pub(crate) use self::sorted_set::{Bytes, SortedSet};

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Data {
    Text(Bytes),
    /// Fields in the order of their addition, as the server keeps a small hash.
    Hash(Vec<(Bytes, Bytes)>),
    List(VecDeque<Bytes>),
    Sorted(SortedSet),
}

impl Data {
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Hash(_) => "hash",
            Self::List(_) => "list",
            Self::Sorted(_) => "zset",
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Hash(fields) => fields.is_empty(),
            Self::List(items) => items.is_empty(),
            Self::Sorted(members) => members.is_empty(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    data: Data,
    /// In ms of the server's clock.
    ends_at: Option<i64>,
}

/// All keys of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    entries: FxHashMap<Bytes, Entry>,
    now_us: u64,
    writes: u64,
    /// The names of changed keys, if the caller wants them.
    changed: Option<Vec<Bytes>>,
}

/// A key that was changed, and what it holds now.
pub(crate) type Changed = (Bytes, Option<Entry>);

/// After this many writes, what has expired is taken out.
const SWEEP_EVERY: u64 = 1 << 12;

impl Store {
    /// Sets the clock, in µs since 1970.
    pub(crate) fn set_clock(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.now_us
    }

    pub(crate) fn now_ms(&self) -> i64 {
        i64::try_from(self.now_us / 1000).unwrap_or(i64::MAX)
    }

    fn is_over(&self, entry: &Entry) -> bool {
        entry.ends_at.is_some_and(|end| self.now_ms() > end)
    }

    fn drop_if_over(&mut self, key: &[u8]) {
        if self
            .entries
            .get(key)
            .is_some_and(|entry| self.is_over(entry))
        {
            self.entries.remove(key);
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Data> {
        let entry = self.entries.get(key)?;
        (!self.is_over(entry)).then_some(&entry.data)
    }

    /// The value of a key; `fresh` if it holds nothing. Call [`tidy`](Self::tidy) after taking something out.
    pub(crate) fn get_or_insert(&mut self, key: &[u8], fresh: impl FnOnce() -> Data) -> &mut Data {
        self.note_change(key);
        self.drop_if_over(key);
        self.note_write();
        if !self.entries.contains_key(key) {
            let entry = Entry {
                data: fresh(),
                ends_at: None,
            };
            self.entries.insert(key.into(), entry);
        }
        &mut self.entries.get_mut(key).expect("inserted").data
    }

    /// Takes a key out that has nothing left.
    pub(crate) fn tidy(&mut self, key: &[u8]) {
        if self
            .entries
            .get(key)
            .is_some_and(|entry| entry.data.is_empty())
        {
            self.entries.remove(key);
        }
    }

    /// Replaces the previous value.
    pub(crate) fn set(&mut self, key: &[u8], data: Data, ends_at: Option<i64>) {
        self.note_change(key);
        self.note_write();
        self.entries.insert(key.into(), Entry { data, ends_at });
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        self.note_change(key);
        self.drop_if_over(key);
        self.entries.remove(key).is_some()
    }

    pub(crate) fn ends_at(&self, key: &[u8]) -> Option<i64> {
        self.entries.get(key)?.ends_at
    }

    /// Gives a key that is there an end.
    pub(crate) fn set_end(&mut self, key: &[u8], ends_at: Option<i64>) {
        self.note_change(key);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.ends_at = ends_at;
        }
    }

    pub(crate) fn clear(&mut self) {
        if let Some(changed) = &mut self.changed {
            changed.extend(self.entries.keys().cloned());
        }
        self.entries.clear();
    }

    /// Keeps the names of what is changed from now on, for [`take_changed`](Self::take_changed).
    pub(crate) fn track(&mut self) {
        self.changed.get_or_insert_default();
    }

    fn note_change(&mut self, key: &[u8]) {
        if let Some(changed) = &mut self.changed {
            changed.push(key.into());
        }
    }

    /// The changes since the last call.
    pub(crate) fn take_changed(&mut self) -> Vec<Changed> {
        let mut names = self
            .changed
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        names.sort_unstable();
        names.dedup();
        let changed = names.into_iter().map(|name| {
            let entry = self.entries.get(&name).cloned();
            (name, entry)
        });
        changed.collect()
    }

    /// Everything, for another server.
    pub(crate) fn all(&self) -> Vec<Changed> {
        let entries = self.entries.iter();
        entries
            .map(|(name, entry)| (name.clone(), Some(entry.clone())))
            .collect()
    }

    /// Takes over what was changed at another server.
    pub(crate) fn apply(&mut self, changed: Vec<Changed>) {
        for (name, entry) in changed {
            self.note_change(&name);
            match entry {
                Some(entry) => self.entries.insert(name, entry),
                None => self.entries.remove(&name),
            };
        }
    }

    /// The keys that are there, in order.
    pub(crate) fn keys(&self) -> Vec<Bytes> {
        let alive = self
            .entries
            .iter()
            .filter(|(_, entry)| !self.is_over(entry));
        let mut keys: Vec<Bytes> = alive.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    fn note_write(&mut self) {
        self.writes += 1;
        if self.writes.is_multiple_of(SWEEP_EVERY) {
            let now = self.now_ms();
            self.entries
                .retain(|_, entry| entry.ends_at.is_none_or(|end| now <= end));
        }
    }
}
