//! The terms of a call (which lock, on which terms, how long to wait) and how the attempt or wait ended.
//!
//! A handle makes one [`LockRequest`] for each call, with the client's local state of the lock. [`Requests`] are
//! granted together or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::api::options::{LeasePolicy, Options, Replication};
use crate::conn::Channels;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::bound::{Bound, silent};
use crate::engine::hold::core::Core;
use crate::engine::hold::handoff::ReaderClass;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::protocol::{Protocol, Queue};
use crate::engine::keys::LockName;

/// One lock, and the terms on which a call asks for it.
#[derive(Clone, Debug)]
pub(crate) struct LockRequest {
    pub(crate) core: Arc<Core>,
    /// The client's local state of the lock.
    pub(crate) local: Arc<LocalLock>,
    pub(crate) protocol: &'static dyn Protocol,
    pub(crate) name: LockName,
    pub(crate) options: Arc<Options>,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    /// Whether this is one of several locks that are taken one after another. Only the server grants such a lock. A
    /// hold that came from another task would be renewed while the call waits for the next lock, and the call may never
    /// be polled again.
    pub(crate) is_in_order: bool,
    /// The public method that was called, for errors.
    pub(crate) operation: &'static str,
    pub(crate) queued: QueueNumber,
}

impl LockRequest {
    /// How long a call goes on without an answer from the server.
    pub(crate) fn give_up(&self) -> Duration {
        self.options.give_up.unwrap_or(self.core.timing.give_up)
    }

    /// Until when a hold that gets a guard now is kept at the server, because of `at_least`.
    pub(crate) fn kept_until(&self) -> Tick {
        let at_least = self.options.at_least;
        at_least.map_or(Tick::ZERO, |span| self.core.clock.now().after(span))
    }

    /// How long the hold may stay with the client after its last guard. Zero for readers.
    pub(crate) fn sticky(&self) -> Duration {
        match self.mode {
            Mode::Exclusive => self.options.sticky.unwrap_or_default(),
            Mode::Shared => Duration::ZERO,
        }
    }

    /// The terms on which this call would join a hold. `None` unless the call is a plain reader: renewed, and without
    /// an owner, a minimum hold time or a fencing token.
    pub(crate) fn joins_on(&self) -> Option<ReaderClass> {
        let options = &self.options;
        let LeasePolicy::Renewed(lease) = self.policy else {
            return None;
        };
        let may_join = self.mode == Mode::Shared
            && !self.is_in_order
            && options.owner.is_none()
            && options.at_least.is_none()
            && !options.fenced;
        may_join.then(|| ReaderClass {
            lease,
            replication: options.replication,
            give_up: self.give_up(),
        })
    }

    pub(crate) fn ensure_open(&self) -> Result<()> {
        let open = self.core.ensure_open(self.operation);
        open.map_err(|error| error.of_lock(self.name.as_str()))
    }

    /// The error of a call that got no answer within its limit. `why` is the error of an earlier waiter in the queue,
    /// if known.
    pub(crate) fn silent(&self, why: Option<Error>) -> Error {
        let error = why.unwrap_or_else(|| silent(self.operation, self.give_up()));
        error.during(self.operation).of_lock(self.name.as_str())
    }

    /// Whether one script can name the keys of both locks.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.core
            .is_beside(self.name.key(), &other.core, other.name.key())
    }
}

/// Where a call for one lock waits, for reports of long waits: the number of its place in the local queue, or of its
/// holder id if waiters queue at the server. Written by the call, and read only for a report.
#[derive(Debug, Default)]
pub(crate) struct QueueNumber(AtomicU64);

/// The call does not wait. Other numbers are stored plus one.
const NOWHERE: u64 = 0;

impl QueueNumber {
    pub(crate) fn note(&self, number: u64) {
        self.0.store(number + 1, Ordering::Relaxed);
    }

    /// Forgets the place when the call leaves it.
    pub(super) fn clear(&self) {
        self.0.store(NOWHERE, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }
}

/// A clone belongs to another call, so it starts empty.
impl Clone for QueueNumber {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The result of an attempt, or of a wait.
#[derive(Debug)]
pub(crate) enum Attempted {
    /// One share of each lock, in the order of the requests. Dropping a share releases it.
    Granted(Few<Share>),
    Refused {
        /// The first lock that was refused.
        at: usize,
        /// The rest of its holder's lease, as the server reported it.
        remaining: Option<Duration>,
    },
    /// Another task of the same owner has got one of several locks, so this call can enter it.
    Owned,
}

impl Attempted {
    /// The grant of a single lock.
    pub(super) fn granted(share: Share) -> Self {
        Self::Granted(Few::from_buf([share]))
    }

    /// A refusal that names no holder, because there may be none.
    pub(super) fn not_held(at: usize) -> Self {
        Self::Refused {
            at,
            remaining: Some(Duration::ZERO),
        }
    }

