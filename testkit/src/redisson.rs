//! A peer that behaves like Redisson 4.7 on the wire, including its defects.
//!
//! For tests of `lockset` beside Redisson. Keys, fields, replies, messages, and the times of
//! requests and sleeps are Redisson's in single-server mode. The scripts are our own. Omitted is
//! what other clients cannot observe: the cache of script digests, retries, and the watchdog's
//! timer. Holds are only renewed by the test.

mod channels;
mod names;
mod scripts;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo as _, ProtocolVersion,
    RedisResult,
};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use crate::Server;
use channels::Channels;
use names::{braced, prefixed, suffixed};
use scripts::Script;

/// How long the peer waits for a connection or an answer.
const ANSWER_BOUND: Duration = Duration::from_secs(5);

/// The server keeps the answer to an unlock request for at least this time in ms, and up to a
/// quarter longer.
const LATCH_MS: u64 = 16_000;

/// A process that talks to the server like Redisson: one uuid, with threads by number.
///
/// A clone is the same process. It has two connections, one for commands and one for subscriptions,
/// and does not replace broken ones.
///
/// An acquire or a release is one script, run once, and returns the script's reply. The lease is
/// always the caller's: [`WATCHDOG_TIMEOUT`](Self::WATCHDOG_TIMEOUT) is Redisson's default. Leases
/// and waits are sent in whole milliseconds.
///
/// # Panics
///
/// Every method that asks the server panics if the answer is an error or takes longer than 5 s,
/// with the script and the error.
#[derive(Clone, Debug)]
pub struct Redisson {
    connection: MultiplexedConnection,
    channels: Channels,
    uuid: Arc<str>,
    watchdog_timeout: Duration,
    clock_offset_ms: i64,
}

/// The kinds of lock with a blocking acquire.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    /// With the wait sent to the server.
    Fair(Duration),
    Read,
    Write,
}

impl Redisson {
    /// The lease of a hold without a lease set by the user (`lockWatchdogTimeout`).
    pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(30);

    /// The wait of a fair waiter without a wait set by the user (`fairLockWaitTimeout`).
    pub const FAIR_WAIT: Duration = Duration::from_secs(300);

    /// A new process, connected to a server without a password.
    pub async fn connect(server: &Server) -> Self {
        Self::connect_to(&server.admin_url()).await
    }

    /// A new process, connected to the server at this URL.
    pub async fn connect_to(url: &str) -> Self {
        match Self::try_connect(url).await {
            Ok(peer) => peer,
            Err(error) => panic!("Redisson peer: no connection to {url}: {error}"),
        }
    }

    async fn try_connect(url: &str) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone();
        // RESP3, so that messages arrive without a stream to poll.
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ANSWER_BOUND))
            .set_response_timeout(Some(ANSWER_BOUND));
        let connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        let (push_sender, pushes) = unbounded_channel();
        let subscriber = client
            .get_multiplexed_async_connection_with_config(&config.set_push_sender(push_sender))
            .await?;
        Ok(Self {
            connection,
            channels: Channels::new(subscriber, pushes),
            uuid: Uuid::new_v4().to_string().into(),
            watchdog_timeout: Self::WATCHDOG_TIMEOUT,
            clock_offset_ms: 0,
        })
    }

    /// Sets the process's clock ahead of the real one, or behind it with a negative offset.
    #[must_use]
    pub fn clock_offset_ms(mut self, offset: i64) -> Self {
        self.clock_offset_ms = offset;
        self
    }

    /// Sets the lease for holds that a release leaves.
    ///
    /// In Redisson, this is the last lease used through the same lock object, or else the watchdog
    /// timeout.
    #[must_use]
    pub fn watchdog_timeout(mut self, timeout: Duration) -> Self {
        self.watchdog_timeout = timeout;
        self
    }

    /// The holder id of a thread of this process.
    #[must_use]
    pub fn holder(&self, thread: u64) -> String {
        format!("{}:{thread}", self.uuid)
    }

    /// The field of a thread's write holds.
    #[must_use]
    pub fn write_holder(&self, thread: u64) -> String {
        format!("{}:write", self.holder(thread))
    }

    /// The channel of a reentrant lock.
    #[must_use]
    pub fn lock_channel(name: &str) -> String {
        prefixed("redisson_lock__channel", name)
    }

    /// The channel of one waiter of a fair lock.
    #[must_use]
    pub fn fair_channel(name: &str, holder: &str) -> String {
        format!("{}:{holder}", Self::lock_channel(name))
    }

    /// The list of the waiters of a fair lock.
    #[must_use]
    pub fn fair_queue(name: &str) -> String {
        prefixed("redisson_lock_queue", name)
    }

    /// The sorted set of the times at which waiters of a fair lock may be evicted, in ms of the
    /// epoch.
    #[must_use]
    pub fn fair_deadlines(name: &str) -> String {
        prefixed("redisson_lock_timeout", name)
    }

    /// The channel of a read-write lock.
    #[must_use]
    pub fn rw_channel(name: &str) -> String {
        prefixed("redisson_rwlock", name)
    }

    /// The key of one read hold. A holder counts its holds from 1.
    #[must_use]
    pub fn read_hold(name: &str, holder: &str, number: u64) -> String {
        format!("{}{number}", read_holds(name, holder))
    }

    /// The messages on this process's channels that could not be read as integers.
    ///
    /// Each of them is an error in the log of every Redisson process that receives it.
    #[must_use]
    pub fn undecodable(&self) -> Vec<String> {
        self.channels.undecodable()
    }
}

