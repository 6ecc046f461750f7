//! The read-write lock: many readers or one writer.
//!
//! This module is the part on the wire; the engine does the rest. At the server the lock is Redisson's
//! `RReadWriteLock`: each read hold has a lease in a key of its own, so a dead reader ends with its own lease, even if
//! others read on. All holds of an owner on one lock, read and write, are one hold of the engine, with two counts.

use std::time::Duration;

use redis::Value;

use crate::api::error::Result;
use crate::api::guard::guard_methods;
use crate::api::handle::Handle;
use crate::api::holder::{Holder, HolderId};
use crate::api::verbs::{holder_methods, option_methods, sticky_methods, verb_methods};
use crate::client::Client;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::protocol::{AcquireTerms, Forced, HolderRef, Protocol, Queue};
use crate::engine::keys::LockName;
use crate::observe::counts::CountedKind;
use crate::script::reply::{self, Inspected};
use crate::script::{Call, Part, Script, catalog, millis};

impl Client {
    /// A handle on the read-write lock called `name`. Names are as for [`lock`](Self::lock); use a name for
    /// one kind of lock only.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let reading = client.rw_lock("config").read().await?;
    /// reading.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn rw_lock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(Handle::new(self, name.as_ref(), &PROTOCOL, Mode::Shared))
    }
}

/// A lock for many readers or one writer; from [`Client::rw_lock`].
///
/// A handle: cheap to make and to clone, it holds nothing.
///
/// * **Neither side starves.** While a writer of this library waits, no new reader of this library enters, except to
///   join readers of its own client. When a writer is done, waiting readers go first. Redisson does not follow this
///   rule: its readers enter whenever others read.
/// * **Readers of one client share one hold at the server.** A reader that comes while another reads joins it without a
///   round trip, for 5 ms after the grant, up to 1024 readers, and not while a writer of this client waits. The last
///   reader to leave releases the hold. Each reader has its own guard and owner, but they are lost together. A call
///   with an [owner](Self::owner), [`fenced`](Self::fenced), [`at_least`](Self::at_least), [`max_hold`](Self::max_hold)
///   or a [fixed lease](Self::fixed_lease) has a hold of its own. So do a [downgraded](WriteGuard::downgrade) guard, a
///   member of a multi-lock, and a call with another lease, [`give_up_after`](Self::give_up_after) or
///   [`replicated`](Self::replicated).
/// * **Readers and writers of one client pass the lock to each other in memory**, in their order, for up to 5 ms or 16
///   times in a row, or for a round trip to the server if that is longer (50 ms at most). Readers that follow a writer
///   in this way first read under its write hold, for 5 ms at most, and keep out readers of other clients for that
///   time. After that, the remaining readers have a read hold at the server. If other clients are known to wait,
///   readers do not follow a writer in this way.
/// * **An owner that writes may read**, and may [`downgrade`](WriteGuard::downgrade).
/// * **An owner that reads cannot write**, because it would wait for itself. It is refused at once with
///   [`is_upgrade`](crate::Error::is_upgrade).
/// * **A task that may take the read lock again while it holds it needs an [owner](Self::owner)**, or
///   [`reenter`](ReadGuard::reenter). Without one it is a new owner, which queues behind a writer that waits for the
///   task's first read.
/// * **Each read hold has its own lease.** A reader that dies delays writers until its lease ends, even if others read.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let config = client.rw_lock("config");
///
/// let reading = config.read().await?;
/// reading.release().await?;
///
/// let writing = config.write().await?;
/// let reading = writing.downgrade().await?; // others may read now; nobody wrote in between
/// reading.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct RwLock(pub(crate) Handle);

option_methods!(RwLock);
sticky_methods!(RwLock);

impl RwLock {
    /// The read side as a lock of its own, with the options set so far: for a [`MultiLock`](crate::MultiLock), or for
    /// code that takes any [`Lock`](crate::Lock).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let prices = client.rw_lock("prices").read_side();
    /// println!("{} readers", prices.holders().await?.len());
    /// # Ok(()) }
    /// ```
    pub fn read_side(&self) -> ReadSide {
        ReadSide(self.0.in_mode(Mode::Shared))
    }

    /// The write side as a lock of its own, with the options set so far: for a [`MultiLock`](crate::MultiLock), or for
    /// code that takes any [`Lock`](crate::Lock).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let prices = client.rw_lock("prices").write_side();
    /// println!("being written: {}", prices.is_locked().await?);
    /// # Ok(()) }
    /// ```
    pub fn write_side(&self) -> WriteSide {
        WriteSide(self.0.in_mode(Mode::Exclusive))
    }

