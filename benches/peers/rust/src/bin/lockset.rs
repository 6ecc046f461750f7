//! lockset, as its README shows it: one client, `lock(name).lock()`, `release()`. Nothing is set but the
//! lease where a job names one.

use std::time::Duration;

use lockset::{
    Client, FairGuard, FairLock, Latch, ReadGuard, ReadSide, ReentrantGuard, ReentrantLock,
    Semaphore, SemaphoreGuard, WriteGuard, WriteSide,
};
use peers_rust::{COUNT, Kind, PERMITS, Peer, PeerLock, serve};

#[tokio::main]
async fn main() {
    serve("lockset 0.1.0, redis-rs 1.8.1", async |url| {
        Lockset(
            Client::connect(&url)
                .await
                .expect("the server takes connections"),
        )
    })
    .await;
}

struct Lockset(Client);

impl Peer for Lockset {
    type Lock = Lock;

    async fn prepare(&self, kind: Kind, name: &str) {
        if kind == Kind::CountDown {
            let made = self.0.latch(name).init(COUNT.into()).await;
            made.expect("the server takes a latch");
        }
    }

    fn lock(&self, kind: Kind, name: &str, lease: Option<Duration>) -> Result<Lock, &'static str> {
        let client = &self.0;
        Ok(match (kind, lease) {
            (Kind::Exclusive, None) => Lock::Exclusive(client.lock(name)),
            (Kind::Exclusive, Some(lease)) => Lock::Exclusive(client.lock(name).lease(lease)),
            (Kind::Fair, _) => Lock::Fair(client.fair_lock(name)),
            (Kind::Read, _) => Lock::Read(client.rw_lock(name).read_side()),
            (Kind::Write, _) => Lock::Write(client.rw_lock(name).write_side()),
            (Kind::Permit, _) => Lock::Permit(client.semaphore(name).permits(PERMITS).into()),
            (Kind::CountDown, _) => Lock::CountDown(client.latch(name)),
        })
    }
}

enum Lock {
    Exclusive(ReentrantLock),
    Fair(FairLock),
    Read(ReadSide),
    Write(WriteSide),
    Permit(Box<Semaphore>),
    CountDown(Latch),
}

enum Guard {
    Exclusive(ReentrantGuard),
    Fair(FairGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Permit(SemaphoreGuard),
    Counted,
}

impl PeerLock for Lock {
    type Guard = Guard;

    async fn acquire(&mut self) -> Result<Guard, String> {
        let guard = match self {
            Self::Exclusive(lock) => lock.lock().await.map(Guard::Exclusive),
            Self::Fair(lock) => lock.lock().await.map(Guard::Fair),
            Self::Read(lock) => lock.lock().await.map(Guard::Read),
            Self::Write(lock) => lock.lock().await.map(Guard::Write),
            Self::Permit(semaphore) => semaphore.acquire().await.map(Guard::Permit),
            Self::CountDown(latch) => latch.count_down().await.map(|()| Guard::Counted),
        };
        guard.map_err(|error| error.to_string())
    }

    async fn release(&mut self, guard: Guard) {
        let released = match guard {
            Guard::Exclusive(guard) => guard.release().await,
            Guard::Fair(guard) => guard.release().await,
            Guard::Read(guard) => guard.release().await,
            Guard::Write(guard) => guard.release().await,
            Guard::Permit(guard) => guard.release().await,
            Guard::Counted => Ok(()),
        };
        released.expect("a hold that was kept");
    }
}
