//! The floor: the least that a lock on this server can do, `SET NX PX` and a compare-and-delete.
//!
//! It has no way to wait. Tasks that want one lock queue in this process, under tokio's mutex, and still take and free
//! the lock at the server each time: a lower bound for every lock that is visible to others and not passed on inside
//! the process. It has no fair and no read-write lock either: it takes the exclusive one, and what others gain by
//! reading together shows. Its semaphore is a number that a script counts down and `INCR` counts up, and its latch one
//! that a script counts down. Its connection is the one that redis-rs makes by default, as rslock's is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use peers_rust::{COUNT, Kind, PERMITS, Peer, PeerLock, serve};
use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const COMPARE_AND_DELETE: &str = include_str!("../../../../support/compare_and_delete.lua");

const TAKE_ONE: &str = include_str!("../../../../support/take_one.lua");

const COUNT_DOWN: &str = "return redis.call('DECR', KEYS[1])";

const LEASE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    serve("SET NX PX + script, redis-rs 1.8.1", Floor::connect).await;
}

struct Floor {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
    queues: StdMutex<HashMap<String, Arc<Semaphore>>>,
}

struct Scripts {
    release: redis::Script,
    take_one: redis::Script,
    count_down: redis::Script,
}

impl Floor {
    async fn connect(url: String) -> Self {
        let client = redis::Client::open(url).expect("a client");
        let connection = client.get_multiplexed_async_connection();
        Self {
            connection: connection.await.expect("the server takes connections"),
            scripts: Arc::new(Scripts {
                release: redis::Script::new(COMPARE_AND_DELETE),
                take_one: redis::Script::new(TAKE_ONE),
                count_down: redis::Script::new(COUNT_DOWN),
            }),
            queues: StdMutex::default(),
        }
    }
}

impl Peer for Floor {
    type Lock = FloorLock;

    async fn prepare(&self, kind: Kind, name: &str) {
        let number = match kind {
            Kind::Permit => PERMITS,
            Kind::CountDown => COUNT,
            _ => return,
        };
        let mut set = redis::cmd("SET");
        set.arg(name).arg(number).arg("NX");
        let set = set.exec_async(&mut self.connection.clone()).await;
        set.expect("a reply");
    }

    fn lock(
        &self,
        kind: Kind,
        name: &str,
        lease: Option<Duration>,
    ) -> Result<FloorLock, &'static str> {
        if lease.is_some() {
            return Err("no wait between processes");
        }
        let together = match kind {
            Kind::Permit => PERMITS as usize,
            Kind::CountDown => Semaphore::MAX_PERMITS,
            _ => 1,
        };
        let mut queues = self.queues.lock().expect("nobody panics in here");
        let queue = queues.entry(name.to_owned());
        Ok(FloorLock {
            connection: self.connection.clone(),
            scripts: Arc::clone(&self.scripts),
            queue: Arc::clone(queue.or_insert_with(|| Arc::new(Semaphore::new(together)))),
            kind,
            name: name.to_owned(),
            owner: format!("{:032x}", fastrand::u128(..)),
        })
    }
}

struct FloorLock {
    connection: MultiplexedConnection,
    scripts: Arc<Scripts>,
    /// Its tasks wait here for what others have.
    queue: Arc<Semaphore>,
    kind: Kind,
    name: String,
    owner: String,
}

impl FloorLock {
    async fn number(&mut self, script: impl Fn(&Scripts) -> &redis::Script) -> i64 {
        let call = script(&self.scripts).key(&self.name);
        let left = call.invoke_async(&mut self.connection);
        left.await.expect("a reply")
    }
}

impl PeerLock for FloorLock {
    type Guard = OwnedSemaphorePermit;

    async fn acquire(&mut self) -> Result<Self::Guard, String> {
        let turn = Arc::clone(&self.queue).acquire_owned().await;
        let turn = turn.expect("it is not closed");
        match self.kind {
            Kind::Permit => assert!(self.number(|all| &all.take_one).await >= 0, "one is free"),
            Kind::CountDown => assert!(self.number(|all| &all.count_down).await > 0),
            _ => {
                let mut set = redis::cmd("SET");
                set.arg(&self.name).arg(&self.owner);
                set.arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
                let answer: redis::Value = set
                    .query_async(&mut self.connection)
                    .await
                    .expect("a reply");
                assert_eq!(answer, redis::Value::Okay, "nobody else wants it");
            }
        }
        Ok(turn)
    }

    async fn release(&mut self, turn: Self::Guard) {
        match self.kind {
            Kind::Permit => {
                let mut give = redis::cmd("INCR");
                let given = give.arg(&self.name).query_async(&mut self.connection);
                let free: u32 = given.await.expect("a reply");
                assert!(free <= PERMITS);
            }
            Kind::CountDown => {}
            _ => {
                let mut call = self.scripts.release.key(&self.name);
                let freed = call.arg(&self.owner).invoke_async(&mut self.connection);
                let freed: u32 = freed.await.expect("a reply");
                assert_eq!(freed, 1, "it is held until it is released");
            }
        }
        drop(turn);
    }
}
