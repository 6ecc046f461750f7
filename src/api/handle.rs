//! The common part of all handles on a lock: a client, a name, options, and the verbs.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::holder::{Busy, Holder};
use crate::api::options::{Options, check_give_up};
use crate::client::Client;
use crate::conn::Lane;
use crate::engine::acquire::{self, LockRequest, QueueNumber, WaitLimit};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::core::Core;
use crate::engine::hold::join::deferrals_ended;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::protocol::{Forced, Protocol};
use crate::engine::keys::LockName;
use crate::observe::call::{LockCall, Waited, place_of};
use crate::observe::counts::{CountedKind, Fact};
use crate::observe::events::Event;
use crate::script::reply::Inspected;
use crate::script::{Answer, Call};
use crate::watchdog::Leased;

#[derive(Clone)]
pub(crate) struct Handle {
    core: Arc<Core>,
    /// An invalid name is reported by the first call that uses it.
    name: Result<LockName>,
    /// The client's state of the lock, from the first call on.
    local: OnceLock<Arc<LocalLock>>,
    /// Shared with its clones and calls: a change makes a copy.
    pub(crate) options: Arc<Options>,
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) mode: Mode,
}

impl Handle {
    pub(crate) fn new(
        client: &Client,
        name: &str,
        protocol: &'static dyn Protocol,
        mode: Mode,
    ) -> Self {
        Self {
            core: Arc::clone(client.core()),
            name: LockName::new(client.key_prefix(), name),
            local: OnceLock::new(),
            options: Arc::clone(client.options()),
            protocol,
            mode,
        }
    }

