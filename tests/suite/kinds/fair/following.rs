//! Tasks of one client that follow each other in the queue hand the lock on in memory, in the order of the queue.

use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, FairLock};
use lockset_testkit::eventually;
use tokio::sync::Mutex;

use super::{Scene, done, wait_for};
use crate::support::{SOON, idle, nothing_left, patient_client};

/// On a busy machine waiters also ask because they have waited for long.
const TRIES: usize = 5;

/// The clients in the order of their grants.
type Turns = Arc<Mutex<Vec<usize>>>;

async fn turn(lock: FairLock, client: usize, turns: Turns) {
    let guard = lock.lock().await.unwrap();
    // Nobody else has the lock.
    turns.try_lock().expect("one at a time").push(client);
    guard.release().await.unwrap();
}

/// The number of scripts that the server was asked to run.
async fn calls(scene: &Scene) -> u64 {
    let stats = scene.server.commandstats().await;
    stats.get("evalsha").copied().unwrap_or_default()
}

#[tokio::test]
async fn three_clients_are_served_in_the_order_of_the_queue() {
    let mut tries = Vec::new();
    for _ in 0..TRIES {
        let (calls, turns) = served_in_order().await;
        if calls < turns * 2 / 3 {
            return;
        }
        tries.push((calls, turns));
    }
    panic!("calls, and turns: {tries:?}");
}

/// Returns how many calls the server got, and for how many turns.
async fn served_in_order() -> (u64, u64) {
    let scene = Scene::new().await;
    let mut clients: Vec<Client> = Vec::new();
    for _ in 0..3 {
        clients.push(patient_client(&scene.server.url()).await);
    }
    let held = scene.lock().await.lock().await.unwrap();
    let (turns, mut tasks, mut order) = (Turns::default(), Vec::new(), Vec::new());
    // Runs of several lengths: alone, short, and longer than may be handed on under one hold.
    for (client, run) in [
        (0, 5),
        (1, 1),
        (0, 1),
        (2, 20),
        (1, 3),
        (2, 2),
        (0, 18),
        (1, 4),
    ] {
        for _ in 0..run {
            let lock = scene.lock_of(&clients[client]);
            tasks.push(lockset_testkit::spawn(turn(
                lock,
                client,
                Arc::clone(&turns),
            )));
            order.push(client);
            scene.queued(order.len()).await;
        }
    }
    scene.server.reset_stats().await;
    held.release().await.unwrap();
    for task in tasks {
        done(task).await;
    }
    assert_eq!(*turns.lock().await, order);
    let calls = calls(&scene).await;
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&scene.server).await;
    (calls, order.len() as u64)
}

#[tokio::test]
async fn a_follower_that_gives_up_leaves_the_others_in_order() {
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let lock = scene.lock_of(&client);
    let held = lock.lock().await.unwrap();
    let first = wait_for(&lock);
    scene.queued(1).await;
    let gone = wait_for(&lock);
    scene.queued(2).await;
    let last = wait_for(&lock);
    scene.queued(3).await;
    gone.abort();
    scene.queued(2).await;
    held.release().await.unwrap();
    let first = done(first).await;
    assert!(!last.is_finished());
    first.release().await.unwrap();
    done(last).await.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}

/// An operator frees a lock that was handed on. Its guard learns of the loss, and the next waiter is not kept waiting.
#[tokio::test]
async fn a_lock_that_was_handed_on_and_taken_away_is_lost_and_goes_on() {
    let scene = Scene::new().await;
    let client = Client::builder(&scene.server.url())
        .lease(Duration::from_secs(3))
        .build()
        .await
        .unwrap();
    let lock = scene.lock_of(&client);
    let held = lock.lock().await.unwrap();
    let second = wait_for(&lock);
    scene.queued(1).await;
    let stranger = wait_for(&scene.lock().await);
    scene.queued(2).await;
    held.release().await.unwrap();
    let second = done(second).await;
    assert_eq!(scene.queue().await.len(), 2, "it was handed on in memory");
    assert!(lock.force_unlock().await.unwrap());
    eventually(SOON, "the hold is lost", async || second.is_lost()).await;
    second.release().await.unwrap_err();
    done(stranger).await.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}
