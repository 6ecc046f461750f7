//! The plain semaphore: Redisson's `RSemaphore`, a number of permits without holders.
//!
//! Invariants: permits are added once for each time they were taken, however often a call is sent; an attempt continues
//! in the background when its caller is gone, and returns what it gets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::client::Client;
use crate::engine::clock::Tick;
use crate::engine::keys::LockName;
use crate::engine::synchronizer::{Synchronizer, shown_by_name, synchronizer_methods};
use crate::script::{Answer, Call, Script, catalog, millis, reply};

/// The server remembers the calls that took permits for this long after the last one. Permits that are held for longer
/// are not returned.
const HOLDS_KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The most permits of a semaphore of either kind. Java counts them in an `int`.
pub(crate) const PERMITS_MAX: u32 = i32::MAX.unsigned_abs();

impl Client {
    /// A handle on the plain semaphore called `name`, for sharing with Java. **Permits have no holder**: the permits of
    /// a process that dies are gone until a call [adds](PlainSemaphore::release) new ones.
    ///
    /// An invalid name is reported by the first call on the handle ([`is_invalid`](Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let licences = client.plain_semaphore("licences").permits(3);
    /// let permit = licences.acquire().await?;
    /// permit.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn plain_semaphore(&self, name: impl AsRef<str>) -> PlainSemaphore {
        PlainSemaphore {
            site: Synchronizer::new(self, "semaphore", name.as_ref(), Arc::default()),
            permits: None,
            count: 1,
        }
    }
}

/// **Permits have no holder: a process that dies takes its permits with it, for ever.** A number of permits at the
/// server, Redisson's `RSemaphore`; from [`Client::plain_semaphore`].
///
/// Take it only to share permits with Java services that use `RSemaphore`. A handle: cheap to make and to clone, it
/// holds nothing. There are never more permits than were declared, by [`permits`](Self::permits),
/// [`try_set`](Self::try_set), [`release`](Self::release) or Java, even if calls are repeated or lost. Waiters have no
/// order. A failover to a replica may forget releases, and then those permits are gone, or grants, and then they are given
/// out twice.
///
/// ```no_run
/// # async fn convert() {}
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// let licences = client.plain_semaphore("licences").permits(3);
/// if let Some(permit) = licences.try_acquire().await? {
///     convert().await;
///     permit.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct PlainSemaphore {
    site: Synchronizer,
    permits: Option<u32>,
    count: u32,
}

synchronizer_methods!(PlainSemaphore, "semaphore");
shown_by_name!(PlainSemaphore);

impl PlainSemaphore {
    /// Lets an acquire make the semaphore with this many permits if it does not exist, as [`try_set`](Self::try_set)
    /// does. A semaphore that exists stays as it is, because its total number of permits is unknown.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Takes this many permits with each acquire, all or none. Default: 1. A large request may wait for ever while
    /// smaller ones keep coming.
    pub fn many(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Acquires permits, however long that takes. One round trip if enough permits are available.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: permits that the server grants later are returned in the background.
    /// A future that is kept and not polled keeps the permits that it was given, as a guard does.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a name or a number that cannot work and for a key that holds something
    /// else; [`is_io`](Error::is_io) if the server does not answer; [`is_closed`](Error::is_closed) when the client is
    /// shut down. After an error nothing is held.
    pub async fn acquire(&self) -> Result<PlainPermits> {
        let acquired = self.acquire_until("acquire", Tick::NEVER).await?;
        Ok(acquired.expect("a wait without an end"))
    }

    /// Acquires permits if enough are available. One round trip. Without an answer it ends after 2 s at most, or
    /// after [`give_up_after`](Self::give_up_after) if that is set.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<PlainPermits>> {
        self.attempt("try_acquire", Tick::ZERO).await
    }

