//! Redisson's way to lock, over the same Redis library as lockset.
//!
//! The scripts are written from the facts of Redisson's wire format, with equal keys, calls and replies in equal order.
//! The test kit has the scripts of fair and read-write locks. A waiter subscribes to the channel of the lock. A message
//! wakes one waiter of each client, which asks again; without a message, it asks when the lease it was given has run
//! out. Kinder than the original in two ways: there is no Java, and a client is subscribed beforehand.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ProtocolVersion, PushInfo, PushKind, Value};
use tokio::sync::Semaphore;

use super::LEASE;
use super::floor::{self, Floor, Nagle};

pub(crate) const ACQUIRE: &str = include_str!("redisson/acquire.lua");
pub(crate) const ACQUIRE_FENCED: &str = include_str!("redisson/acquire_fenced.lua");
pub(crate) const RELEASE: &str = include_str!("redisson/release.lua");
pub(crate) const RENEW: &str = include_str!("redisson/renew.lua");

/// A script of the test kit's peer, after the pieces it calls.
macro_rules! of_the_peer {
    ($($piece:literal),*) => {
        concat!($(include_str!(concat!("../../testkit/src/redisson/lua/", $piece, ".lua"))),*)
    };
}

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
        let subscriber = subscriber(url, &channel(key), Arc::clone(&woken)).await;
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

/// A connection that listens to a channel, and counts what comes.
pub(crate) async fn subscriber(
    url: &str,
    channel: &str,
    heard: Arc<Semaphore>,
) -> MultiplexedConnection {
    let config = floor::config().set_push_sender(move |push: PushInfo| {
        if push.kind == PushKind::Message {
            heard.add_permits(1);
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
    call.arg(0).arg(LEASE.as_millis() as u64).arg(holder);
    call.arg("PUBLISH").arg(LATCH_MILLIS);
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

pub(crate) fn script(sha: &str, keys: &[&str]) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(keys.len());
    for key in keys {
        call.arg(key);
    }
    call
}
