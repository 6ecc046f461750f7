//! The order of service follows the queue at the server, even across processes.

use std::time::{Duration, Instant};

use lockset::{Client, Owner};
use lockset_testkit::{eventually, within};

use super::{HELD, Scene, done, holder, take_a_turn, wait_for};
use crate::failures::process::Process;
use crate::support::{LEASE, SOON, idle, nothing_left, patient_client, waiting};

/// The entries of the list: the holder ids, after checking that their tokens have grown.
async fn turns(scene: &Scene, count: usize) -> Vec<String> {
    eventually(Duration::from_secs(60), "all had their turn", async || {
        scene.ask::<usize>(&["LLEN", HELD]).await == count
    })
    .await;
    let turns: Vec<String> = scene.ask(&["LRANGE", HELD, "0", "-1"]).await;
    let (holders, tokens): (Vec<_>, Vec<u64>) = turns
        .iter()
        .map(|turn| turn.split_once(' ').expect("a holder and a token"))
        .map(|(holder, token)| (holder.to_owned(), token.parse::<u64>().unwrap()))
        .unzip();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    holders
}

#[tokio::test]
async fn waiters_of_four_processes_are_served_as_they_came() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 16;
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let mut processes: Vec<_> = (0..PROCESSES)
        .map(|_| Process::start("kinds::fair::crowd", &scene.server, &scene.name))
        .collect();
    for process in &processes {
        assert_eq!(process.answer(), "ready");
    }
    for process in &mut processes {
        process.ask(&format!("{WAITERS} 30000"));
    }
    scene.queued(PROCESSES * WAITERS).await;
    let queue = scene.queue().await;
    held.release().await.unwrap();
    assert_eq!(turns(&scene, PROCESSES * WAITERS).await, queue);
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn five_hundred_waiters_of_one_client_are_served_in_order() {
    const WAITERS: usize = 500;
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let lock = scene.lock_of(&client);
    let list = scene.server.admin().await;
    let held = lock.lock().await.unwrap();
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| lockset_testkit::spawn(take_a_turn(lock.clone(), list.clone())))
        .collect();
    scene.queued(WAITERS).await;
    let queue = scene.queue().await;
    held.release().await.unwrap();
    assert_eq!(turns(&scene, WAITERS).await, queue);
    for waiter in waiters {
        done(waiter).await;
    }
    idle(&client).await;
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn waiters_lists_the_next_holders() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    assert!(lock.waiters().await.unwrap().is_empty());
    let mut held = lock.lock().await.unwrap();
    let mut tasks = Vec::new();
    for place in 1..=4 {
        // Each waiter has its own client.
        tasks.push(wait_for(&scene.lock().await));
        scene.queued(place).await;
    }
    for (task, left) in tasks.into_iter().zip((0..4).rev()) {
        let next = lock.waiters().await.unwrap();
        assert_eq!(next.len(), left + 1);
        held.release().await.unwrap();
        held = done(task).await;
        assert_eq!(holder(&lock).await, next[0]);
        assert_eq!(lock.waiters().await.unwrap(), next[1..]);
    }
    held.release().await.unwrap();
}

#[tokio::test]
async fn try_lock_does_not_jump_the_queue() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    scene.put(1, "silent", 60_000).await;
    assert!(!lock.is_locked().await.unwrap());
    for _ in 0..20 {
        assert!(lock.try_lock().await.unwrap().is_none());
        assert_eq!(scene.queue().await, ["silent1"], "it takes no place either");
    }
    let keys = scene.server.keys().await;
    assert_eq!(keys.len(), 3, "{keys:?}");
}

/// Redisson's tests of timed waits: a wait that times out does not delay later waiters.
#[tokio::test]
async fn a_wait_that_times_out_leaves_nothing() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    let held = lock.lock().await.unwrap();
    let stranger = scene.lock().await;
    for millis in [1, 10, 100, 200] {
        let wait = Duration::from_millis(millis);
        let asked = Instant::now();
        assert!(stranger.try_lock_for(wait).await.unwrap().is_none());
        assert!(asked.elapsed() >= wait);
        eventually(SOON, "only the hold is left", async || {
            scene.server.keys().await == [&*scene.name]
                && scene.server.pubsub_channels().await.is_empty()
        })
        .await;
    }
    held.release().await.unwrap();
    let next = stranger.try_lock().await.unwrap();
    next.expect("there are no waiters").release().await.unwrap();
    nothing_left(&scene.server).await;
}