/// The reentrant lock (`RLock`).
impl Redisson {
    /// One attempt: `None` if acquired or re-entered, otherwise the remaining lease in ms, or -1
    /// without an end. Always sets the lease, even to a shorter one.
    pub async fn lock_acquire(&self, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        let args = [&*ms(lease), &*self.holder(thread)];
        self.eval(&scripts::LOCK_ACQUIRE, &[name], &args).await
    }

    /// `Some(1)` if free now, `Some(0)` if still held, `None` if the thread does not hold it.
    pub async fn lock_release(&self, name: &str, thread: u64) -> Option<i64> {
        let latch = Latch::new(name);
        let number = self.lock_release_once(name, thread, &latch).await;
        self.forget(latch).await;
        number
    }

    async fn lock_release_once(&self, name: &str, thread: u64, latch: &Latch) -> Option<i64> {
        let keys = [name, &*Self::lock_channel(name), &*latch.key];
        let args = [
            &*ms(self.watchdog_timeout),
            &*self.holder(thread),
            &*latch.ttl_ms,
        ];
        self.eval(&scripts::LOCK_RELEASE, &keys, &args).await
    }

    /// Frees the lock for any holder. `false` if it was free.
    pub async fn force_unlock(&self, name: &str) -> bool {
        let keys = [name, &*Self::lock_channel(name)];
        self.eval(&scripts::LOCK_FORCE_UNLOCK, &keys, &[]).await
    }

    /// One batch of the watchdog, for reentrant and fair locks. Sets the lease, even to a shorter
    /// one, and returns for each whether the thread still held it.
    pub async fn lock_renew(&self, locks: &[(&str, u64)], lease: Duration) -> Vec<bool> {
        let keys: Vec<&str> = locks.iter().map(|&(name, _)| name).collect();
        let holders = locks.iter().map(|&(_, thread)| self.holder(thread));
        let args: Vec<String> = std::iter::once(ms(lease)).chain(holders).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.eval(&scripts::LOCK_RENEW, &keys, &args).await
    }

    /// Waits like `lock()`, but for at most `limit`. Returns `false` after that.
    ///
    /// Subscribes, tries again, then sleeps until a message or the end of the lease it was told; if
    /// that has no end, forever (here: until the limit).
    pub async fn lock(&self, name: &str, thread: u64, lease: Duration, limit: Duration) -> bool {
        self.wait(Kind::Plain, name, thread, lease, limit).await
    }
}

