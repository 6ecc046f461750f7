//! The semaphore: a number of permits, each with a lease, so that the permits of a dead process come back.
//!
//! At the server it is Redisson's `RPermitExpirableSemaphore`. Invariant: there are never more permits taken than were
//! declared, even if commands are repeated or lost, or processes are killed.
//!
//! ```text
//! client.rs       a client's callers of one semaphore, and permits on their way back; guard.rs: the guard
//! queue.rs        pure: the next call to get permits or to ask
//! attempt.rs      the task that wakes the queue, and attempts of a call
//! permits.rs      each permit with its lease
//! ```

mod attempt;
mod client;
mod guard;
mod permits;
mod queue;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub use self::guard::SemaphoreGuard;

use self::client::{ClientSemaphore, Held, InHand, Wanted};
use self::queue::{Event, Terms};
use crate::api::error::Result;
use crate::api::holder::{Busy, Holder};
use crate::api::options::LeasePolicy;
use crate::client::Client;
use crate::engine::acquire::{ExpiredGrants, QueueNumber};
use crate::engine::clock::Tick;
use crate::engine::hold::bound::silent;
use crate::engine::hold::core::Core;
use crate::engine::keys::LockName;
use crate::engine::synchronizer::{Synchronizer, shown_by_name, synchronizer_methods};
use crate::observe::call::{LockCall, Waited};
use crate::observe::counts::{CountedKind, Fact};
use crate::observe::events::Place;
use crate::observe::observer::CountedWait;
use crate::plain_semaphore::{check_acquire, check_permits};
use crate::script::{Answer, Call, Script, catalog, reply};

/// The most permits in one request. Bounds how long a script blocks the server.
const PERMITS_AT_ONCE_MAX: u32 = 1_000;

const KIND: CountedKind = CountedKind::Semaphore;

impl Client {
    /// A handle on the semaphore called `name`.
    ///
    /// An invalid name is reported by the first call on the handle ([`is_invalid`](crate::Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let seats = client.semaphore("licences").permits(3);
    /// let seat = seats.acquire().await?;
    /// seat.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<str>) -> Semaphore {
        Semaphore {
            site: Synchronizer::new(self, "semaphore", name.as_ref(), Arc::default()),
            declared: None,
            count: 1,
            is_fair: false,
            expires_alone: false,
        }
    }
}

/// Limits the number of holders in the whole system; from [`Client::semaphore`].
///
/// Each permit has a lease, which the watchdog renews until its guard is gone. The permits of a process that dies come
/// back when their leases end. Redisson's `RPermitExpirableSemaphore` of the same name takes from the same permits.
///
/// Callers of one client are served in the order of their calls: a call waits behind every earlier one, even if that asks
/// for more permits than are free and this one does not. If they ask on the same terms, a released permit goes to the next
/// of them in memory, at most 64 times and for 5 ms in a row, before other clients have their turn. Between clients there
/// is no order, unless the semaphore is [`fair`](Self::fair): a large request may wait as long as smaller requests of
/// other clients keep coming.
///
/// The server keeps two keys of each semaphore for ever, even with [`per`](Self::per), so use few names, not one for each
/// user. A semaphore that is no longer used is removed by `DEL name {name}:timeout`, with the prefix in both, and
/// without the braces if the name has a `{tag}`.
///
/// Permits do not wait for replicas: [`ClientBuilder::replicated`](crate::ClientBuilder::replicated) is for locks.
///
/// A handle: cheap to make and to clone, it holds nothing. There is no semaphore over several independent servers, as
/// [`Redlock`](crate::Redlock) is for locks: two majorities can each hand out the last permit of one server.
///
/// ```no_run
/// # async fn convert() {}
/// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let licences = client.semaphore("licences").permits(3);
/// if let Some(permit) = licences.try_acquire().await? {
///     permit.run(convert()).await?; // dropped when the permit is lost
///     permit.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct Semaphore {
    site: Synchronizer,
    declared: Option<u32>,
    count: u32,
    is_fair: bool,
    expires_alone: bool,
}

synchronizer_methods!(Semaphore, "semaphore");
shown_by_name!(Semaphore);

