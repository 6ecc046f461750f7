//! Readers of one client that share one hold at the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockset::{LostReason, Owner, ReadGuard, RwLock};
use lockset_testkit::{Redisson, eventually, within};

use super::{Scene, fields};
use crate::support::{LEASE, SOON, waiting};

/// On a busy machine, readers may need this many tries to come together.
const TRIES: usize = 200;

/// Readers that share one hold because they come together.
async fn joined<const N: usize>(lock: &RwLock) -> [ReadGuard; N] {
    for _ in 0..TRIES {
        let reading = join_all((0..N).map(|_| lock.read()));
        let guards: Vec<_> = reading.await.into_iter().map(Result::unwrap).collect();
        let guards: [_; N] = guards.try_into().expect("as many as were asked for");
        let holder = guards[0].holder_id();
        if guards.iter().all(|guard| guard.holder_id() == holder) {
            return guards;
        }
    }
    panic!("{N} readers did not come together in {TRIES} tries");
}

/// Waits until readers that did not share the hold have released theirs.
async fn only_one(scene: &Scene, holder: &str) {
    eventually(SOON, "one reader is there", async || {
        scene.hash().await == fields("read", holder, 0, 1)
    })
    .await;
}

/// Waits until a client is subscribed to recalls.
async fn hears_recalls(scene: &Scene, client: &lockset::Client) {
    let channel = format!("lockset_recall:{}", client.id());
    eventually(SOON, "the client listens for recalls", async || {
        scene.server.pubsub_channels().await.contains(&channel)
    })
    .await;
}

#[tokio::test]
async fn the_server_has_one_reader_until_the_last_leaves() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards: [_; 5] = joined(&lock).await;
    let holder = guards[0].holder_id().to_owned();
    only_one(&scene, &holder).await;
    let writer = {
        let lock = scene.lock(&theirs);
        lockset_testkit::spawn(async move { lock.write().await.unwrap() })
    };
    scene.writers_wait(1).await;
    for (nth, guard) in guards.into_iter().enumerate() {
        assert!(!writer.is_finished(), "{nth} have gone");
        assert!(!guard.is_lost() && guard.hold_count() == 1);
        assert_eq!(scene.hash().await, fields("read", &holder, 0, 1), "{nth}");
        if nth % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            drop(guard);
        }
    }
    let writer = within(SOON, writer).await.unwrap();
    writer.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

#[tokio::test]
async fn joining_and_leaving_sends_nothing() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    for _ in 0..TRIES {
        scene.server.reset_stats().await;
        let before = ours.stats().totals.read;
        let first = lock.read().await.unwrap();
        // While the hold can be joined. Afterwards readers ask the server again, and this is
        // another try.
        while let Some(next) = lock.try_read().now_or_never() {
            let next = next.unwrap().expect("beside the first");
            next.release().await.unwrap();
        }
        let calls = scene.server.commandstats().await;
        let after = ours.stats().totals.read;
        first.release().await.unwrap();
        scene.nothing_left([&ours]).await;
        let done = after.in_memory - before.in_memory;
        if done >= 10 && after.by_server == before.by_server + 1 {
            // Only the first, or also a dropped attempt and its undo.
            let asked = calls.get("evalsha").copied().unwrap_or(0);
            assert!(asked <= 3, "{asked} for {done} readers");
            return;
        }
    }
    panic!("the hold was closed before 10 came, {TRIES} times");
}

