//! The share of grants that one task gets of a lock that 64 tasks of another client keep
//! requesting.
//!
//! docs/design/fairness.md states the shares. They were measured by these tests, with `--nocapture`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockset::{FairLock, ReadSide, RedlockLock, ReentrantLock, WriteSide};
use lockset_testkit::{Server, unique_name, within};

use crate::primitive::{Guard, Multi, Primitive};
use crate::support::{idle, nothing_left, patient_client};

/// The number of tasks of the other client.
const CROWD: usize = 64;

/// An upper bound for all turns on a busy machine.
const ENOUGH: Duration = Duration::from_secs(100);

/// Acquires and releases the lock until `stop` is set.
async fn in_and_out<L: Primitive>(lock: L, grants: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let guard = lock.lock().await.unwrap();
        grants.fetch_add(1, Ordering::Relaxed);
        guard.release().await.unwrap();
    }
}

/// Measures the share of all grants that a task with a `One` gets over `turns` of its own.
async fn share<One: Primitive, Crowd: Primitive>(
    (kind, turns): (&str, u64),
    one: impl Fn(One) -> One,
    crowd: impl Fn(Crowd) -> Crowd,
) -> f64 {
    let server = Server::start();
    let busy = patient_client(&server.url()).await;
    let lone = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let (grants, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let tasks: Vec<_> = (0..CROWD)
        .map(|_| {
            let lock = crowd(Crowd::of(&busy, &name));
            lockset_testkit::spawn(in_and_out(lock, Arc::clone(&grants), Arc::clone(&stop)))
        })
        .collect();
    let lock = one(One::of(&lone, &name));
    let measured = async {
        // The first grant includes connecting.
        lock.lock().await.unwrap().release().await.unwrap();
        let before = grants.load(Ordering::Relaxed);
        for _ in 0..turns {
            lock.lock().await.unwrap().release().await.unwrap();
        }
        grants.load(Ordering::Relaxed) - before
    };
    let others = within(ENOUGH, measured).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        within(ENOUGH, task).await.unwrap();
    }
    idle(&busy).await;
    idle(&lone).await;
    nothing_left(&server).await;
    let share = turns as f64 / (turns + others) as f64;
    eprintln!("{kind}: one in {:.1}, {:.2} %", 1.0 / share, share * 100.0);
    share
}

/// Asserts that one task of the first kind among a crowd of the second gets at least one grant in
/// `$least`, over `$turns` grants of its own. Shares that depend on chance need more turns.
macro_rules! shares {
    ($($test:ident: $one:ty, among $crowd:ty, $one_with:expr, $crowd_with:expr, one in $least:expr, $turns:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $test() {
            let share = share::<$one, $crowd>((stringify!($test), $turns), $one_with, $crowd_with).await;
            assert!(share >= 1.0 / f64::from($least), "one in {:.1}", 1.0 / share);
        })*
    };
}

/// Long enough that no lease ends during a test.
const FIXED: Duration = Duration::from_secs(30);

/// Two read holds of the client, each joined by up to 1024 readers within 5 ms.
const READERS: u32 = 2 * 1024;

shares! {
    reentrant: ReentrantLock, among ReentrantLock, |lock| lock, |lock| lock, one in 80, 300;
    reentrant_with_a_fixed_lease: ReentrantLock, among ReentrantLock,
        |lock| lock, |lock| lock.fixed_lease(FIXED), one in 80, 300;
    fair: FairLock, among FairLock, |lock| lock, |lock| lock, one in 80, 60;
    fair_with_a_fixed_lease: FairLock, among FairLock,
        |lock| lock.fixed_lease(FIXED), |lock| lock.fixed_lease(FIXED), one in 80, 60;
    a_writer_among_writers: WriteSide, among WriteSide, |lock| lock, |lock| lock, one in 40, 300;
    a_writer_among_readers: WriteSide, among ReadSide, |lock| lock, |lock| lock, one in READERS, 60;
    a_reader_among_writers: ReadSide, among WriteSide, |lock| lock, |lock| lock, one in 80, 300;
    multi: Multi, among Multi, |lock| lock, |lock| lock, one in 40, 300;
    redlock: RedlockLock, among RedlockLock, |lock| lock, |lock| lock, one in 80, 300;
}
