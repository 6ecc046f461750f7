//! Locks as the verbs show them: the names of the JSON fields, and the words for people.

use std::time::Duration;

use lockset_operator::{ClientInfo, HoldMode, LockHolder, LockInfo, LockKind, QueuedWaiter};
use serde::Serialize;

use crate::output::shown;

/// A lock. The names of its fields do not change.
#[derive(Serialize)]
pub(crate) struct LockFact<'a> {
    name: &'a str,
    key: &'a str,
    kind: &'static str,
    holders: Vec<HolderFact<'a>>,
    /// Null for a kind without leases.
    remaining_ms: Option<u128>,
    waiters: usize,
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_permits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parties: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
}

/// One of its holders.
#[derive(Serialize)]
pub(crate) struct HolderFact<'a> {
    id: &'a str,
    mode: &'static str,
    count: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u128>,
    held_ms: Option<u128>,
    #[serde(flatten)]
    client: ClientFact<'a>,
}

/// The client of a holder or a waiter. Unknown fields are null.
#[derive(Default, Serialize)]
pub(crate) struct ClientFact<'a> {
    /// `lockset`, or null for others: Redisson, or a client that has ended.
    library: Option<&'static str>,
    version: Option<&'a str>,
    host: Option<&'a str>,
    pid: Option<u32>,
    program: Option<&'a str>,
    label: Option<&'a str>,
    address: Option<&'a str>,
}

/// A waiter whose id is at the server.
#[derive(Serialize)]
pub(crate) struct WaiterFact<'a> {
    id: &'a str,
    mode: &'static str,
    heartbeat: bool,
    kept_ms: u128,
    #[serde(flatten)]
    client: ClientFact<'a>,
}

impl<'a> From<&'a LockInfo> for LockFact<'a> {
    fn from(lock: &'a LockInfo) -> Self {
        Self {
            name: &lock.name,
            key: &lock.key,
            kind: lock.kind.as_str(),
            holders: lock.holders.iter().map(Into::into).collect(),
            remaining_ms: remaining(lock).map(|left| left.as_millis()),
            waiters: lock.waiters,
            token: lock.token.map(lockset::FencingToken::get),
            free_permits: lock.free_permits,
            count: lock.count,
            parties: lock.parties,
            value: lock.value.as_deref(),
        }
    }
}

impl<'a> From<&'a LockHolder> for HolderFact<'a> {
    fn from(holder: &'a LockHolder) -> Self {
        let ms = |span: Duration| span.as_millis();
        Self {
            id: &holder.id,
            mode: holder.mode.as_str(),
            count: holder.hold_count,
            remaining_ms: holder.remaining.map(ms),
            held_ms: holder.held_for.map(ms),
            client: ClientFact::of(holder.client.as_deref()),
        }
    }
}

impl<'a> From<&'a QueuedWaiter> for WaiterFact<'a> {
    fn from(waiter: &'a QueuedWaiter) -> Self {
        Self {
            id: &waiter.id,
            mode: waiter.mode.as_str(),
            heartbeat: waiter.has_heartbeat,
            kept_ms: waiter.kept_for.as_millis(),
            client: ClientFact::of(waiter.client.as_deref()),
        }
    }
}

impl<'a> ClientFact<'a> {
    pub(crate) fn of(client: Option<&'a ClientInfo>) -> Self {
        let Some(client) = client else {
            return Self::default();
        };
        let announced = client.announced.as_ref();
        Self {
            library: Some("lockset"),
            version: announced.map(|of| of.version.as_str()),
            host: announced.map(|of| of.host.as_str()),
            pid: announced.map(|of| of.pid),
            program: announced.map(|of| of.program.as_str()),
            label: announced.and_then(|of| of.label.as_deref()),
            address: client.addresses.first().map(String::as_str),
        }
    }
}

/// The numbers of a semaphore, a latch or a barrier in words.
pub(crate) fn numbers(lock: &LockInfo) -> Option<String> {
    if let Some(free) = lock.free_permits {
        let taken = taken(lock);
        return Some(match lock.kind {
            LockKind::PlainSemaphore => format!(
                "{free} permits free, {taken} taken by clients of lockset; what Redisson has is not noted"
            ),
            // It may be a plain one, and others may have the rest.
            _ if taken == 0 => format!("{free} permits free"),
            _ => {
                let all = taken.saturating_add(free);
                format!("{taken} of {all} permits taken, {free} free")
            }
        });
    }
    if let Some(parties) = lock.parties {
        return Some(format!("{} of {parties} parties have come", lock.waiters));
    }
    Some(format!("{} left to count down", lock.count?))
}

/// The time left of the lease. `None` for a kind without leases.
pub(crate) fn remaining(lock: &LockInfo) -> Option<Duration> {
    let has_lease = !matches!(lock.kind, LockKind::PlainSemaphore | LockKind::Latch);
    has_lease.then_some(lock.remaining)
}

/// How many permits of a semaphore are known to be taken.
pub(crate) fn taken(lock: &LockInfo) -> u64 {
    let holders = lock.holders.iter();
    holders.map(|holder| u64::from(holder.hold_count)).sum()
}

/// How many times a holder has it; empty for once.
pub(crate) fn times(holder: &LockHolder) -> String {
    match (holder.hold_count, holder.mode) {
        (1, _) => String::new(),
        (count, HoldMode::Permit) => format!(", {count} permits"),
        (count, _) => format!(", {count} times"),
    }
}

/// A client in a few words: host, process and label or program; without an announcement its address; otherwise its
/// id.
pub(crate) fn who(id: &str, client: Option<&ClientInfo>) -> String {
    let announced = client.and_then(|client| client.announced.as_ref());
    if let Some(of) = announced {
        let name = of.label.as_ref().unwrap_or(&of.program);
        return shown(&format!("{} {} ({name})", of.host, of.pid));
    }
    let address = client.and_then(|client| client.addresses.first());
    match address {
        Some(address) => format!("{} at {}", short(id), shown(address)),
        None => short(id),
    }
}

/// A holder id with the beginning of its UUID, enough to tell clients apart.
pub(crate) fn short(id: &str) -> String {
    match id.split_once(':') {
        Some((client, number)) if is_uuid(client) => {
            format!("{}..:{}", &client[..8], shown(number))
        }
        _ => shown(id),
    }
}

/// Any user of the server can write any text as the id of a waiter.
fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// Rows under their headings, each column as wide as its widest cell, two spaces between them.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([headings[at].len()]).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths);
        let padded = cells.map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(headings.to_vec());
    let rows = rows
        .iter()
        .map(|row| line(row.iter().map(String::as_str).collect()));
    [head].into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_harmless() {
        let id = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:7";
        assert_eq!(short(id), "9f2c3a44..:7");
        assert_eq!(short("x\x1b"), "x\\u{1b}");
        // As long as a UUID, with a character of two bytes where a UUID is cut.
        let odd = format!("{}äö{}:7", "x".repeat(7), "\x1b".repeat(25));
        let shown = format!("{}äö{}:7", "x".repeat(7), "\\u{1b}".repeat(25));
        assert_eq!(short(&odd), shown);
        assert_eq!(who(id, None), "9f2c3a44..:7");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["a".to_owned(), "größe".to_owned()],
            vec!["bbbb".to_owned(), "x".to_owned()],
        ];
        assert_eq!(
            table(&["N", "KIND"], &rows),
            ["N     KIND", "a     größe", "bbbb  x"]
        );
    }
}
