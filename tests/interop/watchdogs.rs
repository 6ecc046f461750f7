//! Redisson's watchdog and ours side by side, for several leases.

use std::time::{Duration, Instant};

use lockset_testkit::unique_name;

use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SHORT};

/// How many leases a test runs for.
const LEASES: u32 = 3;

async fn each_side_keeps_what_it_holds(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, ours, theirs) = (&pair.java, unique_name("lock"), unique_name("lock"));
    let guard = kind.rust(&pair.rust, &ours).lock().await;
    java.tell(1, "lock", &kind.java(&theirs)).await;
    let started = Instant::now();
    while started.elapsed() < SHORT * LEASES {
        assert!(!java.is(2, "try_lock", &kind.rival().java(&ours)).await);
        let rival = kind.rival().rust(&pair.rust, &theirs);
        assert!(rival.try_lock().await.is_none());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    java.tell(1, "unlock", &kind.java(&theirs)).await;
    pair.nothing_left().await;
}

for_kinds! {
    each_side_keeps_what_it_holds: lock fenced fair read write multi;
}

/// Both sides renew the same key, each with its own lease.
async fn readers_of_both_sides_read_on(rust: Duration, java: Duration) {
    let pair = Pair::with_leases(rust, java).await;
    let name = unique_name("lock");
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    let lock = pair.rust.rw_lock(&name);
    for java_stays in [true, false] {
        let mut ours = Some(lock.read().await.unwrap());
        pair.java.tell(1, "lock", &read).await;
        let holder = pair.java.holder(1).await;
        let writers_are_excluded = async || {
            assert!(!pair.java.is(2, "try_lock", &write).await);
            assert!(lock.try_write().await.unwrap().is_none());
            // Each hold has its own lease, which the other side's renewals do not shorten.
            for seen in lock.read_side().holders().await.unwrap() {
                let lease = if seen.id == holder { java } else { rust };
                assert!(seen.remaining > lease / 4, "{seen:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let together = Instant::now();
        while together.elapsed() < rust.max(java) * LEASES {
            writers_are_excluded().await;
        }
        assert!(!ours.as_ref().unwrap().is_lost());
        if java_stays {
            ours.take().unwrap().release().await.unwrap();
        } else {
            pair.java.tell(1, "unlock", &read).await;
        }
        let alone = Instant::now();
        while alone.elapsed() < rust.max(java) * 3 / 2 {
            writers_are_excluded().await;
        }
        match ours {
            Some(guard) => guard.release().await.unwrap(),
            None => drop(pair.java.tell(1, "unlock", &read).await),
        }
        lock.try_write()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    pair.nothing_left().await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn readers_of_both_sides_with_equal_leases_read_on() {
    readers_of_both_sides_read_on(SHORT, SHORT).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn readers_of_both_sides_with_a_shorter_lease_of_ours_read_on() {
    readers_of_both_sides_read_on(SHORT, SHORT * 2).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn readers_of_both_sides_with_a_shorter_lease_of_redissons_read_on() {
    readers_of_both_sides_read_on(SHORT * 2, SHORT).await;
}