/// The fair lock (`RFairLock`).
///
/// `wait` is the caller's. As in Redisson, zero stands for [`FAIR_WAIT`](Self::FAIR_WAIT).
impl Redisson {
    /// One attempt of a waiter: `None` if acquired or re-entered, otherwise the time to sleep in
    /// ms.
    ///
    /// Appends a new waiter to the queue. The answer is 0 for a waiter that is not the head of a
    /// free lock's queue, and may be negative, which means no end.
    pub async fn fair_acquire(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        wait: Duration,
    ) -> Option<i64> {
        let script = &scripts::FAIR_ACQUIRE;
        self.fair_attempt(script, name, thread, lease, wait).await
    }

    /// One attempt without a wait (`tryLock()`), which never queues and fails while others are
    /// queued.
    pub async fn fair_try(&self, name: &str, thread: u64, lease: Duration) -> bool {
        let script = &scripts::FAIR_TRY;
        self.fair_attempt(script, name, thread, lease, Self::FAIR_WAIT)
            .await
            .is_none()
    }

    async fn fair_attempt(
        &self,
        script: &Script,
        name: &str,
        thread: u64,
        lease: Duration,
        wait: Duration,
    ) -> Option<i64> {
        let keys = [name, &*Self::fair_queue(name), &*Self::fair_deadlines(name)];
        let args = [
            &*ms(lease),
            &*self.holder(thread),
            &*fair_wait(wait),
            &*self.now(),
        ];
        self.eval(script, &keys, &args).await
    }

    /// Leaves the queue, without a message.
    pub async fn fair_give_up(&self, name: &str, thread: u64, wait: Duration) {
        let keys = [&*Self::fair_queue(name), &*Self::fair_deadlines(name)];
        let args = [&*self.holder(thread), &*fair_wait(wait)];
        self.eval(&scripts::FAIR_GIVE_UP, &keys, &args).await
    }

    /// `Some(1)` if free now, even if it was free before; `Some(0)` if still held; `None` if
    /// another thread holds it.
    pub async fn fair_release(&self, name: &str, thread: u64) -> Option<i64> {
        let latch = Latch::new(name);
        let number = self.fair_release_once(name, thread, &latch).await;
        self.forget(latch).await;
        number
    }

    async fn fair_release_once(&self, name: &str, thread: u64, latch: &Latch) -> Option<i64> {
        let keys = [
            name,
            &*Self::fair_queue(name),
            &*Self::fair_deadlines(name),
            &*Self::lock_channel(name),
            &*latch.key,
        ];
        let args = [
            &*ms(self.watchdog_timeout),
            &*self.holder(thread),
            &*latch.ttl_ms,
            &*self.now(),
        ];
        self.eval(&scripts::FAIR_RELEASE, &keys, &args).await
    }

    /// Frees the lock for any holder. `false` if it was free.
    pub async fn fair_force_unlock(&self, name: &str) -> bool {
        let keys = [
            name,
            &*Self::fair_queue(name),
            &*Self::fair_deadlines(name),
            &*Self::lock_channel(name),
        ];
        let args = [&*self.now()];
        self.eval(&scripts::FAIR_FORCE_UNLOCK, &keys, &args).await
    }

    /// Waits like `lock()`, but for at most `limit`. Returns `false` after that.
    ///
    /// After the limit, the thread stays in the queue, as after an interrupt. Dropping the future
    /// has the same effect. After an answer of 0 it asks again without a pause.
    pub async fn fair_lock(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        limit: Duration,
    ) -> bool {
        let kind = Kind::Fair(Self::FAIR_WAIT);
        self.wait(kind, name, thread, lease, limit).await
    }

    /// Waits like `tryLock(wait, lease)`: like [`fair_lock`](Self::fair_lock), but it sends the
    /// wait to the server, and leaves the queue at the end.
    pub async fn fair_lock_within(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        wait: Duration,
    ) -> bool {
        let acquired = self.wait(Kind::Fair(wait), name, thread, lease, wait).await;
        if !acquired {
            self.fair_give_up(name, thread, wait).await;
        }
        acquired
    }
}

