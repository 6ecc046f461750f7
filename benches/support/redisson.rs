//! Redisson's way to lock, over the same Redis library as lockset.
//!
//! The scripts are written from the facts of Redisson's wire format, with equal keys, calls and replies in equal order.
//! Those of plain, fair and read-write locks are the test kit's. A waiter subscribes to the channel of the lock. A message
//! wakes one waiter of each client, which asks again; without a message, it asks when the lease it was given has run
//! out. Kinder than the original in two ways: there is no Java, and a client is subscribed beforehand.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::Semaphore;

use super::LEASE;
use super::floor::{self, Floor, Nagle};

pub(crate) const ACQUIRE_FENCED: &str = include_str!("redisson/acquire_fenced.lua");
pub(crate) const PERMIT_ACQUIRE: &str = include_str!("redisson/permit_acquire.lua");
pub(crate) const PERMIT_RELEASE: &str = include_str!("redisson/permit_release.lua");
pub(crate) const COUNT_DOWN: &str = include_str!("redisson/count_down.lua");

/// A script of the test kit's peer, after the pieces it calls.
macro_rules! of_the_peer {
    ($($piece:literal),*) => {
        concat!($(include_str!(concat!("../../testkit/src/redisson/lua/", $piece, ".lua"))),*)
    };
}

pub(crate) const ACQUIRE: &str = of_the_peer!("lock_acquire");
pub(crate) const RELEASE: &str = of_the_peer!("latch", "lock_release");
pub(crate) const RENEW: &str = of_the_peer!("lock_renew");
pub(crate) const FAIR_ACQUIRE: &str = of_the_peer!("fair_queue", "fair_acquire");
pub(crate) const FAIR_RELEASE: &str = of_the_peer!("latch", "fair_queue", "fair_release");
pub(crate) const READ_ACQUIRE: &str = of_the_peer!("read_acquire");
pub(crate) const READ_RELEASE: &str = of_the_peer!("latch", "read_release");
pub(crate) const WRITE_ACQUIRE: &str = of_the_peer!("write_acquire");
pub(crate) const WRITE_RELEASE: &str = of_the_peer!("latch", "write_release");

/// How long Redisson keeps a fair waiter whose user names no time.
const FAIR_WAIT: Duration = Duration::from_secs(300);

/// With Redisson's defaults a latch lives 16 to 20 s, unless it is deleted as usual.
pub(crate) const LATCH_MILLIS: u64 = 18_000;

/// One client with one lock.
#[derive(Debug)]
pub(crate) struct RedissonClient {
    command: Floor,
    /// Kept open: messages come on it.
    _subscriber: MultiplexedConnection,
    key: Arc<str>,
    id: String,
    acquire: Arc<str>,
    release: Arc<str>,
    /// Messages that no waiter has taken yet.
    woken: Arc<Semaphore>,
}

/// One thread of a client.
#[derive(Clone, Debug)]
pub(crate) struct RedissonLock {
    client: Arc<RedissonClient>,
    command: Floor,
    holder: String,
}

impl RedissonClient {
    pub(crate) async fn connect(url: &str, key: &str) -> Arc<Self> {
        let woken = Arc::new(Semaphore::new(0));
        let subscriber = subscriber(url, &channel(key), wakes(&woken, |_| 1)).await;
        let mut command = Floor::connect(url, Nagle::Off).await;
        Arc::new(Self {
            acquire: command.load(ACQUIRE).await,
            release: command.load(RELEASE).await,
            command,
            _subscriber: subscriber,
            key: key.into(),
            id: uuid::Uuid::new_v4().to_string(),
            woken,
        })
    }

    pub(crate) fn lock(self: &Arc<Self>, thread: usize) -> RedissonLock {
        RedissonLock {
            client: Arc::clone(self),
            command: self.command.clone(),
            holder: format!("{}:{thread}", self.id),
        }
    }
}

/// Adds as many as a message says.
pub(crate) fn wakes(
    woken: &Arc<Semaphore>,
    many: fn(&[u8]) -> usize,
) -> impl Fn(&[u8]) + Send + Sync + use<> {
    let woken = Arc::clone(woken);
    move |message| woken.add_permits(many(message))
}

/// A connection that listens to a channel.
pub(crate) async fn subscriber(
    url: &str,
    channel: &str,
    heard: impl Fn(&[u8]) + Send + Sync + 'static,
) -> MultiplexedConnection {
    let config = floor::config().set_push_sender(move |push: PushInfo| {
        if let (PushKind::Message, Some(Value::BulkString(message))) = (push.kind, push.data.last())
        {
            heard(message);
        }
        Ok::<(), std::convert::Infallible>(())
    });
    let info = floor::info(url, Nagle::Off);
    let newer = info.redis_settings().clone();
    let newer = newer.set_protocol(ProtocolVersion::RESP3);
    let mut subscriber = floor::connect(info.set_redis_settings(newer), config).await;
    subscriber.subscribe(channel).await.expect("a subscription");
    subscriber
}

