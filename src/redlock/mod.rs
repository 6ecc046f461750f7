//! The Redlock: one lock on several independent servers, decided by a majority. This file has its public types: from
//! clients or URLs to a Redlock, and the handle on one lock.
//!
//! On each server it is the ordinary reentrant lock, so it excludes callers that take that lock there, and Redisson's
//! `RedissonRedLock`. This folder adds the rest:
//!
//! ```text
//! handle.rs       the base of a handle: a member at each server; the holder, and the forced release
//! guard.rs        the guard and its share; one more share for an owner
//! acquire.rs      the wait: a round, a pause, again
//! round.rs        one round: every server votes
//! tally.rs        pure: the votes, the error they add up to, and the pause
//! servers.rs      the servers: which have a vote, and which are down and left alone
//! hold.rs         one hold at a majority: its guards, and its shares at the servers
//! rejoin.rs       late votes, and lost servers that have come back
//! ```

mod acquire;
mod guard;
mod handle;
mod hold;
mod rejoin;
mod round;
mod servers;
mod tally;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use self::acquire::Acquisition;
pub use self::guard::RedlockGuard;
use self::handle::QuorumHandle;
use self::hold::QuorumLocal;
use self::servers::Servers;
use crate::api::error::Result;
use crate::api::holder::{Busy, Holder};
use crate::api::verbs::option_methods;
use crate::client::Client;
use crate::engine::acquire::LockRequest;
use crate::engine::clock::Tick;
use crate::observe::call::{LockCall, Waited, place_of};
use crate::observe::counts::CountedKind;

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
        RedlockLock(QuorumHandle::new(&self.0, name.as_ref()))
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

/// The local queue has a kind of its own, because the members are reentrant locks.
const KIND: CountedKind = CountedKind::Redlock;

/// A lock for one owner at a time on several independent servers; from
/// [`Redlock::lock`](crate::Redlock::lock).
///
/// A handle: cheap to make and to clone, it holds nothing. Its options apply to the locks acquired through it.
///
/// Waiters of one process are served first come, first served. Processes take turns, whether they are near their
/// servers or far from them: on loopback, one task of a process got one grant in six against 64 tasks of another. A
/// holder of this lock also holds the [`ReentrantLock`](crate::ReentrantLock) of its name on a majority of the servers.
/// An owner enters its hold again through a `Redlock` of the same clients.
///
/// ```no_run
/// # async fn doc(redlock: lockset::Redlock) -> lockset::Result<()> {
/// let lock = redlock.lock("report").lease(std::time::Duration::from_secs(10));
/// if let Some(guard) = lock.try_lock().await? {
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct RedlockLock(QuorumHandle);

option_methods!(RedlockLock);

