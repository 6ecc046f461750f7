//! What a primitive tells the engine: which scripts to run and where to listen.

use std::fmt::Debug;
use std::time::Duration;

use redis::{Cmd, Value};

use crate::counts::{Counts, Mode};
use crate::error::Result;
use crate::keys::LockName;
use crate::script::reply::{self, Acquired, Inspected, Released};
use crate::script::{Call, Part, Script, catalog, millis};
use crate::totals::CountedKind;

/// The part of a primitive that goes over the wire. One value for each kind, shared by all locks.
///
/// Invariant: every call may be executed twice, and names the state to reach, never a step.
pub(crate) trait Protocol: Debug + Send + Sync + 'static {
    /// Tells the kinds apart that use one key in different ways.
    fn kind(&self) -> &'static str;

    /// As what a share in this mode is counted.
    fn counted(&self, mode: Mode) -> CountedKind;

    /// Takes a free lock, or raises the count of a hold that exists.
    fn acquire(&self, holder: &HolderRef<'_>, terms: &AcquireTerms) -> Call;

    /// Takes a free lock by a plain command, once; `None` if that is not possible.
    fn acquire_plain(&self, _holder: &HolderRef<'_>, _lease: Duration) -> Option<Call> {
        None
    }

    /// What tells others of a whole hold that was given up by a plain command: the same for all holds of a
    /// lock. `None` if there is more to do.
    fn tell_plain(&self, _name: &LockName, _publish: &str) -> Option<Cmd> {
        None
    }

    /// Sets the counts of a hold to lower ones; none gives it up, or the place of a holder that
    /// only waits. Harmless if the holder has neither.
    fn release(&self, holder: &HolderRef<'_>, lease: Duration, publish: &str) -> Call;

    /// Leaves a hold without a guard at the server until `remaining` is over, under the holder id `kept_as`. Harmless
    /// if there is none.
    fn keep(
        &self,
        holder: &HolderRef<'_>,
        kept_as: &str,
        remaining: Duration,
        publish: &str,
    ) -> Call;

    /// The same acquire as one member of many: what the script for many takes of it. Those of which there is
    /// little to say have the lease `plain_lease`.
    fn acquire_as_member<'a>(
        &self,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        plain_lease: Duration,
    ) -> Part<'a>;

    /// The same release as one member of many.
    fn release_as_member<'a>(&self, holder: &HolderRef<'a>, lease: Duration) -> Part<'a>;

    /// Gives up what this holder has, whatever it is, for somebody else: looks first whether there is a lock at all.
    fn evict(&self, holder: &HolderRef<'_>, publish: &str) -> Call;

    /// Asks who holds it.
    fn inspect(&self, name: &LockName) -> Call {
        Call::new(&catalog::REENTRANT_INSPECT, name.key(), &[name.key()])
    }

    /// Everybody who holds it, in whichever mode.
    fn inspected(&self, value: &Value) -> Result<Vec<Inspected>> {
        Ok(reply::inspected(value)?.into_iter().collect())
    }

    /// The script that renews many holds of this kind at once.
    fn renewal(&self) -> &'static Script {
        &catalog::RENEW
    }

    /// Where this holder is told that it is worth asking again.
    fn channel(&self, name: &LockName, holder: &str) -> String;

    /// Where waiters queue.
    fn queue(&self) -> Queue {
        Queue::Local
    }

    /// Asks for the place of a waiter in the queue at the server; `None` where there is no such queue.
    fn place(&self, _name: &LockName, _holder: &str) -> Option<Call> {
        None
    }

    /// Whether a refused waiter leaves something at the server that has to be taken back.
    fn waits_at_server(&self) -> bool {
        false
    }

    fn acquired(&self, value: &Value) -> Result<Acquired> {
        reply::acquired(value)
    }

    fn released(&self, value: &Value) -> Result<Released> {
        reply::released(value)
    }
}

/// Where the waiters of a lock stand in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// In their client; only the head asks the server. One channel tells them all.
    Local,
    /// At the server, each with a place and a channel of its own.
    Server,
}

/// Who wants to hold what, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HolderRef<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) id: &'a str,
    pub(crate) counts: Counts,
    /// Whether there is a fencing token with it, and so the right to the counter.
    pub(crate) fenced: bool,
    /// As of [`Timing`](super::timing::Timing).
    pub(crate) token_retention: u64,
}

/// On which terms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquireTerms {
    /// How those who wait are told: `PUBLISH` or `SPUBLISH`.
    pub(crate) publish: &'static str,
    /// The count that is raised.
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// How many fencing tokens are wanted: 0, 1, or more where they may pass from task to task.
    pub(crate) tokens: u32,
    /// Whether it is a new hold, not a re-entry.
    pub(crate) is_new: bool,
    /// How long the place of a refused holder in a queue at the server is kept, if it does not ask
    /// again; `None` takes no place.
    pub(crate) heartbeat: Option<Duration>,
    /// Whether it may be made the holder when its turn comes, without asking once more.
    pub(crate) accepts_handover: bool,
    /// How long it has waited.
    pub(crate) waited: Duration,
}

impl<'a> Part<'a> {
    /// The little that is to be said of a lock of one holder that is taken without a token.
    pub(crate) fn acquire_plain(holder: &HolderRef<'a>) -> Self {
        Self::default().key(&**holder.name.key()).word(holder.id)
    }

    /// The same where it is given up.
    pub(crate) fn release_plain(holder: &HolderRef<'a>, channel: String) -> Self {
        Self::default()
            .key(&**holder.name.key())
            .word("plain")
            .word(holder.id)
            .word(channel)
    }

    /// What the script that takes many locks reads of each.
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

    /// What the script that releases many holds reads of each.
    pub(crate) fn release(
        kind: &'static str,
        holder: &HolderRef<'a>,
        lease: Duration,
        channel: String,
    ) -> Self {
        Self::default()
            .key(&**holder.name.key())
            .word(kind)
            .word(holder.id)
            .number(holder.counts.exclusive)
            .number(holder.counts.shared)
            .number(millis(lease))
            .word(channel)
    }
}