impl RedissonLock {
    pub(crate) async fn acquire(&mut self) {
        if self.try_acquire().await.is_none() {
            return;
        }
        while let Some(lease) = self.try_acquire().await {
            let woken = self.client.woken.acquire();
            if let Ok(Ok(permit)) = tokio::time::timeout(lease, woken).await {
                permit.forget();
            }
        }
    }

    /// `None`: acquired; otherwise the longest time for which it is held.
    async fn try_acquire(&mut self) -> Option<Duration> {
        let call = acquire(&self.client.acquire, &self.client.key, &self.holder);
        match self.command.ask(&call).await {
            Value::Nil => None,
            Value::Int(millis) => Some(Duration::from_millis(millis.try_into().unwrap_or(0))),
            other => panic!("the acquire script answered {other:?}"),
        }
    }

    pub(crate) async fn release(&mut self) {
        let latch = latch(&self.client.key, &latch_id());
        let call = release(&self.client.release, &self.client.key, &self.holder, &latch);
        assert_eq!(self.command.ask(&call).await, Value::Int(1));
        // Sent and not waited for, as the original does.
        let mut command = self.command.clone();
        tokio::spawn(async move { command.ask(&delete(&latch)).await });
    }
}

/// The client of one semaphore whose permits have leases. A clone is one more thread of it.
#[derive(Clone, Debug)]
pub(crate) struct RedissonPermits {
    command: Floor,
    /// Kept open: messages come on it.
    _subscriber: Arc<MultiplexedConnection>,
    key: Arc<str>,
    acquire: Arc<str>,
    release: Arc<str>,
    /// Wake-ups that no waiter has taken yet.
    woken: Arc<Semaphore>,
}

/// The id of a permit.
pub(crate) type PermitId = [u8; 16];

impl RedissonPermits {
    pub(crate) async fn connect(url: &str, key: &str, permits: u32) -> Self {
        let woken = Arc::new(Semaphore::new(0));
        // As many threads as there are permits, says the message.
        let many = |message: &[u8]| {
            let free = std::str::from_utf8(message).ok();
            free.and_then(|free| free.parse().ok()).unwrap_or(0)
        };
        let subscriber = subscriber(url, &permits_channel(key), wakes(&woken, many)).await;
        let mut command = Floor::connect(url, Nagle::Off).await;
        command.ask(redis::cmd("SET").arg(key).arg(permits)).await;
        Self {
            acquire: command.load(PERMIT_ACQUIRE).await,
            release: command.load(PERMIT_RELEASE).await,
            command,
            _subscriber: Arc::new(subscriber),
            key: key.into(),
            woken,
        }
    }

    pub(crate) async fn acquire(&mut self) -> PermitId {
        loop {
            let id = fastrand::u128(..).to_be_bytes();
            let call = permit_acquire(&self.acquire, &self.key, &id);
            let wait = match self.command.ask(&call).await {
                Value::BulkString(word) if word == b"OK" => return id,
                Value::BulkString(word) => ends_in(&word),
                _ => LEASE,
            };
            let woken = Arc::clone(&self.woken);
            if let Ok(Ok(permit)) = tokio::time::timeout(wait, woken.acquire()).await {
                permit.forget();
            }
        }
    }

    pub(crate) async fn release(&mut self, id: PermitId) {
        let call = permit_release(&self.release, &self.key, &id);
        assert_eq!(self.command.ask(&call).await, Value::Int(1));
    }
}

/// The time until a lease ends, from `:` and its end.
fn ends_in(word: &[u8]) -> Duration {
    let end = std::str::from_utf8(word).ok();
    let end: Option<u64> = end.and_then(|end| end.strip_prefix(':')?.parse().ok());
    Duration::from_millis(end.unwrap_or(0).saturating_sub(now()))
}

/// What Redisson writes for a lease that does not end.
const NEVER: u64 = 922_337_203_685_477;

pub(crate) fn permit_acquire(sha: &str, key: &str, id: &PermitId) -> Cmd {
    let mut call = script(sha, &[key, &permit_timeouts(key), &permits_channel(key)]);
    let now = now();
    call.arg(1).arg(now + LEASE.as_millis() as u64);
    call.arg(now).arg(NEVER).arg("PUBLISH").arg(id);
    call
}

