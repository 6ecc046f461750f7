//! The common part of all handles on a lock: a synchronizer with a protocol, and the verbs.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::slice::from_ref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::TryFutureExt;

use crate::api::error::Result;
use crate::api::holder::{Busy, Holder};
use crate::api::loss::LostReason;
use crate::api::options::Options;
use crate::client::Client;
use crate::engine::acquire::{self, LockRequest, QueueNumber};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::protocol::{Forced, Protocol};
use crate::engine::hold::transfer::deferrals_ended;
use crate::engine::keys::{HOLDS_OF_PERMITS, LockName};
use crate::engine::synchronizer::Synchronizer;
use crate::observe::call::{LockCall, Waited, place_of};
use crate::observe::counts::{CountedKind, Fact};
use crate::observe::events::Event;
use crate::script::Answer;
use crate::script::reply::Inspected;
use crate::watchdog::Leased;

const NO_LOCK: &str = "this key notes who has permits: call `release` of their plain semaphore";

#[derive(Clone)]
pub(crate) struct Handle {
    site: Synchronizer,
    /// The client's state of the lock, from the first call on.
    local: OnceLock<Arc<LocalLock>>,
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) mode: Mode,
}

impl Deref for Handle {
    type Target = Synchronizer;

    fn deref(&self) -> &Synchronizer {
        &self.site
    }
}

impl DerefMut for Handle {
    fn deref_mut(&mut self) -> &mut Synchronizer {
        &mut self.site
    }
}

impl Handle {
    pub(crate) fn new(
        client: &Client,
        name: &str,
        protocol: &'static dyn Protocol,
        mode: Mode,
    ) -> Self {
        Self {
            site: Synchronizer::new(client, "lock", name, Arc::clone(client.options())),
            local: OnceLock::new(),
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

    fn kind(&self) -> CountedKind {
        self.protocol.counted(self.mode)
    }

    /// Writes the handle for `Debug`, on one line.
    pub(crate) fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("name", &self.given_name());
        shown.field("client", &self.core().id());
        self.options.show(&mut shown);
        shown.finish()
    }

    /// Returns how this handle differs from another handle on the same key, if it does.
    pub(crate) fn differs_from(&self, other: &Self) -> Option<&'static str> {
        if !Arc::ptr_eq(self.core(), other.core()) {
            Some("of different clients")
        } else if self.protocol.kind() != other.protocol.kind() || self.mode != other.mode {
            Some("of different kinds")
        } else if self.options != other.options {
            Some("with different options")
        } else {
            None
        }
    }

    /// Returns the client's state of the lock. The handle keeps it, so that repeated calls do not make it again.
    fn local(&self, name: &LockName) -> &Arc<LocalLock> {
        let kind = self.protocol.kind();
        let local = || {
            self.core()
                .locals
                .get_or_insert(kind, name.key(), name.key())
        };
        self.local.get_or_init(local)
    }

    /// Returns how many calls of this client wait for the lock.
    pub(crate) fn waiters(&self) -> usize {
        self.name("lock")
            .map_or(0, |name| self.local(name).waiters())
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
        let name = self.name(operation)?.clone();
        let policy = options.policy(self.core().timing.lease);
        let policy = policy.map_err(|error| self.error(error.during(operation)))?;
        Ok(LockRequest {
            core: Arc::clone(self.core()),
            local: Arc::clone(self.local(&name)),
            protocol: self.protocol,
            name,
            options,
            policy,
            mode: self.mode,
            is_in_order: false,
            operation,
            queued: QueueNumber::default(),
        })
    }

    /// Acquires the lock, however long that takes.
    pub(crate) async fn acquire(&self, operation: &'static str) -> Result<Share> {
        let acquired = self.acquire_until(operation, |_| Tick::NEVER, drop).await?;
        Ok(acquired.expect("a wait without a deadline does not time out"))
    }

    /// Acquires the lock if it is free.
    pub(crate) async fn try_acquire(&self, operation: &'static str) -> Result<Option<Share>> {
        self.acquire_until(operation, |_| Tick::ZERO, drop).await
    }

    /// Acquires the lock if it becomes free within `wait`.
    pub(crate) async fn try_acquire_for(
        &self,
        operation: &'static str,
        wait: Duration,
    ) -> Result<Option<Share>> {
        let until = |began: Tick| began.after(wait);
        self.acquire_until(operation, until, drop).await
    }

    /// Makes one attempt. Returns a share, or the time left of the other holder's lease.
    pub(crate) async fn try_or_remaining(
        &self,
        operation: &'static str,
    ) -> Result<Result<Share, Duration>> {
        let mut remaining = Duration::ZERO;
        let note = |lease: Option<Duration>| remaining = lease.unwrap_or_default();
        let tried = Box::pin(self.acquire_until(operation, |_| Tick::ZERO, note));
        let share = tried.await?;
        Ok(share.ok_or(remaining))
    }