/// The read-write lock (`RReadWriteLock`).
impl Redisson {
    /// One attempt to read: `None` if acquired or re-entered, otherwise the remaining lease of the
    /// writer in ms.
    pub async fn read_acquire(&self, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        let holder = self.holder(thread);
        let keys = [name, &*read_holds(name, &holder)];
        let args = [&*ms(lease), &*holder];
        self.eval(&scripts::READ_ACQUIRE, &keys, &args).await
    }

    /// `Some(1)` if free now, `Some(0)` if still held, `None` if the thread does not read.
    ///
    /// Removes readers whose hold keys are gone. Publishes a message even if the lock is gone.
    pub async fn read_release(&self, name: &str, thread: u64) -> Option<i64> {
        let latch = Latch::new(name);
        let number = self.read_release_once(name, thread, &latch).await;
        self.forget(latch).await;
        number
    }

    async fn read_release_once(&self, name: &str, thread: u64, latch: &Latch) -> Option<i64> {
        let holder = self.holder(thread);
        let keys = [
            name,
            &*Self::rw_channel(name),
            &*latch.key,
            &*read_holds(name, &holder),
            &*braced(name),
        ];
        let args = [&*holder, &*latch.ttl_ms];
        self.eval(&scripts::READ_RELEASE, &keys, &args).await
    }

    /// The watchdog's renewal of these threads' read holds. `false` if none of them reads.
    pub async fn read_renew(&self, name: &str, threads: &[u64], lease: Duration) -> bool {
        let keys = [name, &*braced(name)];
        let holders = threads.iter().map(|&thread| self.holder(thread));
        let args: Vec<String> = std::iter::once(ms(lease)).chain(holders).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.eval(&scripts::READ_RENEW, &keys, &args).await
    }

    /// Frees a lock in read mode, and wakes one waiter of each process. `false` in another mode.
    pub async fn read_force_unlock(&self, name: &str) -> bool {
        self.rw_force_unlock(name, ["read", "0"]).await
    }

    /// Waits like `readLock().lock()`, but for at most `limit`. Returns `false` after that.
    ///
    /// As in Redisson, this thread loses a writer's message that arrives between a check and the
    /// sleep after it.
    pub async fn read_lock(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        limit: Duration,
    ) -> bool {
        self.wait(Kind::Read, name, thread, lease, limit).await
    }

    /// One attempt to write: `None` if acquired or re-entered, otherwise the remaining lease in ms.
    ///
    /// A re-entry adds the lease to the remaining one. A reader is refused, even the only one.
    pub async fn write_acquire(&self, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        let args = [&*ms(lease), &*self.write_holder(thread)];
        self.eval(&scripts::WRITE_ACQUIRE, &[name], &args).await
    }

    /// `Some(1)` if no longer held for writing, `Some(0)` if it still is, `None` if the thread does
    /// not write.
    ///
    /// Publishes no message if read holds are left, but one if the lock is gone.
    pub async fn write_release(&self, name: &str, thread: u64) -> Option<i64> {
        let latch = Latch::new(name);
        let number = self.write_release_once(name, thread, &latch).await;
        self.forget(latch).await;
        number
    }

    async fn write_release_once(&self, name: &str, thread: u64, latch: &Latch) -> Option<i64> {
        let keys = [name, &*Self::rw_channel(name), &*latch.key];
        let args = [
            &*ms(self.watchdog_timeout),
            &*self.write_holder(thread),
            &*latch.ttl_ms,
        ];
        self.eval(&scripts::WRITE_RELEASE, &keys, &args).await
    }

    /// The watchdog's renewal of a write hold. `false` if the thread does not write.
    pub async fn write_renew(&self, name: &str, thread: u64, lease: Duration) -> bool {
        let args = [&*ms(lease), &*self.write_holder(thread)];
        let renewed: Vec<bool> = self.eval(&scripts::LOCK_RENEW, &[name], &args).await;
        renewed == [true]
    }

    /// Frees a lock in write mode, and wakes all waiters. `false` in another mode.
    pub async fn write_force_unlock(&self, name: &str) -> bool {
        self.rw_force_unlock(name, ["write", "1"]).await
    }

    /// Waits like `writeLock().lock()`, but for at most `limit`. Returns `false` after that.
    pub async fn write_lock(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        limit: Duration,
    ) -> bool {
        self.wait(Kind::Write, name, thread, lease, limit).await
    }