    /// Acquires the lock as a reader, waiting until it may read.
    ///
    /// Takes one round trip if no writer has the lock or waits for it, and none if it joins another reader of this
    /// client. Otherwise it takes one more, and a subscription that all waiters of this client share.
    ///
    /// # Cancel safety
    /// Dropping the future takes it out of the queue. A grant under way is released in the background.
    ///
    /// # Errors
    /// As for [`ReentrantLock::lock`](crate::ReentrantLock::lock).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let reading = client.rw_lock("config").read().await?;
    /// reading.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn read(&self) -> Result<ReadGuard> {
        let side = self.0.in_mode(Mode::Shared);
        side.acquire("read").await.map(ReadGuard)
    }

    /// Acquires the lock as a reader if no writer has it or waits for it, in one round trip at most. `None`: a writer
    /// does, or a writer of another client did within the last 5 ms and readers of that client have its hold.
    ///
    /// # Cancel safety
    /// As for [`read`](Self::read).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub async fn try_read(&self) -> Result<Option<ReadGuard>> {
        let side = self.0.in_mode(Mode::Shared);
        Ok(side.try_acquire("try_read").await?.map(ReadGuard))
    }

    /// Acquires the lock as a reader, waiting at most `wait`. `None`: a writer had it, or came first, for all that
    /// time.
    ///
    /// # Cancel safety
    /// As for [`read`](Self::read).
    ///
    /// # Errors
    /// As for [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<ReadGuard>> {
        let side = self.0.in_mode(Mode::Shared);
        let share = side.try_acquire_for("try_read_for", wait).await?;
        Ok(share.map(ReadGuard))
    }

    /// Acquires the lock as the writer, waiting until it may write. New readers of this library let it go
    /// first.
    ///
    /// # Cancel safety
    /// As for [`read`](Self::read). Readers that let it go first are woken.
    ///
    /// # Errors
    /// As for [`read`](Self::read), and [`is_upgrade`](crate::Error::is_upgrade) if its owner reads.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let writing = client.rw_lock("config").write().await?;
    /// writing.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn write(&self) -> Result<WriteGuard> {
        let side = self.0.in_mode(Mode::Exclusive);
        side.acquire("write").await.map(WriteGuard)
    }

    /// Acquires the lock as the writer, in one round trip, if it has no readers and no writer, and no waiting readers
    /// come first. Otherwise `None`.
    ///
    /// # Cancel safety
    /// As for [`write`](Self::write).
    ///
    /// # Errors
    /// As for [`write`](Self::write).
    pub async fn try_write(&self) -> Result<Option<WriteGuard>> {
        let side = self.0.in_mode(Mode::Exclusive);
        Ok(side.try_acquire("try_write").await?.map(WriteGuard))
    }

    /// Acquires the lock as the writer, waiting at most `wait`. `None`: it did not become free in time.
    ///
    /// # Cancel safety
    /// As for [`write`](Self::write).
    ///
    /// # Errors
    /// As for [`write`](Self::write), with the limits of
    /// [`ReentrantLock::try_lock_for`](crate::ReentrantLock::try_lock_for).
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<WriteGuard>> {
        let side = self.0.in_mode(Mode::Exclusive);
        let share = side.try_acquire_for("try_write_for", wait).await?;
        Ok(share.map(WriteGuard))
    }
}

/// The read side of a [`RwLock`], held by any number of owners together; from [`RwLock::read_side`].
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct ReadSide(pub(crate) Handle);

option_methods!(ReadSide);
verb_methods!(ReadSide, ReadGuard);

impl ReadSide {
    /// Whether the lock has readers. One round trip; the answer may be outdated when it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(self.0.holder("is_locked").await?.is_some())
    }

    /// Returns the readers, and the time left of each lease; in no order. One round trip; the answer may be outdated when
    /// it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// for reader in client.rw_lock("config").read_side().holders().await? {
    ///     println!("{} reads", reader.id);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn holders(&self) -> Result<Vec<Holder>> {
        self.0.holders("holders").await
    }

    /// Ends the read holds of all readers; `false` if there are none, or the reader writes too. For operators.
    ///
    /// The guards of the readers are lost at their next renewal or before; until then their work continues.
    ///
    /// # Cancel safety
    /// If the future is dropped, the read holds may or may not be ended.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    pub async fn force_unlock(&self) -> Result<bool> {
        self.0.force_unlock().await
    }
}

/// The write side of a [`RwLock`], held by one owner at a time; from [`RwLock::write_side`].
///
/// [`is_locked`](Self::is_locked), [`holder`](Self::holder) and [`force_unlock`](Self::force_unlock) are about a writer;
/// the [read side](RwLock::read_side) has those about readers, and [`busy`](Self::busy) is about both.
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct WriteSide(pub(crate) Handle);

option_methods!(WriteSide);
sticky_methods!(WriteSide);
verb_methods!(WriteSide, WriteGuard);
holder_methods!(WriteSide, "Readers are not seen, and keep the lock.");

/// One read hold on a [`RwLock`]; dropping it releases in the background.
///
/// [`release`](Self::release) fails if this client knows that the lock was lost: another client may have written since.
/// **It is `Ok` without a question to the server if other readers of this client stay in the hold, or if the hold is
/// handed off to the next writer of this client.** If the server lost the hold after the last renewal, by a forced
/// unlock or a failover, another client may have written. The error then goes to the last reader to leave,
/// or to that writer.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct ReadGuard(Share);

guard_methods!(ReadGuard);

