//! Connects: the settings of a client, and the client that they make.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::api::error::{Error, Kind, Result};
use crate::api::options::{
    Options, Replication, TOKEN_RETENTION, check_give_up, check_lease, token_retention,
};
use crate::client::{CONNECT_TIMEOUT, Client};
use crate::conn::credentials::{Credentials, Provider};
#[cfg(feature = "tls")]
use crate::conn::tls::Tls;
use crate::conn::{self, AddressMap, Lookups, Network, Setup, url};
use crate::engine::clock::Clock;
use crate::engine::hold::bound::Timing;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::Locals;
use crate::observe::announce::{self, Announcer, default_every};
use crate::observe::observer::{Observed, Observer};
use crate::script::{self, NativePath, Scripts};

/// A connection waits at least this long for a reply, even with a short lease.
const REPLY_LIMIT_MIN: Duration = Duration::from_secs(1);

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

impl Client {
    /// Connects with the default settings.
    ///
    /// | `url` | connects to |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/db]` | one server |
    /// | `unix:///path/to/socket[?db=0&user=..&pass=..]` | one server on this machine |
    /// | `redis+cluster://[user:password@]host[:port],host[:port]` | a cluster, through one or more of its nodes |
    /// | `redis+sentinel://[user:password@]host[:port],host[:port]/name[/db]` | the primary that these sentinels monitor under `name` |
    ///
    /// `rediss` in place of `redis` uses TLS and needs the feature `tls`. `valkey` and `valkeys` mean the same as
    /// `redis` and `rediss`, and `redis+unix` the same as `unix`. For one server, `?protocol=resp2` or
    /// `?protocol=resp3` chooses the protocol of the connections that need no particular one. If the sentinels
    /// have a password of their own, add `?sentinel_password=..`, and `&sentinel_user=..` if they have users.
    /// Percent-encode characters that mean something in a URL (`@ : , / ? # & + %`) in users, passwords and
    /// names: `%40` for `@`.
    ///
    /// In a cluster, the primary that serves the slot of a name keeps the lock. The client follows slots that
    /// move and replicas that take over. Replication is asynchronous, so a takeover may lose a hold; its
    /// guard is lost as soon as the client learns of the new primary. While a slot is being moved, a lock
    /// with several keys (every kind but a reentrant lock without tokens) is granted and released once all of
    /// them have arrived.
    ///
    /// Behind sentinels, the client follows the primary through failovers. One reachable sentinel is enough:
    /// the client learns the others from it.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connections it has opened.
    ///
    /// # Errors
    /// * [`is_invalid`](Error::is_invalid): the URL or the server cannot work, or this is not called within a tokio
    ///   runtime.
    /// * [`is_denied`](Error::is_denied): the server refuses the user or the password.
    /// * [`is_io`](Error::is_io): the server cannot be reached, a step of connecting takes longer than
    ///   [`connect_timeout`](ClientBuilder::connect_timeout), or no primary that the sentinels name answers
    ///   within three seconds.
    /// * [`is_refused`](Error::is_refused): the server is a replica, or cannot serve now.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).build().await
    }

    /// A builder for a client with other settings. It takes the URLs of [`connect`](Self::connect).
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379")
    ///     .key_prefix("shop:")
    ///     .lease(std::time::Duration::from_secs(10))
    ///     .build()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder {
            url: url.to_owned(),
            login: None,
            lease: DEFAULT_LEASE,
            key_prefix: String::new(),
            token_retention: TOKEN_RETENTION,
            replication: None,
            give_up: None,
            announce_every: None,
            label: String::new(),
            is_lazy: false,
            connect_timeout: CONNECT_TIMEOUT,
            native: NativePath::On,
            addresses: AddressMap::default(),
            provider: Provider::default(),
            observer: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// Settings of a [`Client`]; from [`Client::builder`].
#[must_use = "a builder does nothing until `build` is awaited"]
pub struct ClientBuilder {
    url: String,
    /// The user, if it is not the default user, and the password, for a URL without a login.
    login: Option<(Option<String>, String)>,
    lease: Duration,
    key_prefix: String,
    token_retention: Duration,
    replication: Option<Replication>,
    give_up: Option<Duration>,
    announce_every: Option<Duration>,
    label: String,
    is_lazy: bool,
    connect_timeout: Duration,
    native: NativePath,
    addresses: AddressMap,
    provider: Provider,
    observer: Option<Box<dyn Observer>>,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Tls>,
}

/// Settings that were checked, and the parts that are made of them.
struct Checked {
    timing: Timing,
    announce_every: Option<Duration>,
    /// The client's knowledge of its locks, with its observer.
    locals: Arc<Locals>,
}