impl Semaphore {
    /// Declares how many permits there are in all. The first acquire makes the semaphore. A later acquire that declares
    /// another number fails with [`is_invalid`](crate::Error::is_invalid), which names both numbers.
    /// [`resize`](Self::resize) changes the number.
    ///
    /// Without this, the semaphore must have been declared before, by another handle or by Java.
    pub fn permits(mut self, permits: u32) -> Self {
        self.declared = Some(permits);
        self
    }

    /// Takes this many permits with each acquire, all or none. Default: 1; at most 1,000.
    pub fn many(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the lease of each permit, from 50 ms to a year. The watchdog renews it until the guard is gone. Default:
    /// the client's lease, 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.site.options_mut().policy = Some(LeasePolicy::Renewed(lease));
        self.expires_alone = false;
        self
    }

    /// Sets a lease that is never renewed, from 50 ms to a year. The guard is lost when it ends.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.site.options_mut().policy = Some(LeasePolicy::Fixed(lease));
        self.expires_alone = false;
        self
    }

    /// Leaves each permit taken for exactly `window` from its grant. This limits the number of acquires in any window.
    ///
    /// Releasing or dropping the guard frees nothing: the permit expires by itself. Nor is its end a loss: the guard only
    /// shows that work may begin. It is never lost, and [`run`](SemaphoreGuard::run) runs its work to the end.
    ///
    /// ```no_run
    /// # async fn call() {}
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use std::time::Duration;
    ///
    /// // At most 100 calls in any second, by all processes together.
    /// let limit = client.semaphore("api:calls").permits(100).per(Duration::from_secs(1));
    /// drop(limit.acquire().await?);
    /// call().await;
    /// # Ok(()) }
    /// ```
    pub fn per(mut self, window: Duration) -> Self {
        self.site.options_mut().policy = Some(LeasePolicy::Fixed(window));
        self.expires_alone = true;
        self
    }

    /// Serves callers of all clients first come, first served, and large requests before smaller requests that came
    /// later. A waiter whose process died is passed over when its heartbeat ends, after 3 s at most.
    ///
    /// The order covers only handles that ask for it. Java and other handles pass waiters. A call that waits
    /// behind a call of such a handle, in the same client, has no place yet. Permits are not handed off in memory, so each
    /// acquire and release is a round trip.
    pub fn fair(mut self) -> Self {
        self.is_fair = true;
        self
    }

    /// Counts the calls of this handle in the group `name`, as [`ReentrantLock::group`](crate::ReentrantLock::group).
    pub fn group(mut self, name: &str) -> Self {
        self.site.set_group(name);
        self
    }

    /// Reports calls of this handle to the [observer](crate::Event::LongWait) once they have waited for this long, as
    /// [`ReentrantLock::report_wait_after`](crate::ReentrantLock::report_wait_after); 1 s by default.
    pub fn report_wait_after(mut self, span: Duration) -> Self {
        self.site.options_mut().report_wait_after(span);
        self
    }

    /// Acquires permits, waiting until there are enough. One round trip if there are, or none if another task of this
    /// client hands its permits off.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing: permits that the server may still grant go to the next caller or are
    /// released in the background. A future that is kept and not polled stops no other call. Permits that it was given
    /// are not renewed: they go to the next call of this client after two reply times, or end with their lease. When the
    /// future is polled after that, the call starts again behind the others, or returns `None` if its time is over.
    ///
    /// # Errors
    /// * [`is_invalid`](crate::Error::is_invalid): a name, number or lease that cannot work, or a semaphore that was
    ///   not declared, was declared with another number of permits, or has fewer than are asked for.
    /// * [`is_io`](crate::Error::is_io): the server does not answer. Nothing is held.
    /// * [`is_refused`](crate::Error::is_refused), [`is_denied`](crate::Error::is_denied): the server cannot do it now,
    ///   or the user lacks a right.
    /// * [`is_wrong_type`](crate::Error::is_wrong_type): the key holds something else.
    /// * [`is_closed`](crate::Error::is_closed): the client was shut down, or its runtime has ended.
    pub async fn acquire(&self) -> Result<SemaphoreGuard> {
        let acquired = self.acquire_until("acquire", Tick::NEVER).await?;
        Ok(acquired.expect("a wait without a deadline does not time out"))
    }

    /// Acquires permits if there are enough and no other caller of this client waits for them. One round trip. Without
    /// an answer to its request it ends after 2 s at most, or after [`give_up_after`](Self::give_up_after) if that
    /// is set.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<SemaphoreGuard>> {
        self.acquire_until("try_acquire", Tick::ZERO).await
    }

    /// Acquires permits, waiting at most `wait`. The server is asked once more at the end, unless an earlier call of this
    /// client still waits.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn try_acquire_for(&self, wait: Duration) -> Result<Option<SemaphoreGuard>> {
        let deadline = self.site.deadline(Some(wait));
        self.acquire_until("try_acquire_for", deadline).await
    }

    async fn acquire_until(
        &self,
        operation: &'static str,
        deadline: Tick,
    ) -> Result<Option<SemaphoreGuard>> {
        let core = self.site.core();
        let name = self.site.name(operation)?;
        let wanted = self.wanted(operation, deadline)?;
        let semaphore = ClientSemaphore::of(core, name);
        let lock_call = LockCall::begin(core, KIND, self.name(), &self.site.options);
        let queued = QueueNumber::default();
        let call = pin!(semaphore.acquire(wanted, &queued));
        let waited = || async {
            let place = queued.number().and_then(|id| semaphore.place_of(id));
            let busy = self.refused().await;
            Waited(semaphore.waiters(), place.map(Place::Client), busy)
        };
        let call = pin!(lock_call.told_if_long(wanted.waits(), waited, call));
        // In the span of the call, which the span of the guard follows from.
        let call = async {
            Ok(call.await?.map(|held| {
                let (kind, by, group) = (KIND, held.by, self.site.options.group);
                core.observed().note(Fact::Granted { kind, by, group });
                SemaphoreGuard::new(held, self.expires_alone)
            }))
        };
        let got = lock_call.guarded(call).await?;
        Ok(got.map(|(mut guard, timer)| {
            guard.timer = timer;
            guard
        }))
    }

    /// The holder of the permit whose lease ends first, as far as it is known after one more round trip.
    pub(crate) async fn refused(&self) -> Busy {
        let asked = async {
            let holders = self.holders().await?.into_iter();
            let first = holders.min_by_key(|holder| holder.remaining);
            Ok(first.map(|holder| self.site.held_by(holder)))
        };
        Busy {
            what: self.site.what,
            ..self.site.busy_in_time(asked).await
        }
    }

    fn wanted(&self, operation: &'static str, deadline: Tick) -> Result<Wanted> {
        let (site, count) = (&self.site, self.count);
        check_acquire(site, operation, self.declared, (count, PERMITS_AT_ONCE_MAX))?;
        let policy = site.options.policy(site.core().timing.lease);
        Ok(Wanted {
            operation,
            terms: Terms {
                permits: count,
                declared: self.declared.unwrap_or(0),
                policy: policy.map_err(|error| site.error(error.during(operation)))?,
                is_fair: self.is_fair,
            },
            group: self.site.options.group,
            give_up: site.give_up(operation)?,
            bound: site.bound(operation, deadline)?,
            polled: site.options.polled,
        })
    }

    /// The number of free permits. One round trip. The answer may be outdated when it arrives.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire). A semaphore that was not declared has 0.
    pub async fn available(&self) -> Result<u32> {
        let seen = self.inspect("available").await?;
        let free = seen.map_or(0, |(free, _)| free);
        Ok(u32::try_from(free.max(0)).unwrap_or(u32::MAX))
    }

    /// The holders: one [`Holder`] for each taken permit, including Java's, at most 10,000. One round trip.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        let seen = self.inspect("holders").await?;
        Ok(seen.map(|(_, holders)| holders).unwrap_or_default())
    }

    async fn inspect(&self, operation: &'static str) -> Result<Option<(i64, Vec<Holder>)>> {
        let call = call(&catalog::SEMAPHORE_INSPECT, self.site.name(operation)?);
        let read = |answer: &Answer| reply::permits(&answer.value);
        self.site.ask(operation, &call, Tick::NEVER, read).await
    }

    /// Ends the permit with this id; `false` if there is none.
    pub(crate) async fn end(&self, operation: &'static str, id: &str) -> Result<bool> {
        let name = self.site.name(operation)?;
        let call = call(&catalog::SEMAPHORE_RELEASE, name)
            .arg(self.site.told(name.semaphore_channel()))
            // No waiter leaves the queue.
            .arg("")
            .arg(reply::permit_member(id));
        // A repeat finds nothing if an earlier attempt without an answer has ended it.
        let read = |answer: &Answer| {
            let released = reply::permits_released(&answer.value)?;
            Ok(released > 0 || answer.repeated)
        };
        self.site.ask(operation, &call, Tick::NEVER, read).await
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.site.core()
    }

    /// Sets how many permits there are in all, and makes the semaphore if it does not exist. One round trip.
    ///
    /// Permits that are taken stay taken. If they are more than the new number, no permit is free until enough are
    /// released. Handles that still declare the old number then fail.
    ///
    /// # Cancel safety
    /// If the future is dropped, the number may or may not be set.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn resize(&self, permits: u32) -> Result<()> {
        check_permits(&self.site, "resize", permits)?;
        let name = self.site.name("resize")?;
        let call = call(&catalog::SEMAPHORE_RESIZE, name)
            .arg(permits)
            .arg(self.site.told(name.semaphore_channel()));
        self.site
            .ask("resize", &call, Tick::NEVER, |_| Ok(()))
            .await
    }
}