    /// Acquires the lock in a call that begins now. `until` gets that instant and returns until when the call may wait;
    /// [`Tick::ZERO`] means one attempt. `refused` gets the time left of the other holder's lease, if the server
    /// returned it.
    pub(crate) async fn acquire_until(
        &self,
        operation: &'static str,
        until: impl FnOnce(Tick) -> Tick,
        refused: impl FnOnce(Option<Duration>),
    ) -> Result<Option<Share>> {
        // Read once: the limits and the measurements of the call all begin at this instant.
        let lock_call = LockCall::begin(self.core(), self.kind(), self.given_name(), &self.options);
        let began = lock_call.began;
        let (request, until) = (self.request(operation)?, until(began));
        // Pinned here, because moving a future into another one doubles its size.
        let bound = acquire::bound(from_ref(&request), until, began);
        let call = acquire::one(&request, &bound).map_ok(|taken| taken.map_err(refused).ok());
        let call = pin!(call);
        let waited = || async {
            // Both are asked in one round trip.
            let (place, busy) = tokio::join!(place_of(&request), self.refused());
            Waited(self.waiters(), place, busy)
        };
        let call = pin!(lock_call.told_if_long(until > Tick::ZERO, waited, call));
        // A grant that replicas have to confirm counts only after that.
        let is_final = self.options.replication.is_none();
        let granted = |share: &Share| share.since().filter(|_| is_final);
        // In the span of the call, which the span of the hold follows from.
        let call = async {
            let guarded = |share: Share| share.guarded(request.kept_until(), request.sticky());
            Ok(call.await?.map(guarded))
        };
        let (ended, timed) = lock_call.recorded(granted, call).await;
        Ok(ended?.map(|share| share.timed(timed)))
    }

    /// Returns all holders of the lock.
    pub(crate) async fn inspect(&self, operation: &'static str) -> Result<Vec<Inspected>> {
        let call = self.protocol.inspect(self.name(operation)?);
        let read = |answer: &Answer| self.protocol.inspected(&answer.value);
        self.ask(operation, &call, Tick::NEVER, read).await
    }

    /// Returns the holders in this mode. Before the server is asked, readers of this client under a write hold get a
    /// read hold.
    pub(crate) async fn holders(&self, operation: &'static str) -> Result<Vec<Holder>> {
        deferrals_ended(self.core(), self.local(self.name(operation)?)).await;
        let seen = self.inspect(operation).await?.into_iter();
        let in_mode = seen.filter(|hold| hold.mode == self.mode);
        Ok(in_mode.map(|hold| hold.holder).collect())
    }

    /// Returns the first holder in this mode.
    pub(crate) async fn holder(&self, operation: &'static str) -> Result<Option<Holder>> {
        Ok(self.holders(operation).await?.into_iter().next())
    }

    /// Returns the holder that keeps others from this mode; of several, the one with the longest lease.
    pub(crate) async fn busy(&self) -> Result<Option<Busy>> {
        let seen = self.inspect("busy").await?.into_iter();
        let in_the_way =
            |hold: &Inspected| self.mode == Mode::Exclusive || hold.mode == Mode::Exclusive;
        let holders = seen.filter(in_the_way).map(|hold| hold.holder);
        let longest = holders.max_by_key(|holder| holder.remaining);
        Ok(longest.map(|holder| self.held_by(holder)))
    }

    /// Returns the holder in the way of a refused caller, within the time of one reply.
    pub(crate) async fn refused(&self) -> Busy {
        self.busy_in_time(self.busy()).await
    }

    /// Returns the terms of a forced unlock.
    pub(crate) fn forced<'a>(&self, holder: Option<&'a str>) -> Forced<'a> {
        Forced {
            holder,
            publish: self.core().channels().publish(),
            mode: self.mode,
            fenced: self.options.fenced,
            token_retention: self.core().timing.token_retention,
        }
    }

    /// The name of a lock that is taken away from its holders. The notes of a plain semaphore have the form of a lock.
    pub(crate) fn name_to_free(&self, operation: &'static str) -> Result<&LockName> {
        let name = self.name(operation)?;
        let is_lock = name.key().split(':').next() != Some(HOLDS_OF_PERMITS);
        let named = is_lock.then_some(name);
        named.ok_or_else(|| self.invalid(operation, NO_LOCK))
    }

    /// Frees the lock from any holder in this mode, and ends this client's own holds.
    pub(crate) async fn force_unlock(&self) -> Result<bool> {
        const OPERATION: &str = "force_unlock";
        let forced = self.forced(None);
        let name = self.name_to_free(OPERATION)?;
        deferrals_ended(self.core(), self.local(name)).await;
        // Collected before the call is sent, because a hold that is granted after its execution must not be ended.
        let holds = self.local(name).holds();
        let call = self.protocol.force(name, &forced);
        let asked = self.ask(OPERATION, &call, Tick::NEVER, Answer::is_done);
        let freed = asked.await?;
        if freed {
            let lock = name.as_str().into();
            let forced = Event::Forced { lock };
            self.core().observed().note(Fact::event(forced));
            for hold in holds {
                if hold.is_exclusive() == (self.mode == Mode::Exclusive) {
                    hold.lose(LostReason::Revoked);
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