/// Redisson sends no recall: the hold can no longer be joined after a while, and Redisson's readers
/// come in beside it.
#[tokio::test]
async fn a_writer_of_redisson_waits_for_all_of_them() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock(&ours);
    let lease = Redisson::WATCHDOG_TIMEOUT;
    let [first, second] = joined(&lock).await;
    assert_eq!(peer.read_acquire(&scene.name, 1, lease).await, None);
    assert_eq!(peer.read_release(&scene.name, 1).await, Some(0));
    assert!(peer.write_acquire(&scene.name, 2, lease).await.is_some());
    first.release().await.unwrap();
    assert!(peer.write_acquire(&scene.name, 2, lease).await.is_some());
    second.release().await.unwrap();
    assert_eq!(peer.write_acquire(&scene.name, 2, lease).await, None);
    assert!(lock.try_read().await.unwrap().is_none());
    assert_eq!(peer.write_release(&scene.name, 2).await, Some(1));
    scene.nothing_left([&ours]).await;
}

/// After the recall, new readers have to ask the server, and the writer goes before them.
#[tokio::test]
async fn a_recall_reaches_all_readers_and_ends_joining() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let reading = lock.read().await.unwrap();
    assert!(reading.recalled().now_or_never().is_none());
    hears_recalls(&scene, &ours).await;
    reading.release().await.unwrap();
    let guards: [_; 3] = joined(&lock).await;
    let writer = {
        let lock = scene.lock(&theirs);
        lockset_testkit::spawn(async move { lock.write().await.unwrap() })
    };
    for guard in &guards {
        within(SOON, guard.recalled()).await;
    }
    assert!(lock.try_read().await.unwrap().is_none(), "the writer waits");
    drop(guards);
    within(SOON, writer).await.unwrap().release().await.unwrap();
    ours.shutdown().await.unwrap();
    scene.nothing_left([&theirs]).await;
}

