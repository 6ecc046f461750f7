//! The reentrant lock: one owner at a time, which may enter again.
//!
//! This module is the part on the wire; the engine does the rest. At the server the lock is Redisson's `RLock`, and
//! with [`fenced`](ReentrantLock::fenced) its `RFencedLock`.

use std::time::Duration;

use crate::api::guard::guard_methods;
use crate::api::handle::Handle;
use crate::api::holder::HolderId;
use crate::api::verbs::{holder_methods, option_methods, sticky_methods, verb_methods};
use crate::client::Client;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::protocol::{AcquireTerms, Forced, HolderRef, Protocol};
use crate::engine::keys::LockName;
use crate::observe::counts::CountedKind;
use crate::script::{Call, Part, Restore, catalog, millis, tell};

impl Client {
    /// A handle on the reentrant lock called `name`.
    ///
    /// Any non-empty name works, with the client's prefix at most [`NAME_BYTES_MAX`](crate::NAME_BYTES_MAX)
    /// bytes; braces only as one non-empty pair. An invalid name is reported by the first call on the handle
    /// ([`is_invalid`](crate::Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let guard = client.lock("order:7").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, name: impl AsRef<str>) -> ReentrantLock {
        ReentrantLock(Handle::new(self, name.as_ref(), &PROTOCOL, Mode::Exclusive))
    }
}

/// A lock for one owner at a time, which that owner may enter again; from [`Client::lock`].
///
/// A handle: cheap to make and to clone, it holds nothing. Its options apply to the locks acquired through it.
///
/// Waiters of one client are served first come, first served. They hand the lock off in memory, at most 16 times and
/// for 5 ms in a row, or for a round trip to the server if that is longer (50 ms at most). Then the client backs off
/// until each other client that waits has had its turn: one task of one client, against 64 tasks of another that never
/// pause, gets about one grant in ten. There is no order between the waiters of different clients: for that use a
/// [`FairLock`](crate::FairLock).
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let lock = client.lock("report:daily");
///
/// let guard = lock.lock().await?;
/// guard.run(async { /* work; dropped when the lock is lost */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct ReentrantLock(pub(crate) Handle);

option_methods!(ReentrantLock);
sticky_methods!(ReentrantLock);
verb_methods!(ReentrantLock, ReentrantGuard);
holder_methods!(ReentrantLock);

/// One hold on a [`ReentrantLock`]; dropping it releases in the background.
///
/// The release of a dropped guard is sent at once and costs the caller nothing; a later attempt of this client goes
/// behind it. Use [`release`](Self::release) to know that the lock was held to the end.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("order:7").lock().await?;
/// println!("held for {:?} more, and renewed", guard.remaining());
/// guard.run(async { /* work */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct ReentrantGuard(Share);

guard_methods!(ReentrantGuard);

pub(crate) static PROTOCOL: ReentrantProtocol = ReentrantProtocol;

#[derive(Debug)]
pub(crate) struct ReentrantProtocol;

impl Protocol for ReentrantProtocol {
    fn kind(&self) -> &'static str {
        "reentrant"
    }

    fn counted(&self, _mode: Mode) -> CountedKind {
        CountedKind::Reentrant
    }

    fn acquire(&self, holder: &HolderRef<'_>, terms: &AcquireTerms) -> Call {
        let key = holder.name.key();
        let script = &catalog::REENTRANT_ACQUIRE;
        let call = match terms.tokens {
            0 => Call::new(script, key, &[key]),
            _ => Call::new(script, key, &[key, &holder.name.token_key()]),
        };
        call.arg(holder.id)
            .arg(millis(terms.lease))
            .arg(terms.tokens)
            .arg((terms.tokens > 0).then_some(holder.token_retention))
    }

    fn acquire_plain(&self, holder: &HolderRef<'_>, lease: Duration) -> Option<Restore> {
        Restore::new(holder.name.key(), holder.id, millis(lease))
    }

    fn tell_plain(&self, name: &LockName, publish: &str) -> Option<redis::Cmd> {
        Some(tell(publish, &name.lock_channel()))
    }

    fn release(&self, holder: &HolderRef<'_>, _places: &[HolderId]) -> Call {
        let key = holder.name.key();
        Call::new(&catalog::REENTRANT_RELEASE, key, &[key])
            .arg(holder.id)
            .arg(holder.name.lock_channel())
            .arg(holder.publish)
    }

    fn force(&self, name: &LockName, forced: &Forced<'_>) -> Call {
        Call::new(&catalog::REENTRANT_FORCE_UNLOCK, name.key(), &[name.key()])
            .arg(name.lock_channel())
            .arg(forced.publish)
            .arg(forced.holder)
    }

    fn acquire_as_member<'a>(
        &self,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        plain_lease: Duration,
    ) -> Part<'a> {
        if terms.tokens == 0 && terms.lease == plain_lease {
            Part::acquire_plain(holder)
        } else {
            Part::acquire("reentrant", holder, terms, holder.name.lock_channel())
        }
    }

    fn release_as_member<'a>(&self, holder: &HolderRef<'a>) -> Part<'a> {
        Part::release("plain", holder, holder.name.lock_channel())
    }
}
