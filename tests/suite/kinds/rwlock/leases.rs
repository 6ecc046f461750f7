//! Each read hold has its own lease.

use std::time::{Duration, Instant};

use lockset::Owner;
use lockset_testkit::{Redisson, eventually, within};

use super::{Scene, process};
use crate::support::{LEASE, SLACK, SOON, took_less, took_less_until};

/// A lease that ends soon after the first poll of a patient client.
const BEYOND_A_POLL: Duration = Duration::from_millis(1_100);

/// Before the second poll, if each pause takes a second.
const SECOND_POLL: Duration = Duration::from_millis(1_900);

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap()
}

/// The lease of a dead reader ends while another reads.
#[tokio::test]
async fn a_dead_reader_ends_with_its_lease_beside_a_live_one() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let mut other = process::that_reads(&scene.server, &scene.name);
    let dead = scene.holder().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    assert_eq!(scene.hash().await.len(), 3, "both read");
    other.kill();
    eventually(LEASE + SLACK, "its lease ends", async || {
        scene.read_lease(&dead, 1).await == -2
    })
    .await;
    let lock = scene.lock(&theirs);
    let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.writers_wait(1).await;
    // Longer than any lease of the dead reader.
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished() && !reader.is_lost());
    let released = Instant::now();
    reader.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    took_less(released, SLACK);
    scene.nothing_left([&ours, &theirs]).await;
}

/// A reader leaves while the lease of a dead reader still runs.
#[tokio::test]
async fn a_dead_reader_delays_a_writer_until_its_lease_ends() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let mut other = process::that_reads(&scene.server, &scene.name);
    let dead = scene.holder().await;
    let reader = scene.lock(&ours).read().await.unwrap();
    other.kill();
    let killed = Instant::now();
    let lock = scene.lock(&theirs);
    let waiter = lockset_testkit::spawn(async move {
        let guard = lock.write().await.unwrap();
        (Instant::now(), guard)
    });
    let asked = Instant::now();
    let rest = scene.read_lease(&dead, 1).await;
    assert!(rest > 0 && rest <= ms(LEASE), "{rest}");
    reader.release().await.unwrap();
    let (entered, guard) = within(SOON, waiter).await.unwrap();
    let rest = Duration::from_millis(u64::try_from(rest).unwrap());
    assert!(
        entered + Duration::from_millis(2) >= asked + rest,
        "before its end"
    );
    took_less_until(entered, killed, LEASE + SLACK);
    guard.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

#[tokio::test]
async fn a_short_lease_shortens_no_other() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let minute = Duration::from_secs(60);
    let long = scene.lock(&ours).fixed_lease(minute).read().await.unwrap();
    let holder = scene.holder().await;
    let check = async || {
        for lease in [scene.lease().await, scene.read_lease(&holder, 1).await] {
            assert!((50_000..=60_000).contains(&lease), "{lease}");
        }
    };
    let second = Duration::from_secs(1);
    let short = scene.lock(&theirs).fixed_lease(second);
    short.read().await.unwrap().release().await.unwrap();
    check().await;
    let short = scene.lock(&theirs).fixed_lease(Duration::from_millis(100));
    let ends = short.read().await.unwrap();
    check().await;
    within(SOON, ends.lost()).await;
    check().await;
    drop(ends);
    let renewed = scene.lock(&theirs).lease(LEASE);
    let renewed = renewed.read().await.unwrap();
    tokio::time::sleep(LEASE * 2).await;
    assert!(!renewed.is_lost());
    check().await;
    renewed.release().await.unwrap();
    // Another lease of the same owner does not change it either.
    let own = scene.lock(&ours).owner(long.owner());
    let own = own.fixed_lease(second).read().await;
    check().await;
    own.unwrap().release().await.unwrap();
    check().await;
    assert!(long.remaining() > Duration::from_secs(50));
    long.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// A reader with a long lease leaves; one with a short lease never does.
#[tokio::test]
async fn a_released_long_lease_does_not_keep_the_lock() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let long = scene.lock(&ours).fixed_lease(Duration::from_secs(60));
    let short = Duration::from_secs(2);
    for holds in [1, 2] {
        let guard = long.read().await.unwrap();
        let own = scene.lock(&ours).owner(guard.owner()).fixed_lease(short);
        let second = match holds {
            1 => None,
            _ => Some(own.read().await.unwrap()),
        };
        let started = Instant::now();
        scene
            .lock(&theirs)
            .fixed_lease(short)
            .read()
            .await
            .unwrap()
            .forget();
        let lock = scene.lock(&theirs);
        let waiter = lockset_testkit::spawn(async move {
            let guard = lock.write().await.unwrap();
            (Instant::now(), guard)
        });
        scene.writers_wait(1).await;
        // This reader leaves in one step, the other in two.
        drop((guard, second));
        eventually(SLACK, "the key lives no longer than the rest", async || {
            (1..=ms(short)).contains(&scene.lease().await)
        })
        .await;
        let (entered, guard) = within(SOON, waiter).await.unwrap();
        let waited = entered - started;
        assert!(waited >= short, "{waited:?}");
        took_less_until(entered, started, short * 2 + SLACK);
        guard.release().await.unwrap();
        scene.nothing_left([&ours, &theirs]).await;
    }
}