    /// Acquires permits within this time. The last attempt is at its end.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<PlainPermits>> {
        let deadline = self.site.deadline(Some(wait));
        self.acquire_until("try_acquire_for", deadline).await
    }

    async fn acquire_until(
        &self,
        operation: &'static str,
        deadline: Tick,
    ) -> Result<Option<PlainPermits>> {
        let ask = || self.attempt(operation, deadline);
        let channel = LockName::semaphore_channel;
        self.site.wait(operation, channel, deadline, ask).await
    }

    /// Asks once, driven by the watchdog's task: it continues without its caller, and unclaimed permits are dropped.
    /// If an earlier request without an answer may still arrive, its id is used no more.
    async fn attempt(
        &self,
        operation: &'static str,
        deadline: Tick,
    ) -> Result<Option<PlainPermits>> {
        check_acquire(
            &self.site,
            operation,
            self.permits,
            (self.count, PERMITS_MAX),
        )?;
        let open = self.site.core().ensure_open(operation);
        open.map_err(|error| self.site.error(error))?;
        let bound = self.site.bound(operation, deadline)?;
        let end = bound.end(bound.start());
        let (this, name) = (self.clone(), self.site.name(operation)?.clone());
        let attempt = async move {
            let site = &this.site;
            loop {
                let held = Held {
                    site: site.clone(),
                    name: name.clone(),
                    id: site.new_call(),
                    count: this.count,
                };
                let call = this.acquire_call(&held);
                let read = |answer: &Answer| Ok((answer.flag()?, answer.is_in_doubt));
                let answer = site.ask(operation, &call, end, read).await;
                if let Ok((is_taken, false)) = answer {
                    return Ok(is_taken.then(|| PlainPermits(Some(held))));
                }
                // The server may have granted it.
                held.release_later();
                answer?;
                if site.core().clock.now() >= end {
                    return Ok(None);
                }
                // Before the next request, which would not find them available.
                let release = held.returned_to(name.key());
                let _ = site.ask(operation, &release, end, Answer::flag).await;
            }
        };
        self.site.finish(operation, end, attempt).await?
    }

    fn acquire_call(&self, held: &Held) -> Call {
        let declared = self.permits.map(|permits| permits.to_string());
        let name = &held.name;
        let keys = [name.key(), &*name.semaphore_holds_key()];
        Call::new(&catalog::PLAIN_ACQUIRE, name.key(), &keys)
            .arg(&*held.id)
            .arg(self.count)
            .arg(declared.unwrap_or_default())
            .arg(millis(HOLDS_KEPT))
            .arg(self.site.told(name.semaphore_channel()))
    }

    /// Makes the semaphore with this many permits. `false`: it exists, and stays as it is. One round trip.
    ///
    /// # Cancel safety
    /// If the future is dropped, the semaphore may or may not be made.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn try_set(&self, permits: u32) -> Result<bool> {
        let holds = self.site.name("try_set")?.semaphore_holds_key();
        self.change("try_set", &catalog::PLAIN_INIT, permits, &[&holds])
            .await
    }

    /// Adds permits: permits of a process that died, or permits that Java took for Rust to return. `false`: there is no
    /// such semaphore, and none is made. One round trip. Permits of a guard are returned by [`PlainPermits::release`].
    ///
    /// A call that is repeated because its answer was lost counts once.
    ///
    /// # Cancel safety
    /// If the future is dropped, the permits may or may not be added.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn release(&self, permits: u32) -> Result<bool> {
        if permits == 0 {
            return Err(self.site.invalid("release", "0 permits are nothing to add"));
        }
        self.change("release", &catalog::PLAIN_GIVE, permits, &[])
            .await
    }

    async fn change(
        &self,
        operation: &'static str,
        script: &'static Script,
        permits: u32,
        more: &[&str],
    ) -> Result<bool> {
        check_permits(&self.site, operation, permits)?;
        let name = self.site.name(operation)?;
        let key = name.semaphore_call_key(&self.site.new_call());
        let keys = [&[&**name.key(), &*key], more].concat();
        let call = Call::new(script, name.key(), &keys)
            .arg(permits)
            .arg(millis(self.site.call_kept()))
            .arg(self.site.told(name.semaphore_channel()));
        self.site
            .ask(operation, &call, Tick::NEVER, Answer::flag)
            .await
    }

    /// Returns how many permits are available; 0 also if there is no such semaphore. One round trip.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn available(&self) -> Result<u32> {
        let name = self.site.name("available")?;
        let call = Call::new(&catalog::PLAIN_AVAILABLE, name.key(), &[name.key()]);
        let read = |answer: &Answer| reply::int(&answer.value);
        let available = self.site.ask("available", &call, Tick::NEVER, read).await?;
        Ok(u32::try_from(available.max(0)).unwrap_or(u32::MAX))
    }
}

