//! The client: connects, and holds together what its handles share. Knows no primitive.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::conn::answer::unusable;
#[cfg(feature = "tls")]
use crate::conn::tls::Tls;
use crate::conn::{self, AddressMap, Lane, Opening, Setup, url};
use crate::error::{Error, Kind, Result};
use crate::hold::core::{Core, Timing};
use crate::hold::local::Locals;
use crate::options::{Replication, TOKEN_RETENTION, check_give_up, check_lease, token_retention};
use crate::script::{self, Scripts};

/// What stands between callers and servers waits at least this long for a reply.
const REPLY_LIMIT_MIN: Duration = Duration::from_secs(1);

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// A connection to a server and everything its locks share: script registry, watchdog, local
/// queues.
///
/// Cheap to clone; all clones are one client. It ends when the last clone, handle and guard is
/// gone, or with [`shutdown`](Self::shutdown).
///
/// It lives on the tokio runtime on which it was built: renewals and what dropped guards leave to do
/// run there. Once that has ended, every call fails with [`is_closed`](Error::is_closed), and what is held
/// is lost with its lease. So give each runtime a client of its own, as with `#[tokio::test]`.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    key_prefix: Arc<str>,
    /// Of locks whose handle does not say otherwise.
    replication: Option<Replication>,
}

