//! The waiters notified when a hold ends or a waiter leaves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockset::{Client, Owner, ReadGuard};
use lockset_testkit::within;
use tokio::task::JoinHandle;

use super::{Scene, process};
use crate::support::{BY_MESSAGE, SOON, client, took_less, waiting};

fn readers(scene: &Scene, clients: &[Client], each: usize) -> Vec<JoinHandle<ReadGuard>> {
    let of_each = |client| {
        let lock = scene.lock(client);
        (0..each).map(move |_| {
            let lock = lock.clone();
            lockset_testkit::spawn(async move { lock.read().await.unwrap() })
        })
    };
    clients.iter().flat_map(of_each).collect()
}

/// Asserts that all of them hold the lock together.
async fn all_in(waiters: Vec<JoinHandle<ReadGuard>>, since: Instant, bound: Duration) {
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(within(SOON, waiter).await.unwrap());
    }
    took_less(since, bound);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_readers_at_once_after_a_writer() {
    let scene = Scene::new().await;
    let clients: [_; 4] = scene.patient().await;
    for _ in 0..3 {
        let writer = scene.lock(&clients[0]).write().await.unwrap();
        let waiters = readers(&scene, &clients, 5);
        for client in &clients {
            waiting(client, 5).await;
        }
        // Readers of the writer's own client need no message.
        scene.listeners(3).await;
        let released = Instant::now();
        writer.release().await.unwrap();
        all_in(waiters, released, BY_MESSAGE).await;
        scene.nothing_left(clients.each_ref()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_writer_at_a_time() {
    let scene = Scene::new().await;
    let clients: [_; 3] = scene.patient().await;
    let held = scene.lock(&clients[0]).read().await.unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    let released = Arc::new(Mutex::new(Instant::now()));
    let mut writers = Vec::new();
    for client in clients.iter().cycle().take(6) {
        let (lock, inside) = (scene.lock(client), Arc::clone(&inside));
        let released = Arc::clone(&released);
        writers.push(lockset_testkit::spawn(async move {
            let guard = lock.write().await.unwrap();
            // A waiter without a message would have asked a second later.
            took_less(*released.lock().unwrap(), BY_MESSAGE);
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            tokio::time::sleep(Duration::from_millis(5)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            *released.lock().unwrap() = Instant::now();
            guard.release().await.unwrap();
        }));
    }
    for client in &clients {
        waiting(client, 2).await;
    }
    scene.listeners(3).await;
    *released.lock().unwrap() = Instant::now();
    held.release().await.unwrap();
    for writer in writers {
        within(SOON, writer).await.unwrap();
    }
    scene.nothing_left(clients.each_ref()).await;
}

/// Only the end of the last reader matters to a writer.
#[tokio::test]
async fn a_writer_comes_when_the_last_reader_leaves() {
    let scene = Scene::new().await;
    let clients: [_; 3] = scene.patient().await;
    let mut held = Vec::new();
    for client in &clients {
        held.push(scene.lock(client).read().await.unwrap());
    }
    let lock = scene.lock(&clients[0]);
    let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.listeners(1).await;
    let mut messages = scene.messages().await;
    let last = held.pop().unwrap();
    for reader in held {
        reader.release().await.unwrap();
    }
    messages.no_more(&scene).await;
    assert!(!waiter.is_finished());
    let released = Instant::now();
    last.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    took_less(released, BY_MESSAGE);
    drop(messages);
    scene.nothing_left(clients.each_ref()).await;
}

/// Readers queued behind a waiting writer continue once that writer leaves.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_leaves_lets_the_readers_in() {
    let scene = Scene::new().await;
    let clients: [_; 3] = scene.patient().await;
    for is_dropped in [false, true] {
        // With an owner, so that readers of its client do not join its hold.
        let held = scene.lock(&clients[0]).owner(&Owner::new());
        let held = held.read().await.unwrap();
        let lock = scene.lock(&clients[1]);
        let writer = lockset_testkit::spawn(async move {
            let wait = if is_dropped {
                Duration::from_secs(60)
            } else {
                Duration::from_millis(1_500)
            };
            lock.try_write_for(wait).await.unwrap()
        });
        scene.writers_wait(1).await;
        let waiters = readers(&scene, &clients, 2);
        waiting(&clients[0], 2).await;
        waiting(&clients[1], 3).await;
        waiting(&clients[2], 2).await;
        scene.listeners(3).await;
        let mut messages = scene.messages().await;
        assert!(
            !waiters.iter().any(JoinHandle::is_finished),
            "it goes first"
        );
        if is_dropped {
            writer.abort();
            assert!(writer.await.unwrap_err().is_cancelled());
        } else {
            assert!(within(SOON, writer).await.unwrap().is_none());
        }
        let left = Instant::now();
        assert_eq!(messages.next().await, "1");
        all_in(waiters, left, BY_MESSAGE).await;
        drop(messages);
        held.release().await.unwrap();
        scene.nothing_left(clients.each_ref()).await;
    }
}

/// One of two waiting writers leaves: readers stay behind the other.
#[tokio::test]
async fn a_writer_that_leaves_lets_no_reader_pass_another_writer() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let held = scene.lock(&ours).read().await.unwrap();
    let lock = scene.lock(&theirs);
    let stays = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.writers_wait(1).await;
    let wait = Duration::from_millis(100);
    let gives_up = scene.lock(&ours).try_write_for(wait).await.unwrap();
    assert!(gives_up.is_none());
    assert!(scene.lock(&ours).try_read().await.unwrap().is_none());
    held.release().await.unwrap();
    within(SOON, stays).await.unwrap().release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}

/// A dead writer leaves without a message: its heartbeat ends.
#[tokio::test]
async fn a_writer_that_dies_lets_the_readers_in() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let held = scene.lock(&ours).read().await.unwrap();
    let mut writer = process::that_wants_to_write(&scene.server, &scene.name);
    scene.writers_wait(1).await;
    let other = client(&scene.server.url()).await;
    let waiters = readers(&scene, &[other], 3);
    // It is alive, and keeps its place for longer than one heartbeat.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(
        !waiters.iter().any(JoinHandle::is_finished),
        "it goes first"
    );
    writer.kill();
    // The heartbeat is a second, in which readers ask six times.
    all_in(waiters, Instant::now(), Duration::from_millis(2_100)).await;
    held.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}
