//! Our holds beside Redisson's for several leases: neither side ends the other's holds.

use std::time::{Duration, Instant};

use lockset::Owner;
use lockset_testkit::Redisson;

use super::Scene;
use crate::support::LEASE;

/// How late a renewal may be on a busy machine.
const LATE: i64 = 600;

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap()
}

/// Redisson's read unlock recomputes the lease of the lock from the keys of all read holds.
#[tokio::test]
async fn a_read_unlock_of_redisson_leaves_us_our_lease() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let owner = Owner::new();
    let lock = scene.lock(&ours).owner(&owner);
    let name = &*scene.name;
    for is_downgraded in [false, true] {
        let reader = if is_downgraded {
            lock.write().await.unwrap().downgrade().await.unwrap()
        } else {
            lock.read().await.unwrap()
        };
        let again = lock.read().await.unwrap();
        let minute = Duration::from_secs(60);
        assert_eq!(peer.read_acquire(name, 1, minute).await, None);
        assert!(scene.lease().await > 50_000, "its own is the longer one");
        // Redisson's watchdog shortens the lease of the lock, including ours, until it leaves or we
        // renew.
        assert!(peer.read_renew(name, &[1], Duration::from_secs(5)).await);
        assert!(scene.lease().await <= 5_000);
        assert!(scene.read_lease(&scene.reader_but(&peer).await, 1).await > 25_000);
        assert_eq!(peer.read_release(name, 1).await, Some(0));
        let lease = scene.lease().await;
        assert!((25_000..=30_000).contains(&lease), "{lease}");
        assert!(!reader.is_lost());
        assert!(scene.lock(&theirs).try_write().await.unwrap().is_none());
        again.release().await.unwrap();
        // A short read hold of Redisson that leaves, or never does.
        let short = Duration::from_millis(100);
        assert_eq!(peer.read_acquire(name, 2, short).await, None);
        assert_eq!(peer.read_acquire(name, 3, short).await, None);
        assert_eq!(peer.read_release(name, 2).await, Some(0));
        let lease = scene.lease().await;
        assert!((25_000..=30_000).contains(&lease), "{lease}");
        reader.release().await.unwrap();
        // Only the dead Redisson hold is left.
        assert!(scene.lease().await <= 100);
        tokio::time::sleep(short).await;
        let writer = scene.lock(&theirs).try_write().await.unwrap();
        writer.expect("all are gone").release().await.unwrap();
    }
    scene.nothing_left([&ours, &theirs]).await;
}

/// The reverse case.
#[tokio::test]
async fn our_read_release_leaves_redisson_its_lease() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let name = &*scene.name;
    let (short, long) = (Duration::from_secs(5), Duration::from_secs(120));
    for lease in [short, long] {
        assert_eq!(peer.read_acquire(name, 1, lease).await, None);
        assert_eq!(peer.read_acquire(name, 1, lease).await, None);
        let reader = scene.lock(&ours).read().await.unwrap();
        reader.release().await.unwrap();
        let (rest, whole) = (scene.lease().await, ms(lease));
        assert!((whole - 1_000..=whole).contains(&rest), "{rest}");
        assert_eq!(peer.read_release(name, 1).await, Some(0));
        assert_eq!(peer.read_release(name, 1).await, Some(1));
    }
    scene.nothing_left([&ours]).await;
}

