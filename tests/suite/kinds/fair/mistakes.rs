//! A damaged queue: entries removed by mistake, or left by unknown clients.

use std::time::Duration;

use lockset::FairGuard;
use lockset_testkit::{Redisson, eventually};
use tokio::task::JoinHandle;

use super::{Scene, done, holder, wait_for};
use crate::support::{SOON, client, idle, nothing_left};

/// Removes the first of two waiters from these data structures.
#[derive(Clone, Copy, Debug)]
struct Lost {
    queue: bool,
    timeouts: bool,
    alive: bool,
}

/// A waiter whose place is damaged queues again, at the end unless only its heartbeat is lost. If only that is left, it
/// was Redisson that removed it, and it is the first again. Both waiters get the lock, and nothing is left.
async fn comes_back(lost: Lost) {
    let scene = Scene::new().await;
    let ours = client(&scene.server.url()).await;
    let held = scene.lock().await.lock().await.unwrap();
    let first = wait_for(&scene.lock_of(&ours));
    scene.queued(1).await;
    let second = wait_for(&scene.lock_of(&ours));
    scene.queued(2).await;
    let evicted = &scene.queue().await[0];
    let (queue, timeouts, alive) = (scene.queue_key(), scene.timeouts_key(), scene.alive_key());
    let commands: [(bool, &[&str]); 3] = [
        (lost.queue, &["LREM", &queue, "1", evicted]),
        (lost.timeouts, &["ZREM", &timeouts, evicted]),
        (lost.alive, &["ZREM", &alive, evicted]),
    ];
    for (_, command) in commands.iter().filter(|(lost, _)| *lost) {
        assert_eq!(scene.ask::<i64>(command).await, 1, "{lost:?}");
    }
    eventually(SOON, "it is queued as it should be", async || {
        let alive: Option<f64> = scene.ask(&["ZSCORE", &alive, evicted]).await;
        let score = scene.score(evicted).await;
        alive.is_some() && score.is_some() && scene.queue().await.len() == 2
    })
    .await;
    let is_by_redisson = lost.queue && lost.timeouts && !lost.alive;
    let place = usize::from((lost.queue || lost.timeouts) && !is_by_redisson);
    assert_eq!(&scene.queue().await[place], evicted, "{lost:?}");
    held.release().await.unwrap();
    let release = async |waiter: JoinHandle<FairGuard>| done(waiter).await.release().await.unwrap();
    tokio::join!(release(first), release(second));
    idle(&ours).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_waiter_evicted_by_mistake_comes_back() {
    for queue in [true, false] {
        for timeouts in [true, false] {
            for alive in [true, false] {
                comes_back(Lost {
                    queue,
                    timeouts,
                    alive,
                })
                .await;
            }
        }
    }
}

/// Everything is deleted, as by Redisson's `delete()`, or only the queue, as by an operator.
#[tokio::test]
async fn waiters_survive_a_deleted_queue() {
    for alone in [false, true] {
        let scene = Scene::new().await;
        let ours = client(&scene.server.url()).await;
        let lock = scene.lock_of(&ours);
        let held = scene.lock().await.lock().await.unwrap();
        let waiters: Vec<_> = (0..5).map(|_| wait_for(&lock)).collect();
        scene.queued(5).await;
        let (queue, timeouts) = (scene.queue_key(), scene.timeouts_key());
        if alone {
            assert_eq!(scene.ask::<i64>(&["DEL", &queue]).await, 1);
            scene.queued(5).await;
            held.release().await.unwrap();
        } else {
            let deleted: i64 = scene.ask(&["DEL", &scene.name, &queue, &timeouts]).await;
            assert_eq!(deleted, 3);
            drop(held);
        }
        let turns = waiters.into_iter().map(|waiter| async {
            done(waiter).await.release().await.unwrap();
        });
        futures_util::future::join_all(turns).await;
        // Waiters served without a place left entries, which the next queue removes when it starts.
        eventually(SOON, "the next queue begins without it", async || {
            let held = lock.lock().await.unwrap();
            let waiter = wait_for(&lock);
            scene.queued(1).await;
            let scores: i64 = scene.ask(&["ZCARD", &timeouts]).await;
            held.release().await.unwrap();
            done(waiter).await.release().await.unwrap();
            scores == 1 && scene.server.keys().await.is_empty()
        })
        .await;
        idle(&ours).await;
        nothing_left(&scene.server).await;
    }
}

/// The set of scores or the list is missing entirely.
#[tokio::test]
async fn entries_without_a_score_never_block() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    let queue = scene.queue_key();
    for count in [1, 10] {
        for entry in 0..count {
            let entry = format!("java-uuid:{entry}");
            let _: i64 = scene.ask(&["RPUSH", &queue, &entry]).await;
        }
        let guard = lock.try_lock().await.unwrap().expect("they do not block");
        let _: i64 = scene.ask(&["RPUSH", &queue, "java-uuid:57"]).await;
        guard.release().await.unwrap();
        assert!(scene.queue().await.is_empty());
    }
    nothing_left(&scene.server).await;
}

/// Redisson itself would wait for this entry forever.
#[tokio::test]
async fn a_head_without_a_score_is_skipped() {
    const LEASE: Duration = Duration::from_secs(30);
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock().await;
    let held = lock.lock().await.unwrap();
    let _: i64 = scene
        .ask(&["RPUSH", &scene.queue_key(), "java-uuid:57"])
        .await;
    let first = wait_for(&scene.lock().await);
    scene.queued(2).await;
    let _: i64 = scene
        .ask(&["RPUSH", &scene.queue_key(), "java-uuid:58"])
        .await;
    let (theirs, name) = (peer.clone(), scene.name.clone());
    let second =
        lockset_testkit::spawn(async move { theirs.fair_lock(&name, 1, LEASE, SOON).await });
    scene.queued(4).await;
    let mut notifications = scene.notifications().await;
    held.release().await.unwrap();
    let guard = done(first).await;
    assert_eq!(notifications.next().await, holder(&lock).await);
    guard.release().await.unwrap();
    assert_eq!(notifications.next().await, peer.holder(1));
    assert!(done(second).await, "granted");
    assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
    nothing_left(&scene.server).await;
}
