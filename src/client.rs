//! The client: connects, and owns everything that its handles share. Knows no primitive.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::runtime::Handle;

use crate::api::error::{Error, Kind, Result};
use crate::api::options::{
    Options, Replication, TOKEN_RETENTION, check_give_up, check_lease, token_retention,
};
use crate::conn::credentials::{Credentials, Provider};
#[cfg(feature = "tls")]
use crate::conn::tls::Tls;
use crate::conn::{self, AddressMap, Lookups, Network, Setup, Transport, url};
use crate::engine::clock::Clock;
use crate::engine::hold::bound::Timing;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::Locals;
use crate::observe::announce::{self, Announcer, default_every};
use crate::observe::counts::Totals;
use crate::observe::observer::{Observed, Observer};
use crate::script::{self, NativePath, Scripts};

/// A connection waits at least this long for a reply, even with a short lease.
const REPLY_LIMIT_MIN: Duration = Duration::from_secs(1);

const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

const DEFAULT_LEASE: Duration = Duration::from_secs(30);

/// A connection to a server, and everything that its locks share: scripts, watchdog, local queues.
///
/// Cheap to clone. All clones are one client, and a program needs only one. It ends when the last clone, handle and
/// guard is dropped, or by [`shutdown`](Self::shutdown).
///
/// A client belongs to the tokio runtime on which it was built: renewals and background releases run there.
/// Once that runtime has ended, every call fails with [`is_closed`](Error::is_closed), and holds are lost
/// with their leases. Build one client per runtime, for example one in each `#[tokio::test]`.
///
/// # Panics
/// The future of a call may panic if it is polled outside of a tokio runtime with timers, and that of a connect
/// through sentinels outside of one with I/O. It may be another runtime than that of the client.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let guard = client.lock("order:7").lock().await?;
/// guard.release().await?;
/// client.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
    key_prefix: Arc<str>,
    /// Those of its handles, until they change them.
    options: Arc<Options>,
    announcer: Option<Arc<Announcer>>,
}

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
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            native: NativePath::On,
            addresses: AddressMap::default(),
            provider: Provider::default(),
            observer: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Releases everything that no guard holds, and stops the watchdog.
    ///
    /// `Ok` means that the server has confirmed every release: it has no grant on its way to a call and no place in a
    /// queue of this client, not even for futures that are no longer polled. Waiters and later calls fail with
    /// [`is_closed`](Error::is_closed).
    ///
    /// Guards that are still alive are lost with [`LostReason::Closed`](crate::LostReason::Closed). Guards dropped
    /// before this returns are released. The leases of the others run out at the server, so no other owner enters while
    /// their work ends. What was left on purpose also stays for its time: forgotten holds, holds that
    /// [`at_least`](crate::ReentrantLock::at_least) keeps, claims of [`once`](Self::once), and permits
    /// [`per`](crate::Semaphore::per) window.
    ///
    /// # Cancel safety
    /// If the future is dropped, the client is closed nevertheless, and the rest is done in the background.
    ///
    /// # Errors
    /// * [`is_io`](Error::is_io): the server did not confirm every release within a third of the client's lease (at
    ///   least the time of three replies), or within [`give_up_after`](ClientBuilder::give_up_after) if that is less.
    ///   Unconfirmed releases continue in the background.
    /// * [`is_closed`](Error::is_closed): the runtime of the client ended before.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// drop(client.lock("order:7").lock().await?); // released in the background
    /// client.shutdown().await?; // now it is released
    /// # Ok(()) }
    /// ```
    pub async fn shutdown(self) -> Result<()> {
        let timing = &self.core.timing;
        let end = (self.core.clock.now()).after(timing.give_up.min(timing.linger));
        let is_done = self.core.close(end).await;
        if let Some(announcer) = &self.announcer {
            // Sent even if no time is left to wait for the reply.
            announcer.withdraw(&self.core, end).await;
        }
        if is_done {
            return Ok(());
        }
        self.core.ensure_alive("shutdown")?;
        Err(Error::new(
            Kind::Io,
            "shutdown",
            "the server has not confirmed every release; they continue in the background, and \
             what is not confirmed ends with its lease",
        ))
    }

    /// Announces this client at the server now, with all its holds, for operators. The announcements of
    /// [`announce_every`](ClientBuilder::announce_every) continue as before. Without this call they begin after that
    /// interval, by default 10 s at the earliest, and leave out younger holds.
    ///
    /// Takes four commands in one round trip. A client that uses no lock and has no permit at this moment writes nothing,
    /// except once after it was in use: that its use is over.
    ///
    /// # Cancel safety
    /// If the future is dropped, the announcement may or may not be written.
    ///
    /// # Errors
    /// * [`is_invalid`](Error::is_invalid): this client never announces itself (`Duration::MAX`).
    /// * [`is_denied`](Error::is_denied): the user may not write the key.
    /// * [`is_io`](Error::is_io): the server does not reply in time.
    /// * [`is_refused`](Error::is_refused): the server cannot do it now.
    /// * [`is_closed`](Error::is_closed): the client was shut down, or its runtime has ended.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let guard = client.lock("nightly-report").lock().await?;
    /// client.announce().await?; // `lockset show nightly-report` names this process from now on
    /// # guard.release().await }
    /// ```
    pub async fn announce(&self) -> Result<()> {
        let message = "this client never announces itself; give `announce_every` a shorter span";
        let announcer = self.announcer.as_ref();
        let announcer = announcer.ok_or_else(|| Error::invalid("announce", message))?;
        announcer.now(&self.core).await
    }

    /// Asks the server for a sign of life, for health checks; in a cluster every primary at once. Returns the time that
    /// the slowest answer took.
    ///
    /// Takes one round trip on the connection that calls for locks use, and connects if necessary. The question is a
    /// script that returns at once, so it needs no right that a lock does not need, and fails if scripts hang. A
    /// connection that breaks is replaced and the question repeated, for as long as
    /// [`try_lock`](crate::ReentrantLock::try_lock) waits for an answer: 2 s with the default lease, or
    /// [`give_up_after`](ClientBuilder::give_up_after).
    ///
    /// A server that answers may still refuse a lock, for example because it is out of memory. And a service whose
    /// server is away may still do other work: report it as degraded, and do not restart it, because a restart cannot
    /// bring the server back.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// * [`is_io`](Error::is_io): a server did not answer in time.
    /// * [`is_refused`](Error::is_refused): a server answered that it cannot serve now, such as while it loads its
    ///   data; or there is no login from a [provider](ClientBuilder::credentials).
    /// * [`is_denied`](Error::is_denied): the password is wrong, or the user may not run scripts.
    /// * [`is_closed`](Error::is_closed): the client was shut down, or its runtime has ended.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) {
    /// match client.ping().await {
    ///     Ok(took) => println!("ok, {took:?}"),
    ///     Err(error) => println!("degraded: {error}"),
    /// }
    /// # }
    /// ```
    pub async fn ping(&self) -> Result<Duration> {
        const OPERATION: &str = "ping";
        let core = &self.core;
        core.ensure_open(OPERATION)?;
        let began = core.clock.now();
        let end = began.after(core.timing.give_up_at_once);
        let routes = core.scripts.transport.routes();
        // On the connection of callers, so it fails if and only if a call for a lock would get no answer now.
        let probe = conn::command(&["EVAL", "return 1", "0"]);
        let limit = || core.clock.now().until(end).min(core.timing.reply);
        let scripts = &core.scripts;
        let ask = |route| scripts.ask(route, &probe, limit, end);
        let answers = routes.iter().map(String::as_str).map(ask);
        let answers = try_join_all(answers).await;
        answers.map_err(|failure| failure.into_error(OPERATION))?;
        Ok(began.until(core.clock.now()))
    }

    /// The id of this client, a UUID. The ids of its holders begin with it, and the names of its connections
    /// at the server (`CLIENT LIST`) end with it.
    #[must_use]
    pub fn id(&self) -> &str {
        self.core.id()
    }

    /// Returns what this client does now and has done so far; for monitoring and for tests.
    ///
    /// With the feature `metrics`, this first gives the recorder the counts that it does not have yet. A page of
    /// metrics made afterwards includes everything that happened before.
    ///
    /// ```no_run
    /// # fn doc(client: lockset::Client) {
    /// let stats = client.stats();
    /// println!("{} holds, {} waiters", stats.holds, stats.waiters);
    /// println!("{} grants, {} losses", stats.totals.grants(), stats.totals.losses.total());
    /// # }
    /// ```
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        self.core.observed().publish();
        self.snapshot()
    }

    fn snapshot(&self) -> ClientStats {
        let locks = self.core.locals.in_use();
        ClientStats {
            locks: locks.len(),
            holds: self.core.watchdog.enrolled(),
            waiters: self.core.locals.waiters(),
            subscriptions: self.core.locals.channels(),
            background: self.core.in_background(),
            totals: self.core.observed().counts.totals(),
            native: self.core.scripts.native.get(),
        }
    }

    /// A client over a scripted transport, on its clock.
    #[cfg(test)]
    pub(crate) fn over(transport: &Arc<crate::testing::Scripted>, lease: Duration) -> Self {
        // Its answers are written for scripts.
        Self::over_by(transport, lease, NativePath::Off)
    }

    /// A client over a scripted transport, with plain commands or without.
    #[cfg(test)]
    pub(crate) fn over_by(
        transport: &Arc<crate::testing::Scripted>,
        lease: Duration,
        native: NativePath,
    ) -> Self {
        Self::over_for(transport, lease, native, Arc::default())
    }

    /// A client over a scripted transport, with an observer.
    #[cfg(test)]
    pub(crate) fn over_told(
        transport: &Arc<crate::testing::Scripted>,
        lease: Duration,
        observer: impl Observer,
    ) -> Self {
        let observed = Observed::by(Box::new(observer)).expect("a thread");
        let locals = Arc::new(Locals::observed_by(observed));
        Self::over_for(transport, lease, NativePath::Off, locals)
    }

    #[cfg(test)]
    fn over_for(
        transport: &Arc<crate::testing::Scripted>,
        lease: Duration,
        native: NativePath,
        locals: Arc<Locals>,
    ) -> Self {
        let (clock, observed) = (transport.clock(), Arc::clone(&locals.observed));
        let scripts = Scripts::new(Arc::clone(transport) as _, clock, observed, native);
        Self {
            core: Core::new("test", Timing::of_lease(lease), Arc::new(scripts), locals),
            key_prefix: "".into(),
            options: Options::default().into(),
            announcer: None,
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Checks that the server answers and can do what every lock needs. Connects if necessary.
    pub(crate) async fn is_served(&self) -> Result<()> {
        conn::can_run_scripts(&*self.core.scripts.transport, DEFAULT_CONNECT_TIMEOUT).await
    }

    pub(crate) fn key_prefix(&self) -> &str {
        &self.key_prefix
    }

    pub(crate) fn options(&self) -> &Arc<Options> {
        &self.options
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No URL: it may carry a password.
        let stats = self.snapshot();
        f.debug_struct("Client")
            .field("id", &self.id())
            .field("server", &self.core.scripts.transport.address())
            .field("key_prefix", &self.key_prefix)
            .field("lease", &self.core.timing.lease)
            .field("locks", &stats.locks)
            .field("holds", &stats.holds)
            .field("waiters", &stats.waiters)
            .field("subscriptions", &stats.subscriptions)
            .field("background", &stats.background)
            .finish_non_exhaustive()
    }
}

/// The state of a client at one moment, and its totals until then; from [`Client::stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Locks that the client holds, waits for, or is still releasing.
    pub locks: usize,
    /// Holds under the watchdog.
    pub holds: usize,
    /// Calls that wait for a lock.
    pub waiters: usize,
    /// Channels that the client is subscribed to.
    pub subscriptions: usize,
    /// Requests under way, and unfinished background work: releases, cancellations, waits for replicas.
    pub background: usize,
    /// Counts since the client was built.
    pub totals: Totals,
    /// Whether plain commands replace scripts where they can, and if not, the reason.
    pub native: NativePath,
}