fn call(script: &'static Script, name: &LockName) -> Call {
    let keys = [name.key(), &*name.semaphore_timeouts_key()];
    Call::new(script, name.key(), &keys)
}

/// Removes a request from the queue when its caller is gone.
struct Leave<'a>(&'a Arc<ClientSemaphore>, u64);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.on(Event::Left(self.1), Ok(None));
    }
}

impl ClientSemaphore {
    /// Takes permits. Returns `None` if there are not enough by `deadline`. Notes the request in `queued`.
    async fn acquire(
        self: &Arc<Self>,
        wanted: Wanted,
        queued: &QueueNumber,
    ) -> Result<Option<Held>> {
        let (operation, lease) = (wanted.operation, wanted.terms.policy.lease());
        let mut expired = ExpiredGrants::default();
        loop {
            let Some(outcome) = self.acquire_once(wanted, queued).await? else {
                continue;
            };
            let Some(held) = outcome? else {
                return Ok(None);
            };
            let permits = held.permits();
            permits.claim(wanted.group);
            // The call may have got the permits while it was not polled, and they may be lost.
            let Some(reason) = held.loss() else {
                return Ok(Some(held));
            };
            let again = expired.count(reason, operation, lease, permits.age());
            again.map_err(|error| self.of_this(error))?;
        }
    }