    /// Returns a handle on this lock in another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> Self {
        Self {
            mode,
            ..self.clone()
        }
    }

    pub(crate) fn name(&self) -> Result<&LockName> {
        self.name.as_ref().map_err(Clone::clone)
    }

    fn name_for(&self, operation: &'static str) -> Result<&LockName> {
        self.name().map_err(|error| error.during(operation))
    }

    /// The name as it was given, even if it is invalid.
    pub(crate) fn given_name(&self) -> &str {
        match &self.name {
            Ok(name) => name.as_str(),
            Err(error) => error.lock_name().unwrap_or_default(),
        }
    }

    fn kind(&self) -> CountedKind {
        self.protocol.counted(self.mode)
    }

    /// Writes the handle for `Debug`, on one line.
    pub(crate) fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("name", &self.given_name());
        shown.field("client", &self.core.id());
        self.options.show(&mut shown);
        shown.finish()
    }

    /// Says how this handle differs from another one on its key, if it does.
    pub(crate) fn differs_from(&self, other: &Self) -> Option<&'static str> {
        if !Arc::ptr_eq(&self.core, &other.core) {
            Some("of different clients")
        } else if self.protocol.kind() != other.protocol.kind() || self.mode != other.mode {
            Some("of different kinds")
        } else if self.options != other.options {
            Some("with different options")
        } else {
            None
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The client's state of the lock. The handle keeps it, so that repeated calls do not make it again.
    fn local(&self, name: &LockName) -> &Arc<LocalLock> {
        let kind = self.protocol.kind();
        let local = || self.core.locals.get_or_insert(kind, name.key());
        self.local.get_or_init(local)
    }

    /// How many calls of this client wait for the lock.
    pub(crate) fn waiters(&self) -> usize {
        self.name().map_or(0, |name| self.local(name).waiters())
    }

    pub(crate) fn request(&self, operation: &'static str) -> Result<LockRequest> {
        self.asking(Arc::clone(&self.options), operation)
    }

    /// Makes the request of a call with these options instead of the handle's.
    pub(crate) fn asking(
        &self,
        options: Arc<Options>,
        operation: &'static str,
    ) -> Result<LockRequest> {
        let name = self.name_for(operation)?.clone();
        let policy = options.policy(self.core.timing.lease);
        let policy = policy.map_err(|error| error.during(operation).of_lock(name.as_str()))?;
        if let Some(give_up) = options.give_up {
            check_give_up(give_up).map_err(|error| error.of_lock(name.as_str()))?;
        }
        Ok(LockRequest {
            core: Arc::clone(&self.core),
            local: Arc::clone(self.local(&name)),
            protocol: self.protocol,
            name,
            options,
            policy,
            mode: self.mode,
            operation,
            queued: QueueNumber::default(),
        })
    }

    /// Acquires the lock, however long that takes.
    pub(crate) async fn acquire(&self, operation: &'static str) -> Result<Share> {
        let acquired = self.acquire_within(operation, |_| WaitLimit::Forever).await;
        acquired.map(WaitLimit::forever)
    }

    /// Acquires the lock if it is free.
    pub(crate) async fn try_acquire(&self, operation: &'static str) -> Result<Option<Share>> {
        self.acquire_within(operation, |_| WaitLimit::Never).await
    }

    /// Acquires the lock if it becomes free within this time.
    pub(crate) async fn try_acquire_for(
        &self,
        operation: &'static str,
        wait: Duration,
    ) -> Result<Option<Share>> {
        let until = |began: Tick| WaitLimit::Until(began.after(wait));
        self.acquire_within(operation, until).await
    }

    /// Acquires the lock in a call that begins now. `wait` gets that instant and says how long the call may wait.
    async fn acquire_within(
        &self,
        operation: &'static str,
        wait: impl FnOnce(Tick) -> WaitLimit,
    ) -> Result<Option<Share>> {
        // Read once: the limits and the measurements of the call all begin at this instant.
        let lock_call = self.lock_call();
        let began = lock_call.began;
        let (request, wait) = (self.request(operation)?, wait(began));
        // Pinned here, because moving a future into another one doubles its size.
        let call = pin!(acquire::one(&request, wait, began));
        let (place, busy) = (|| place_of(&request), || self.refused("lock"));
        let waited = Waited(|| self.waiters(), place, busy);
        let call = pin!(lock_call.told_if_long(wait.waits(), &waited, call));
        self.recorded(&request, &lock_call, call).await
    }

    fn lock_call(&self) -> LockCall<'_> {
        LockCall::begin(&self.core, self.kind(), self.given_name(), &self.options)
    }

    /// Drives a call that began then, and turns the share into what the caller gets.
    async fn recorded(
        &self,
        request: &LockRequest,
        lock_call: &LockCall<'_>,
        call: impl Future<Output = Result<Option<Share>>>,
    ) -> Result<Option<Share>> {
        // A grant that replicas have to confirm counts only after that.
        let is_final = self.options.replication.is_none();
        let granted = |share: &Share| share.since().filter(|_| is_final);
        let (ended, timed) = lock_call.recorded(granted, call).await;
        Ok(ended?.map(|mut share| {
            share.time(timed);
            share.guarded(request.kept_until(), request.sticky())
        }))
    }

    /// Makes one attempt: a share, or the time left of the other holder's lease.
    pub(crate) async fn try_or_remaining(
        &self,
        operation: &'static str,
    ) -> Result<Result<Share, Duration>> {
        let (request, lock_call) = (self.request(operation)?, self.lock_call());
        let mut remaining = Duration::ZERO;
        let tried = Box::pin(async {
            let tried = acquire::one_or_remaining(&request, lock_call.began).await?;
            Ok(tried.map_err(|lease| remaining = lease).ok())
        });
        let share = self.recorded(&request, &lock_call, tried).await?;
        Ok(share.ok_or(remaining))
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.options)
    }

    /// Sets the group for the metrics.
    pub(crate) fn set_group(&mut self, name: &str) {
        self.options_mut().group = self.core.observed().group(name);
    }

    /// Asks the server about the lock: one script, repeated until it is answered.
    pub(crate) async fn query<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&LockName) -> Call,
        read: impl FnOnce(&Answer) -> Result<T>,
    ) -> Result<T> {
        let (core, name) = (&self.core, self.name_for(operation)?);
        let of_lock = |error: Error| error.during(operation).of_lock(name.as_str());
        let give_up = self.options.give_up.unwrap_or(core.timing.give_up);
        check_give_up(give_up).map_err(|error| error.of_lock(name.as_str()))?;
        core.ensure_open(operation).map_err(of_lock)?;
        let budget = core.call_budget(give_up);
        let answer = core.scripts.run(Lane::Command, &call(name), budget).await;
        let answer = answer.map_err(|failure| of_lock(failure.into_error(operation)))?;
        read(&answer).map_err(of_lock)
    }

    /// Returns all holders of the lock.
    pub(crate) async fn inspect(&self, operation: &'static str) -> Result<Vec<Inspected>> {
        let call = |name: &LockName| self.protocol.inspect(name);
        let read = |answer: &Answer| self.protocol.inspected(&answer.value);
        self.query(operation, call, read).await
    }

    /// Returns the holders in this mode. Readers of this client under a write hold have a read hold before the server
    /// answers.
    pub(crate) async fn holders(&self, operation: &'static str) -> Result<Vec<Holder>> {
        deferrals_ended(&self.core, self.local(self.name_for(operation)?)).await;
        let seen = self.inspect(operation).await?.into_iter();
        let in_mode = seen.filter(|hold| hold.mode == self.mode);
        Ok(in_mode.map(Holder::from).collect())
    }

    /// Returns the first holder in this mode.
    pub(crate) async fn holder(&self, operation: &'static str) -> Result<Option<Holder>> {
        Ok(self.holders(operation).await?.into_iter().next())
    }

    /// Returns the holder that keeps others from this mode; of several, the one with the longest lease.
    pub(crate) async fn busy(&self, operation: &'static str) -> Result<Option<Busy>> {
        let seen = self.inspect(operation).await?.into_iter();
        let in_the_way =
            |hold: &Inspected| self.mode == Mode::Exclusive || hold.mode == Mode::Exclusive;
        let holds = seen.filter(in_the_way).map(Holder::from);
        let longest = holds.max_by_key(|hold| hold.remaining);
        let busy = |hold: Holder| Busy::held_by(self.given_name(), hold.id, hold.remaining);
        Ok(longest.map(|hold| busy(hold).seen_by(self.core.id())))
    }

    /// Returns the holder in the way of a refused caller, within the time of one reply. Without an answer it is only
    /// known that others hold the lock.
    pub(crate) async fn refused(&self, operation: &'static str) -> Busy {
        self.busy_in_time(self.busy(operation)).await
    }

    /// What `asked` returns within the time of one reply.
    pub(crate) async fn busy_in_time(
        &self,
        asked: impl Future<Output = Result<Option<Busy>>>,
    ) -> Busy {
        let core = &self.core;
        let answer = core.clock.within(core.timing.reply, asked).await;
        let busy = answer.and_then(|answer| answer.ok().flatten());
        busy.unwrap_or_else(|| Busy::new(self.given_name()))
    }

    /// The terms of a forced unlock.
    pub(crate) fn forced<'a>(&self, holder: Option<&'a str>) -> Forced<'a> {
        Forced {
            holder,
            publish: self.core.channels().publish(),
            mode: self.mode,
            fenced: self.options.fenced,
            token_retention: self.core.timing.token_retention,
        }
    }

    /// Frees the lock from any holder in this mode, and ends this client's own holds.
    pub(crate) async fn force_unlock(&self) -> Result<bool> {
        let forced = self.forced(None);
        let name = self.name_for("force_unlock")?;
        deferrals_ended(&self.core, self.local(name)).await;
        // Taken before the call is sent: a hold that is granted after its execution is another one.
        let holds = self.local(name).holds();
        let call = |name: &LockName| self.protocol.force(name, &forced);
        let freed = self.query("force_unlock", call, Answer::is_done).await?;
        if freed {
            let lock = name.as_str().into();
            let forced = Event::Forced { lock };
            self.core.observed().note(Fact::event(forced));
            for hold in holds {
                if hold.is_exclusive() == (self.mode == Mode::Exclusive) {
                    hold.revoked();
                }
            }
        }
        Ok(freed)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(self.kind().name(), f)
    }
}