#[tokio::test]
async fn the_read_hold_of_an_owner_is_renewed() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let guards = [
        lock.read().await.unwrap(),
        lock.read().await.unwrap(),
        lock.read().await.unwrap(),
    ];
    let holder = scene.holder().await;
    let started = Instant::now();
    while started.elapsed() < LEASE * 3 {
        let lease = scene.read_lease(&holder, 1).await;
        assert!((1..=ms(LEASE)).contains(&lease), "{lease}");
        assert!((1..=ms(LEASE)).contains(&scene.lease().await));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for guard in guards {
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
    scene.nothing_left([&ours]).await;
}

/// An owner holds both sides for some leases, and then only reads.
#[tokio::test]
async fn a_reader_that_wrote_is_renewed() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let full = LEASE * 2;
    let lock = scene.lock(&ours).lease(full).owner(&Owner::new());
    let writer = lock.write().await.unwrap();
    let reader = lock.read().await.unwrap();
    let holder = scene.holder().await;
    let stays = async |reads: bool| {
        let started = Instant::now();
        while started.elapsed() < full * 3 / 2 {
            let mut leases = vec![scene.lease().await];
            if reads {
                leases.push(scene.read_lease(&holder, 1).await);
            }
            for lease in leases {
                assert!((1..=ms(full)).contains(&lease), "{lease}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    stays(false).await;
    writer.release().await.unwrap();
    stays(true).await;
    assert!(!reader.is_lost());
    assert!(scene.lock(&theirs).try_write().await.unwrap().is_none());
    reader.release().await.unwrap();
    // And one that was downgraded.
    let reader = lock.write().await.unwrap().downgrade().await.unwrap();
    let lost = tokio::time::timeout(full * 2, reader.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    assert!(scene.lock(&theirs).try_write().await.unwrap().is_none());
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// As on a server that runs out of memory.
#[tokio::test]
async fn an_evicted_timeout_key_is_healed_by_the_next_renewal() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let guards = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    let holder = scene.holder().await;
    for _ in 0..2 {
        let key = Redisson::read_hold(&scene.name, &holder, 1);
        let deleted: i64 = scene.ask(&["DEL", &key]).await;
        assert_eq!(deleted, 1);
        eventually(LEASE, "the next renewal", async || {
            scene.read_lease(&holder, 1).await > 0
        })
        .await;
    }
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    assert!(scene.lock(&theirs).try_write().await.unwrap().is_none());
    for guard in guards {
        guard.release().await.unwrap();
    }
    scene.nothing_left([&ours, &theirs]).await;
}

/// For example Redisson's readers.
#[tokio::test]
async fn leases_of_a_writer_that_enters_again_do_not_add_up() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let mut guards = vec![lock.write().await.unwrap()];
    for _ in 0..3 {
        guards.push(lock.write().await.unwrap());
        guards.push(guards[0].reenter().await.unwrap());
        let lease = scene.lease().await;
        assert!((25_000..=30_000).contains(&lease), "{lease}");
    }
    for guard in guards {
        guard.release().await.unwrap();
        assert!(scene.lease().await <= 30_000);
    }
    scene.nothing_left([&ours]).await;
}

/// The fixed lease of a writer ends, and all waiting readers come in.
#[tokio::test]
async fn readers_come_when_a_writers_lease_is_over() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lease = BEYOND_A_POLL;
    let started = Instant::now();
    let writer = scene.lock(&ours).fixed_lease(lease).write().await.unwrap();
    let waiters = [&ours, &theirs, &theirs].map(|client| {
        let lock = scene.lock(client);
        lockset_testkit::spawn(async move {
            let guard = lock.read().await.unwrap();
            (Instant::now(), guard)
        })
    });
    for waiter in waiters {
        let (entered, guard) = within(SOON, waiter).await.unwrap();
        let waited = entered - started;
        assert!(waited >= lease && waited < SECOND_POLL, "{waited:?}");
        guard.release().await.unwrap();
    }
    assert!(writer.release().await.unwrap_err().is_not_held());
    scene.nothing_left([&ours, &theirs]).await;
}

/// A writer is granted the lock when the longest lease of readers that never leave has ended.
#[tokio::test]
async fn a_writer_comes_when_the_last_readers_lease_is_over() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let (short, long) = (Duration::from_millis(150), BEYOND_A_POLL);
    let started = Instant::now();
    let dead = [
        scene.lock(&ours).fixed_lease(long).read().await.unwrap(),
        scene.lock(&ours).fixed_lease(short).read().await.unwrap(),
        scene.lock(&theirs).fixed_lease(short).read().await.unwrap(),
    ];
    // A reader that leaves does not affect the other leases.
    let left = scene.lock(&theirs).fixed_lease(long).read().await.unwrap();
    left.release().await.unwrap();
    let writer = within(SOON, scene.lock(&theirs).write()).await.unwrap();
    let waited = started.elapsed();
    assert!(waited >= long && waited < SECOND_POLL, "{waited:?}");
    for reader in dead {
        assert!(reader.is_lost());
        assert!(reader.release().await.unwrap_err().is_not_held());
    }
    assert!(!writer.is_lost());
    writer.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// The server returns empty: existing holds are lost, and new holds are renewed.
#[tokio::test]
async fn a_new_hold_is_renewed_after_the_old_one_was_lost() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let owner = Owner::new();
    let lock = scene.lock(&ours).owner(&owner);
    let (writer, reader) = (lock.write().await.unwrap(), lock.read().await.unwrap());
    scene.server.restart();
    within(SOON, writer.lost()).await;
    assert!(reader.is_lost());
    let again = within(SOON, lock.read()).await.unwrap();
    assert!(writer.release().await.unwrap_err().is_not_held());
    assert!(reader.release().await.unwrap_err().is_not_held());
    let lost = tokio::time::timeout(LEASE * 2, again.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    again.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}
