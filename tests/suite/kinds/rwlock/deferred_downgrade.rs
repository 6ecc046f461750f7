//! Readers that share their client's write hold, between two writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockset::{ReadGuard, RwLock, WriteGuard};
use lockset_testkit::{Redisson, eventually, within};
use tokio::task::JoinHandle;

use super::{Messages, Scene, fields};
use crate::support::{SOON, waiting};

/// On a busy machine, a writer may need this many tries to finish within its client's turn.
const TRIES: usize = 200;

fn writer(lock: &RwLock) -> JoinHandle<WriteGuard> {
    let lock = lock.clone();
    lockset_testkit::spawn(async move { lock.write().await.unwrap() })
}

/// Two readers that share a former writer's hold, if the writer finished within its client's turn.
async fn try_covered(lock: &RwLock) -> Option<[ReadGuard; 2]> {
    let writing = lock.write().await.unwrap();
    let holder = writing.holder_id().to_owned();
    let release = async {
        // The readers are waiting now.
        tokio::task::yield_now().await;
        writing.release().await.unwrap();
    };
    let ((), one, other) = tokio::join!(release, lock.read(), lock.read());
    let guards = [one.unwrap(), other.unwrap()];
    let are_covered = guards.iter().all(|guard| guard.holder_id() == holder);
    are_covered.then_some(guards)
}

async fn after_writer(scene: &Scene, lock: &RwLock) -> [ReadGuard; 2] {
    for _ in 0..TRIES {
        if let Some(guards) = try_covered(lock).await {
            return guards;
        }
        unheard(scene, lock).await;
    }
    panic!("no writer was done in time, {TRIES} times");
}

/// The client lends write holds only while it knows of no subscriber, as its own readers were if they had to wait. A
/// release tells it that there is none.
async fn unheard(scene: &Scene, lock: &RwLock) {
    eventually(SOON, "no client is subscribed", async || {
        scene.server.pubsub_channels().await.is_empty()
    })
    .await;
    lock.write().await.unwrap().release().await.unwrap();
}

/// Like `try_covered`, with a subscription to the lock's channel from before.
async fn covered_and_heard(scene: &Scene, lock: &RwLock) -> ([ReadGuard; 2], Messages) {
    for _ in 0..TRIES {
        let messages = scene.messages().await;
        if let Some(guards) = try_covered(lock).await {
            return (guards, messages);
        }
        drop(messages);
        unheard(scene, lock).await;
    }
    panic!("no writer was done in time, {TRIES} times");
}

#[tokio::test]
async fn the_server_learns_of_the_readers_at_the_end_of_the_turn() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards = after_writer(&scene, &lock).await;
    let holder = guards[0].holder_id().to_owned();
    eventually(SOON, "the server knows", async || {
        scene.hash().await == fields("read", &holder, 0, 1)
    })
    .await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    let beside = scene.lock(&theirs);
    let beside = within(SOON, beside.read()).await.unwrap();
    assert!(scene.lock(&theirs).try_write().await.unwrap().is_none());
    for guard in guards {
        guard.release().await.unwrap();
    }
    beside.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson's reader sends no recall and may be anywhere, so it is let in while these readers hold
/// the lock.
#[tokio::test]
async fn readers_of_redisson_get_in_beside_them() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock(&ours);
    let (guards, mut messages) = covered_and_heard(&scene, &lock).await;
    assert_eq!(messages.next().await, "1", "all are woken");
    let lease = Redisson::WATCHDOG_TIMEOUT;
    assert_eq!(peer.read_acquire(&scene.name, 1, lease).await, None);
    assert!(peer.write_acquire(&scene.name, 2, lease).await.is_some());
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(peer.read_release(&scene.name, 1).await, Some(1));
    drop(messages);
    scene.nothing_left([&ours]).await;
}

/// A query shows the readers, although the client has not yet told the server about them.
#[tokio::test]
async fn questions_of_the_same_client_find_readers() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards = after_writer(&scene, &lock).await;
    let holders = lock.read_side().holders().await.unwrap();
    let ids: Vec<_> = holders.iter().map(|holder| &*holder.id).collect();
    assert_eq!(ids, [guards[0].holder_id()]);
    assert!(!lock.write_side().is_locked().await.unwrap());
    drop(guards);
    scene.nothing_left([&ours]).await;
    let guards = after_writer(&scene, &lock).await;
    assert!(lock.read_side().force_unlock().await.unwrap());
    assert!(guards.iter().all(ReadGuard::is_lost));
    drop(guards);
    scene.nothing_left([&ours]).await;
}