/// Adds the name and the options to a public handle, a newtype over [`Handle`].
macro_rules! option_methods {
    ($lock:ident) => {
        impl ::std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.show(stringify!($lock), f)
            }
        }

        impl $lock {
            /// The name of the lock as it was given, even if it is invalid; of several locks, the name of the first in
            /// the order of acquisition.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.given_name()
            }

            /// Asks for `owner`: a call made while that owner holds the lock enters it again at once.
            ///
            /// Without an owner each call is a new owner, so no call enters again by accident.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let me = lockset::Owner::new();
            /// let lock = lock.owner(&me);
            /// # drop(lock) }
            /// ```
            pub fn owner(mut self, owner: &$crate::Owner) -> Self {
                self.0.options_mut().owner = Some(owner.clone());
                self
            }

            /// Sets the lease, which the watchdog renews until the guard is gone. Default: the client's, 30
            /// s. From 50 ms to a year.
            ///
            /// With a shorter lease others get the lock sooner after a crash, but a shorter pause of this process or of
            /// the network loses it.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.lease(std::time::Duration::from_secs(10));
            /// # drop(lock) }
            /// ```
            pub fn lease(mut self, lease: ::std::time::Duration) -> Self {
                self.0.options_mut().policy =
                    Some($crate::api::options::LeasePolicy::Renewed(lease));
                self
            }

            /// Sets a lease that is never renewed: the guard is lost when it ends, even if other guards of
            /// its [owner](Self::owner) hold the lock for longer. From 50 ms to a year.
            ///
            /// The lock itself is renewed for as long as its owner has a guard with a renewed lease.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.fixed_lease(std::time::Duration::from_secs(60));
            /// # drop(lock) }
            /// ```
            pub fn fixed_lease(mut self, lease: ::std::time::Duration) -> Self {
                self.0.options_mut().policy = Some($crate::api::options::LeasePolicy::Fixed(lease));
                self
            }

            /// Leaves the lock held for `span` from the grant, even if the guard is released or dropped before.
            /// Default: not at all.
            ///
            /// For work that should run once in a while in any one of several processes whose clocks differ: a job that
            /// took 10 ms in one process is not run again by the next process, which is a second late. An early release
            /// is still confirmed, in one round trip. The lock stays held under a holder id of its own, without a
            /// guard, and the server frees it when the time is over. Until then no call gets it, not even a call of the
            /// same owner or of this client. If the owner has several guards, the hold of the last guard is left, also
            /// if that guard ends by a [`max_hold`](Self::max_hold) or a [`fixed_lease`](Self::fixed_lease): after a
            /// guard that reads, others may read. The time is counted by the local monotonic clock and rounded up. It
            /// may be longer than the lease, which is renewed while the guard is there.
            ///
            /// A guard that is lost does not keep the lock, nor does a process that dies: then its lease ends it. When
            /// the client is [shut down](crate::Client::shutdown), locks that were released before stay held for their
            /// time, and locks that a guard still holds for their lease. A future of
            /// [`lock`](crate::ReentrantLock::lock) that is dropped leaves nothing behind.
            ///
            /// A call fails with [`is_invalid`]($crate::Error::is_invalid) if `span` is longer than a
            /// [`fixed_lease`](Self::fixed_lease) or a [`max_hold`](Self::max_hold), which it would outlast, or than
            /// a year.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.at_least(std::time::Duration::from_secs(60));
            /// # drop(lock) }
            /// ```
            pub fn at_least(mut self, span: ::std::time::Duration) -> Self {
                self.0.options_mut().at_least = Some(span);
                self
            }

            /// Bounds how long a guard holds the lock: it is renewed for `span` from the grant. Then the guard is lost
            /// with [`LostReason::MaxHold`]($crate::LostReason::MaxHold), and the lock is released at once. From 50 ms;
            /// default: no bound.
            ///
            /// For work that must not keep others out for ever if it hangs: the watchdog renews the lease of a task
            /// that makes no progress like any other. Each guard has a span of its own, counted by the local monotonic
            /// clock; a guard that was made by entering [again](Self::owner) through another guard ends with that
            /// guard. The lease at the server never lasts longer than `span`, apart from the margin of 1 % and 2 ms
            /// that lets the guard end before the server. So the lock of a process that dies is free by the end of
            /// `span`, unless a released guard of its owner asked for more time by [`at_least`](Self::at_least). A
            /// shorter [`fixed_lease`](Self::fixed_lease) ends first, as `Expired`.
            ///
            /// As with every loss, [`run`](crate::ReentrantGuard::run) drops the work at that moment. Work in a spawned
            /// task, and work that blocks its thread, continues without the lock; check
            /// [`is_lost`](crate::ReentrantGuard::is_lost) there.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.max_hold(std::time::Duration::from_secs(600));
            /// # drop(lock) }
            /// ```
            pub fn max_hold(mut self, span: ::std::time::Duration) -> Self {
                self.0.options_mut().max_hold = Some(span);
                self
            }

            /// Gives every new grant a [fencing token]($crate::FencingToken).
            ///
            /// Set it on all handles of a lock or on none: a grant without a token does not raise the
            /// counter. The counter is a small key at the server, which stays for 30 days after the last such
            /// grant: see [`token_retention`]($crate::ClientBuilder::token_retention).
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.fenced();
            /// # drop(lock) }
            /// ```
            pub fn fenced(mut self) -> Self {
                self.0.options_mut().fenced = true;
                self
            }

            /// Sets how long a call continues without an answer from the server before it fails with
            /// [`is_io`]($crate::Error::is_io) (a `RedlockLock`: with
            /// [`is_quorum`]($crate::Error::is_quorum)); for every call of this handle and of its guards.
            ///
            /// Default: the client's ([`ClientBuilder::give_up_after`]($crate::ClientBuilder::give_up_after)), a third
            /// of its lease, and for `try_lock` 2 s at most. From 1 ms. With
            /// [`Duration::MAX`](::std::time::Duration::MAX) calls have no limit, and a wait continues through an
            /// outage.
            ///
            /// It does not bound the wait for a lock that is held while the server answers. An abandoned call is undone
            /// in the background.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.give_up_after(std::time::Duration::from_millis(200));
            /// # drop(lock) }
            /// ```
            pub fn give_up_after(mut self, span: ::std::time::Duration) -> Self {
                self.0.options_mut().give_up = Some(span);
                self
            }

            /// Waits without a subscription: a waiter asks again after a pause, which `backoff` sets (a
            /// [`Duration`](::std::time::Duration) for pauses of one length).
            ///
            /// For servers, proxies and users without publish and subscribe. Its releases still notify others that wait
            /// with a subscription. A polling waiter costs the server one attempt per pause, and gets the lock half a
            /// pause later; a fair lock keeps its order. Calls that do not wait are not affected.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.polled(std::time::Duration::from_millis(20));
            /// # drop(lock) }
            /// ```
            pub fn polled(mut self, backoff: impl Into<$crate::Backoff>) -> Self {
                self.0.options_mut().polled = Some(backoff.into());
                self
            }

            /// Counts the calls of this handle in the group `name`: a label of the metrics of the feature `metrics`,
            /// and a field of the span `lockset.acquire`.
            ///
            /// For a few names that are known beforehand, such as `"orders"`; never for a name that is made from a key.
            /// A process has 64 groups; later names are counted as `other`, which is reported to an
            /// [observer](crate::Event::TooManyGroups) once. An empty name means no group.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.group("orders");
            /// # drop(lock) }
            /// ```
            pub fn group(mut self, name: &str) -> Self {
                self.0.set_group(name);
                self
            }

            /// Reports calls of this handle to the [observer](crate::Event::LongWait) once they have waited for this
            /// long; 1 s by default.
            ///
            /// All calls of a client that wait for one lock are reported together, at most once in ten seconds.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// # use std::time::Duration;
            /// // A queue where waits of some seconds are normal.
            /// let lock = lock.report_wait_after(Duration::from_secs(30));
            /// # drop(lock) }
            /// ```
            pub fn report_wait_after(mut self, span: Duration) -> Self {
                self.0.options_mut().report_wait_after(span);
                self
            }

            /// Makes a grant count only once `count` replicas have confirmed it (`WAIT`) within `within`, at
            /// most a third of the lease.
            ///
            /// If fewer confirm in time, the grant is released and the call fails with
            /// [`is_not_replicated`]($crate::Error::is_not_replicated) (a `RedlockLock`: with
            /// [`is_quorum`]($crate::Error::is_quorum), whose message names the server).
            ///
            /// **Benefit:** if one of the replicas that confirmed takes over, it knows of the hold.
            ///
            /// **Limits:** it narrows the gap through which a failover loses a lock, but never closes it. Nothing makes
            /// one of *those* replicas take over, and a replica may lose its data too. Only fencing tokens keep data
            /// correct. Only grants wait: renewals, releases and further entries of an owner do not. A replica that
            /// takes over may end the lease earlier than the holder believes, until the next renewal.
            ///
            /// **Cost:** one more round trip, plus the time of the slowest of these replicas. It comes on top of the
            /// `wait` of `try_lock_for` and uses up a part of the lease. Grants of one client that arrive while a
            /// `WAIT` is under way share the next one, so it can take up to twice as long. The client opens one more
            /// connection for it. The user needs the right `+wait`.
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.replicated(1, std::time::Duration::from_millis(200));
            /// # drop(lock) }
            /// ```
            pub fn replicated(mut self, count: u32, within: ::std::time::Duration) -> Self {
                let replication = $crate::api::options::Replication { count, within };
                self.0.options_mut().replication = Some(replication);
                self
            }
        }
    };
}

