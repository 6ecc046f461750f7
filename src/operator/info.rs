//! What operators are shown: locks, their holders, those that wait, and the clients behind them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::fencing::FencingToken;

/// A lock as the server showed it at one moment; from [`Survey`](crate::Survey).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// As a client with this key prefix names it.
    pub name: String,
    /// The key at the server, prefix included.
    pub key: String,
    /// What can be seen of its kind.
    pub kind: LockKind,
    /// Who holds it. Empty if it was free at that moment, and others waited for it.
    pub holders: Vec<LockHolder>,
    /// What is left of the lease by the server's clock. Zero if the lock was free.
    pub remaining: Duration,
    /// How many wait: places in the queue of a fair lock, else clients that are subscribed. One client may
    /// wait with many tasks.
    pub waiters: usize,
    /// The last fencing token, if there ever was one.
    pub token: Option<FencingToken>,
}

impl LockInfo {
    /// How long its holder has had it, as far as that is known: the longest of several.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.holders
            .iter()
            .filter_map(|holder| holder.held_for)
            .max()
    }
}

/// What can be seen of the kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// One holder: a reentrant lock, or a fair lock for which nobody waits. The server does not tell them
    /// apart.
    Exclusive,
    /// A fair lock with a queue.
    Fair,
    /// A read-write lock.
    ReadWrite,
}

impl LockKind {
    /// In one word: `exclusive`, `fair`, `read-write`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Fair => "fair",
            Self::ReadWrite => "read-write",
        }
    }
}

/// How a holder has a lock, or a waiter wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldMode {
    /// Alone, as every lock but a read-write lock is held.
    Exclusive,
    /// As one of the readers.
    Read,
    /// As the writer.
    Write,
}

impl HoldMode {
    /// In one word: `exclusive`, `read`, `write`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The holder id, that of its guard.
    pub id: String,
    /// How it has the lock.
    pub mode: HoldMode,
    /// How many times.
    pub hold_count: u32,
    /// What is left of a reader's own lease. Known after [`Survey::inspect`](crate::Survey::inspect).
    pub remaining: Option<Duration>,
    /// How long it has had the lock. Known of holds that are older than one announcement of their client;
    /// see [`ClientBuilder::announce_every`](crate::ClientBuilder::announce_every).
    pub held_for: Option<Duration>,
    /// Its client, if that is one of this library and is known at the server. Redisson's are not.
    pub client: Option<Arc<ClientInfo>>,
}

/// A client of this library, as the server knows it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// [`Client::id`](crate::Client::id).
    pub id: String,
    /// From where it is connected, as the server sees it.
    pub addresses: Vec<String>,
    /// What it has announced about itself, if it has.
    pub announced: Option<Announced>,
}

/// What a client has announced about itself; see
/// [`ClientBuilder::announce_every`](crate::ClientBuilder::announce_every).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Announced {
    /// The name of its machine.
    pub host: String,
    /// The number of its process there.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The name that the program gave the client; see [`ClientBuilder::label`](crate::ClientBuilder::label).
    pub label: Option<String>,
    /// The version of this library.
    pub version: String,
    /// How long it has been a client.
    pub up_for: Duration,
    /// What it holds for longer than one announcement: key and holder id, longest first.
    pub holds: Vec<Announcement>,
    /// What it waits for, for longer than one announcement: longest first.
    pub waits: Vec<Announcement>,
    /// Holds and waits beyond those that are listed.
    pub more: u64,
}

/// A hold or a wait that a client has announced.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Announcement {
    /// The key of the lock.
    pub key: String,
    /// The holder id; empty for a wait that has none at the server.
    pub holder: String,
    /// For how long.
    pub lasts: Duration,
}

/// One lock with all that the server knows of it; from [`Survey::inspect`](crate::Survey::inspect).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockDetail {
    /// What every lock has.
    pub lock: LockInfo,
    /// Host and port of the server that has it.
    pub server: String,
    /// Those that wait and are named at the server, in order: the queue of a fair lock, and waiters of
    /// this library for a read-write lock. Others are counted in [`LockInfo::waiters`] alone.
    pub queue: Vec<QueuedWaiter>,
    /// Clients that have announced that they wait for it, and for how long.
    pub announced_waits: Vec<(Arc<ClientInfo>, Duration)>,
    /// The channels on which its release is published, with how many are subscribed.
    pub channels: Vec<(String, u64)>,
}

/// A waiter that is named at the server.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueuedWaiter {
    /// The holder id under which it would hold the lock.
    pub id: String,
    /// How it wants the lock.
    pub mode: HoldMode,
    /// Whether it is one of this library, which keeps its place by a heartbeat. Redisson's do not.
    pub has_heartbeat: bool,
    /// How long its place is kept without another sign of life; zero if that is over.
    pub kept_for: Duration,
    /// Its client, if it is known.
    pub client: Option<Arc<ClientInfo>>,
}

/// A counter of fencing tokens that was not used for some time; from [`Survey::tokens`](crate::Survey::tokens).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenCounter {
    /// The name of the lock, as a client with this key prefix names it. The lock with the same name in braces
    /// counts with it too.
    pub name: String,
    /// The key of the counter at the server.
    pub key: String,
    /// The last token: the time of its grant, in microseconds since 1970 by the server's clock then.
    pub token: FencingToken,
    /// How long ago that is, by the server's clock now.
    pub unused_for: Duration,
    /// After what time the server drops it by itself; `None`: never.
    pub kept_for: Option<Duration>,
    /// Whether a lock that counts with it is held or waited for.
    pub in_use: bool,
}

/// A server as this client meets it; from [`Survey::servers`](crate::Survey::servers).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerReport {
    /// Host and port.
    pub address: String,
    /// What it says of itself: the fields of `INFO`. Empty without the right to ask.
    pub info: BTreeMap<String, String>,
    /// The shortest and the middle one of some round trips; zero without the right to ask for the time.
    pub round_trips: [Duration; 2],
    /// How far its clock is ahead of this machine's, in ms; less than zero if it is behind. Exact to half a
    /// round trip.
    pub clock_ahead_ms: i64,
    /// Whether it knows `RESTORE`, by which free locks are taken without a script. `None` without the right to ask
    /// (`+command|info`).
    pub has_restore: Option<bool>,
    /// The user that this client is there. `None` without the right to ask.
    pub user: Option<String>,
    /// What this user may do of what locks need, as far as the server says it without its being done: from
    /// Redis 7 on, and with the right to ask.
    pub rights: Vec<Right>,
}

/// One right that locks need, or may do without; see [`ServerReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Right {
    /// As `ACL SETUSER` has it: `+hset`, or a pattern of keys or channels.
    pub rule: String,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether locks fail without it. Without the others something is slower or is not shown.
    pub is_needed: bool,
    /// Whether the user has it.
    pub is_given: bool,
}

/// How busy the servers are; from [`Survey::load`](crate::Survey::load).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerLoad {
    /// Where they are.
    pub address: String,
    /// The commands of all of them per second; without the survey's own after the first call. Zero without the right
    /// to ask.
    pub commands_per_second: u64,
    /// The longest round trip among them.
    pub round_trip: Duration,
}
