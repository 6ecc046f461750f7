//! Views and actions for operators of [lockset]: which locks there are, who holds them and since when, who
//! waits, what the servers permit; and taking a lock from its holder.
//!
//! A program that only locks does not need this crate. The command `lockset` is made of it.
//!
//! ```no_run
//! # async fn doc() -> lockset::Result<()> {
//! use lockset_operator::{ReleaseHolder, Survey};
//!
//! let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
//! for lock in Survey::new(&client).matching("order:*").locks().await? {
//!     println!("{} is held by {}, {} wait", lock.name, lock.holders[0].id, lock.waiters);
//! }
//! if let Some(holder) = client.lock("report").holder().await? {
//!     client.lock("report").release_holder(&holder.id).await?;
//! }
//! # Ok(()) }
//! ```
//!
//! | for | by |
//! |---|---|
//! | locks that are held, and their holders | [`Survey::locks`], [`Survey::scan`], [`Survey::named`] |
//! | locks that are waited for | [`Survey::contended`], [`Survey::scan_contended`], without a search for keys |
//! | one lock with its queue, its clients and its channels | [`Survey::inspect`] |
//! | the clients that announce themselves | [`Survey::clients`] |
//! | the servers: versions, clocks, rights, load | [`Survey::servers`], [`Survey::load`], [`Survey::place`] |
//! | unused counters of fencing tokens | [`Survey::tokens`], [`purge_token`] |
//! | an unused semaphore | [`purge_semaphore`] |
//! | taking a lock from its holder | [`ReleaseHolder`], [`ForceUnlock`] |
//!
//! Invariant: a [`Survey`] changes nothing. No command looks at all keys at once, and no command holds up the server.
//! The pages [operations] and [rights] say how operators use it, and which rights they need.
//!
//! [operations]: https://github.com/lockset-rs/lockset/blob/main/docs/operations.md
//! [rights]: https://github.com/lockset-rs/lockset/blob/main/docs/rights.md

mod ask;
mod barrier;
mod clients;
mod contended;
mod counted;
mod evict;
mod glob;
mod health;
mod info;
mod inspect;
mod pass;
mod purge;
mod read;
mod recognize;
mod record;
mod rights;
mod scan;
mod tokens;

use std::sync::Arc;
use std::time::Duration;

use lockset::operator::Servers;
use lockset::{Client, Result};
use parking_lot::Mutex;

use self::clients::Clients;
use self::contended::Contended;
pub use self::evict::{ForceUnlock, ReleaseHolder};
use self::health::Commands;
pub use self::info::{
    Announced, Announcement, ClientInfo, HoldMode, LockDetail, LockHolder, LockInfo, LockKind,
    QueuedWaiter, Right, ServerLoad, ServerReport, TokenCounter,
};
use self::pass::Pass;
pub use self::purge::{SemaphorePurge, TokenPurge, purge_semaphore, purge_token};
use self::read::Reader;
pub use self::scan::LockScan;
pub use self::tokens::TokenScan;

/// The default share of a server's time that a pass takes.
const SHARE: f64 = 0.1;

/// Questions for operators and their tools: the locks at the server, their holders, their waiters.
///
/// It reads and changes nothing, in every topology. It shows the locks of this library and of Redisson whose names
/// begin with the client's [key prefix](lockset::ClientBuilder::key_prefix), in the client's database. A hash that is not
/// a lock is never shown: a lock has a lease and holders with ids like Redisson's, and no other fields. The answers may
/// be outdated when they arrive.
///
/// The rights that it needs are listed for operators in [docs/rights.md].
///
/// [docs/rights.md]: https://github.com/lockset-rs/lockset/blob/main/docs/rights.md
#[derive(Clone, Debug)]
#[must_use = "it asks nothing by itself"]
pub struct Survey {
    servers: Servers,
    clients: Arc<Clients>,
    /// The state for the commands since the previous [`load`](Self::load).
    last_load: Arc<Mutex<Option<Commands>>>,
    pattern: String,
    share: f64,
}

impl Survey {
    /// Asks the servers of this client, about the locks with its key prefix.
    pub fn new(client: &Client) -> Self {
        let servers = Servers::of(client);
        Self {
            clients: Arc::new(Clients::new(&servers)),
            last_load: Arc::default(),
            servers,
            pattern: "*".to_owned(),
            share: SHARE,
        }
    }

    /// Limits the answers to locks whose names match. Default: `*`, all of them.
    pub fn matching(mut self, pattern: &str) -> Self {
        pattern.clone_into(&mut self.pattern);
        self
    }

