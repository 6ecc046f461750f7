//! Questions of operators: the locks that exist, their holders, their waiters.
//!
//! Invariant: nothing is changed. No command looks at all keys at once, and no command holds up the server.

mod ask;
mod clients;
mod contended;
mod counted;
pub(crate) mod evict;
mod glob;
mod health;
mod info;
mod inspect;
mod load;
mod pass;
pub(crate) mod purge;
mod read;
mod recognize;
mod rights;
mod scan;
mod tokens;
mod values;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use self::ask::Asking;
use self::clients::Clients;
pub use self::info::{
    Announced, Announcement, ClientInfo, HoldMode, LockDetail, LockHolder, LockInfo, LockKind,
    QueuedWaiter, Right, ServerLoad, ServerReport, TokenCounter,
};
use self::load::Commands;
use self::pass::Pass;
use self::read::Reader;
pub use self::scan::LockScan;
pub use self::tokens::TokenScan;
use crate::api::error::Result;
use crate::client::Client;
use crate::engine::keys::glob_of;

/// The default share of a server's time that a pass takes.
const SHARE: f64 = 0.1;

impl Client {
    /// Returns the locks that are held and whose names match a pattern (`*` any letters, `?` one, `[ab]` one of these).
    /// This is [`Survey::locks`]; for settings see [`survey`](Self::survey).
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`Survey::locks`].
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// for lock in client.locks("order:*").await? {
    ///     println!("{} is held by {}, {} wait", lock.name, lock.holders[0].id, lock.waiters);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn locks(&self, pattern: &str) -> Result<Vec<LockInfo>> {
        self.survey().matching(pattern).locks().await
    }

    /// Questions for operators and their tools: the locks at the server, their holders, their waiters.
    pub fn survey(&self) -> Survey {
        let asking = Asking::of(self);
        Survey {
            clients: Arc::new(Clients::new(&asking)),
            last_load: Arc::default(),
            asking,
            prefix: self.key_prefix().into(),
            pattern: "*".to_owned(),
            share: SHARE,
        }
    }
}

/// Questions for operators and their tools; from [`Client::survey`].
///
/// It reads and changes nothing, in every topology. It shows the locks of this library and of Redisson whose names
/// begin with the client's [key prefix](crate::ClientBuilder::key_prefix), in the client's database. A hash that is not
/// a lock is never shown: a lock has a lease and holders with ids like Redisson's, and no other fields. The answers may
/// be outdated when they arrive.
///
/// The rights that it needs are listed for operators in [docs/rights.md].
///
/// [docs/rights.md]: https://github.com/lockset-rs/lockset/blob/main/docs/rights.md
#[derive(Clone, Debug)]
#[must_use = "it asks nothing by itself"]
pub struct Survey {
    asking: Asking,
    clients: Arc<Clients>,
    /// The state for the commands since the previous [`load`](Self::load).
    last_load: Arc<Mutex<Option<Commands>>>,
    prefix: Arc<str>,
    pattern: String,
    share: f64,
}

impl Survey {
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

    /// Returns the locks that are held and the semaphores with permits that are taken, found by two passes over all
    /// keys of all servers.
    ///
    /// It takes two `SCAN`s for each thousand keys, and a few commands for each hash and each semaphore. If only locks
    /// with waiters matter, use [`contended`](Self::contended), which looks at no key. A lock that is released and taken
    /// again during the passes is shown as it was at one of these moments.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// * [`is_denied`](crate::Error::is_denied): the user lacks the rights of an operator.
    /// * [`is_io`](crate::Error::is_io), [`is_refused`](crate::Error::is_refused): a server does not answer, or cannot.
    /// * [`is_closed`](crate::Error::is_closed): the client was shut down.
    pub async fn locks(&self) -> Result<Vec<LockInfo>> {
        let (mut scan, mut all) = (self.scan(), Vec::new());
        while let Some(locks) = scan.next().await? {
            all.extend(locks);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes these passes slice by slice.
    #[must_use = "it looks at nothing until `next` is awaited"]
    pub fn scan(&self) -> LockScan {
        let glob = format!("{}{}", glob_of(&self.prefix), self.pattern);
        LockScan::new(&self.asking, self.reader(), glob, self.share)
    }

    /// Finds counters of [fencing tokens](crate::FencingToken) that have issued no token for `unused_for`, by a pass
    /// over all keys, slice by slice; for [`Client::purge_token`](crate::Client::purge_token).
    #[must_use = "it looks at nothing until `next` is awaited"]
    pub fn tokens(&self, unused_for: Duration) -> TokenScan {
        let glob = tokens::GLOB.to_owned();
        let pass = Pass::new(&self.asking, glob, "string", self.share);
        let names = [&*self.prefix, &*self.pattern];
        TokenScan::new(pass, self.reader(), &self.asking, names, unused_for)
    }

    /// Returns the locks with these names that are held, and the semaphores and latches with holders or waiters.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks).
    pub async fn named(&self, names: &[&str]) -> Result<Vec<LockInfo>> {
        let keys = names.iter().map(|name| format!("{}{name}", self.prefix));
        let mut keys: Vec<String> = keys.collect();
        let mut found = self.reader().read_some(keys.clone()).await?;
        keys.retain(|key| found.iter().all(|lock| lock.key != *key));
        found.extend(self.reader().read_counted(keys).await?);
        Ok(found)
    }

    /// Returns all clients that announce themselves, with their longer holds and waits; see
    /// [`ClientBuilder::announce_every`](crate::ClientBuilder::announce_every).
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
        Reader::new(&self.asking, &self.prefix, Arc::clone(&self.clients))
    }
}