pub(crate) fn permit_release(sha: &str, key: &str, id: &PermitId) -> Cmd {
    let mut call = script(sha, &[key, &permits_channel(key), &permit_timeouts(key)]);
    call.arg(id).arg(1).arg(now()).arg("PUBLISH");
    call
}

pub(crate) fn count_down(sha: &str, key: &str) -> Cmd {
    let mut call = script(sha, &[key, &latch_channel(key)]);
    call.arg(0).arg("PUBLISH");
    call
}

pub(crate) fn latch_channel(key: &str) -> String {
    format!("redisson_countdownlatch__channel__{{{key}}}")
}

pub(crate) fn permits_channel(key: &str) -> String {
    format!("redisson_sc:{{{key}}}")
}

pub(crate) fn permit_timeouts(key: &str) -> String {
    format!("{{{key}}}:timeout")
}

pub(crate) fn acquire(sha: &str, key: &str, holder: &str) -> Cmd {
    let mut call = script(sha, &[key]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call
}

pub(crate) fn acquire_fenced(sha: &str, key: &str, holder: &str) -> Cmd {
    let mut call = script(sha, &[key, &format!("redisson_lock_token:{{{key}}}")]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call
}

pub(crate) fn release(sha: &str, key: &str, holder: &str, latch: &str) -> Cmd {
    let mut call = script(sha, &[key, &channel(key), latch]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call.arg(LATCH_MILLIS);
    call
}

pub(crate) fn renew(sha: &str, locks: &[(String, String)]) -> Cmd {
    let keys: Vec<&str> = locks.iter().map(|(key, _)| key.as_str()).collect();
    let mut call = script(sha, &keys);
    call.arg(LEASE.as_millis() as u64);
    for (_, holder) in locks {
        call.arg(holder);
    }
    call
}

pub(crate) fn fair_acquire(sha: &str, key: &str, holder: &str) -> Cmd {
    let [queue, timeouts] = fair_queue(key);
    let mut call = script(sha, &[key, &queue, &timeouts]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call.arg(FAIR_WAIT.as_millis() as u64).arg(now());
    call
}

pub(crate) fn fair_release(sha: &str, key: &str, holder: &str, latch: &str) -> Cmd {
    let [queue, timeouts] = fair_queue(key);
    let mut call = script(sha, &[key, &queue, &timeouts, &channel(key), latch]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call.arg(LATCH_MILLIS).arg(now());
    call
}

pub(crate) fn read_acquire(sha: &str, key: &str, holder: &str) -> Cmd {
    let mut call = script(sha, &[key, &read_holds(key, holder)]);
    call.arg(LEASE.as_millis() as u64).arg(holder);
    call
}

pub(crate) fn read_release(sha: &str, key: &str, holder: &str, latch: &str) -> Cmd {
    let (channel, all) = (format!("redisson_rwlock:{{{key}}}"), format!("{{{key}}}"));
    let keys = [key, &channel, latch, &read_holds(key, holder), &all];
    let mut call = script(sha, &keys);
    call.arg(holder).arg(LATCH_MILLIS);
    call
}

pub(crate) fn write_acquire(sha: &str, key: &str, holder: &str) -> Cmd {
    let mut call = script(sha, &[key]);
    call.arg(LEASE.as_millis() as u64);
    call.arg(format!("{holder}:write"));
    call
}

pub(crate) fn write_release(sha: &str, key: &str, holder: &str, latch: &str) -> Cmd {
    let channel = format!("redisson_rwlock:{{{key}}}");
    let mut call = script(sha, &[key, &channel, latch]);
    call.arg(LEASE.as_millis() as u64);
    call.arg(format!("{holder}:write")).arg(LATCH_MILLIS);
    call
}

/// The command after each unlock.
pub(crate) fn delete(latch: &str) -> Cmd {
    let mut delete = redis::cmd("DEL");
    delete.arg(latch);
    delete
}

pub(crate) fn channel(key: &str) -> String {
    format!("redisson_lock__channel:{{{key}}}")
}

fn fair_queue(key: &str) -> [String; 2] {
    ["queue", "timeout"].map(|what| format!("redisson_lock_{what}:{{{key}}}"))
}

fn read_holds(key: &str, holder: &str) -> String {
    format!("{{{key}}}:{holder}:rwlock_timeout:")
}

/// The client's clock.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("it is after 1970").as_millis() as u64
}

pub(crate) fn latch(key: &str, id: &str) -> String {
    format!("redisson_unlock_latch:{{{key}}}:{id}")
}

/// 16 random bytes in hexadecimal digits, fresh for each unlock.
pub(crate) fn latch_id() -> String {
    format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..))
}

pub(crate) fn script<K: AsRef<str>>(sha: &str, keys: &[K]) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(keys.len());
    for key in keys {
        call.arg(key.as_ref());
    }
    call
}
