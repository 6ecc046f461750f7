//! The client: owns everything that its handles share. Knows no primitive.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use crate::api::error::{Error, Kind, Result};
use crate::api::options::Options;
use crate::conn;
use crate::engine::hold::core::Core;
use crate::observe::announce::Announcer;
use crate::observe::counts::Totals;
use crate::script::NativePath;

/// The limit for one step of connecting, unless the client is built with another.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

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
    pub(crate) fn new(
        core: Arc<Core>,
        key_prefix: &str,
        options: Options,
        announcer: Option<Arc<Announcer>>,
    ) -> Self {
        Self {
            core,
            key_prefix: key_prefix.into(),
            options: options.into(),
            announcer,
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
    ///   least the time of three replies), or within [`give_up_after`](crate::ClientBuilder::give_up_after) if that is less.
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
    /// [`announce_every`](crate::ClientBuilder::announce_every) continue as before. Without this call they begin after that
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
    /// [`give_up_after`](crate::ClientBuilder::give_up_after).
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
    ///   data; or there is no login from a [provider](crate::ClientBuilder::credentials).
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

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Checks that the server answers and can do what every lock needs. Connects if necessary.
    pub(crate) async fn is_served(&self) -> Result<()> {
        conn::can_run_scripts(&*self.core.scripts.transport, CONNECT_TIMEOUT).await
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
}