/// Checks that a semaphore of either kind can have this many permits.
pub(crate) fn check_permits(
    site: &Synchronizer,
    operation: &'static str,
    permits: u32,
) -> Result<()> {
    let works = Error::ensure(permits <= PERMITS_MAX, operation, || {
        format!("a semaphore cannot have {permits} permits; use at most {PERMITS_MAX}")
    });
    works.map_err(|error| site.error(error))
}

/// Checks that a call can take `count` permits, at most `most`, of a semaphore of either kind with so many permits.
pub(crate) fn check_acquire(
    site: &Synchronizer,
    operation: &'static str,
    declared: Option<u32>,
    (count, most): (u32, u32),
) -> Result<()> {
    let declared = declared.unwrap_or(PERMITS_MAX);
    check_permits(site, operation, declared)?;
    let message = if !(1..=most).contains(&count) {
        format!("{count} permits cannot be acquired at once; use 1 to {most}")
    } else if declared < count {
        format!("{count} of {declared} permits are never free; acquire fewer")
    } else {
        return Ok(());
    };
    Err(site.invalid(operation, message))
}

/// The permits of a guard at the server.
struct Held {
    site: Synchronizer,
    name: LockName,
    id: HolderId,
    count: u32,
}

impl Held {
    /// Returns the permits to the semaphore at this key. If there is none, only the note of who took them goes.
    fn returned_to(&self, permits: &str) -> Call {
        let name = &self.name;
        let keys = [permits, &*name.semaphore_holds_key()];
        Call::new(&catalog::PLAIN_RELEASE, name.key(), &keys)
            .arg(&*self.id)
            .arg(millis(HOLDS_KEPT))
            .arg(self.site.told(name.semaphore_channel()))
    }

    fn release_later(&self) {
        self.return_later(self.name.key());
    }

    /// Returns the permits behind the attempt, on its lane.
    fn return_later(&self, permits: &str) {
        let core = self.site.core();
        core.undo_later(self.returned_to(permits), None, (None, None));
    }
}

/// Permits of a [`PlainSemaphore`]; dropping the guard returns them in the background: for as long as the client lives,
/// and for ten minutes after that.
///
/// They have no lease. **A program that ends right after the drop, or is killed, takes them with it**: end with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown) after the last guard was dropped.
#[must_use = "if unused the permits are given back at once"]
#[clippy::has_significant_drop]
pub struct PlainPermits(Option<Held>);

impl PlainPermits {
    /// The name of the semaphore, as it was given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held().site.given_name()
    }

    /// How many permits the guard has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.held().count
    }

    /// Returns the permits. One round trip. A call that is repeated because its answer was lost counts once. A
    /// semaphore that was deleted is not made again. If Java has made it again since, they are added to that one, as
    /// those that Java returns.
    ///
    /// # Cancel safety
    /// If the future is dropped, they are returned in the background.
    ///
    /// # Errors
    /// * [`is_not_held`](Error::is_not_held): the server does not know that they were taken. Its data was lost, or they
    ///   were held for more than 30 days. Nothing was added.
    /// * otherwise as for [`acquire`](PlainSemaphore::acquire): they are returned in the background.
    pub async fn release(self) -> Result<()> {
        let site = self.held().site.clone();
        // The client drives it: this future may never be polled again, and the permits have no lease.
        let until = site.deadline(Some(site.give_up("release")?));
        let watchdog = &site.core().watchdog;
        let released = watchdog.finish("release", until, self.released()).await;
        released.map_err(|error| site.error(error))?
    }

    async fn released(mut self) -> Result<()> {
        let held = self.held();
        let call = held.returned_to(held.name.key());
        let is_known = held
            .site
            .ask("release", &call, Tick::NEVER, Answer::is_done)
            .await?;
        let message = "the server does not know that these permits were taken; nothing was added";
        let not_held = Error::new(Kind::NotHeld, "release", message);
        let not_held = || held.site.error(not_held);
        let released = is_known.then_some(()).ok_or_else(not_held);
        self.0 = None;
        released
    }

    /// Leaves the permits taken, as Java does: [`PlainSemaphore::release`] adds them again.
    pub fn forget(mut self) {
        if let Some(held) = self.0.take() {
            // There is no semaphore at the key of a call.
            held.return_later(&held.name.semaphore_call_key(&held.id));
        }
    }

    fn held(&self) -> &Held {
        // Only methods that consume the guard take it out.
        self.0.as_ref().expect("a guard has its permits")
    }
}