/// The reply to the downgrade is lost.
#[tokio::test]
async fn readers_are_reported_until_the_server_answers() {
    let scene = Scene::new().await;
    let proxy = lockset_testkit::Proxy::start(scene.server.addr()).await;
    let ours = crate::support::client(&proxy.url()).await;
    let lock = scene.lock(&ours);
    let [reading, other] = after_writer(&scene, &lock).await;
    proxy.swallow_next_reply_then_cut();
    other.release().await.unwrap();
    let holder = reading.holder_id().to_owned();
    eventually(SOON, "the server knows", async || {
        scene.hash().await == fields("read", &holder, 0, 1)
    })
    .await;
    eventually(SOON, "its answer was lost", async || proxy.fired() == 1).await;
    assert!(!reading.is_lost());
    reading.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn shutdown_leaves_guarded_locks_to_their_leases() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours);
    let guards = after_writer(&scene, &lock).await;
    ours.shutdown().await.unwrap();
    assert!(guards.iter().all(ReadGuard::is_lost));
    assert!(scene.lease().await > 0, "as it was");
    for guard in guards {
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    let _: i64 = scene.ask(&["DEL", &scene.name]).await;
}

/// One client at full speed, with many dropped calls: readers and writers exclude each other.
#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_of_one_client_take_turns() {
    const WRITES: u32 = 1 << 16;
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let inside = Arc::<AtomicU32>::default();
    let tasks = (0..32_u64).map(|task| {
        let (lock, inside) = (scene.lock(&ours), Arc::clone(&inside));
        lockset_testkit::spawn(async move {
            let mut dice = fastrand::Rng::with_seed(task);
            for _ in 0..200 {
                let limit = match dice.u8(..8) {
                    0 => Duration::from_micros(dice.u64(..400)),
                    _ => Duration::MAX,
                };
                let writes = dice.u8(..6) == 0;
                let stay = dice.bool();
                let turn = async {
                    if writes {
                        let guard = lock.write().await.unwrap();
                        let before = inside.fetch_add(WRITES, Ordering::SeqCst);
                        assert_eq!(before, 0, "one writes, and others are inside");
                        if stay {
                            tokio::task::yield_now().await;
                        }
                        inside.fetch_sub(WRITES, Ordering::SeqCst);
                        guard.release().await.unwrap();
                    } else {
                        let guard = lock.read().await.unwrap();
                        let before = inside.fetch_add(1, Ordering::SeqCst);
                        assert!(before < WRITES, "one writes");
                        if stay {
                            tokio::task::yield_now().await;
                        }
                        inside.fetch_sub(1, Ordering::SeqCst);
                        if stay {
                            guard.release().await.unwrap();
                        }
                    }
                };
                if limit < Duration::MAX {
                    // This task may be dropped inside the section. The count only matters for the
                    // waiters.
                    let waits = async {
                        if writes {
                            drop(lock.write().await.unwrap());
                        } else {
                            drop(lock.read().await.unwrap());
                        }
                    };
                    drop(tokio::time::timeout(limit, waits).await);
                } else {
                    turn.await;
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        within(Duration::from_secs(60), task).await.unwrap();
    }
    waiting(&ours, 0).await;
    let totals = ours.stats().totals;
    assert!(totals.read.in_memory > totals.read.by_server, "{totals:?}");
    assert!(totals.write.in_memory > 0, "{totals:?}");
    scene.nothing_left([&ours]).await;
}

/// A writer of another client is granted the lock while readers and writers of ours come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_another_client_gets_its_turn() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let stop = Arc::<std::sync::atomic::AtomicBool>::default();
    let tasks: Vec<_> = (0..16_u64)
        .map(|task| {
            let (lock, stop) = (scene.lock(&ours), Arc::clone(&stop));
            lockset_testkit::spawn(async move {
                let mut dice = fastrand::Rng::with_seed(task);
                while !stop.load(Ordering::Relaxed) {
                    if dice.u8(..10) == 0 {
                        lock.write().await.unwrap().release().await.unwrap();
                    } else {
                        lock.read().await.unwrap().release().await.unwrap();
                    }
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let writing = within(SOON, writer(&scene.lock(&theirs))).await.unwrap();
        assert!(!writing.is_lost());
        writing.release().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        within(SOON, task).await.unwrap();
    }
    scene.nothing_left([&ours, &theirs]).await;
}