/// Adds the options of locks whose waiters queue in their clients.
macro_rules! sticky_methods {
    ($lock:ident) => {
        impl $lock {
            /// Leaves the lock with this client for up to `span` when the last guard is released: the client's next
            /// task has it without a round trip. Off by default; at most [`STICKY_MAX`]($crate::STICKY_MAX).
            ///
            /// For a lock that one process uses again and again, and others now and then. In that time the lock stays
            /// held at the server and is renewed, without a guard. It is released as soon as a waiter of this library
            /// at another client asks for it (a recall), when `span` is over, and with
            /// [`shutdown`](crate::Client::shutdown). `span` counts from the first release after the server granted the
            /// lock, however often this client uses the lock. A waiter that cannot send a recall, such as Redisson's,
            /// is notified after `span` and one guard at most. Then both clients ask again, and this one may be granted
            /// the lock once more: in our tests, one wait in four took two spans.
            ///
            /// * [`release`](crate::ReentrantGuard::release) returns at once. If the lock is freed by force after the
            ///   last renewal, the next task that takes it gets the loss.
            /// * `try_lock` of others does not ask for it, and returns `None` until it is released.
            /// * If this process dies, or drops the client without shutting it down, the lock ends with its lease or
            ///   with `span`.
            /// * A grant with a [fencing token](Self::fenced) gives each of the next 16 tasks a token of its own; then
            ///   the lock is released.
            /// * It has no effect on guards that are released before their [`at_least`](Self::at_least), on readers,
            ///   and on members of a [`MultiLock`]($crate::MultiLock).
            ///
            /// A call fails with [`is_invalid`]($crate::Error::is_invalid) if `span` is longer than allowed, or
            /// together with a [`fixed_lease`](Self::fixed_lease).
            ///
            /// ```no_run
            #[doc = concat!("# fn doc(lock: lockset::", stringify!($lock), ") {")]
            /// let lock = lock.sticky(std::time::Duration::from_millis(200));
            /// # drop(lock) }
            /// ```
            pub fn sticky(mut self, span: ::std::time::Duration) -> Self {
                self.0.options_mut().sticky = Some(span);
                self
            }
        }
    };
}