impl Drop for PlainPermits {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.release_later();
        }
    }
}

impl fmt::Debug for PlainPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainPermits")
            .field("name", &self.name())
            .field("count", &self.count())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use redis::Value;

    use super::*;
    use crate::testing::{Answer as Reply, Scripted, Sent};

    /// Nothing rules out that the first request arrives late. It would take the permits again after their release.
    #[tokio::test(start_paused = true)]
    async fn permits_of_an_attempt_in_doubt_are_returned_and_asked_for_by_another_call() {
        let is_attempt = |sent: &Sent| sent.words[1] == catalog::PLAIN_ACQUIRE.sha();
        let is_first = AtomicBool::new(true);
        let server = Scripted::with_past(false, move |sent| {
            match is_attempt(sent) && is_first.swap(false, Ordering::Relaxed) {
                true => Reply::Silence,
                false => Reply::Value(Value::Int(1)),
            }
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let permit = client.plain_semaphore("x").acquire().await.unwrap();
        let sent = server.sent();
        let holder = |sent: &Sent| sent.script_args()[2].clone();
        let attempts = sent.iter().filter(|sent| is_attempt(sent));
        let ids: Vec<_> = attempts.map(holder).collect();
        assert_eq!(ids.len(), 3, "{sent:?}");
        assert_eq!(ids[0], ids[1], "the repeat is the same");
        assert_ne!(ids[1], ids[2]);
        let returned = sent.iter().position(|sent| !is_attempt(sent)).unwrap();
        assert_eq!(holder(&sent[returned]), ids[0]);
        assert!(returned < sent.len() - 1, "before it asks again: {sent:?}");
        permit.release().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_attempt_waits_for_one_reply() {
        let server = Scripted::new(|_| Reply::Silence);
        let client = Client::over(&server, Duration::from_secs(30));
        let began = tokio::time::Instant::now();
        let attempt = client.plain_semaphore("x").try_acquire().await;
        assert!(attempt.unwrap_err().is_io());
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(2), "{took:?}");
    }

    /// A server that answers with this error while the switch beside it is on.
    fn refusing(refusal: &'static str) -> (Arc<Scripted>, Arc<AtomicBool>) {
        let refuses = Arc::new(AtomicBool::new(false));
        let refused = Arc::clone(&refuses);
        let server = Scripted::new(move |_| match refused.load(Ordering::Relaxed) {
            true => Reply::Error(refusal),
            false => Reply::Value(Value::Int(1)),
        });
        (server, refuses)
    }

    /// They have no lease with which they would end.
    #[tokio::test(start_paused = true)]
    async fn permits_are_returned_after_a_server_that_refused_for_long() {
        for refusal in [
            "NOREPLICAS Not enough good replicas to write.",
            "LOADING Redis is loading the dataset in memory",
            "MISCONF Errors writing to the AOF file",
            "READONLY You can't write against a read only replica.",
            "CLUSTERDOWN The cluster is down",
        ] {
            let (server, refuses) = refusing(refusal);
            let client = Client::over(&server, Duration::from_secs(30));
            let permit = client.plain_semaphore("x").acquire().await.unwrap();
            refuses.store(true, Ordering::Relaxed);
            drop(permit);
            tokio::time::sleep(Duration::from_secs(600)).await;
            refuses.store(false, Ordering::Relaxed);
            let refused = server.sent().len();
            tokio::time::sleep(Duration::from_secs(10)).await;
            let sent = server.sent().split_off(refused);
            assert_eq!(sent.len(), 1, "{refusal}: {sent:?}");
            assert_eq!(sent[0].words[1], catalog::PLAIN_RELEASE.sha());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_returned_for_a_bounded_time_once_the_client_is_gone() {
        let last_sent = |server: &Scripted| server.sent().last().unwrap().at;
        let hour = Duration::from_secs(3_600);
        for is_shut_down in [true, false] {
            for reply in [Reply::Silence, Reply::Error("NOPERM No permissions")] {
                let is_first = AtomicBool::new(true);
                let server =
                    Scripted::new(move |_| match is_first.swap(false, Ordering::Relaxed) {
                        true => Reply::Value(Value::Int(1)),
                        false => reply.clone(),
                    });
                let client = Client::over(&server, Duration::from_secs(30));
                let permit = client.plain_semaphore("x").acquire().await.unwrap();
                drop(permit);
                if is_shut_down {
                    assert!(client.shutdown().await.unwrap_err().is_io());
                } else {
                    drop(client);
                }
                tokio::time::sleep(hour).await;
                let tried_for = last_sent(&server);
                assert!(tried_for > Duration::from_secs(500), "{tried_for:?}");
                tokio::time::sleep(hour).await;
                assert_eq!(last_sent(&server), tried_for, "it was given up");
            }
        }
    }

    /// The right may be granted again, as when the rights of a user are replaced in several steps.
    #[tokio::test(start_paused = true)]
    async fn permits_are_returned_after_a_right_was_missing() {
        let (server, refuses) = refusing("NOPERM No permissions to access a key");
        let client = Client::over(&server, Duration::from_secs(30));
        let permit = client.plain_semaphore("x").acquire().await.unwrap();
        refuses.store(true, Ordering::Relaxed);
        assert!(permit.release().await.unwrap_err().is_denied());
        tokio::time::sleep(Duration::from_secs(600)).await;
        // Once by the call, and then less and less often, down to once a minute.
        let asked = server.sent().len();
        assert!((6..20).contains(&asked), "{asked}");
        assert_eq!(client.stats().totals.background_failures, 1);
        refuses.store(false, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(61)).await;
        let sent = server.sent().split_off(asked);
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].words[1], catalog::PLAIN_RELEASE.sha());
        client.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_returns_permits_whose_right_is_back() {
        let (server, refuses) = refusing("NOPERM No permissions to access a key");
        let client = Client::over(&server, Duration::from_secs(30));
        let permit = client.plain_semaphore("x").acquire().await.unwrap();
        refuses.store(true, Ordering::Relaxed);
        drop(permit);
        // Its next try comes a minute after the last.
        tokio::time::sleep(Duration::from_secs(300)).await;
        refuses.store(false, Ordering::Relaxed);
        let asked = server.sent().len();
        client.shutdown().await.unwrap();
        let sent = server.sent().split_off(asked);
        assert_eq!(sent.len(), 1, "{sent:?}");
        assert_eq!(sent[0].words[1], catalog::PLAIN_RELEASE.sha());
    }

    /// Otherwise the server would have one more note for each permit that Java returns.
    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_leaves_no_note() {
        let server = Scripted::new(|_| Reply::Value(Value::Int(1)));
        let client = Client::over(&server, Duration::from_secs(30));
        let permit = client.plain_semaphore("x").acquire().await.unwrap();
        permit.forget();
        client.shutdown().await.unwrap();
        let [taken, noted] = &server.sent()[..] else {
            panic!("{:?}", server.sent());
        };
        assert_eq!(noted.words[1], catalog::PLAIN_RELEASE.sha());
        assert_eq!(noted.script_args()[1..3], taken.script_args()[1..3]);
        assert_ne!(noted.script_args()[0], "x", "no permits are added");
    }
}