/// Both watchdogs on one lock that both sides read, each with the longer lease in turn.
#[tokio::test]
async fn two_watchdogs_keep_two_readers() {
    for their_lease in [LEASE * 2, LEASE * 4] {
        let scene = Scene::new().await;
        let [ours, theirs] = scene.quick().await;
        let our_lease = LEASE * 2;
        let peer = Redisson::connect(&scene.server).await;
        let name = &*scene.name;
        let lock = scene.lock(&ours).lease(our_lease).owner(&Owner::new());
        let guards = [lock.read().await.unwrap(), lock.read().await.unwrap()];
        let holder = scene.holder().await;
        for thread in [1, 2] {
            assert_eq!(peer.read_acquire(name, thread, their_lease).await, None);
        }
        let started = Instant::now();
        let mut renewed = Instant::now();
        while started.elapsed() < our_lease * 3 {
            if renewed.elapsed() >= their_lease / 3 {
                assert!(peer.read_renew(name, &[1, 2], their_lease).await);
                renewed = Instant::now();
            }
            for thread in [1, 2] {
                let lease = scene.read_lease(&peer.holder(thread), 1).await;
                let least = ms(their_lease) * 2 / 3 - LATE;
                assert!(lease > least, "{lease} ms of Redisson's lease are left");
            }
            let lease = scene.read_lease(&holder, 1).await;
            assert!(
                lease > ms(our_lease) * 2 / 3 - LATE,
                "of ours {lease} is left"
            );
            let longer = ms(their_lease.max(our_lease)) * 2 / 3 - LATE;
            let lease = scene.lease().await;
            assert!(lease > longer, "of the lock {lease} is left");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(guards.iter().all(|guard| !guard.is_lost()));
        // Redisson's threads leave one after another, and our readers stay.
        for thread in [1, 2] {
            assert_eq!(peer.read_release(name, thread).await, Some(0));
            let lost = tokio::time::timeout(our_lease * 3 / 2, guards[0].lost()).await;
            assert!(lost.is_err(), "{lost:?}");
        }
        let writer = scene.lock(&theirs).try_write().await.unwrap();
        assert!(!guards[0].is_lost(), "the test stalled");
        assert!(writer.is_none());
        for guard in guards {
            guard.release().await.unwrap();
        }
        scene.nothing_left([&ours, &theirs]).await;
    }
}

/// A Redisson writer while ours wait, then ours while Redisson's wait.
#[tokio::test]
async fn either_watchdog_keeps_its_writer() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let peer = Redisson::connect(&scene.server).await;
    let (name, lease) = (&*scene.name, LEASE * 2);
    assert_eq!(peer.write_acquire(name, 1, lease).await, None);
    let waiter = {
        let lock = scene.lock(&ours).lease(lease).owner(&Owner::new());
        lockset_testkit::spawn(async move {
            let writer = lock.write().await.unwrap();
            let reader = lock.read().await.unwrap();
            (writer, reader)
        })
    };
    let started = Instant::now();
    while started.elapsed() < lease * 2 {
        assert!(peer.write_renew(name, 1, lease).await, "it still writes");
        assert!(!waiter.is_finished());
        tokio::time::sleep(lease / 3).await;
    }
    assert_eq!(peer.write_release(name, 1).await, Some(1));
    let (writer, reader) = super::within(super::SOON, waiter).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < lease * 2 {
        for refused in [
            peer.write_acquire(name, 1, lease).await,
            peer.read_acquire(name, 1, lease).await,
        ] {
            assert!(refused.is_some_and(|ttl| ttl <= ms(lease)), "{refused:?}");
        }
        assert!(!peer.write_renew(name, 1, lease).await, "it does not write");
        assert!(!peer.read_renew(name, &[1], lease).await, "nor read");
        assert!(scene.lease().await > 0);
        tokio::time::sleep(lease / 6).await;
    }
    assert!(!writer.is_lost());
    writer.release().await.unwrap();
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// The keys of a dead Redisson reader expire, even if our readers keep renewing.
#[tokio::test]
async fn a_dead_redisson_reader_ends_with_its_lease() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let peer = Redisson::connect(&scene.server).await;
    let lease = LEASE * 2;
    let reader = scene.lock(&ours).lease(lease).read().await.unwrap();
    let name = &*scene.name;
    assert_eq!(peer.read_acquire(name, 1, LEASE).await, None);
    tokio::time::sleep(lease * 3 / 2).await;
    assert_eq!(scene.read_lease(&peer.holder(1), 1).await, -2);
    assert!(!reader.is_lost());
    let lock = scene.lock(&theirs);
    let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.writers_wait(1).await;
    reader.release().await.unwrap();
    let guard = super::within(LEASE, waiter).await.unwrap();
    guard.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}