/// Adds the methods that acquire to a public handle, a newtype over [`Handle`].
macro_rules! verb_methods {
    ($lock:ident, $guard:ident) => {
        impl $lock {
            /// Acquires the lock, waiting until it is free.
            ///
            /// Takes one round trip if it is free; if it is held elsewhere, one more and a subscription.
            /// Waiting for another holder is never an error.
            ///
            /// # Cancel safety
            /// Dropping the future takes it out of the queue. A grant under way is released in the background.
            ///
            /// A future that is kept but not polled is passed over by later waiters, and keeps its claim. If it was
            /// granted the lock without noticing, the lock stays held for its lease.
            ///
            /// # Errors
            /// * [`is_io`]($crate::Error::is_io): the server did not answer for as long as
            ///   [`give_up_after`](Self::give_up_after) says; or three grants in a row came after the ends of their
            ///   leases. Late grants are released.
            /// * [`is_refused`]($crate::Error::is_refused): the server cannot do it now, or too few
            ///   [replicas](Self::replicated) confirmed the grant.
            /// * [`is_invalid`]($crate::Error::is_invalid): a name, option or key that cannot work.
            /// * [`is_closed`]($crate::Error::is_closed): the client was shut down, or its runtime has ended.
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// let guard = lock.lock().await?;
            /// // the lock is held here
            /// guard.release().await?;
            /// # Ok(()) }
            /// ```
            pub async fn lock(&self) -> $crate::Result<$guard> {
                self.0.acquire("lock").await.map($guard)
            }

            /// Acquires the lock if it is free, or held by the same owner, in one round trip. `None`: it is
            /// held elsewhere, or others come first. Never enters a queue.
            ///
            /// # Cancel safety
            /// As for [`lock`](Self::lock).
            ///
            /// # Errors
            /// As for [`lock`](Self::lock). If the server is silent, the call ends after 2 s by default.
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// let Some(guard) = lock.try_lock().await? else {
            ///     println!("another process holds the lock");
            ///     return Ok(());
            /// };
            /// guard.release().await?;
            /// # Ok(()) }
            /// ```
            pub async fn try_lock(&self) -> $crate::Result<Option<$guard>> {
                let share = self.0.try_acquire("try_lock").await?;
                Ok(share.map($guard))
            }

            /// Acquires the lock, waiting at most `wait`. `None`: it did not become free in time. Makes a
            /// last attempt at the deadline.
            ///
            /// # Cancel safety
            /// As for [`lock`](Self::lock).
            ///
            /// # Errors
            /// As for [`lock`](Self::lock). If the server is silent, the call ends when `wait` is over, or the time of
            /// one reply (a sixth of the client's lease, at most a second) after its first attempt without an answer if
            /// that is later; but never later than [`give_up_after`](Self::give_up_after) says.
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// let wait = std::time::Duration::from_secs(5);
            /// match lock.try_lock_for(wait).await? {
            ///     Some(guard) => guard.release().await?,
            ///     None => println!("still held after five seconds"),
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn try_lock_for(
                &self,
                wait: ::std::time::Duration,
            ) -> $crate::Result<Option<$guard>> {
                let share = self.0.try_acquire_for("try_lock_for", wait).await?;
                Ok(share.map($guard))
            }

            /// Returns the holder in the way, and how long its lease lasts without a renewal. `None`: the lock is free.
            /// One round trip; the answer may be outdated when it arrives.
            ///
            /// # Cancel safety
            /// Cancel safe: it changes nothing.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// match lock.try_lock().await? {
            ///     Some(guard) => guard.release().await?,
            ///     None => println!("{:?}", lock.busy().await?),
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn busy(&self) -> $crate::Result<Option<$crate::Busy>> {
                self.0.busy("busy").await
            }

            pub(crate) async fn refused(&self) -> $crate::Busy {
                self.0.refused("with").await
            }
        }
    };
}

