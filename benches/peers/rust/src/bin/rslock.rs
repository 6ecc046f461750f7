//! rslock, as its README shows it: `LockManager::new`, `acquire`, which asks until it has the lock,
//! and `guard.release()`. Its defaults: three attempts, random pauses of up to 200 ms between them,
//! then three more at once, and so on. It has no fair and no read-write lock.

use std::time::Duration;

use peers_rust::{Kind, Peer, PeerLock, serve};
use rslock::{LockGuard, LockManager};

/// It has to be given a lease and renews nothing.
const LEASE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    serve("rslock 0.10.0, redis-rs 1.8.1", async |url| {
        Rslock(LockManager::new(vec![url]))
    })
    .await;
}

struct Rslock(LockManager);

impl Peer for Rslock {
    type Lock = Lock;

    fn lock(&self, kind: Kind, name: &str, lease: Option<Duration>) -> Result<Lock, &'static str> {
        match kind {
            Kind::Exclusive => Ok(Lock {
                manager: self.0.clone(),
                name: name.to_owned(),
                lease: lease.unwrap_or(LEASE),
            }),
            Kind::Fair => Err("no fair lock"),
            Kind::Read | Kind::Write => Err("no read-write lock"),
            Kind::Permit => Err("no semaphore"),
            Kind::CountDown => Err("no latch"),
        }
    }
}

struct Lock {
    manager: LockManager,
    name: String,
    lease: Duration,
}

impl PeerLock for Lock {
    type Guard = LockGuard;

    async fn acquire(&mut self) -> Result<LockGuard, String> {
        let name = self.name.as_bytes();
        let guard = self.manager.acquire(name, self.lease).await;
        guard.map_err(|error| error.to_string())
    }

    async fn release(&mut self, guard: LockGuard) {
        guard.release().await;
    }
}
