//! The reentrant lock: one owner at a time, who may enter again.
//!
//! Options and verbs only; the engine does the work. On the wire it is Redisson's `RLock`, and with
//! [`fenced`](ReentrantLock::fenced) its `RFencedLock`.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Ask, Wait};
use crate::client::Client;
use crate::error::Result;
use crate::guard::guard_methods;
use crate::hold::Share;
use crate::hold::core::Core;
use crate::hold::protocol::{Claim, Fence, Protocol};
use crate::keys::LockName;
use crate::options::{Options, Term};
use crate::owner::Owner;
use crate::script::reply::{self, Inspected};
use crate::script::{Call, catalog, millis};
use crate::watchdog::Leased;

impl Client {
    /// A handle on the reentrant lock called `name`: non-empty, and with the client's prefix at most
    /// [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX) bytes. Whether the name can work is said by the
    /// first call that uses it.
    pub fn lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock {
            core: Arc::clone(self.core()),
            name: LockName::new(self.key_prefix(), name.as_ref()),
            options: Options::new(),
        }
    }
}

/// A lock for one owner at a time, which that owner may enter again.
///
/// A handle: cheap to make and to clone, holds nothing. Options set on a handle concern what is
/// taken through it. Waiters of one client are served first come, first served; between clients
/// whoever asks first after a release gets it.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let lock = client.lock("report:daily");
///
/// let guard = lock.lock().await?;
/// guard.run(async { /* work; dropped the moment the lock is lost */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct ReentrantLock {
    core: Arc<Core>,
    name: Result<LockName>,
    options: Options,
}

impl ReentrantLock {
    /// Asks in the name of `owner`: a call made while that owner holds the lock enters it again at
    /// once. Without an owner every call is a stranger to every other, so nothing re-enters by
    /// accident.
    pub fn owner(mut self, owner: &Owner) -> Self {
        self.options.owner = Some(owner.clone());
        self
    }

    /// A lease of `lease`, renewed in the background until the guard is gone. The default is the
    /// client's lease (30 s). From 50 ms to a year.
    ///
    /// The shorter it is, the sooner others get in after a crash, and the shorter a pause of this
    /// process or of the network has to be to lose the lock.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.term = Some(Term::Renewed(lease));
        self
    }

    /// A lease of `lease` that is never renewed: the guard is lost at its end. From 50 ms to a
    /// year.
    pub fn fixed_lease(mut self, lease: Duration) -> Self {
        self.options.term = Some(Term::Fixed(lease));
        self
    }

    /// Every new grant carries a [fencing token](crate::FencingToken).
    ///
    /// Use it on all handles of a lock or on none: grants without it do not raise the token.
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }

    /// Takes the lock, waiting as long as it takes.
    ///
    /// One round trip if it is free. If it is held in this process, the wait costs no round trip;
    /// if it is held elsewhere, one more and a subscription that all waiters of this client share.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. A grant that is under way is released
    /// in the background.
    ///
    /// # Errors
    /// [`is_io`](crate::Error::is_io) if the server does not answer for a third of the client's
    /// lease; [`is_invalid`](crate::Error::is_invalid) for a name, option or key that cannot work;
    /// [`is_refused`](crate::Error::is_refused) if the server cannot do it now. That the lock is
    /// held is not an error.
    pub async fn lock(&self) -> Result<ReentrantGuard> {
        let ask = self.ask("lock")?;
        // Without a deadline the wait ends with the lock or with an error, so there is one turn.
        loop {
            if let Some(share) = acquire::run(&ask, Wait::Forever).await? {
                return Ok(ReentrantGuard(share));
            }
        }
    }

    /// Takes the lock if it is free (or held by the same owner), in one round trip. `None`: it is
    /// held elsewhere.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>> {
        self.take("try_lock", Wait::Never).await
    }

    /// Takes the lock, waiting at most `wait`; `None`: it did not become free in time. Asks once
    /// more at the deadline.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock). A server that is silent is noticed after at least the time of
    /// one reply (a sixth of the client's lease, at most a second), even if `wait` is shorter.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<ReentrantGuard>> {
        self.take("try_lock_for", Wait::For(wait)).await
    }

    /// Whether anybody holds the lock. One round trip; the answer may be outdated when it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.inspect("is_locked").await?.is_some())
    }

    /// Who holds the lock, how often and for how long still. One round trip; the answer may be
    /// outdated when it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn holder(&self) -> Result<Option<Holder>> {
        Ok(self.inspect("holder").await?.map(|seen| Holder {
            id: seen.holder,
            hold_count: seen.hold_count,
            remaining: seen.remaining.unwrap_or(Duration::MAX),
        }))
    }

    /// Frees the lock, whoever holds it; `false` if nobody did. For operators: the holder is told
    /// by its next renewal at the latest, and may be in the middle of its work until then. If an
    /// answer is lost the call is repeated, and may free the lock of a holder that came in between.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may or may not be freed.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn force_unlock(&self) -> Result<bool> {
        const OPERATION: &str = "force_unlock";
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let publish = self.core.scripts.transport.publish();
        let call = Call::new(&catalog::REENTRANT_FORCE_UNLOCK, name.key(), &[name.key()])
            .arg(name.lock_channel())
            .arg(publish);
        // Before it is sent: what is granted after it was executed is another hold.
        let holds = acquire::holds(&self.core, &PROTOCOL, name);
        let answer = acquire::query(&self.core, name, OPERATION, &call).await?;
        // A repeat finds free what an attempt without an answer has freed.
        let freed = reply::flag(&answer.value)? || answer.repeated;
        if freed {
            for hold in holds {
                hold.revoked();
            }
        }
        Ok(freed)
    }

    async fn take(&self, operation: &'static str, wait: Wait) -> Result<Option<ReentrantGuard>> {
        let ask = self.ask(operation)?;
        let share = acquire::run(&ask, wait).await?;
        Ok(share.map(ReentrantGuard))
    }

    fn ask(&self, operation: &'static str) -> Result<Ask> {
        let name = self.name.clone()?;
        let term = self
            .options
            .term(self.core.timing.lease)
            .map_err(|error| error.of_lock(name.as_str()))?;
        Ok(Ask {
            core: Arc::clone(&self.core),
            protocol: &PROTOCOL,
            name,
            options: self.options.clone(),
            term,
            operation,
        })
    }

    async fn inspect(&self, operation: &'static str) -> Result<Option<Inspected>> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let call = Call::new(&catalog::REENTRANT_INSPECT, name.key(), &[name.key()]);
        let answer = acquire::query(&self.core, name, operation, &call).await?;
        reply::inspected(&answer.value)
            .map_err(|error| error.during(operation).of_lock(name.as_str()))
    }
}

