//! Results for operators: locks, their holders, their waiters, and the clients behind them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lockset::FencingToken;

/// A lock, semaphore, latch, barrier or election as the server showed it at one moment; from [`Survey`](crate::Survey).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockInfo {
    /// Its name for a client with this key prefix.
    pub name: String,
    /// The key at the server, prefix included. For a barrier, the key with its number of parties.
    pub key: String,
    /// Its kind, as far as the server shows it.
    pub kind: LockKind,
    /// Its holders: of a semaphore, one for each permit that is taken; of a plain semaphore, each call of this library
    /// that has taken permits and not given them back; of an election, its leader. Empty if it was free at that moment,
    /// and others waited for it.
    pub holders: Vec<LockHolder>,
    /// The time left of the lease by the server's clock; of several permits or parties, the longest. Zero if the lock was
    /// free, and for a plain semaphore, which has none.
    pub remaining: Duration,
    /// How many wait: for a fair lock, the places in its queue; at a barrier, the parties that have come; for other
    /// locks, the clients that are subscribed. One client may wait with many tasks.
    pub waiters: usize,
    /// The last fencing token, if there ever was one.
    pub token: Option<FencingToken>,
    /// How many permits of a semaphore of either kind are free; `None` for other kinds.
    pub free_permits: Option<u64>,
    /// How many times a latch is still to be counted down; `None` for other kinds.
    pub count: Option<u64>,
    /// How many parties a round of a barrier has; `None` for other kinds.
    pub parties: Option<u64>,
    /// The value that the leader of an election proclaimed last; `None` for other kinds.
    pub value: Option<String>,
}

impl LockInfo {
    /// Returns how long its holder has had it, as far as that is known; of several holders, the longest time.
    #[must_use]
    pub fn held_for(&self) -> Option<Duration> {
        self.holders
            .iter()
            .filter_map(|holder| holder.held_for)
            .max()
    }
}

/// The kind of a lock, as far as the server shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// One holder: a reentrant lock, or a fair lock without waiters. The server does not distinguish them.
    Exclusive,
    /// A fair lock with a queue.
    Fair,
    /// A read-write lock.
    ReadWrite,
    /// A semaphore, recognized while a permit is taken or waited for, and by its name when the leases of all have ended.
    /// While no permit is known to be taken, it may be a plain one.
    Semaphore,
    /// A plain semaphore, recognized while a client of this library has permits of it. Those that Redisson has taken have
    /// no holders at the server, so it does not tell how many there are in all.
    PlainSemaphore,
    /// A latch, recognized while a client waits for it.
    Latch,
    /// A barrier, recognized while a party waits.
    Barrier,
    /// An election with a leader.
    Election,
}

impl LockKind {
    /// Returns one word: `exclusive`, `fair`, `read-write`, `semaphore`, `plain-semaphore`, `latch`, `barrier`,
    /// `election`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Fair => "fair",
            Self::ReadWrite => "read-write",
            Self::Semaphore => "semaphore",
            Self::PlainSemaphore => "plain-semaphore",
            Self::Latch => "latch",
            Self::Barrier => "barrier",
            Self::Election => "election",
        }
    }
}

/// The mode of a holder, or the mode that a waiter wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldMode {
    /// Alone, as in every lock but a read-write lock.
    Exclusive,
    /// As one of the readers.
    Read,
    /// As the writer.
    Write,
    /// With a permit of a semaphore.
    Permit,
    /// As a party of a barrier.
    Party,
}

impl HoldMode {
    /// Returns one word: `exclusive`, `read`, `write`, `permit`, `party`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Read => "read",
            Self::Write => "write",
            Self::Permit => "permit",
            Self::Party => "party",
        }
    }
}

/// One holder of a lock.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The holder id, equal to the holder id of its guard.
    pub id: String,
    /// Its mode.
    pub mode: HoldMode,
    /// The count at the server: 1 for a holder of lockset, which counts re-entries in its client. Redisson counts each of
    /// them here. Of a plain semaphore, how many permits it has.
    pub hold_count: u32,
    /// The time left of a permit's lease, and of a reader's own lease.
    pub remaining: Option<Duration>,
    /// How long it has had the lock. Known for holds that are older than one announcement of their client; see
    /// [`ClientBuilder::announce_every`](lockset::ClientBuilder::announce_every).
    pub held_for: Option<Duration>,
    /// Its client, if that is a client of this library and known at the server. Redisson's clients are not.
    pub client: Option<Arc<ClientInfo>>,
}

/// A client of this library, as the server knows it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ClientInfo {
    /// The id of the client, equal to [`Client::id`](lockset::Client::id).
    pub id: String,
    /// The addresses that it connects from, as the server sees them.
    pub addresses: Vec<String>,
    /// Its announcement, if it has made one.
    pub announced: Option<Announced>,
}

