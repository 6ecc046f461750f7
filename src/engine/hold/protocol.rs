//! The interface between a primitive and the engine: which scripts to run, and where to listen.

use std::fmt::Debug;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::api::error::Result;
use crate::api::holder::HolderId;
use crate::engine::counts::Mode;
use crate::engine::keys::LockName;
use crate::observe::counts::CountedKind;
use crate::script::reply::{self, Inspected};
use crate::script::{Call, Part, Restore, Script, catalog, millis};

/// The part of a primitive that talks to the server. One value for each kind, shared by all locks.
///
/// Invariant: every call may be executed twice. It names the state to reach, never a step.
pub(crate) trait Protocol: Debug + Send + Sync + 'static {
    /// Distinguishes kinds that use one key in different ways.
    fn kind(&self) -> &'static str;

    /// How a share in this mode is counted.
    fn counted(&self, mode: Mode) -> CountedKind;

    /// Takes a free lock.
    fn acquire(&self, holder: &HolderRef<'_>, terms: &AcquireTerms) -> Call;

    /// Takes a free lock by a plain command, once. `None` if that is not possible.
    fn acquire_plain(&self, _holder: &HolderRef<'_>, _lease: Duration) -> Option<Restore> {
        None
    }

    /// The command that notifies waiters after a plain command released a whole hold: one for all holds of a lock.
    /// `None` if a release needs more than that.
    fn tell_plain(&self, _name: &LockName, _publish: &str) -> Option<Cmd> {
        None
    }

    /// Releases a hold, or removes the place of a holder that only waits. Harmless if the holder has neither. The
    /// `places` of other waiters that had the hold in turn are removed too.
    fn release(&self, holder: &HolderRef<'_>, places: &[HolderId]) -> Call;

    /// Turns a write hold into a read hold with at least this lease. A lock without readers has none to leave.
    fn downgrade(&self, holder: &HolderRef<'_>, _lease: Duration) -> Call {
        self.release(holder, &[])
    }

    /// Leaves a hold without a guard at the server until `remaining` is over, under the holder id `kept_as`. Harmless
    /// if there is no hold.
    fn keep(&self, holder: &HolderRef<'_>, kept_as: &str, remaining: Duration) -> Call {
        self.keep_call(holder.name)
            .arg(holder.id)
            .arg(kept_as)
            .arg(millis(remaining))
            .arg(self.releases(holder.name))
            .arg(holder.publish)
    }

    /// The script of [`keep`](Self::keep), with its keys.
    fn keep_call(&self, name: &LockName) -> Call {
        Call::new(&catalog::KEEP, name.key(), &[name.key()])
    }

    /// The channel of the lock's releases.
    fn releases(&self, name: &LockName) -> String {
        name.lock_channel()
    }

    /// [`acquire`](Self::acquire) as one part of a script for many locks. A member with the lease `plain_lease` may use
    /// the short form of a part.
    fn acquire_as_member<'a>(
        &self,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        plain_lease: Duration,
    ) -> Part<'a>;

    /// [`release`](Self::release) as one part of a script for many locks.
    fn release_as_member<'a>(&self, holder: &HolderRef<'a>) -> Part<'a>;

    /// Frees the lock from any holder in this mode, or releases everything that one holder has. The call names the key
    /// of the tokens only if the lock is `fenced`, because the user may have no right to that key.
    fn force(&self, name: &LockName, forced: &Forced<'_>) -> Call;

    /// Asks which holder has the lock.
    fn inspect(&self, name: &LockName) -> Call {
        Call::new(&catalog::REENTRANT_INSPECT, name.key(), &[name.key()])
    }

    /// Reads the answer: all holders, in any mode.
    fn inspected(&self, value: &Value) -> Result<Vec<Inspected>> {
        Ok(reply::inspected(value)?.into_iter().collect())
    }

    /// The script that renews many holds of this kind at once.
    fn renewal(&self) -> &'static Script {
        &catalog::RENEW
    }

    /// The channel on which the server notifies this holder that another attempt may succeed.
    fn channel(&self, name: &LockName, _holder: &str) -> String {
        self.releases(name)
    }

    /// Where waiters queue: in their client, or at the server.
    fn queue(&self) -> Queue {
        Queue::Local
    }

    /// Asks for the place of a waiter in the queue at the server. `None` where there is no such queue.
    fn place(&self, _name: &LockName, _holder: &str) -> Option<Call> {
        None
    }

    /// Keeps the places of these waiters in the queue at the server for the time `heartbeat` from now. `None` where
    /// there is no such queue. `any` names the lock; its id is not used.
    fn heartbeat(
        &self,
        _any: &HolderRef<'_>,
        _heartbeat: Duration,
        _waiters: &[HolderId],
    ) -> Option<Call> {
        None
    }
}

/// Where the waiters of a lock queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// In their client. Only the head asks the server, and one channel notifies all clients.
    Local,
    /// As [`Local`](Self::Local), but a head that was refused has a place at the server, which has to be removed.
    LocalWithPlace,
    /// At the server, each with a place and a channel of its own.
    Server,
}

/// A holder id, its lock, and the settings of the client that calls about it need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderRef<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) id: &'a str,
    /// Whether the hold has a fencing token. If so, the user needs access to the counter.
    pub(crate) fenced: bool,
    /// See [`Timing`](super::bound::Timing).
    pub(crate) token_retention: u64,
    /// How waiters are notified: `PUBLISH` or `SPUBLISH`.
    pub(crate) publish: &'static str,
}

/// The terms of a forced unlock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forced<'a> {
    /// The only holder whose holds are released, in any mode. `None` frees the lock from any holder in `mode`.
    pub(crate) holder: Option<&'a str>,
    /// How waiters are notified: `PUBLISH` or `SPUBLISH`.
    pub(crate) publish: &'static str,
    pub(crate) mode: Mode,
    pub(crate) fenced: bool,
    /// See [`Timing`](super::bound::Timing).
    pub(crate) token_retention: u64,
}

/// The terms of an acquire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireTerms {
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// How many fencing tokens are wanted: 0, 1, or more where the hold may pass from task to task.
    pub(crate) tokens: u32,
    /// How long the server keeps the place of a refused holder that does not ask again. `None` takes no place.
    pub(crate) heartbeat: Option<Duration>,
    /// Whether the server may make the waiter the holder when its turn comes, without another request.
    pub(crate) accepts_handover: bool,
    /// How long the caller has waited.
    pub(crate) waited: Duration,
}

impl<'a> Part<'a> {
    /// The short form for a lock with one holder and no token.
    pub(crate) fn acquire_plain(holder: &HolderRef<'a>) -> Self {
        Self::default().key(&**holder.name.key()).word(holder.id)
    }

    /// The words that the script that takes many locks reads for each lock.
    pub(crate) fn acquire(
        kind: &'static str,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        channel: String,
    ) -> Self {
        Self::default()
            .key(&**holder.name.key())
            .key(holder.name.token_key())
            .word(kind)
            .word(holder.id)
            .number(millis(terms.lease))
            .number(terms.tokens)
            .number(terms.heartbeat.map_or(0, millis))
            .number(millis(terms.waited))
            .word(channel)
    }

    /// The words that the script that releases many holds reads for each hold.
    pub(crate) fn release(kind: &'static str, holder: &HolderRef<'a>, channel: String) -> Self {
        Self::default()
            .key(&**holder.name.key())
            .word(kind)
            .word(holder.id)
            .word(channel)
    }
}