/// One write hold on a [`RwLock`]; dropping it releases in the background.
///
/// [`release`](Self::release) fails if this client knows that the lock was lost: another client may have read or
/// written since. **It is `Ok` without a question to the server if the hold is handed off to waiting tasks of this
/// client.** If the server lost the hold after the last renewal, by a forced unlock or a failover, another client may
/// have read or written. The error then goes to these tasks.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct WriteGuard(Share);

guard_methods!(WriteGuard);

impl WriteGuard {
    /// Turns this write hold into a read hold in one step, with no writer in between. One round trip.
    ///
    /// Waiting readers are woken, unless this owner has another write hold.
    ///
    /// # Cancel safety
    /// If the future is dropped, the hold is released in the background.
    ///
    /// # Errors
    /// * [`is_not_held`](crate::Error::is_not_held): the lock was lost before.
    /// * [`is_io`](crate::Error::is_io): the server does not answer. The hold is released in the background.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let writing = client.rw_lock("config").write().await?;
    /// let reading = writing.downgrade().await?;
    /// reading.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard> {
        self.0.downgrade().await.map(ReadGuard)
    }
}

static PROTOCOL: RwProtocol = RwProtocol;

#[derive(Debug)]
struct RwProtocol;

impl Protocol for RwProtocol {
    fn kind(&self) -> &'static str {
        "rw"
    }

    fn counted(&self, mode: Mode) -> CountedKind {
        match mode {
            Mode::Shared => CountedKind::Read,
            Mode::Exclusive => CountedKind::Write,
        }
    }

    fn acquire(&self, holder: &HolderRef<'_>, terms: &AcquireTerms) -> Call {
        let script = match terms.mode {
            Mode::Shared => &catalog::READ_ACQUIRE,
            Mode::Exclusive => &catalog::WRITE_ACQUIRE,
        };
        let waited = (terms.mode == Mode::Shared).then(|| millis(terms.waited));
        let token = (terms.tokens > 0).then(|| holder.name.token_key());
        call(script, holder.name, token.as_deref())
            .arg(holder.id)
            .arg(millis(terms.lease))
            .arg(terms.tokens)
            .arg(terms.heartbeat.map_or(0, millis))
            .arg(waited)
            .arg((terms.tokens > 0).then_some(holder.token_retention))
    }

    fn release(&self, holder: &HolderRef<'_>, _places: &[HolderId]) -> Call {
        call(&catalog::RW_RELEASE, holder.name, None)
            .arg(holder.id)
            .arg(holder.name.rw_channel())
            .arg(holder.publish)
    }

    fn downgrade(&self, holder: &HolderRef<'_>, lease: Duration) -> Call {
        call(&catalog::RW_DOWNGRADE, holder.name, None)
            .arg(holder.id)
            .arg(millis(lease))
            .arg(holder.name.rw_channel())
            .arg(holder.publish)
    }

    fn force(&self, name: &LockName, forced: &Forced<'_>) -> Call {
        let waiting = forced.holder.map(|_| name.rw_waiting_key());
        let keys: Vec<&str> = [&**name.key()]
            .into_iter()
            .chain(waiting.as_deref())
            .collect();
        let side = match (forced.holder, forced.mode) {
            (Some(_), _) => "both",
            (None, Mode::Shared) => "read",
            (None, Mode::Exclusive) => "write",
        };
        Call::new(&catalog::RW_FORCE_UNLOCK, name.key(), &keys)
            .arg(side)
            .arg(name.rw_channel())
            .arg(forced.publish)
            .arg(forced.holder)
    }

    fn keep_call(&self, name: &LockName) -> Call {
        Call::new(&catalog::RW_KEEP, name.key(), &[name.key()])
    }

    fn acquire_as_member<'a>(
        &self,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        _plain_lease: Duration,
    ) -> Part<'a> {
        let kind = match terms.mode {
            Mode::Shared => "read",
            Mode::Exclusive => "write",
        };
        Part::acquire(kind, holder, terms, holder.name.rw_channel())
            .key(holder.name.rw_waiting_key())
    }

    fn release_as_member<'a>(&self, holder: &HolderRef<'a>) -> Part<'a> {
        Part::release("rw", holder, holder.name.rw_channel()).key(holder.name.rw_waiting_key())
    }

    fn inspect(&self, name: &LockName) -> Call {
        Call::new(&catalog::RW_INSPECT, name.key(), &[name.key()])
    }

    fn inspected(&self, value: &Value) -> Result<Vec<Inspected>> {
        reply::inspected_all(value)
    }

    fn renewal(&self) -> &'static Script {
        &catalog::RW_RENEW
    }

    fn releases(&self, name: &LockName) -> String {
        name.rw_channel()
    }

    fn queue(&self) -> Queue {
        Queue::LocalWithPlace
    }
}

/// Makes a call with the keys of a lock and its waiters, and of its token counter if `token` names that.
fn call(script: &'static Script, name: &LockName, token: Option<&str>) -> Call {
    let keys = [&**name.key(), &name.rw_waiting_key()];
    let keys: Vec<&str> = keys.into_iter().chain(token).collect();
    Call::new(script, name.key(), &keys)
}
