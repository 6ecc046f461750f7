//! A peer that behaves on the wire as Redisson 4.7 does, with its defects.
//!
//! For tests of how `lockset` gets on with it. Keys, fields, replies, messages, and when it asks and
//! when it sleeps, are Redisson's in single-server mode; the scripts are our own. What is left out is
//! what no other client can see: the cache of script digests, retries, the watchdog's timer. Nothing
//! is renewed unless the test says so.

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

/// How long the server keeps the answer to an unlock request, at least, in ms; up to a quarter more.
const LATCH_MS: u64 = 16_000;

/// A process that speaks to the server as Redisson does: one uuid, threads by number.
///
/// A clone is the same process. It has two connections, one for commands and one for subscriptions,
/// and does not replace them when they break.
///
/// What it calls an acquire or a release is one script, once; the replies are the script's. The lease
/// is always the caller's: [`WATCHDOG_TIMEOUT`](Self::WATCHDOG_TIMEOUT) is what Redisson sends when
/// its user names none. Leases and waits are sent in whole milliseconds.
///
/// # Panics
///
/// Every method that asks the server panics, with the script and the error, when the answer is an error
/// or takes longer than 5 s.
#[derive(Clone, Debug)]
pub struct Redisson {
    connection: MultiplexedConnection,
    channels: Channels,
    uuid: Arc<str>,
    watchdog_timeout: Duration,
    clock_offset_ms: i64,
}

/// The kinds of lock that can be waited for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    /// With the wait that is told to the server.
    Fair(Duration),
    Read,
    Write,
}

impl Redisson {
    /// The lease of a hold whose user names none (`lockWatchdogTimeout`).
    pub const WATCHDOG_TIMEOUT: Duration = Duration::from_secs(30);

    /// The wait of a fair waiter whose user names none (`fairLockWaitTimeout`).
    pub const FAIR_WAIT: Duration = Duration::from_secs(300);

    /// A new process, connected to a server that asks for no password.
    pub async fn connect(server: &Server) -> Self {
        Self::connect_to(&server.admin_url()).await
    }

    /// A new process, connected to whatever is at this URL.
    pub async fn connect_to(url: &str) -> Self {
        match Self::try_connect(url).await {
            Ok(peer) => peer,
            Err(error) => panic!("Redisson peer: no connection to {url}: {error}"),
        }
    }

    async fn try_connect(url: &str) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone();
        // Only so that the messages come without a stream to poll.
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

    /// The same process with its clock ahead of the real one, or behind it where the offset is negative.
    #[must_use]
    pub fn clock_offset_ms(mut self, offset: i64) -> Self {
        self.clock_offset_ms = offset;
        self
    }

    /// The same process with another lease for what a release leaves held.
    ///
    /// In Redisson that is the lease last taken through the same lock object, else the watchdog timeout.
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

    /// The channel of a plain lock.
    #[must_use]
    pub fn lock_channel(name: &str) -> String {
        prefixed("redisson_lock__channel", name)
    }

    /// The channel of one waiter for a fair lock.
    #[must_use]
    pub fn fair_channel(name: &str, holder: &str) -> String {
        format!("{}:{holder}", Self::lock_channel(name))
    }

    /// The list of the waiters for a fair lock.
    #[must_use]
    pub fn fair_queue(name: &str) -> String {
        prefixed("redisson_lock_queue", name)
    }

    /// The sorted set of when the waiters for a fair lock may be evicted, in ms of the epoch.
    #[must_use]
    pub fn fair_deadlines(name: &str) -> String {
        prefixed("redisson_lock_timeout", name)
    }

    /// The channel of a read-write lock.
    #[must_use]
    pub fn rw_channel(name: &str) -> String {
        prefixed("redisson_rwlock", name)
    }

    /// The key of one read hold; a holder counts its holds from 1.
    #[must_use]
    pub fn read_hold(name: &str, holder: &str, number: u64) -> String {
        format!("{}{number}", read_holds(name, holder))
    }

    /// Messages on the channels this process listened to that it could not read as integers.
    ///
    /// Each of them is an error in the log of every Redisson process that hears it.
    #[must_use]
    pub fn undecodable(&self) -> Vec<String> {
        self.channels.undecodable()
    }
}

/// The plain lock (`RLock`).
impl Redisson {
    /// One attempt: `None` if acquired or entered again, else what is left of the other's lease in ms,
    /// -1 for no end. Always sets the lease, even to a shorter one.
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

    /// Frees the lock, whoever holds it; `false` if nobody did.
    pub async fn force_unlock(&self, name: &str) -> bool {
        let keys = [name, &*Self::lock_channel(name)];
        self.eval(&scripts::LOCK_FORCE_UNLOCK, &keys, &[]).await
    }

    /// One batch of the watchdog, for plain and fair locks. Sets the lease, even to a shorter one, and
    /// says for each whether the thread still held it.
    pub async fn lock_renew(&self, locks: &[(&str, u64)], lease: Duration) -> Vec<bool> {
        let keys: Vec<&str> = locks.iter().map(|&(name, _)| name).collect();
        let holders = locks.iter().map(|&(_, thread)| self.holder(thread));
        let args: Vec<String> = std::iter::once(ms(lease)).chain(holders).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.eval(&scripts::LOCK_RENEW, &keys, &args).await
    }

