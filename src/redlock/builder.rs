//! [`Redlock`]: makes locks on several servers from clients or URLs.

use std::sync::Arc;
use std::time::Duration;

use super::lock::RedlockLock;
use super::servers::Servers;
use crate::api::error::Result;
use crate::client::Client;

/// Locks on several independent servers, each held when a majority of them grants it.
///
/// Cheap to clone; all clones are one Redlock. Locks survive the loss of a minority of the servers, with all their
/// data, at any moment. With N servers a majority is N / 2 + 1: 2 of 3, 3 of 5.
///
/// The algorithm is [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/) (Salvatore
/// Sanfilippo), with answers to the criticism of it since:
///
/// * **Validity.** A hold is valid for its lease, minus the time since just before the request, minus a drift of a
///   hundredth of the lease and 2 ms. [`is_lost`](crate::RedlockGuard::is_lost) and [`lost`](crate::RedlockGuard::lost)
///   follow the clock, even if the network fails.
/// * **Delayed restarts.** A restarted server may have forgotten a vote, so it has no vote until it has been up for the
///   longest lease. A different server at a known address has no vote for as long after it was first seen there. This
///   needs no operator: servers are asked how long they have been up (`INFO server`, which needs the right `+info`).
///   Servers that keep every write (`appendonly yes` with `appendfsync always`) can be declared
///   [persistent](RedlockBuilder::persistent_nodes).
/// * **Long holds.** Leases are renewed on every server. A server that was lost rejoins while the others hold.
/// * **Fencing.** With [`fenced`](RedlockLock::fenced), tokens grow with every grant, even if different majorities
///   grant them: a majority stores a token before the guard is returned. A server that lost its data starts over from
///   its clock, but votes only a lease later. So tokens keep growing as long as the servers' clocks differ by less than
///   the longest lease.
///
/// Its limits: a server's clock that jumps ahead ends leases on that server early, and may make its uptime look longer
/// than it is; a server may lose data without a restart (`FLUSHALL`). A majority still holds as long as the servers
/// with such a fault at one time, plus the servers that the holder lacks, are fewer than half. Missing servers rejoin
/// as soon as they can. Have the resource check the fencing token.
///
/// All programs that share a lock must name the same servers, all of them, in any order: a majority is counted among
/// the servers that were named, whether or not they are up.
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
    /// Connects to these servers, with one client with default settings for each.
    ///
    /// Each URL names a single server (see [`Client::connect`](crate::Client::connect)) that shares nothing with the
    /// others.
    ///
    /// A minority may be down, even for good: a majority of the servers that were **named** is needed, now and later,
    /// and a server counts once it was seen. This waits a second or two for a silent server. If fewer than a majority
    /// answer, no lock could be acquired, so this fails. To start nevertheless, give [lazy](crate::ClientBuilder::lazy)
    /// clients to [`Redlock::new`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections it has opened.
    ///
    /// # Errors
    /// * [`is_quorum`](crate::Error::is_quorum): fewer than a majority answer. The message has the answer of each.
    /// * [`is_invalid`](crate::Error::is_invalid): no URL; a server that is named twice; a cluster or sentinels; a
    ///   server with replicas (one that takes over at its address may have missed a vote); or a URL, password or server
    ///   that cannot work, even if the others answer.
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
    ///
    /// Each client belongs to a single server that shares nothing with the others: no replicas of each other, no nodes
    /// of one cluster. The server of a [lazy](crate::ClientBuilder::lazy) client counts once it was seen. A server with
    /// replicas has no vote, because a replica that takes over at its address may have missed one; unless the servers
    /// are [persistent](RedlockBuilder::persistent_nodes), or replicas confirm each grant
    /// ([`replicated`](crate::RedlockLock::replicated)).
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid): no client; two clients of one server, which would have two
    /// votes; or a client of a cluster or of sentinels.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// use lockset::{Client, Redlock};
    ///
    /// let mut clients = Vec::new();
    /// for host in ["a", "b", "c"] {
    ///     let url = format!("redis://{host}.internal:6379");
    ///     clients.push(Client::builder(&url).lazy().key_prefix("shop:").build().await?);
    /// }
    /// let redlock = Redlock::new(clients)?;
    /// # drop(redlock); Ok(()) }
    /// ```
    pub fn new(clients: impl IntoIterator<Item = Client>) -> Result<Self> {
        Self::builder(clients).build()
    }

    /// A builder for a Redlock with other settings.
    pub fn builder(clients: impl IntoIterator<Item = Client>) -> RedlockBuilder {
        RedlockBuilder {
            clients: clients.into_iter().collect(),
            longest_lease: Duration::ZERO,
            is_persistent: false,
        }
    }

    /// A handle on the lock called `name`. An invalid name is reported by the first call on the handle
    /// ([`is_invalid`](crate::Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(redlock: lockset::Redlock) -> lockset::Result<()> {
    /// let guard = redlock.lock("order:7").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, name: impl AsRef<str>) -> RedlockLock {
        RedlockLock::new(&self.0, name.as_ref())
    }
}

/// Settings of a [`Redlock`]; from [`Redlock::builder`].
///
/// ```no_run
/// # fn doc(clients: Vec<lockset::Client>) -> lockset::Result<()> {
/// let redlock = lockset::Redlock::builder(clients)
///     .longest_lease(std::time::Duration::from_secs(60))
///     .build()?;
/// # drop(redlock); Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedlockBuilder {
    clients: Vec<Client>,
    longest_lease: Duration,
    is_persistent: bool,
}

impl RedlockBuilder {
    /// Sets the longest lease that any program uses for locks on these servers. A restarted server has no vote for that
    /// long, because it may have forgotten a vote that is still valid.
    ///
    /// Default: the longest lease of the clients given here. Set it in all programs if one of them, or one
    /// handle, uses a longer lease; a handle with a lease longer than this is refused.
    ///
    /// A longer lease of another program is noticed when a server refuses a vote because of it, and counts after that.
    /// In addition, if the vote of a server that has been up for less than ten minutes is needed, the answers of the
    /// others are awaited first, so each lock takes the round trip to the slowest of them. Then a restart lets in a
    /// second holder only if the servers that know of the first do not answer either. A call waits for no other server
    /// if a majority has been up for longer, or the servers are [persistent](Self::persistent_nodes).
    pub fn longest_lease(mut self, lease: Duration) -> Self {
        self.longest_lease = lease;
        self
    }

    /// Declares that the servers forget nothing in a crash (`appendonly yes` and `appendfsync always`), so that they
    /// have a vote as soon as they are up. Only these servers may ever answer at their addresses, never a server that
    /// took over.
    pub fn persistent_nodes(mut self) -> Self {
        self.is_persistent = true;
        self
    }

    /// Checks the clients and makes the Redlock.
    ///
    /// # Errors
    /// As for [`Redlock::new`].
    pub fn build(self) -> Result<Redlock> {
        let servers = Servers::of(self.clients, self.longest_lease, self.is_persistent)?;
        Ok(Redlock(Arc::new(servers)))
    }
}
