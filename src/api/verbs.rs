//! The verbs and options of the public handles, which are newtypes over [`Handle`](super::handle::Handle). Each handle
//! takes the parts that its lock has.

/// Adds the name and the options to a public handle.
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// pause later; a fair lock keeps its order. Calls that do not wait are not affected. A handle that is sticky,
            /// and [`recalled`](crate::ReentrantGuard::recalled), subscribe to the client's channel for recalls even so.
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// # fn doc(lock: impl lockset::Lock) {
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
            /// [`shutdown`](crate::Client::shutdown). A waiter that asks before this client listens, in the first
            /// milliseconds after its first such guard or a new connection, asks again after a second. `span` counts
            /// from the first release after the server granted the lock, however often this client uses the lock. A
            /// waiter that cannot send a recall, such as Redisson's, is notified at the latest after `span` plus the
            /// time of one guard. Then both clients ask again, and this one may be granted the lock once more: in our
            /// tests, one wait in four took two spans.
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
            /// A future that is kept but not polled is passed over by later waiters, but keeps its place: it is next
            /// when it is polled again. If it was granted the lock without noticing, the lock stays held for its lease.
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

            /// Returns the holder in the way, and how long its lease lasts without a renewal; a hold of the owner that
            /// asks, too. `None`: no hold keeps this handle out, because the lock is free, or has only readers and this
            /// is a read side. One round trip; the answer may be outdated when it arrives.
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
                self.0.busy().await
            }

            pub(crate) async fn refused(&self) -> $crate::Busy {
                self.0.refused().await
            }
        }
    };
}

/// Adds the queries to a public handle on a lock of one holder, a newtype over [`Handle`]. `scope` says what of the lock
/// they are about, if that is not all.
macro_rules! holder_methods {
    ($lock:ident $(, $scope:literal)?) => {
        impl $lock {
            /// Whether the lock is held. One round trip; the answer may be outdated when it arrives.
            ///
            $(#[doc = $scope] #[doc = ""])?
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

            /// Returns the holder of the lock, and the time left of its lease. One round trip; the answer may be
            /// outdated when it arrives.
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
            $(#[doc = $scope] #[doc = ""])?
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