/// Adds the queries to a public handle on a lock of one holder, a newtype over [`Handle`].
macro_rules! holder_methods {
    ($lock:ident) => {
        impl $lock {
            /// Whether the lock is held. One round trip; the answer may be outdated when it arrives.
            ///
            /// # Cancel safety
            /// Cancel safe: it changes nothing.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// println!("held: {}", lock.is_locked().await?);
            /// # Ok(()) }
            /// ```
            pub async fn is_locked(&self) -> $crate::Result<bool> {
                Ok(self.0.holder("is_locked").await?.is_some())
            }

            /// Returns the holder of the lock, how many times it holds the lock, and the time left of its lease. One
            /// round trip; the answer may be outdated when it arrives.
            ///
            /// # Cancel safety
            /// Cancel safe: it changes nothing.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// if let Some(holder) = lock.holder().await? {
            ///     println!("held by {}", holder.id);
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn holder(&self) -> $crate::Result<Option<$crate::Holder>> {
                self.0.holder("holder").await
            }

            /// Frees the lock from any holder; `false` if it was free. For operators.
            ///
            /// The guard of the holder is lost at its next renewal or before; until then its work continues. Its client
            /// may still hand the hold off to other tasks, with tokens that were set aside for that and are lower than
            /// tokens granted since. If the answer is lost, the call is repeated and may free the lock of a holder that
            /// came in between.
            ///
            /// # Cancel safety
            /// If the future is dropped, the lock may or may not be freed.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            ///
            /// ```no_run
            #[doc = concat!("# async fn doc(lock: lockset::", stringify!($lock), ") -> lockset::Result<()> {")]
            /// if lock.force_unlock().await? {
            ///     println!("{} is free", lock.name());
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn force_unlock(&self) -> $crate::Result<bool> {
                self.0.force_unlock().await
            }
        }
    };
}

pub(crate) use {holder_methods, option_methods, sticky_methods, verb_methods};