#[tokio::test]
async fn they_are_renewed_as_one_and_lost_as_one() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let lock = scene.lock(&ours);
    let guards: [_; 3] = joined(&lock).await;
    let renewed = ours.stats().totals.renewals.renewed;
    eventually(SOON, "it is renewed", async || {
        ours.stats().totals.renewals.renewed >= renewed + 4
    })
    .await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    let views: Vec<_> = guards.iter().map(ReadGuard::loss).collect();
    let _: i64 = scene.ask(&["DEL", &scene.name]).await;
    for (guard, view) in guards.iter().zip(&views) {
        let lost = within(LEASE * 2, guard.lost()).await;
        assert_eq!((lost, view.reason()), (LostReason::Revoked, Some(lost)));
    }
    let after = lock.read().await.unwrap();
    assert_ne!(after.holder_id(), guards[0].holder_id());
    for guard in guards {
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    assert!(
        !after.is_lost(),
        "the release of the lost hold is no other's"
    );
    after.release().await.unwrap();
    assert_eq!(ours.stats().totals.losses.of(LostReason::Revoked), 1);
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn force_unlocking_readers_ends_all_of_them() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards: [_; 3] = joined(&lock).await;
    assert!(lock.read_side().force_unlock().await.unwrap());
    assert!(guards.iter().all(ReadGuard::is_lost));
    let writer = lock
        .try_write()
        .await
        .unwrap()
        .expect("there are no readers");
    for guard in guards {
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    assert!(!writer.is_lost());
    writer.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn an_owner_among_them_enters_again_and_the_others_do_not_notice() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let [first, second, third] = joined(&lock).await;
    let holder = first.holder_id().to_owned();
    only_one(&scene, &holder).await;
    let again = second.reenter().await.unwrap();
    assert_eq!(scene.hash().await, fields("read", &holder, 0, 1));
    let by_owner = lock.clone().owner(second.owner()).fixed_lease(LEASE * 20);
    let by_owner = by_owner.read().await.unwrap();
    let counts = [&first, &second, &third].map(ReadGuard::hold_count);
    assert_eq!(counts, [1, 3, 1]);
    assert!(
        lock.clone()
            .owner(third.owner())
            .write()
            .await
            .unwrap_err()
            .is_upgrade()
    );
    for guard in [first, second, again, third] {
        guard.release().await.unwrap();
        assert!(!by_owner.is_lost());
    }
    let writer = scene.lock(&theirs);
    assert!(writer.try_write().await.unwrap().is_none());
    assert_eq!(scene.hash().await, fields("read", &holder, 0, 1));
    by_owner.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

#[tokio::test]
async fn shutdown_ends_all_of_them() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards: [_; 3] = joined(&lock).await;
    ours.shutdown().await.unwrap();
    assert!(guards.iter().all(|guard| guard.is_lost()));
    assert!(lock.read().await.unwrap_err().is_closed());
    let writer = scene.lock(&theirs);
    assert!(writer.try_write().await.unwrap().is_none(), "as it was");
    for guard in guards {
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    let _: i64 = scene.ask(&["DEL", &scene.name]).await;
    drop(writer);
}

/// The reply to the last release is lost.
#[tokio::test]
async fn the_last_reader_repeats_the_release() {
    let scene = Scene::new().await;
    let proxy = lockset_testkit::Proxy::start(scene.server.addr()).await;
    let ours = crate::support::client(&proxy.url()).await;
    let lock = scene.lock(&ours);
    let [first, second] = joined(&lock).await;
    only_one(&scene, first.holder_id()).await;
    first.release().await.unwrap();
    proxy.swallow_next_reply_then_cut();
    second.release().await.unwrap();
    assert_eq!(proxy.fired(), 1);
    scene.nothing_left([&ours]).await;
}

/// Readers of two clients, some dropped while they wait, and writers of both: readers and writers
/// exclude each other.
#[tokio::test(flavor = "multi_thread")]
async fn writers_and_joined_readers_exclude_each_other() {
    let scene = Scene::new().await;
    let clients: [_; 2] = scene.patient().await;
    let writes = Arc::<AtomicBool>::default();
    let tasks = (0..32_u64).map(|task| {
        let lock = scene.lock(&clients[usize::from(task % 3 == 0)]);
        let writes = Arc::clone(&writes);
        lockset_testkit::spawn(async move {
            let mut dice = fastrand::Rng::with_seed(task);
            for _ in 0..100 {
                match dice.u8(..16) {
                    0 => {
                        let guard = lock.write().await.unwrap();
                        assert!(!writes.swap(true, Ordering::SeqCst), "two write");
                        tokio::task::yield_now().await;
                        writes.store(false, Ordering::SeqCst);
                        guard.release().await.unwrap();
                    }
                    1..4 => {
                        // Dropped at an arbitrary point.
                        let wait = Duration::from_micros(dice.u64(..300));
                        drop(tokio::time::timeout(wait, lock.read()).await);
                    }
                    _ => {
                        let guard = lock.read().await.unwrap();
                        assert!(!writes.load(Ordering::SeqCst), "one writes");
                        tokio::task::yield_now().await;
                        assert!(!writes.load(Ordering::SeqCst), "one began to write");
                        if dice.bool() {
                            guard.release().await.unwrap();
                        }
                    }
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        within(Duration::from_secs(60), task).await.unwrap();
    }
    for client in &clients {
        waiting(client, 0).await;
        let read = client.stats().totals.read;
        assert!(read.in_memory > read.by_server, "{read:?}");
    }
    scene.nothing_left(clients.each_ref()).await;
}

/// A member of a multi-lock, and a reader with an owner, have their own holds.
#[tokio::test]
async fn a_member_of_a_multi_lock_joins_no_hold() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    let both = lockset::MultiLock::new([
        lockset::Member::from(lock.read_side()),
        lockset::Member::from(ours.lock(format!("{}:other", scene.name))),
    ]);
    let both = both.unwrap();
    let multi = both.lock().await.unwrap();
    let [first, second] = joined(&lock).await;
    let own = lock.clone().owner(&Owner::new()).read().await.unwrap();
    eventually(SOON, "three readers", async || {
        lock.read_side().holders().await.unwrap().len() == 3
    })
    .await;
    drop((first, multi));
    assert!(!second.is_lost() && !own.is_lost());
    drop((second, own));
    scene.nothing_left([&ours]).await;
}