/// Redisson's `testLeaseTimeout`: leases run out without a release, and each waiter holds the lock
/// for a lease, in order.
#[tokio::test]
async fn leases_that_run_out_are_followed_in_order() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    let held = lock.lock().await.unwrap();
    let mut tasks = Vec::new();
    for place in 1..=4 {
        let lock = scene.lock().await.fixed_lease(LEASE).fenced();
        tasks.push(wait_for(&lock));
        scene.queued(place).await;
    }
    held.release().await.unwrap();
    let mut guards: Vec<lockset::FairGuard> = Vec::new();
    for task in tasks {
        let guard = done(task).await;
        assert!(guards.iter().all(lockset::FairGuard::is_lost));
        let before = guards.last().and_then(lockset::FairGuard::fencing_token);
        assert!(guard.fencing_token() > before);
        guards.push(guard);
    }
}

#[tokio::test]
async fn a_granted_owner_re_enters_from_any_place() {
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let lock = scene.lock().await;
    let held = lock.lock().await.unwrap();
    let owned = scene.lock_of(&client).owner(&Owner::new());
    let first = wait_for(&owned);
    scene.queued(1).await;
    let stranger = wait_for(&scene.lock().await);
    scene.queued(2).await;
    let second = wait_for(&owned);
    scene.queued(3).await;
    let queue = scene.queue().await;
    held.release().await.unwrap();
    let (first, second) = (done(first).await, done(second).await);
    assert_eq!((first.hold_count(), second.hold_count()), (2, 2));
    assert!(!stranger.is_finished());
    eventually(SOON, "the place it does not need is gone", async || {
        lock.waiters().await.unwrap() == queue[1..2]
    })
    .await;
    first.release().await.unwrap();
    assert_eq!(holder(&lock).await, queue[0]);
    second.release().await.unwrap();
    done(stranger).await.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_re_entry_does_not_queue() {
    let scene = Scene::new().await;
    let lock = scene.lock().await.owner(&Owner::new());
    let outer = lock.lock().await.unwrap();
    let stranger = wait_for(&scene.lock().await);
    scene.queued(1).await;
    let mut notifications = scene.notifications().await;
    let queue = scene.queue().await;
    let inner = within(SOON, lock.lock()).await.unwrap();
    let again = lock.try_lock().await.unwrap().expect("it is the owner's");
    let last = again.reenter().await.unwrap();
    assert_eq!(outer.hold_count(), 4);
    for guard in [inner, again, last] {
        guard.release().await.unwrap();
    }
    assert_eq!(scene.queue().await, queue);
    assert!(!stranger.is_finished());
    outer.release().await.unwrap();
    assert_eq!(
        notifications.next().await,
        queue[0],
        "once, when it is free"
    );
    done(stranger).await.release().await.unwrap();
}

/// The prefix is part of the name, so Redisson's name mapper produces the same keys.
#[tokio::test]
async fn a_key_prefix_is_inside_the_names_of_the_queue() {
    let scene = Scene::new().await;
    let builder = Client::builder(&scene.server.url()).key_prefix("app:");
    let client = builder.build().await.unwrap();
    let lock = client.fair_lock("desk");
    let held = lock.lock().await.unwrap();
    let waiter = wait_for(&lock);
    waiting(&client, 1).await;
    let expected = [
        "app:desk",
        "lockset_fair_alive:{app:desk}",
        "redisson_lock_queue:{app:desk}",
        "redisson_lock_timeout:{app:desk}",
    ];
    eventually(SOON, "the keys have these names", async || {
        scene.server.keys().await == expected
    })
    .await;
    held.release().await.unwrap();
    done(waiter).await.release().await.unwrap();
    nothing_left(&scene.server).await;
}
