//! Many tasks and clients on one lock. `make test` runs these tests alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockset_testkit::{Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{client, idle, nothing_left, patient_client};

/// The work under the lock: increments a counter in two steps with a yield in between. Holders that
/// share the lock only read, twice.
async fn work<L: Primitive>(counter: &AtomicU64) {
    let seen = counter.load(Ordering::Relaxed);
    tokio::task::yield_now().await;
    if L::IS_SHARED {
        assert_eq!(
            counter.load(Ordering::Relaxed),
            seen,
            "another task counted"
        );
    } else {
        counter.store(seen + 1, Ordering::Relaxed);
    }
}

async fn work_rounds<L: Primitive>(lock: L, counter: Arc<AtomicU64>, rounds: u64, parity: u64) {
    let mut last = None;
    for round in 0..rounds {
        let guard = lock.lock().await.unwrap();
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        work::<L>(&counter).await;
        assert!(!guard.is_lost());
        // Alternates between releasing and dropping.
        if (parity + round).is_multiple_of(2) {
            guard.release().await.unwrap();
        }
    }
}

async fn an_unprotected_counter_is_exact<P: Primitive>() {
    const CLIENTS: u64 = 4;
    const PAIRS: u64 = 32;
    const ROUNDS: u64 = 20;
    let server = Server::start();
    let name = unique_name("lock");
    let counter = Arc::new(AtomicU64::new(0));
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let client = client(&server.url()).await;
        for pair in 0..PAIRS {
            let lock = P::of(&client, &name).fenced();
            let rival = P::rival(&client, &name).fenced();
            let ours = work_rounds(lock, Arc::clone(&counter), ROUNDS, pair);
            let theirs = work_rounds(rival, Arc::clone(&counter), ROUNDS, pair + 1);
            tasks.push(lockset_testkit::spawn(ours));
            tasks.push(lockset_testkit::spawn(theirs));
        }
        clients.push(client);
    }
    for task in tasks {
        within(Duration::from_secs(60), task).await.unwrap();
    }
    let adders = if P::IS_SHARED { 1 } else { 2 };
    let expected = CLIENTS * PAIRS * ROUNDS * adders;
    assert_eq!(counter.load(Ordering::Relaxed), expected);
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&server).await;
}

/// A client with many queued tasks does not starve other clients.
async fn no_client_starves<P: Primitive>() {
    let server = Server::start();
    let name = unique_name("lock");
    let (busy, lone) = (client(&server.url()).await, client(&server.url()).await);
    gets_in_beside(P::of(&busy, &name), P::rival(&lone, &name)).await;
    gets_in_beside(P::rival(&busy, &name), P::of(&lone, &name)).await;
}

async fn gets_in_beside<C: Primitive, L: Primitive>(crowded: C, lone: L) {
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let crowd: Vec<_> = (0..32)
        .map(|_| {
            let (lock, stop) = (crowded.clone(), Arc::clone(&stop));
            lockset_testkit::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    lock.lock().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let guard = within(Duration::from_secs(2), lone.lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in crowd {
        within(Duration::from_secs(5), task).await.unwrap();
    }
}

/// Thousands of dropped guards do not delay the renewal of another hold.
async fn releases_do_not_delay_renewals<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lease = Duration::from_secs(1);
    let short = P::of(&client, &unique_name("short")).lease(lease);
    let held = short.lock().await.unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // The same number of locks at the server for every kind.
    let crowd: Vec<_> = (0..400 / P::names("").len())
        .map(|_| {
            let lock = P::of(&client, &unique_name("lock"));
            let stop = Arc::clone(&stop);
            lockset_testkit::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    drop(lock.lock().await.unwrap());
                }
            })
        })
        .collect();
    let lost = tokio::time::timeout(lease * 4, held.lost()).await;
    stop.store(true, Ordering::Relaxed);
    for task in crowd {
        within(Duration::from_secs(5), task).await.unwrap();
    }
    assert!(lost.is_err(), "{lost:?}");
    held.release().await.unwrap();
    idle(&client).await;
}

for_every_primitive! {"multi_thread":
    an_unprotected_counter_is_exact
    no_client_starves
    releases_do_not_delay_renewals
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    an_unprotected_counter_is_exact
    no_client_starves
    releases_do_not_delay_renewals
}