/// The announcement of a client; see [`ClientBuilder::announce_every`](lockset::ClientBuilder::announce_every).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Announced {
    /// The name of its machine.
    pub host: String,
    /// The number of its process there.
    pub pid: u32,
    /// The name of the program.
    pub program: String,
    /// The name that the program gave the client; see [`ClientBuilder::label`](lockset::ClientBuilder::label).
    pub label: Option<String>,
    /// The version of this library.
    pub version: String,
    /// How long the client has existed.
    pub up_for: Duration,
    /// Its holds that are older than one announcement: key and holder id, longest first.
    pub holds: Vec<Announcement>,
    /// Its waits that are older than one announcement: longest first.
    pub waits: Vec<Announcement>,
    /// How many further holds and waits are not listed.
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
    /// How long it has lasted.
    pub lasts: Duration,
}

/// One lock with everything that the server knows of it; from [`Survey::inspect`](crate::Survey::inspect).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LockDetail {
    /// The part that every lock has.
    pub lock: LockInfo,
    /// Host and port of the server that has it.
    pub server: String,
    /// The waiters that are named at the server, in order: the queue of a fair lock or a fair semaphore, and waiters of
    /// this library for a read-write lock; and the parties of a barrier, in no order. Others are only counted, in
    /// [`LockInfo::waiters`].
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
    /// The holder id under which it would hold the lock; of a party, its id, with its name behind it if it has one.
    pub id: String,
    /// The mode that it wants.
    pub mode: HoldMode,
    /// Whether it is a waiter of this library, which keeps its place by a heartbeat. Redisson's waiters have none.
    pub has_heartbeat: bool,
    /// How long its place is kept without another heartbeat; zero if that time is over.
    pub kept_for: Duration,
    /// Its client, if it is known.
    pub client: Option<Arc<ClientInfo>>,
}

/// A counter of fencing tokens that has been unused for some time; from [`Survey::tokens`](crate::Survey::tokens).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenCounter {
    /// The name of the lock for a client with this key prefix. The lock with that name in braces uses the counter too.
    pub name: String,
    /// The key of the counter at the server.
    pub key: String,
    /// The last token: the time of its grant, in microseconds since 1970 by the server's clock then.
    pub token: FencingToken,
    /// How long ago that was, by the server's clock now.
    pub unused_for: Duration,
    /// The time after which the server drops it by itself; `None`: never.
    pub kept_for: Option<Duration>,
    /// Whether a lock that uses it is held or waited for.
    pub in_use: bool,
}

/// A server as this client meets it; from [`Survey::servers`](crate::Survey::servers).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerReport {
    /// Host and port.
    pub address: String,
    /// Why it was not asked further: it cannot be reached, or cannot serve now. Then only the address is known.
    pub failure: Option<lockset::Error>,
    /// Its own report: the fields of `INFO`. Empty without the right to ask.
    pub info: BTreeMap<String, String>,
    /// The shortest and the median of some round trips; zero without the right to ask for the time.
    pub round_trips: [Duration; 2],
    /// How far its clock is ahead of this machine's, in ms; negative if it is behind. Exact to half a round trip.
    pub clock_ahead_ms: i64,
    /// Whether it has `RESTORE`, which takes free locks without a script. `None` without the right to ask
    /// (`+command|info`).
    pub has_restore: Option<bool>,
    /// Whether it has the commands that subscribe and publish, so that waiters hear of releases. Without them, waits
    /// ask by a timer alone, as with [`polled`](lockset::ReentrantLock::polled). `None` as for
    /// [`has_restore`](Self::has_restore).
    pub has_pubsub: Option<bool>,
    /// The name of this client's user there. `None` without the right to ask.
    pub user: Option<String>,
    /// The rights that locks need, and whether the user has them, as far as the server reports it without executing
    /// anything: from Redis 7 on, and with the right to ask.
    pub rights: Vec<Right>,
}

/// One right that locks need or can use; see [`ServerReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Right {
    /// The rule of `ACL SETUSER`: `+hset`, or a pattern of keys or channels.
    pub rule: String,
    /// The purpose of the right.
    pub purpose: &'static str,
    /// Whether notifications need it. Without it, waits ask by a timer alone.
    pub is_for_notifications: bool,
    /// Whether locks fail without it. Without another right something is slower or is not shown.
    pub is_needed: bool,
    /// Whether the user has it.
    pub is_given: bool,
}

/// How busy the servers are; from [`Survey::load`](crate::Survey::load).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServerLoad {
    /// Their addresses.
    pub address: String,
    /// The commands per second of all of them; after the first call without the survey's own. Zero without the right to
    /// ask.
    pub commands_per_second: u64,
    /// The longest round trip among them.
    pub round_trip: Duration,
    /// Why a server of a cluster did not answer, by its host and port. The other figures are of the rest.
    pub failures: BTreeMap<String, lockset::Error>,
}