    /// Waits as `lock()` does, but for at most `limit`; `false` if that passes first.
    ///
    /// Subscribes, looks again, then sleeps until a message or the end of the lease it was told; for
    /// ever (here: to the limit) if that has no end.
    pub async fn lock(&self, name: &str, thread: u64, lease: Duration, limit: Duration) -> bool {
        self.wait(Kind::Plain, name, thread, lease, limit).await
    }
}

/// The fair lock (`RFairLock`).
///
/// `wait` is the caller's; zero stands for [`FAIR_WAIT`](Self::FAIR_WAIT), as in Redisson.
impl Redisson {
    /// One attempt of a waiter: `None` if acquired or entered again, else how long to sleep in ms.
    ///
    /// Who is not in the queue is put at its end. The answer is 0 for a waiter who is not the head of
    /// the queue of a free lock, and may be negative, which means no end.
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

    /// One attempt without a wait (`tryLock()`), which never puts the thread in the queue, and fails
    /// while others are in it.
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

    /// Leaves the queue, which no message tells anybody.
    pub async fn fair_give_up(&self, name: &str, thread: u64, wait: Duration) {
        let keys = [&*Self::fair_queue(name), &*Self::fair_deadlines(name)];
        let args = [&*self.holder(thread), &*fair_wait(wait)];
        self.eval(&scripts::FAIR_GIVE_UP, &keys, &args).await
    }

    /// `Some(1)` if free now, even if it was free before; `Some(0)` if still held; `None` if another
    /// holds it.
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

    /// Frees the lock, whoever holds it; `false` if nobody did.
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

    /// Waits as `lock()` does, but for at most `limit`; `false` if that passes first.
    ///
    /// The thread then stays in the queue, as one that was interrupted does; the same holds when the
    /// future is dropped. An answer of 0 is asked again without a pause.
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

    /// Waits as `tryLock(wait, lease)` does: like [`fair_lock`](Self::fair_lock), but tells the server
    /// how long, and gives up its place at the end.
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
    /// One attempt to read: `None` if acquired or entered again, else what is left of the writer's lease
    /// in ms.
    pub async fn read_acquire(&self, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        let holder = self.holder(thread);
        let keys = [name, &*read_holds(name, &holder)];
        let args = [&*ms(lease), &*holder];
        self.eval(&scripts::READ_ACQUIRE, &keys, &args).await
    }

    /// `Some(1)` if free now, `Some(0)` if anybody still holds it, `None` if the thread does not read.
    ///
    /// Sweeps readers whose hold keys are gone. A lock that is gone is still answered with a message.
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

    /// The watchdog's renewal of the read holds of these threads; `false` if none of them reads.
    pub async fn read_renew(&self, name: &str, threads: &[u64], lease: Duration) -> bool {
        let keys = [name, &*braced(name)];
        let holders = threads.iter().map(|&thread| self.holder(thread));
        let args: Vec<String> = std::iter::once(ms(lease)).chain(holders).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.eval(&scripts::READ_RENEW, &keys, &args).await
    }

    /// Frees the lock if it is in read mode, and wakes one waiter of each process; `false` otherwise.
    pub async fn read_force_unlock(&self, name: &str) -> bool {
        self.rw_force_unlock(name, ["read", "0"]).await
    }

    /// Waits as `readLock().lock()` does, but for at most `limit`; `false` if that passes first.
    ///
    /// A writer's message that comes between a look and the sleep after it is lost on this thread, as it
    /// is in Redisson.
    pub async fn read_lock(
        &self,
        name: &str,
        thread: u64,
        lease: Duration,
        limit: Duration,
    ) -> bool {
        self.wait(Kind::Read, name, thread, lease, limit).await
    }

    /// One attempt to write: `None` if acquired or entered again, else what is left of the lease in ms.
    ///
    /// Entering again adds the lease to what is left of it. A reader is refused, even the only one.
    pub async fn write_acquire(&self, name: &str, thread: u64, lease: Duration) -> Option<i64> {
        let args = [&*ms(lease), &*self.write_holder(thread)];
        self.eval(&scripts::WRITE_ACQUIRE, &[name], &args).await
    }

    /// `Some(1)` if no longer held for writing, `Some(0)` if still, `None` if the thread does not write.
    ///
    /// No message is sent when read holds are left. A lock that is gone is still answered with one.
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

    /// The watchdog's renewal of a write hold; `false` if the thread does not write.
    pub async fn write_renew(&self, name: &str, thread: u64, lease: Duration) -> bool {
        let args = [&*ms(lease), &*self.write_holder(thread)];
        let renewed: Vec<bool> = self.eval(&scripts::LOCK_RENEW, &[name], &args).await;
        renewed == [true]
    }

    /// Frees the lock if it is in write mode, and wakes all waiters; `false` otherwise.
    pub async fn write_force_unlock(&self, name: &str) -> bool {
        self.rw_force_unlock(name, ["write", "1"]).await
    }

    /// Waits as `writeLock().lock()` does, but for at most `limit`; `false` if that passes first.
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

/// What all kinds share.
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
            // Whichever it was, the next look decides.
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

    /// Redisson does not wait for the answer; here nothing is left behind when a release returns.
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

    /// The time this process believes it is, in ms of the epoch.
    fn now(&self) -> String {
        let real = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let real = real.expect("it is after 1970").as_millis();
        let real = i64::try_from(real).expect("it is before 292 million AD");
        (real + self.clock_offset_ms).to_string()
    }
}

/// The key that makes one unlock request repeatable.
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

/// What the keys of a holder's read holds start with.
fn read_holds(name: &str, holder: &str) -> String {
    format!("{}:rwlock_timeout:", suffixed(name, holder))
}

fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}