/// Who holds a lock, as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder id: opaque, and different each time a lock is taken.
    pub id: String,
    /// How often it is held.
    pub hold_count: u32,
    /// The rest of the lease by the server's clock; [`Duration::MAX`] if the key never expires, which
    /// no client of lockset or Redisson causes.
    pub remaining: Duration,
}

/// One hold on a [`ReentrantLock`]; dropping it releases in the background.
///
/// The release of a dropped guard leaves at once and costs the caller nothing; a later attempt of
/// this client goes behind it. Use [`release`](Self::release) to know that the lock was held to the
/// end.
#[derive(Debug)]
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct ReentrantGuard(Share);

guard_methods!(ReentrantGuard);

static PROTOCOL: ReentrantProtocol = ReentrantProtocol;

#[derive(Debug)]
struct ReentrantProtocol;

impl Protocol for ReentrantProtocol {
    fn kind(&self) -> &'static str {
        "reentrant"
    }

    fn acquire(&self, claim: &Claim<'_>, lease: Duration, fence: Fence) -> Call {
        let key = claim.name.key();
        let script = &catalog::REENTRANT_ACQUIRE;
        let call = match fence {
            Fence::None => Call::new(script, key, &[key]),
            _ => Call::new(script, key, &[key, &claim.name.token_key()]),
        };
        call.arg(claim.holder)
            .arg(claim.hold_count)
            .arg(millis(lease))
            .arg(match fence {
                Fence::None => 0,
                Fence::OnGrant => 1,
                Fence::Now => 2,
            })
    }

    fn release(&self, claim: &Claim<'_>, lease: Duration, publish: &str) -> Call {
        let key = claim.name.key();
        Call::new(&catalog::REENTRANT_RELEASE, key, &[key])
            .arg(claim.holder)
            .arg(claim.hold_count)
            .arg(millis(lease))
            .arg(claim.name.lock_channel())
            .arg(publish)
    }

    fn channel(&self, name: &LockName, _holder: &str) -> String {
        name.lock_channel()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds() {
        fn check<T: Send + Sync + 'static>() {}
        fn sends<T: Send>(_: impl Fn(ReentrantLock) -> T) {}
        check::<ReentrantLock>();
        check::<ReentrantGuard>();
        sends(|lock| async move { lock.lock().await });
        sends(|lock| async move {
            lock.try_lock_for(Duration::ZERO)
                .await?
                .unwrap()
                .reenter()
                .await
        });
    }
}
