//! The promises of the fair lock: the order of its queue, and the waiters in it.

mod cost;
mod following;
mod handover;
mod mistakes;
mod order;
mod places;
mod redisson;
mod scores;

use std::time::Duration;

use futures_util::StreamExt;
use lockset::{Client, FairGuard, FairLock};
use lockset_testkit::{Redisson, Server, eventually, unique_name, within};
use redis::FromRedisValue;
use redis::aio::{MultiplexedConnection, PubSub};
use tokio::task::JoinHandle;

use crate::failures::process::started_for;
use crate::support::{SOON, ask, patient_client};

/// A server, the name of a lock, and access to its queue.
struct Scene {
    server: Server,
    name: String,
    admin: MultiplexedConnection,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let admin = server.admin().await;
        let name = unique_name("lock");
        Self {
            server,
            name,
            admin,
        }
    }

    /// The lock as a handle of a new client, which polls once a second.
    async fn lock(&self) -> FairLock {
        self.lock_of(&patient_client(&self.server.url()).await)
    }

    fn lock_of(&self, client: &Client) -> FairLock {
        client.fair_lock(&self.name)
    }

    async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        ask(&mut self.admin.clone(), words).await
    }

    fn queue_key(&self) -> String {
        Redisson::fair_queue(&self.name)
    }

    fn timeouts_key(&self) -> String {
        Redisson::fair_deadlines(&self.name)
    }

    fn alive_key(&self) -> String {
        format!("lockset_fair_alive:{{{}}}", self.name)
    }

    async fn queue(&self) -> Vec<String> {
        self.ask(&["LRANGE", &self.queue_key(), "0", "-1"]).await
    }

    async fn queued(&self, count: usize) {
        eventually(SOON, "the queue is as long as that", async || {
            self.queue().await.len() == count
        })
        .await;
    }

    /// The server's clock, in ms.
    async fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.ask(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }

    /// The score of a waiter: until when Redisson keeps it, in ms of the server's clock.
    async fn score(&self, waiter: &str) -> Option<i64> {
        self.ask(&["ZSCORE", &self.timeouts_key(), waiter]).await
    }

    /// Adds `count` waiters to the queue as the script would, named `called` and a number from 1.
    /// Their heartbeats last for `alive_ms`.
    async fn put(&self, count: usize, called: &str, alive_ms: i64) {
        let script = "for i = 1, ARGV[1] do
            redis.call('RPUSH', KEYS[1], ARGV[2] .. i)
            redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2] .. i)
            redis.call('ZADD', KEYS[3], ARGV[4], ARGV[2] .. i)
        end";
        let now = self.now().await;
        let (score, alive) = (now + 600_000, now + alive_ms);
        let keys = [self.queue_key(), self.timeouts_key(), self.alive_key()];
        let _: redis::Value = self
            .ask(&[
                "EVAL",
                script,
                "3",
                &keys[0],
                &keys[1],
                &keys[2],
                &count.to_string(),
                called,
                &score.to_string(),
                &alive.to_string(),
            ])
            .await;
    }

    /// Subscribes to the scripts' messages to waiters, which announce a turn or a hold.
    async fn notifications(&self) -> Notifications {
        let client = redis::Client::open(self.server.admin_url()).unwrap();
        let mut messages = client.get_async_pubsub().await.unwrap();
        let before_waiter = format!("{}:", Redisson::lock_channel(&self.name));
        messages
            .psubscribe(format!("{before_waiter}*"))
            .await
            .unwrap();
        Notifications {
            messages,
            before_waiter,
        }
    }
}

struct Notifications {
    messages: PubSub,
    before_waiter: String,
}

impl Notifications {
    /// The next waiter that is notified.
    async fn next(&mut self) -> String {
        self.next_message().await.0
    }

    /// Like `next`, with the lease if the waiter was handed the lock.
    async fn next_message(&mut self) -> (String, Option<Duration>) {
        let message = within(SOON, self.messages.on_message().next()).await;
        let message = message.expect("the subscription lasts");
        let waiter = message
            .get_channel_name()
            .strip_prefix(&self.before_waiter)
            .expect("it is the pattern's");
        let payload: String = message.get_payload().unwrap();
        let lease = match payload.split(' ').collect::<Vec<_>>()[..] {
            ["0"] => None,
            [until, lease, token, _] => {
                let number = |word: &str| word.parse::<u64>().unwrap();
                assert!(number(until) > 0 && (token == "-" || number(token) > 0));
                Some(Duration::from_millis(number(lease)))
            }
            _ => panic!("{payload:?}"),
        };
        (waiter.to_owned(), lease)
    }

    /// Waits until this waiter is notified.
    async fn until(&mut self, waiter: &str) {
        while self.next().await != waiter {}
    }
}

/// Spawns a task that waits for the lock without a limit.
fn wait_for(lock: &FairLock) -> JoinHandle<FairGuard> {
    let lock = lock.clone();
    lockset_testkit::spawn(async move { lock.lock().await.unwrap() })
}

/// The result of a task, within `SOON`.
async fn done<T>(task: JoinHandle<T>) -> T {
    within(SOON, task).await.unwrap()
}

/// The id of the holder.
async fn holder(lock: &FairLock) -> String {
    lock.holder().await.unwrap().expect("it is held").id
}

/// Each holder appends its id and its token to this list.
const HELD: &str = "held";

async fn take_a_turn(lock: FairLock, mut list: MultiplexedConnection) {
    let guard = lock.clone().fenced().lock().await.unwrap();
    let token = guard.fencing_token().expect("fenced").get();
    let entry = format!("{} {token}", holder(&lock).await);
    let _: u64 = redis::cmd("RPUSH")
        .arg(HELD)
        .arg(entry)
        .query_async(&mut list)
        .await
        .unwrap();
    guard.release().await.unwrap();
}

/// The other process. Each line of its input has a number of waiters and their client's lease in
/// ms: that many waiters each take a turn.
#[test]
#[ignore = "not a test: another process for the tests in this module"]
fn crowd() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    println!("answer:ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (count, lease) = line.split_once(' ').expect("a number and a lease");
        let lease = Duration::from_millis(lease.parse().unwrap());
        runtime.block_on(async {
            let client = Client::builder(&url).lease(lease).build().await.unwrap();
            let list = redis::Client::open(&*url).unwrap();
            let list = list.get_multiplexed_async_connection().await.unwrap();
            for _ in 0..count.parse().unwrap() {
                lockset_testkit::spawn(take_a_turn(client.fair_lock(&name), list.clone()));
            }
        });
        println!("answer:waiting");
    }
}