impl RedlockLock {
    /// Acquires the lock, waiting until it is free.
    ///
    /// Takes one round trip to all servers at once if it is free, two if it is fenced. It does not wait for a minority
    /// that is slow or dead, unless the majority [needs a server](crate::RedlockBuilder::longest_lease) that has been
    /// up for less than ten minutes. If the lock is held elsewhere, it asks again when a server notifies of a release,
    /// and after a random time of up to 200 ms.
    ///
    /// # Cancel safety
    /// Dropping the future takes it out of the queue. Grants under way are released in the background, on every server.
    ///
    /// # Errors
    /// * [`is_quorum`](crate::Error::is_quorum): for as long as [`give_up_after`](Self::give_up_after) says (default: a
    ///   third of the client's lease), fewer than a majority of the servers had a vote; or this cannot change. The
    ///   message lists the vote of each. It is also [`is_wrong_type`](crate::Error::is_wrong_type) if that is the
    ///   reason.
    /// * [`is_invalid`](crate::Error::is_invalid): a name or option that cannot work.
    /// * [`is_closed`](crate::Error::is_closed): a majority of the clients was shut down, or the client in whose queue
    ///   this call waited was, or its runtime has ended. A new call waits in the queue of another client.
    ///
    /// ```no_run
    /// # async fn doc(redlock: lockset::Redlock) -> lockset::Result<()> {
    /// let guard = redlock.lock("order:7").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn lock(&self) -> Result<RedlockGuard> {
        let acquired = self.take("lock", Tick::NEVER).await?;
        Ok(acquired.expect("a wait without a deadline does not time out"))
    }

    /// Acquires the lock if it is free, or held by the same owner. `None`: others hold it, or contenders split the
    /// votes. It waits up to a second for slow servers, or as long as [`give_up_after`](Self::give_up_after) says if
    /// that is less.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock), after one round.
    pub async fn try_lock(&self) -> Result<Option<RedlockGuard>> {
        self.take("try_lock", Tick::ZERO).await
    }

    /// Acquires the lock, waiting at most `wait`. `None`: it did not become free in time. Makes a last
    /// attempt at the deadline.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock); also if too few servers have a vote at the deadline.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<RedlockGuard>> {
        let deadline = self.0.members[0].core().clock.now().after(wait);
        self.take("try_lock_for", deadline).await
    }

    /// Whether the lock is held on a majority of the servers, by any holders. One round trip; the answer may be
    /// outdated when it arrives.
    ///
    /// A server that was restarted less than a lease ago may have forgotten a hold, so it does not count as a server
    /// where the lock is free.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum): the answers within [`give_up_after`](Self::give_up_after) do not decide
    /// it, because the other servers may complete a majority.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(!self.0.holders("is_locked").await?.is_empty())
    }

    /// Returns the holder of the lock, if it is held on a majority of the servers. One round trip; the answer may be
    /// outdated when it arrives.
    ///
    /// Each server knows the holder by an id of its own. This returns the id at the first server that answers, with the
    /// smallest hold count and the shortest remaining lease of a majority.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`is_locked`](Self::is_locked).
    pub async fn holder(&self) -> Result<Option<Holder>> {
        let holders = self.0.holders("holder").await?.into_iter();
        Ok(holders.reduce(|first, other| Holder {
            id: first.id,
            hold_count: first.hold_count.min(other.hold_count),
            remaining: first.remaining.min(other.remaining),
        }))
    }

    /// Returns the holder in the way, and how long its lease lasts without a renewal; as [`holder`](Self::holder).
    /// `None`: the lock is not held on a majority of the servers.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`is_locked`](Self::is_locked).
    pub async fn busy(&self) -> Result<Option<Busy>> {
        let holder = self.holder().await?;
        let members = self.0.members.iter();
        Ok(holder.map(|hold| {
            let busy = Busy::held_by(self.name(), hold.id, hold.remaining);
            members.fold(busy, |busy, member| busy.seen_by(member.core().id()))
        }))
    }

    /// Frees the lock from any holder on every server; `false` if it was free. For operators; as
    /// [`ReentrantLock::force_unlock`](crate::ReentrantLock::force_unlock), on each server.
    ///
    /// Once a majority has freed it, the others have up to half a second. A hold that is left at a silent server is in
    /// no other call's way, and ends with its lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may or may not be freed.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum): it could not be freed on a majority of the servers within
    /// [`give_up_after`](Self::give_up_after).
    pub async fn force_unlock(&self) -> Result<bool> {
        self.0.force_unlock().await
    }

    pub(crate) async fn refused(&self) -> Busy {
        self.0.members[0].busy_in_time(self.busy()).await
    }

    async fn take(&self, operation: &'static str, until: Tick) -> Result<Option<RedlockGuard>> {
        let acquisition = self.acquisition(operation)?;
        let core = self.0.members[0].core();
        // Pinned here, because moving a future into another one doubles its size.
        let call = pin!(acquisition.run(until));
        let lock_call = LockCall::begin(core, KIND, self.name(), &self.0.options);
        let queued = &acquisition.queue_request;
        let waited = || async {
            let (place, busy) = tokio::join!(place_of(queued), self.refused());
            Waited(queued.local.waiters(), place, busy)
        };
        let call = pin!(lock_call.told_if_long(until > Tick::ZERO, waited, call));
        let got = lock_call.guarded(call).await?;
        Ok(got.map(|(mut share, timer)| {
            share.timer = timer;
            RedlockGuard(share)
        }))
    }

    fn acquisition(&self, operation: &'static str) -> Result<Acquisition> {
        let request = self.0.request(operation)?;
        let keys = request.requests.iter().map(|member| &**member.name.key());
        let place = self.0.servers.place_of(keys);
        let in_order = &self.0.servers.in_order;
        let first = &request.requests[in_order[0]];
        let local = first.core.shared.get_or_insert(KIND.name(), &place, || {
            let queues = in_order.iter().map(|at| {
                let LockRequest { core, name, .. } = &request.requests[*at];
                let locals = &core.locals;
                let lock = locals.get_or_insert(KIND.name(), &place, name.key());
                (Arc::clone(core), lock)
            });
            Arc::new(QuorumLocal::new(queues.collect()))
        });
        let (core, lock) = local.queue();
        let queue_request = LockRequest {
            core: Arc::clone(core),
            local: Arc::clone(lock),
            options: Arc::new(self.0.options.clone()),
            ..first.clone()
        };
        Ok(Acquisition {
            request,
            local,
            queue_request,
        })
    }
}