    /// The outcome of a call for one lock.
    pub(super) fn share_or_remaining(self) -> Result<Share, Option<Duration>> {
        match self {
            Self::Granted(mut shares) => shares.pop().ok_or(None),
            Self::Refused { remaining, .. } => Err(remaining),
            Self::Owned => Err(None),
        }
    }
}

/// After this number of expired grants in one call, the lease counts as too short.
const EXPIRED_MAX: u32 = 3;

/// The number of grants in one call that were lost before they could be handed out, because the network or the process
/// paused. The client releases such a grant and asks again. After several such grants the lease counts as too short for
/// the distance to the server.
#[derive(Debug, Default)]
pub(crate) struct ExpiredGrants(u32);

impl ExpiredGrants {
    /// Whether one of these shares is lost already, so that the call has to ask for all its locks again.
    ///
    /// # Errors
    /// If the lease is too short.
    pub(crate) fn must_retry<'a>(
        &mut self,
        granted: impl IntoIterator<Item = (&'a LockRequest, &'a Share)>,
    ) -> Result<bool> {
        let lost = granted
            .into_iter()
            .find_map(|(request, share)| Some((request, share, share.loss()?)));
        let Some((request, share, reason)) = lost else {
            return Ok(false);
        };
        let again = self.count(
            reason,
            request.operation,
            request.policy.lease(),
            share.age(),
        );
        again.map_err(|error| error.of_lock(request.name.as_str()))?;
        Ok(true)
    }

    /// Counts a grant that was lost for this reason, `age` after its request.
    ///
    /// # Errors
    /// If the lease is too short.
    pub(crate) fn count(
        &mut self,
        reason: LostReason,
        operation: &'static str,
        lease: Duration,
        age: Duration,
    ) -> Result<()> {
        self.0 += u32::from(reason == LostReason::Expired);
        if self.0 < EXPIRED_MAX {
            return Ok(());
        }
        let message = format!(
            "granted {EXPIRED_MAX} times, but its lease of {lease:?} was over each time before it could be \
             handed out, the last time {age:.0?} after the request; use a lease several times as long as the \
             server takes to answer"
        );
        Err(Error::new(Kind::Io, operation, message))
    }
}

/// The time limits of a call for these locks, at least one, that starts at `now` and waits until `until`, or asks once
/// if that is [`Tick::ZERO`].
pub(crate) fn bound(requests: &[LockRequest], until: Tick, now: Tick) -> Bound {
    let give_up = |LockRequest { core, options, .. }: &LockRequest| {
        options.give_up.unwrap_or(core.timing.give_up(until))
    };
    let shortest = requests.iter().map(give_up).min();
    Bound::new(now, until, shortest, &requests[0].core.timing)
}

/// One new holder id for each lock, with the number in it.
pub(super) type Ids = Few<(u64, HolderId)>;

/// The requests of one call, at least one.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) all: &'a [LockRequest],
    pub(super) bound: &'a Bound,
}

impl<'a> Requests<'a> {
    pub(super) fn core(self) -> &'a Arc<Core> {
        &self.all[0].core
    }

    pub(super) fn operation(self) -> &'static str {
        self.all[0].operation
    }

    /// The request of a call for one lock, which may get it from another task of this client.
    pub(super) fn alone(self) -> Option<&'a LockRequest> {
        match self.all {
            [request] if !request.is_in_order => Some(request),
            _ => None,
        }
    }

    /// One new holder id for each lock.
    pub(super) fn new_ids(self) -> Ids {
        let locks = self.all.iter();
        locks.map(|request| request.core.new_holder()).collect()
    }

    /// How long the server keeps the place that an attempt takes if `member` refuses it. The attempt was made at
    /// `asked`, for a call that waits for the lock at `at`. `None` if the attempt takes no place: it is the last, or
    /// the call will wait behind others of this client.
    pub(super) fn heartbeat(self, member: usize, at: usize, asked: Tick) -> Option<Duration> {
        let request = &self.all[member];
        let has_queue = match request.protocol.queue() {
            Queue::Local => false,
            Queue::LocalWithPlace => member == at,
            Queue::Server => true,
        };
        let takes_place = has_queue && asked < self.bound.waits_until();
        takes_place.then_some(request.core.timing.heartbeat)
    }

    /// The strictest replication that the requests ask for, if any.
    pub(super) fn replication(self) -> Option<Replication> {
        let wanted = self.all.iter().map(|request| request.options.replication);
        wanted.flatten().reduce(Replication::both)
    }

    /// Whether the server may make this waiter the holder without another attempt.
    ///
    /// False if the call needs more than the lock: other locks, a confirmation by replicas, or a full lease, because a
    /// fixed lease is never renewed. False on a cluster without sharded channels, too: there, PUBLISH counts only the
    /// receivers at its own node, and the script takes back a grant whose message reached no receiver.
    pub(super) fn accept_handover(self) -> bool {
        let [request] = self.all else {
            return false;
        };
        let transport = &request.core.scripts.transport;
        let are_all_counted =
            transport.channels() == Channels::Sharded || !transport.splits_slots();
        request.policy.is_renewed() && request.options.replication.is_none() && are_all_counted
    }

    /// Adds the names of all the locks to an error.
    pub(super) fn of_locks(self, error: Error) -> Error {
        let names: Vec<_> = self.all.iter().map(|each| each.name.as_str()).collect();
        error.of_lock(&names.join(", "))
    }

    pub(super) fn closed(self) -> Error {
        self.of_locks(self.core().closed(self.operation()))
    }

    /// Waits until the releases that this client has already decided on for these locks are sent, so that its next
    /// command goes behind them. Waits for one reply time at most, and for half of the time until `end`, to leave time
    /// to ask. `now` was read just now. Returns the time at the end.
    pub(super) async fn releases_sent(self, end: Tick, now: Tick) -> Tick {
        let core = self.core();
        let mut later = now;
        let limit = now.after(core.timing.reply.min(now.until(end) / 2));
        for LockRequest { local, .. } in self.all {
            later = local.releases_sent_by(core.clock, limit, later).await;
        }
        later
    }
}