impl ClientBuilder {
    /// Sets the login for a URL without one.
    pub(crate) fn login(mut self, user: Option<String>, password: String) -> Self {
        self.login = Some((user, password));
        self
    }

    /// Checks the URL without connecting.
    pub(crate) fn check_url(&self) -> Result<()> {
        url::parse(&self.url).map(drop)
    }

    /// The lease of locks whose handle sets none. Default: 30 s, as in Redisson.
    ///
    /// Other times follow from it. The client waits for a reply for a sixth of it (100 ms to 1 s). A call without an
    /// answer continues for a third of it, and at least for the time of three replies; one that asks once (`try_lock`)
    /// for 2 s at most. [`give_up_after`](Self::give_up_after) sets both. A waiter polls at least every sixth of it (50
    /// ms to 1 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// A prefix for every name, like a name mapper in Redisson. Default: none.
    ///
    /// It keeps locks apart from other data. A lock whose key holds something else is refused with
    /// [`is_wrong_type`](Error::is_wrong_type).
    pub fn key_prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.key_prefix);
        self
    }

    /// How long the server keeps the counter of a lock's fencing tokens after its last fenced grant. Default:
    /// 30 days; [`Duration::MAX`] keeps it for ever.
    ///
    /// Names that are used once, such as one per order, leave no counter behind for good. Tokens keep growing without
    /// the counter, because they are microseconds of the server's clock. The exception is a clock that was set back by
    /// more than the retention since the last grant. New tokens are then smaller than some that the resource has seen,
    /// and it refuses them until the clock has caught up. The default is longer than any accidental change of a clock.
    ///
    /// A counter that is ahead of the server's clock is kept for ever. So is a counter that Redisson's `RFencedLock`
    /// uses too, because Redisson begins with 1 where there is none. The next grant of this library recognizes such a
    /// counter by its value. If a name is locked from here first, and then by Java alone for longer than the retention,
    /// set `Duration::MAX`.
    pub fn token_retention(mut self, retention: Duration) -> Self {
        self.token_retention = retention;
        self
    }

    /// Certificates for a URL with TLS. Default: the authorities that the system trusts, and no client
    /// certificate. Needs the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Requires `count` replicas to confirm every grant of a lock within `within`, at most a third of the lease.
    /// Default: grants do not wait for replicas. Elections, `once` and `job` are locks; permits of semaphores, latches
    /// and barriers never wait for replicas. See
    /// [`ReentrantLock::replicated`](crate::ReentrantLock::replicated).
    pub fn replicated(mut self, count: u32, within: Duration) -> Self {
        self.replication = Some(Replication { count, within });
        self
    }

    /// How long a call continues without an answer from the server before it fails with
    /// [`is_io`](Error::is_io). Default, with a lease of 30 s: 2 s for a call that asks once (`try_lock`,
    /// [`once`](Client::once), [`ping`](Client::ping)), 10 s for all others.
    ///
    /// The defaults differ because the callers have different needs. A request that asks once has something else to do
    /// if it cannot get the lock, and a web service that holds its requests for 10 s while the server is away runs out of
    /// threads and memory. A call that waits exists to get the lock, so it rides out a failover of a few seconds. With
    /// other leases: a third of the client's lease, at least the time of three replies; for calls that ask once this or
    /// 2 s, whichever is less. A value set here is for both.
    ///
    /// A handle can set its own: see [`ReentrantLock::give_up_after`](crate::ReentrantLock::give_up_after).
    /// Tasks in the local queue of a lock learn from the asking task that the server is silent. A task with a shorter
    /// limit waits two more replies before it fails, because the asking task may merely not be polled.
    pub fn give_up_after(mut self, span: Duration) -> Self {
        self.give_up = Some(span);
        self
    }

    /// Sets a label that operators see beside the name of the program, such as the job that it runs. Default: none. The
    /// label is kept at the server in plain text, so it must not contain a secret.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let builder = lockset::Client::builder("redis://127.0.0.1:6379");
    /// let client = builder.label("nightly-report").build().await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn label(mut self, label: &str) -> Self {
        label.clone_into(&mut self.label);
        self
    }

    /// How often the client announces itself at the server, for operators: its machine, process, program and version,
    /// and what it has held or waited for since its last announcement. Default: a third of the client's lease, at least
    /// 10 s and at most a minute. More than 5 minutes counts as 5 minutes, but [`Duration::MAX`] means never. Under 100
    /// ms: [`is_invalid`](Error::is_invalid).
    ///
    /// The crate `lockset-operator` and the command `lockset` read the announcements. They add nothing to the cost of
    /// taking and releasing a lock: when one is due, the watchdog looks at the holds and writes one key,
    /// `lockset_client:{id}`, and an entry in the index `lockset_clients`, with four commands. A client that uses no lock and has no
    /// permit at that moment writes nothing, except once after it was in use. Permits are not listed: their age is not
    /// known to operators. Both expire by themselves, and [`Client::shutdown`] removes them. If the user has no right to
    /// write them, the client stops trying.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379")
    ///     .announce_every(std::time::Duration::MAX) // never
    ///     .build()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn announce_every(mut self, span: Duration) -> Self {
        self.announce_every = Some(span);
        self
    }

    /// Makes [`build`](Self::build) return without connecting; the first call that needs a connection makes
    /// it.
    ///
    /// A program then starts while its server is down. A wrong address, password or server is reported by the
    /// first calls instead of `build`. Behind sentinels the search for the primary starts in the background
    /// at once. A client of a cluster cannot be lazy: that is [`is_invalid`](Error::is_invalid).
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379").lazy().build().await?;
    /// # Ok(()) }
    /// ```
    pub fn lazy(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// Sets whether plain commands replace scripts where they can: `RESTORE` takes a free reentrant lock for a call
    /// that waits, `HDEL` and `PUBLISH` release it. A lock with a fencing token is always taken by a script. Default:
    /// true.
    ///
    /// With many free locks, plain commands take a third of the server's time that scripts take. A server or a user
    /// without one of these commands needs no setting: the client notices it once and takes locks by script
    /// ([`ClientStats::native`](crate::ClientStats::native) says so). Switch them off where `BUSYKEY` errors in the server's statistics, or
    /// `restore` in place of `hset` and `expire` among keyspace events, would be a problem.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379").native(false).build().await?;
    /// # Ok(()) }
    /// ```
    pub fn native(mut self, native: bool) -> Self {
        self.native = if native {
            NativePath::On
        } else {
            NativePath::Off
        };
        self
    }

    /// The limit for one step of connecting: reaching the server, logging in, setting up the connection. With TLS,
    /// everything up to the login is one step. Default: 3 s. Zero is [`is_invalid`](Error::is_invalid).
    ///
    /// It bounds how far away a server can be, and how soon [`build`](Self::build) fails if the server is silent. A
    /// call that needs a connection waits for it only as long as for a reply (see [`lease`](Self::lease)); the attempt
    /// to connect continues for the next call. Once the server has been reached, later attempts allow 1 s per step at
    /// first, then more.
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

    /// Translates the addresses that servers announce: the nodes of a cluster, and the primary and sentinels that
    /// sentinels name. Default: no translation.
    ///
    /// `map` gets an announced host and port and returns where to connect, or `None` to connect there. Use it with
    /// address translation, containers and tunnels, and where certificates name hosts while nodes announce addresses.
    /// Addresses in the URL are not translated. `map` is called often and must not block. If it panics, the address is
    /// used as it was announced.
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

    /// Sets a provider of the login, for tokens that expire and passwords that are replaced. It is asked for each
    /// connection to a server, when that is reached, and goes before a login of the URL or the environment. Sentinels
    /// keep the login of the URL.
    ///
    /// Connections that are open need no new login. A service that closes them when a token expires costs the time of a
    /// reconnect: commands without an answer are repeated, and holds stay, as long as there is a new connection before
    /// their leases end.
    ///
    /// The provider has the time of one step of connecting ([`connect_timeout`](Self::connect_timeout), later 1 s at
    /// first), and its future is dropped after that. It runs on the client's runtime, so it must not block. A client asks
    /// for two or three connections to a server at once, so keep a token until shortly before its end.
    ///
    /// A provider that fails, is late or panics fails the attempt to connect, and so do credentials that the server
    /// rejects. The next attempt, after a pause, asks the provider again. Calls go on until then as while the server is
    /// away. A call that ends before fails with [`is_refused`](Error::is_refused), and not with
    /// [`is_denied`](Error::is_denied); so does [`build`](Self::build) after one attempt, or behind sentinels after three
    /// seconds of them. The error has the words of the provider's error, which must have no secret in it, or of the
    /// server.
    ///
    /// ```no_run
    /// # async fn token_of(user: &str) -> std::io::Result<String> { todo!() }
    /// # async fn doc() -> lockset::Result<()> {
    /// use lockset::{Client, Credentials};
    ///
    /// let client = Client::builder("rediss://locks.example.com:6379")
    ///     .credentials(|| async {
    ///         let token = token_of("locker").await?; // from the service's SDK, or a file that is replaced
    ///         Ok(Credentials::new("locker", token))
    ///     })
    ///     .build()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn credentials<F>(mut self, provider: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Credentials, Box<dyn StdError + Send + Sync>>> + Send + 'static,
    {
        self.provider = Provider::of(provider);
        self
    }

    /// Sets an observer of everything that happens in the client without a caller to report it to: losses, late
    /// renewals, releases that failed in the background, long waits, new connections. Default: none. [`Client::stats`]
    /// counts all of it with or without an observer. See [`Observer`].
    ///
    /// With an observer, a call that has waited for a second costs one more question to the server: for the holder in
    /// its way.
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// use lockset::Event;
    ///
    /// let client = lockset::Client::builder("redis://127.0.0.1:6379")
    ///     .observer(|event: &Event<'_>| eprintln!("{event}"))
    ///     .build()
    ///     .await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Connects, unless the client is [lazy](Self::lazy).
    ///
    /// # Cancel safety
    /// As for [`Client::connect`].
    ///
    /// # Errors
    /// As for [`Client::connect`], and [`is_invalid`](Error::is_invalid) for a setting that cannot work.
    pub async fn build(self) -> Result<Client> {
        let id = uuid::Uuid::new_v4().to_string();
        self.build_on(Network::System, Clock::System, &id).await
    }

    pub(crate) async fn build_on(
        mut self,
        network: Network,
        clock: Clock,
        id: &str,
    ) -> Result<Client> {
        let mut target = url::parse(&self.url)?;
        if let Some((user, password)) = self.login.take() {
            target = target.with_login(user, password);
        }
        #[cfg(feature = "tls")]
        let security = target.security(self.tls.as_ref())?;
        #[cfg(not(feature = "tls"))]
        let security = conn::tls::Security::default();
        let checked = self.checked()?;
        let reply = checked.timing.reply;
        let setup = Setup {
            clock,
            network,
            runtime: Handle::try_current().map_err(|_| {
                let message = "there is no tokio runtime here; connect within one";
                Error::new(Kind::Invalid, "connect", message)
            })?,
            is_lazy: self.is_lazy,
            step_timeout: self.connect_timeout,
            silence: reply,
            reply_timeout: reply.max(REPLY_LIMIT_MIN),
            client_id: id.into(),
            scripts: script::find,
            events: Arc::clone(&checked.locals) as _,
            disconnected: Arc::default(),
            address_map: self.addresses.clone(),
            lookups: Lookups::default(),
            security,
            provider: self.provider.clone(),
        };
        let transport = conn::connect(target, setup).await?;
        let observed = Arc::clone(&checked.locals.observed);
        let scripts = Arc::new(Scripts::new(transport, clock, observed, self.native));
        let core = Core::new(id, checked.timing, scripts, checked.locals);
        let options = Options {
            replication: self.replication,
            ..Options::default()
        };
        let announcer = checked.announce_every;
        let announcer = announcer.map(|every| Announcer::start(&core, every, self.label));
        Ok(Client::new(core, &self.key_prefix, options, announcer))
    }

    /// Derives the rest from the settings, or rejects a setting that cannot work.
    fn checked(&mut self) -> Result<Checked> {
        let unusable = |error: Error| error.during("connect");
        check_lease(self.lease).map_err(unusable)?;
        if let Some(replication) = self.replication {
            replication.check(self.lease).map_err(unusable)?;
        }
        Error::ensure(!self.connect_timeout.is_zero(), "connect", || {
            "a connect_timeout of zero cannot work; use at least some milliseconds".to_owned()
        })?;
        let mut timing = Timing {
            token_retention: token_retention(self.token_retention).map_err(unusable)?,
            ..Timing::of_lease(self.lease)
        };
        if let Some(span) = self.give_up {
            check_give_up(span).map_err(unusable)?;
            timing.give_up = span;
            timing.give_up_at_once = span;
        }
        let every = self.announce_every.unwrap_or(default_every(self.lease));
        let announce_every = announce::checked(every)?;
        let observed = match self.observer.take() {
            Some(observer) => Observed::by(observer).map_err(|error| {
                let message = "the system has no thread for the observer";
                Error::new(Kind::Refused, "connect", message).caused_by(error)
            })?,
            None => Observed::default(),
        };
        Ok(Checked {
            timing,
            announce_every,
            locals: Arc::new(Locals::observed_by(observed)),
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
            .field("announce_every", &self.announce_every)
            .field("label", &self.label)
            .field("connect_timeout", &self.connect_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_cannot_connect_is_named() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().unwrap();
        for url in ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1"] {
            let error = runtime.block_on(Client::connect(url)).unwrap_err();
            assert!(error.is_invalid() && !error.is_transient(), "{error}");
            assert!(error.to_string().contains("enable_all"), "{error}");
        }
    }
}
