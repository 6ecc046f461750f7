//! The Redlock: one lock on several independent servers, of which a majority decides.
//!
//! On each server it is the ordinary reentrant lock, so that it excludes whoever takes that there, and
//! Redisson's `RedissonRedLock`. What is added is here: who has a vote (`servers`) and who is
//! down (`health`), one round (`round`), what the votes amount to (`tally`), the wait (`acquire`,
//! `backoff`), entering again (`reenter`), getting servers back (`rejoin`), and what is asked without
//! acquiring (`inspect`).

mod acquire;
mod backoff;
mod guard;
mod health;
mod inspect;
mod lock;
mod reenter;
mod rejoin;
mod round;
mod servers;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::error::Result;

pub use guard::RedlockGuard;
pub use lock::RedlockLock;
use servers::Servers;

/// What is being done while a Redlock is made.
const NEW: &str = "redlock";

/// Locks on several independent servers, each held when a majority of them grants it.
///
/// Cheap to clone; all clones are one. The lock survives the loss of a minority of the servers, with
/// everything on them, at any moment. With N servers a majority is N / 2 + 1: 2 of 3, 3 of 5.
///
/// The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/)
/// (Salvatore Sanfilippo), with what has been found missing in it since:
///
/// * **Validity.** A hold is valid for its lease, less the time since before it was asked for, less a
///   drift of a hundredth of the lease and 2 ms. [`RedlockGuard::is_lost`] and [`RedlockGuard::lost`]
///   go by the clock, whatever the network does.
/// * **Delayed restarts.** A server that was restarted may have forgotten a vote, so it has none until
///   it is up for the longest lease; nor has another one that answers at its address, for so long after
///   it was first seen there. No operator has to see to that; it is asked how long it is up
///   (`INFO server`, for which a user with restricted rights needs `+info`). Servers that keep every
///   write (`appendonly yes` with `appendfsync always`) can be declared
///   [persistent](RedlockBuilder::persistent_nodes).
/// * **Long holds.** Leases are renewed on every server, and a server that was lost is won back while
///   the others hold.
/// * **Fencing.** With [`fenced`](RedlockLock::fenced) tokens grow with every grant, whichever
///   majorities granted them: a token is made known to a majority before the guard is handed out. A
///   server that lost its data starts over from its clock, but votes only a lease later: tokens go on
///   growing as long as the servers' clocks differ by less than the longest lease.
///
/// What it cannot do: a clock of a server that jumps ahead ends leases on that server early, and may
/// make it look up for longer than it is; a server may lose data without being restarted (`FLUSHALL`).
/// As long as the servers where such things happen at once, together with those that the holder has not
/// got, are fewer than half of all, a majority still stands. Missing servers are won back as soon as they
/// can be. Have the resource check the fencing token.
///
/// All who share a lock must name the same servers, all of them, in any order: a majority is one of
/// those that were named, whether or not they are up.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// use lockset::Redlock;
///
/// let hosts = ["a", "b", "c"];
/// let urls = hosts.map(|host| format!("redis://{host}.internal:6379"));
/// let redlock = Redlock::connect(&urls).await?;
///
/// let guard = redlock.lock("order:7").fenced().lock().await?;
/// guard.run(async { /* work, with guard.fencing_token() */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Redlock(Arc<Servers>);

impl Redlock {
    /// Connects to these servers, each with a client of its own with default settings, for which each URL
    /// is one of [`Client::connect`](crate::Client::connect): single servers that share nothing with
    /// each other.
    ///
    /// A minority may be down, also for good: a majority of those that were **named** is needed, now and
    /// later, and each server counts once it was seen. A server that says nothing at all is waited for
    /// for a second or two. If fewer than a majority answer, no lock could be taken, and that is said
    /// here. A program that is to start all the same gives [lazy](crate::ClientBuilder::lazy) clients to
    /// [`Redlock::new`].
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum) if fewer than a majority answer; the message says what
    /// became of each. [`is_invalid`](crate::Error::is_invalid) for no URL, for a server that is named
    /// twice, a cluster or sentinels, a server with replicas (one that takes over at its address may have
    /// missed a vote), and for a URL, password or server that cannot work, whatever the others say.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let redlock = lockset::Redlock::connect(["redis://a", "redis://b", "redis://c"]).await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self> {
        let urls = urls.into_iter().map(|url| url.as_ref().to_owned());
        let servers = Servers::connect(urls.collect()).await;
        let servers = servers.map_err(|error| error.during("connect"))?;
        Ok(Self(Arc::new(servers)))
    }

    /// A Redlock over the servers of these clients: at least one, best an odd number of three or more.
    /// Each client must be one of a single server that shares nothing with the others: no replicas of
    /// each other, no members of one cluster. A [lazy](crate::ClientBuilder::lazy) client need not have
    /// seen its server: that counts once it was seen.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for no client, for two clients of one server (which
    /// would have two votes), and for a client of a cluster or of sentinels.
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self> {
        Self::builder(clients).build()
    }

    /// A Redlock with settings of its own.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> RedlockBuilder {
        RedlockBuilder {
            clients: clients.into_iter().collect(),
            longest_lease: Duration::ZERO,
            is_persistent: false,
        }
    }

    /// A handle on the lock called `name`. Whether the name can work is said by the first call that
    /// uses it.
    pub fn lock(&self, name: impl AsRef<str>) -> RedlockLock {
        RedlockLock::new(&self.0, name.as_ref())
    }
}

/// Settings of a [`Redlock`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedlockBuilder {
    clients: Vec<Client>,
    longest_lease: Duration,
    is_persistent: bool,
}

impl RedlockBuilder {
    /// The longest lease that anybody uses for locks on these servers: a server that was restarted has
    /// no vote for so long, as it may have forgotten one that is still valid. Default: the longest of
    /// the leases of the clients given here; say more if a handle or another process uses more. A handle
    /// with a longer lease is refused. A longer one of another process is noticed where a server refuses
    /// a vote because of it, and goes from then on; and whoever needs the vote of a server that is up for
    /// less than ten minutes hears first what the others say. So two can be let in by a restart only if
    /// those that know of the holder do not answer either: say the longest lease wherever processes differ.
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// The servers forget nothing when they crash (`appendonly yes` and `appendfsync always`), so they
    /// have a vote as soon as they are up. Whoever answers at one of the addresses has to be that server,
    /// and none that took over from it.
    pub fn persistent_nodes(mut self) -> Self {
        self.is_persistent = true;
        self
    }

    /// Checks the clients.
    ///
    /// # Errors
    /// As for [`Redlock::new`].
    pub fn build(self) -> Result<Redlock> {
        let servers = Servers::of(self.clients, self.longest_lease, self.is_persistent)?;
        Ok(Redlock(Arc::new(servers)))
    }
}
