//! The floor: the least that a lock on this server can do, `SET NX PX` and a compare-and-delete.
//!
//! It has no way to wait. Tasks that want one lock queue in this process, under tokio's mutex, and still take and free
//! the lock at the server each time: a lower bound for every lock that is visible to others and not passed on inside
//! the process. It has no fair and no read-write lock either: it takes the exclusive one, and what others gain by
//! reading together shows. Its connection is the one that redis-rs makes by default, as rslock's is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use peers_rust::{Kind, Peer, PeerLock, serve};
use redis::aio::MultiplexedConnection;
use tokio::sync::{Mutex, OwnedMutexGuard};

const COMPARE_AND_DELETE: &str = include_str!("../../../../support/compare_and_delete.lua");

const LEASE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    serve("SET NX PX + script, redis-rs 1.8.1", Floor::connect).await;
}

struct Floor {
    connection: MultiplexedConnection,
    release: redis::Script,
    queues: StdMutex<HashMap<String, Arc<Mutex<()>>>>,
}

impl Floor {
    async fn connect(url: String) -> Self {
        let client = redis::Client::open(url).expect("a client");
        let connection = client.get_multiplexed_async_connection();
        Self {
            connection: connection.await.expect("the server takes connections"),
            release: redis::Script::new(COMPARE_AND_DELETE),
            queues: StdMutex::default(),
        }
    }
}

impl Peer for Floor {
    type Lock = FloorLock;

    fn lock(
        &self,
        _: Kind,
        name: &str,
        lease: Option<Duration>,
    ) -> Result<FloorLock, &'static str> {
        if lease.is_some() {
            return Err("no wait between processes");
        }
        let mut queues = self.queues.lock().expect("nobody panics in here");
        Ok(FloorLock {
            connection: self.connection.clone(),
            release: self.release.clone(),
            queue: Arc::clone(queues.entry(name.to_owned()).or_default()),
            name: name.to_owned(),
            owner: format!("{:032x}", fastrand::u128(..)),
        })
    }
}

struct FloorLock {
    connection: MultiplexedConnection,
    release: redis::Script,
    queue: Arc<Mutex<()>>,
    name: String,
    owner: String,
}

impl PeerLock for FloorLock {
    type Guard = OwnedMutexGuard<()>;

    async fn acquire(&mut self) -> Result<Self::Guard, String> {
        let turn = Arc::clone(&self.queue).lock_owned().await;
        let mut set = redis::cmd("SET");
        set.arg(&self.name).arg(&self.owner);
        set.arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
        let answer: redis::Value = set
            .query_async(&mut self.connection)
            .await
            .expect("a reply");
        assert_eq!(answer, redis::Value::Okay, "nobody else wants it");
        Ok(turn)
    }

    async fn release(&mut self, turn: Self::Guard) {
        let mut call = self.release.key(&self.name);
        let freed = call.arg(&self.owner).invoke_async(&mut self.connection);
        let freed: u32 = freed.await.expect("a reply");
        assert_eq!(freed, 1, "it is held until it is released");
        drop(turn);
    }
}