    /// Returns `None` if its permits were taken back before it was polled, or if the client was closed during the call.
    async fn acquire_once(
        self: &Arc<Self>,
        wanted: Wanted,
        queued: &QueueNumber,
    ) -> Result<Option<InHand>> {
        let (operation, core) = (wanted.operation, self.core());
        let closing = core.closing.mark();
        core.ensure_open(operation)
            .map_err(|error| self.of_this(error))?;
        let (began, give_up) = (core.clock.now(), wanted.give_up);
        let id = self.call(wanted);
        queued.note(id);
        let _leave = Leave(self, id);
        let mut counted = None;
        loop {
            let check = core.clock.now().after(core.timing.poll_cap.min(give_up));
            let outcome = poll_fn(|context| {
                let (polled, is_contended) = self.poll(id, context);
                if polled.is_pending() && is_contended && wanted.waits() {
                    let begin = || CountedWait::begin(core.observed(), wanted.group);
                    counted.get_or_insert_with(begin);
                }
                polled
            });
            tokio::select! {
                biased;
                outcome = outcome => return Ok(outcome),
                () = core.closing.changed_since(closing) => return Ok(None),
                () = core.clock.sleep_until(check) => {
                    core.ensure_alive(operation).map_err(|error| self.of_this(error))?;
                    let since = self.state.lock().silent_since(id);
                    // If the background task runs, the answer or its error comes first.
                    let end = since.map(|since| since.max(began).after(give_up).after(core.timing.reply));
                    if end.is_some_and(|end| end <= core.clock.now()) {
                        return Err(self.of_this(silent(operation, give_up)));
                    }
                }
            }
        }
    }
}