    async fn rw_force_unlock(&self, name: &str, mode_and_message: [&str; 2]) -> bool {
        let keys = [name, &*Self::rw_channel(name)];
        self.eval(&scripts::RW_FORCE_UNLOCK, &keys, &mode_and_message)
            .await
    }
}

/// The parts shared by all kinds.
impl Redisson {
    async fn wait(
        &self,
        kind: Kind,
        name: &str,
        thread: u64,
        lease: Duration,
        limit: Duration,
    ) -> bool {
        let deadline = Instant::now() + limit;
        if self.attempt(kind, name, thread, lease).await.is_none() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        let channel = match kind {
            Kind::Plain => Self::lock_channel(name),
            Kind::Fair(_) => Self::fair_channel(name, &self.holder(thread)),
            Kind::Read | Kind::Write => Self::rw_channel(name),
        };
        let Ok(subscription) = timeout_at(deadline, self.channels.join(&channel)).await else {
            return false;
        };
        while Instant::now() < deadline {
            let Some(ttl) = self.attempt(kind, name, thread, lease).await else {
                return true;
            };
            let until = match u64::try_from(ttl) {
                Ok(ttl) => deadline.min(Instant::now() + Duration::from_millis(ttl)),
                Err(_) => deadline,
            };
            // The next attempt decides, whether a message came or not.
            let _ = timeout_at(until, subscription.wakeup()).await;
        }
        false
    }

    async fn attempt(&self, kind: Kind, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        match kind {
            Kind::Plain => self.lock_acquire(name, thread, lease).await,
            Kind::Fair(wait) => self.fair_acquire(name, thread, lease, wait).await,
            Kind::Read => self.read_acquire(name, thread, lease).await,
            Kind::Write => self.write_acquire(name, thread, lease).await,
        }
    }

    /// Redisson does not wait for the answer. Here it is awaited, so that nothing is left when a
    /// release returns.
    async fn forget(&self, latch: Latch) {
        let mut connection = self.connection.clone();
        let deleted: RedisResult<()> = redis::cmd("DEL")
            .arg(&latch.key)
            .query_async(&mut connection)
            .await;
        if let Err(error) = deleted {
            panic!("Redisson peer: DEL {}: {error}", latch.key);
        }
    }

    async fn eval<T: FromRedisValue>(&self, script: &Script, keys: &[&str], args: &[&str]) -> T {
        let mut connection = self.connection.clone();
        let answer = redis::cmd("EVAL")
            .arg(script.text)
            .arg(keys.len())
            .arg(keys)
            .arg(args)
            .query_async(&mut connection)
            .await;
        match answer {
            Ok(answer) => answer,
            Err(error) => panic!(
                "Redisson peer: {} with {keys:?} and {args:?}: {error}",
                script.name
            ),
        }
    }

    /// The process's own time, in ms of the epoch.
    fn now(&self) -> String {
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let real = real.expect("it is after 1970").as_millis();
        let real = i64::try_from(real).expect("it is before 292 million AD");
        (real + self.clock_offset_ms).to_string()
    }
}

/// The key that makes one unlock request idempotent.
#[derive(Debug)]
struct Latch {
    key: String,
    ttl_ms: String,
}

impl Latch {
    fn new(name: &str) -> Self {
        let id = Uuid::new_v4();
        let jitter = u64::from(id.as_bytes()[0]) * (LATCH_MS / 4) / 255;
        Self {
            key: format!(
                "{}:{}",
                prefixed("redisson_unlock_latch", name),
                id.simple()
            ),
            ttl_ms: (LATCH_MS + jitter).to_string(),
        }
    }
}

fn fair_wait(wait: Duration) -> String {
    if wait.is_zero() {
        ms(Redisson::FAIR_WAIT)
    } else {
        ms(wait)
    }
}

/// The prefix of the keys of a holder's read holds.
fn read_holds(name: &str, holder: &str) -> String {
    format!("{}:rwlock_timeout:", suffixed(name, holder))
}

fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}
