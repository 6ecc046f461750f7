//! Many callers of a few locks while slots move and primaries fail over. No data is lost, so
//! holders must always exclude each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockset::{Client, Error};
use lockset_testkit::{Cluster, FailOver, within};

use super::{A_WHILE, client, nothing_left};
use crate::support::idle;

/// Longer than any of the changes.
const LEASE: Duration = Duration::from_secs(20);
const KINDS: [&str; 3] = ["reentrant", "fair", "written"];

/// How often each lock was granted, and how many hold it now.
#[derive(Default)]
struct Tally {
    had: [AtomicU64; 3],
    inside: [AtomicU32; 3],
    is_over: AtomicBool,
}

impl Tally {
    async fn visit(&self, kind: usize) {
        let others = self.inside[kind].fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "another holder is inside");
        tokio::task::yield_now().await;
        self.inside[kind].fetch_sub(1, Ordering::SeqCst);
        self.had[kind].fetch_add(1, Ordering::SeqCst);
    }

    fn had(&self) -> [u64; 3] {
        [0, 1, 2].map(|kind| self.had[kind].load(Ordering::SeqCst))
    }
}

/// Acquires the lock, then releases or drops the guard. Continues after errors of a cluster in
/// transition.
async fn worker(client: Client, tally: Arc<Tally>, kind: usize) {
    let name = format!("{{turmoil}}{}", KINDS[kind]);
    let may_fail = |error: Error| assert!(error.is_transient(), "{error}");
    let mut turn = 0;
    while !tally.is_over.load(Ordering::SeqCst) {
        turn += 1;
        macro_rules! take {
            ($lock:expr) => {
                match $lock.await {
                    Ok(guard) => {
                        tally.visit(kind).await;
                        assert!(!guard.is_lost(), "no data is lost");
                        if turn % 3 > 0 {
                            guard.release().await.unwrap_or_else(may_fail);
                        }
                    }
                    Err(error) => may_fail(error),
                }
            };
        }
        match kind {
            0 => take!(client.lock(&name).lock()),
            1 => take!(client.fair_lock(&name).lock()),
            _ => take!(client.rw_lock(&name).write()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holders_exclude_each_other_while_slots_and_primaries_move() {
    let cluster = Cluster::start().await;
    let tally = Arc::<Tally>::default();
    let mut clients = Vec::new();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let client = client(&cluster, LEASE).await;
        for kind in [0, 0, 1, 1, 2, 2] {
            let tally = Arc::clone(&tally);
            workers.push(lockset_testkit::spawn(worker(client.clone(), tally, kind)));
        }
        clients.push(client);
    }
    let slot = cluster.slot("{turmoil}").await;
    for _ in 0..3 {
        let before = tally.had();
        cluster.fail_over("{turmoil}", FailOver::Graceful).await;
        cluster.is_well().await;
        let to = super::another(&cluster, "{turmoil}").await;
        cluster.migrate(slot, to).await;
        // All tasks make progress after the changes.
        within(A_WHILE, async {
            while tally
                .had()
                .iter()
                .zip(before)
                .any(|(now, before)| *now < before + 10)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
        assert!(workers.iter().all(|worker| !worker.is_finished()));
    }
    tally.is_over.store(true, Ordering::SeqCst);
    for worker in workers {
        within(A_WHILE, worker).await.unwrap();
    }
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&cluster, "turmoil").await;
}