impl ClientStats {
    /// Whether the client holds nothing, waits for nothing, and has no work left. Permits of a
    /// [`PlainSemaphore`](crate::PlainSemaphore) do not count, nor do [polled](crate::Semaphore::polled) waits on
    /// semaphores, latches and barriers, and polled observers of elections.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let busy_with = [
            self.locks,
            self.holds,
            self.waiters,
            self.subscriptions,
            self.background,
        ];
        busy_with == [0; 5]
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
    tls: Option<Tls>,
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
    /// ([`ClientStats::native`] says so). Switch them off where `BUSYKEY` errors in the server's statistics, or
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
        let timing = self.timing()?;
        let every = self.announce_every.unwrap_or(default_every(self.lease));
        let announce_every = announce::checked(every)?;
        let locals = self.locals()?;
        let setup = Setup {
            clock,
            network,
            runtime: Handle::try_current().map_err(|_| {
                let message = "there is no tokio runtime here; connect within one";
                Error::new(Kind::Invalid, "connect", message)
            })?,
            is_lazy: self.is_lazy,
            step_timeout: self.connect_timeout,
            silence: timing.reply,
            reply_timeout: timing.reply.max(REPLY_LIMIT_MIN),
            client_id: id.into(),
            scripts: script::find,
            events: Arc::clone(&locals) as _,
            disconnected: Arc::default(),
            address_map: self.addresses.clone(),
            lookups: Lookups::default(),
            security,
            provider: self.provider.clone(),
        };
        let transport = conn::connect(target, setup).await?;
        Ok(self.client(id, timing, clock, transport, locals, announce_every))
    }

    /// A client over another transport and clock. `connect` gets the handler of the client's events.
    #[cfg(feature = "testing")]
    pub(crate) fn build_over(
        mut self,
        id: &str,
        clock: Clock,
        connect: impl FnOnce(Arc<dyn conn::EventHandler>) -> Arc<dyn Transport>,
    ) -> Result<Client> {
        let timing = self.timing()?;
        let locals = self.locals()?;
        let transport = connect(Arc::clone(&locals) as _);
        // No announcements unless a test wants them, as they have no reader.
        let announce_every = announce::checked(self.announce_every.unwrap_or(Duration::MAX))?;
        Ok(self.client(id, timing, clock, transport, locals, announce_every))
    }

    fn client(
        self,
        id: &str,
        timing: Timing,
        clock: Clock,
        transport: Arc<dyn Transport>,
        locals: Arc<Locals>,
        announce_every: Option<Duration>,
    ) -> Client {
        let observed = Arc::clone(&locals.observed);
        let scripts = Arc::new(Scripts::new(transport, clock, observed, self.native));
        let core = Core::new(id, timing, scripts, locals);
        let options = Options {
            replication: self.replication,
            ..Options::default()
        };
        Client {
            announcer: announce_every.map(|every| Announcer::start(&core, every, self.label)),
            core,
            key_prefix: self.key_prefix.into(),
            options: options.into(),
        }
    }

    /// The client's knowledge of its locks, with its observer.
    fn locals(&mut self) -> Result<Arc<Locals>> {
        let observed = match self.observer.take() {
            Some(observer) => Observed::by(observer).map_err(|error| {
                let message = "the system has no thread for the observer";
                Error::new(Kind::Refused, "connect", message).caused_by(error)
            })?,
            None => Observed::default(),
        };
        Ok(Arc::new(Locals::observed_by(observed)))
    }

    /// Derives the spans of time from the settings, or rejects a setting that cannot work.
    fn timing(&self) -> Result<Timing> {
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
        Ok(timing)
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
    use std::pin::pin;
    use std::task::Waker;

    use redis::Value;
    use tokio::time::Instant;

    use super::*;
    use crate::testing::{Answer, Scripted, granted};

    const SECOND: Duration = Duration::from_secs(1);

    /// With an announcement, a dropped guard, and a call that is not polled any longer.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_at_a_silent_server_has_one_bound() {
        let server = Scripted::new(|sent| match sent.at < SECOND {
            true if sent.is("EVALSHA") => Answer::Value(granted()),
            true => Answer::Value(Value::Okay),
            false => Answer::Silence,
        });
        let mut client = Client::over(&server, SECOND * 30);
        let announcer = Announcer::start(&client.core, SECOND * 10, String::new());
        client.announcer = Some(announcer);
        let guard = client.lock("x").lock().await.unwrap();
        let other = client.lock("x");
        let mut waits = pin!(other.lock());
        let mut context = std::task::Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        client.announce().await.unwrap();
        tokio::time::sleep(SECOND).await;
        drop(guard);
        let since = Instant::now();
        let error = client.shutdown().await.unwrap_err();
        assert!(error.is_io(), "{error}");
        // A third of the lease.
        assert_eq!(since.elapsed().as_secs(), 10);
    }

    /// The server answers, but not to releases.
    #[tokio::test(start_paused = true)]
    async fn a_shutdown_that_fails_withdraws_the_announcement() {
        let server = Scripted::new(|sent| match sent.at < SECOND {
            true if sent.is("EVALSHA") => Answer::Value(granted()),
            false if sent.lane == conn::Lane::Command => Answer::Silence,
            _ => Answer::Value(Value::Okay),
        });
        let mut client = Client::over(&server, SECOND * 30);
        let announcer = Announcer::start(&client.core, SECOND * 10, String::new());
        client.announcer = Some(announcer);
        let guard = client.lock("x").lock().await.unwrap();
        client.announce().await.unwrap();
        tokio::time::sleep(SECOND).await;
        drop(guard);
        let error = client.shutdown().await.unwrap_err();
        assert!(error.is_io(), "{error}");
        let sent = server.sent();
        let withdrawn =
            ["DEL", "ZREM"].map(|name| sent.iter().filter(|sent| sent.is(name)).count());
        assert_eq!(withdrawn, [1, 1]);
    }

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