impl Client {
    /// Connects with the default settings.
    ///
    /// | `url` | connects to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    /// | `unix:///path/to/socket[?db=0&user=..&pass=..]` | one server on this machine |
    /// | `redis+cluster://[user:password@]host[:port],host[:port]` | a cluster, of which these are some nodes |
    /// | `redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]` | the primary that these sentinels watch under this name |
    ///
    /// With `rediss` in place of `redis` over TLS, which needs the feature `tls`. Sentinels with a
    /// password of their own are given it by `?sentinel_password=..`, and `&sentinel_user=..` if there
    /// is one. In users, passwords and names, characters that mean something in a URL
    /// (`@ : , / ? # & + %`) are written percent-encoded, such as `%40` for `@`.
    ///
    /// A cluster is `redis+cluster://[user:password@]host[:port],host[:port]`, with one or more of its
    /// nodes; the others are found through these. A lock is kept by the primary of its name's slot. A
    /// client follows slots that move and replicas that take over. As replication is asynchronous, a
    /// takeover may lose a hold; its guard is told as soon as the client hears of the new primary. While
    /// a slot is half moved, a reentrant lock goes on as ever; one that has several keys at the server
    /// (any other kind, or a fenced one) is taken and released when all of them have arrived.
    ///
    /// `redis+sentinel://[user:password@]host[:port],host[:port]/primary-name[/db]`, with
    /// `?sentinel_user=..&sentinel_password=..` if the sentinels want them, is a primary that is
    /// followed through failovers. One sentinel that answers is enough; the others are learnt from it.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a URL, password or server that cannot work;
    /// [`is_io`](Error::is_io) if the server cannot be reached (see
    /// [`connect_timeout`](ClientBuilder::connect_timeout)), or if sentinels name no primary that answers
    /// within three seconds; [`is_refused`](Error::is_refused) if the server is a replica, or says that
    /// it cannot serve now.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).build().await
    }

    /// A client with settings of its own.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            lease: DEFAULT_LEASE,
            key_prefix: String::new(),
            token_retention: TOKEN_RETENTION,
            replication: None,
            give_up: None,
            opening: Opening::Now,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            addresses: AddressMap::default(),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Gives back all that no guard holds and stops the watchdog.
    ///
    /// Nothing of that is left at the server when this returns `Ok`: neither a release that was under
    /// way, nor what a call was just being granted, nor its place in a queue, also if nobody polls its
    /// future any more. Waiters and later calls fail with [`is_closed`](Error::is_closed).
    ///
    /// Guards that are still alive are lost with [`LostReason::Closed`](crate::LostReason::Closed):
    /// their holders are told. Those that go before this returns are given back; of the others the
    /// leases run out at the server, so that nobody enters while they finish.
    ///
    /// # Cancel safety
    /// If the future is dropped, the client is closed all the same and the rest is done in the
    /// background.
    ///
    /// # Errors
    /// [`is_io`](Error::is_io) if the server has not confirmed every release within a third of the
    /// client's lease, or what [`give_up_after`](ClientBuilder::give_up_after) says if that is less;
    /// they go on in the background. [`is_closed`](Error::is_closed) if the runtime on
    /// which the client was built has ended before.
    pub async fn shutdown(self) -> Result<()> {
        if self.core.close().await {
            return Ok(());
        }
        self.core.ensure_alive("shutdown")?;
        Err(Error::new(
            Kind::Io,
            "shutdown",
            "the server has not confirmed every release yet; what it does not confirm runs out \
             with its lease",
        ))
    }

    /// The id of this client, a UUID: what the holder ids of all it holds begin with, and the names of
    /// its connections at the server end with.
    #[must_use]
    pub fn id(&self) -> &str {
        self.core.id()
    }

    /// What this client is busy with, for monitoring and for tests.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let locks = self.core.locals.all();
        ClientStats {
            locks: locks.len(),
            holds: self.core.watchdog.enrolled(),
            waiters: self.core.locals.waiters(),
            subscriptions: self.core.locals.channels(),
            background: self.core.watchdog.pending(),
        }
    }

    /// A client over another transport, on the clock of that.
    #[cfg(test)]
    pub(crate) fn over(transport: &Arc<crate::testing::Scripted>, lease: Duration) -> Self {
        let scripts = Arc::new(Scripts {
            clock: transport.clock(),
            transport: Arc::clone(transport) as _,
        });
        Self {
            core: Core::new("test", Timing::of_lease(lease), scripts, Arc::default()),
            key_prefix: "".into(),
            replication: None,
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Whether the server is there and can do what every lock needs; connects if need be.
    pub(crate) async fn is_served(&self) -> Result<()> {
        can_run_scripts(&self.core.scripts, DEFAULT_CONNECT_TIMEOUT).await
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    pub(crate) fn replication(&self) -> Option<Replication> {
        self.replication
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No URL: it may carry a password.
        f.debug_struct("Client")
            .field("id", &self.id())
            .field("server", &self.core.scripts.transport.address())
            .field("key_prefix", &self.key_prefix)
            .field("lease", &self.core.timing.lease)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// What a client is busy with at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Locks it has anything to do with.
    pub locks: usize,
    /// Holds under the watchdog.
    pub holds: usize,
    /// Calls that wait for a lock.
    pub waiters: usize,
    /// Channels it listens to.
    pub subscriptions: usize,
    /// Releases, cancellations and waits for replicas, handed to the background and not finished.
    pub background: usize,
}

/// Settings of a [`Client`].
#[must_use = "a builder does nothing until `build` is awaited"]
pub struct ClientBuilder {
    url: String,
    lease: Duration,
    key_prefix: String,
    token_retention: Duration,
    replication: Option<Replication>,
    give_up: Option<Duration>,
    opening: Opening,
    connect_timeout: Duration,
    addresses: AddressMap,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl ClientBuilder {
    /// The lease of locks whose handle does not say otherwise. Default: 30 s, as Redisson's.
    ///
    /// Bounds in time are derived from it: a reply is waited for a sixth of it (100 ms to 1 s), a
    /// call without an answer goes on for a third of it and at least for three replies (or as long as
    /// [`give_up_after`](Self::give_up_after) says), a waiter asks again at least every sixth of it
    /// (50 ms to 1 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Put before every name, like a name mapper of Redisson's. Default: nothing. It keeps the locks
    /// apart from other data: a lock whose key holds something else is refused with
    /// [`is_wrong_type`](Error::is_wrong_type).
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.key_prefix);
        self
    }

    /// How long the server keeps the counter of the fencing tokens of a lock after its last fenced grant.
    /// Default: 30 days; [`Duration::MAX`] is for ever.
    ///
    /// So names that are used once, such as one for each order, leave nothing behind for good. Tokens
    /// are microseconds of the server's clock, so without a counter they go on growing all the same,
    /// unless that clock was set back by more than the retention since the last grant: then tokens
    /// are smaller than some the resource has seen, and it refuses them until the clock has caught up. The
    /// default is longer than a clock is set back by accident.
    ///
    /// A counter that is ahead of the server's clock is kept for ever, and so is one that Redisson's
    /// `RFencedLock` counts with too, as Redisson begins with 1 where there is none. That is seen from the
    /// counter at the next grant of this library. Where a name is locked from here first, and then for
    /// longer than the retention by Java alone, give `Duration::MAX`.
    pub fn token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }

    /// Certificates of one's own for a URL with TLS. Default: none, and the authorities that the
    /// system trusts. Needs the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Grants of all locks count only once `count` replicas have them, for which there is `within`,
    /// at most a third of the lease. Default: replicas are not waited for. See
    /// [`ReentrantLock::replicated`](crate::ReentrantLock::replicated).
    pub fn replicated(mut self, count: u32, within: Duration) -> Self {
        self.replication = Some(Replication { count, within });
        self
    }

    /// How long any one call goes on without an answer of the server before it fails with
    /// [`is_io`](Error::is_io). Default: a third of the client's lease, at least the time of three replies.
    /// A handle may say otherwise: [`ReentrantLock::give_up_after`](crate::ReentrantLock::give_up_after)
    /// has more. Who waits in a queue of this client is told when who asks for it is; one with less time
    /// than that has the time of two replies more, as who asks may merely not be polled.
    pub fn give_up_after(mut self, span: Duration) -> Self {
        self.give_up = Some(span);
        self
    }

    /// [`build`](Self::build) does not connect: the first call does that needs a connection. So a
    /// program starts while its server is down, and what is wrong with address, password or server is
    /// told by the first calls, not here.
    ///
    /// Behind sentinels the search for the primary begins in the background at once. A client of a
    /// cluster cannot be lazy: that is [`is_invalid`](Error::is_invalid).
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379").lazy().build().await?;
    /// # Ok(()) }
    /// ```
    pub fn lazy(mut self) -> Self {
        self.opening = Opening::Later;
        self
    }

    /// The longest that a step of making a connection may take: to find and reach the server, to log
    /// in, to be introduced. Over TLS all up to the login is one step. Default: 3 s. So a server is reached from as far
    /// away as a round trip of that, and [`build`](Self::build) fails after that if it is silent.
    ///
    /// A call that needs a connection does not wait longer for it than it would for a reply (see
    /// [`lease`](Self::lease)); the connection goes on being made, for the next call. To a server that
    /// was reached before, attempts in a row have 1 s for a step at first, and more if need be.
    ///
    /// Not zero: that is [`is_invalid`](Error::is_invalid).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://far.away")
    ///     .connect_timeout(Duration::from_secs(10))
    ///     .build()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Where servers are to be reached that tell addresses which do not lead to them from here: the nodes
    /// of a cluster, and the primary and the sentinels that sentinels name. Default: where they say.
    ///
    /// `map` is given what a server tells, and says where to connect to, or `None` for where it says. It
    /// is for networks with address translation, containers, tunnels, and caches whose certificates name
    /// hosts while the nodes tell addresses. What the URL names is not mapped. It is called often and
    /// must not block.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// use std::collections::HashMap;
    ///
    /// let outside = HashMap::from([
    ///     (("172.18.0.2".to_owned(), 6379), ("cache.example".to_owned(), 7001)),
    ///     (("172.18.0.3".to_owned(), 6379), ("cache.example".to_owned(), 7002)),
    /// ]);
    /// let client = lockset::Client::builder("redis+cluster://cache.example:7001")
    ///     .address_map(move |host, port| outside.get(&(host.to_owned(), port)).cloned())
    ///     .build()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        self.addresses = AddressMap::of(map);
        self
    }

    /// Connects, unless the client is to be [lazy](Self::lazy).
    ///
    /// # Errors
    /// As for [`Client::connect`].
    pub async fn build(self) -> Result<Client> {
        let target = url::parse(&self.url)?;
        #[cfg(feature = "tls")]
        let target = target.secured(self.tls.as_ref())?;
        let unusable = |error: Error| error.during("connect");
        check_lease(self.lease).map_err(unusable)?;
        if let Some(replication) = self.replication {
            replication.check(self.lease).map_err(unusable)?;
        }
        if self.connect_timeout.is_zero() {
            return Err(Error::invalid("connect", "a connect_timeout of zero"));
        }
        let clock = Clock::System;
        let mut timing = Timing {
            token_retention: token_retention(self.token_retention).map_err(unusable)?,
            ..Timing::of_lease(self.lease)
        };
        if let Some(span) = self.give_up {
            check_give_up(span).map_err(unusable)?;
            timing.give_up = span;
        }
        let locals = Arc::new(Locals::default());
        let id = uuid::Uuid::new_v4().to_string();
        let setup = Setup {
            clock,
            step_limit: self.connect_timeout,
            reply_limit: timing.reply.max(REPLY_LIMIT_MIN),
            client_id: id.as_str().into(),
            greeting: Arc::new(script::greeting::of_all()),
            listener: Arc::clone(&locals) as _,
            cut: Arc::default(),
            addresses: self.addresses,
            #[cfg(feature = "tls")]
            server_name: self.tls.as_ref().and_then(Tls::name),
            #[cfg(not(feature = "tls"))]
            server_name: None,
        };
        let transport = conn::connect(target, setup, self.opening).await?;
        let scripts = Arc::new(Scripts { transport, clock });
        if self.opening == Opening::Now {
            can_run_scripts(&scripts, self.connect_timeout).await?;
        }
        let core = Core::new(&id, timing, scripts, locals);
        Ok(Client {
            core,
            key_prefix: self.key_prefix.into(),
            replication: self.replication,
        })
    }
}

impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBuilder")
            .field("lease", &self.lease)
            .field("key_prefix", &self.key_prefix)
            .field("token_retention", &self.token_retention)
            .field("replication", &self.replication)
            .field("give_up_after", &self.give_up)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

/// A server without scripting is told apart here, not at the first lock.
async fn can_run_scripts(scripts: &Scripts, limit: Duration) -> Result<()> {
    let mut probe = redis::cmd("EVAL");
    probe.arg("return 1").arg(0);
    let sent = scripts.transport.send(Lane::Command, "", &probe, limit);
    let refused = |fault| unusable(fault, &scripts.transport.at(""));
    sent.await.map(drop).map_err(refused)
}