    /// Sets the part of a server's time that a pass over its keys may take. Default: 0.1.
    ///
    /// After each slice of a thousand keys it sleeps for long enough to keep that share. A pass over few keys is too
    /// short to notice. A million keys take about a second of the server's time, so a pass takes ten seconds; each hash
    /// among them takes some ten microseconds more.
    pub fn share(mut self, share: f64) -> Self {
        self.share = share;
        self
    }

    /// Returns the locks that are held, the semaphores with permits that are taken and the barriers where a party waits,
    /// found by three passes over all keys of all servers.
    ///
    /// It takes three `SCAN`s for each thousand keys, and a few commands for each hash and each semaphore. If only locks
    /// with waiters matter, use [`contended`](Self::contended), which looks at no key. A lock that is released and taken
    /// again during the passes is shown as it was at one of these moments. If a server restarts or fails over, its keys
    /// are looked at from the beginning. A lock whose slot moves to a node that was looked at before may be left out.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// * [`is_denied`](lockset::Error::is_denied): the user lacks the rights of an operator.
    /// * [`is_io`](lockset::Error::is_io), [`is_refused`](lockset::Error::is_refused): a server does not answer, or cannot;
    ///   or other servers took over again and again during a pass.
    /// * [`is_closed`](lockset::Error::is_closed): the client was shut down.
    pub async fn locks(&self) -> Result<Vec<LockInfo>> {
        let mut all = self.scan().all().await?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes these passes slice by slice.
    #[must_use = "it looks at nothing until `next` is awaited"]
    pub fn scan(&self) -> LockScan {
        let glob = format!("{}{}", glob::literal(self.servers.prefix()), self.pattern);
        LockScan::new(&self.servers, self.reader(), glob, self.share)
    }

    /// Returns the locks, semaphores, latches and barriers that have waiters, held or not at that moment.
    ///
    /// They are found by the channels that waiters of this library and of Redisson subscribe to. So it costs next to
    /// nothing on a server with many keys: 10 000 channels take 1.4 ms. It does not see tasks that wait for a lock that
    /// their own client holds, polled waiters, waiters whose user has no right to subscribe, nor waiters for a lock of the
    /// same name in another database.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks).
    pub async fn contended(&self) -> Result<Vec<LockInfo>> {
        self.scan_contended().all().await
    }

    /// Finds the same server by server, so that a node of a cluster that is away can be
    /// [left out](LockScan::leave_out).
    #[must_use = "it looks at nothing until `next` is awaited"]
    pub fn scan_contended(&self) -> LockScan {
        let contended = Contended::new(&self.servers);
        LockScan::of_contended(self.reader(), contended, self.pattern.clone())
    }

    /// Finds counters of [fencing tokens](lockset::FencingToken) that have issued no token for `unused_for`, by a pass
    /// over all keys, slice by slice; for [`purge_token`].
    #[must_use = "it looks at nothing until `next` is awaited"]
    pub fn tokens(&self, unused_for: Duration) -> TokenScan {
        let glob = tokens::GLOB.to_owned();
        let pass = Pass::new(&self.servers, glob, "string", self.share);
        TokenScan::new(
            pass,
            self.reader(),
            &self.servers,
            &self.pattern,
            unused_for,
        )
    }

    /// Returns the locks with these names that are held, and the semaphores, latches and barriers with holders or waiters.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks).
    pub async fn named(&self, names: &[&str]) -> Result<Vec<LockInfo>> {
        let prefix = self.servers.prefix();
        let keys = names.iter().map(|name| format!("{prefix}{name}"));
        let mut keys: Vec<String> = keys.collect();
        let mut found = self.reader().read_some(keys.clone()).await?;
        keys.retain(|key| found.iter().all(|lock| lock.key != *key));
        let reader = self.reader();
        found.extend(reader.read_counted(keys.clone()).await?);
        keys.retain(|key| found.iter().all(|lock| lock.key != *key));
        let names = keys.iter().filter_map(|key| reader.name(key)).collect();
        let waiting = reader.read_barriers(names).await?;
        found.extend(waiting.into_iter().map(|found| found.lock));
        Ok(found)
    }

    /// Returns all clients that announce themselves, with their longer holds and waits; see
    /// [`ClientBuilder::announce_every`](lockset::ClientBuilder::announce_every).
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks).
    pub async fn clients(&self) -> Result<Vec<Arc<ClientInfo>>> {
        self.clients.all().await
    }

    fn reader(&self) -> Reader {
        Reader::new(&self.servers, Arc::clone(&self.clients))
    }
}

/// The example of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
