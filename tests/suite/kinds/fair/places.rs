//! Places released by waiters that leave or die: the next waiter gets the lock and a message.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockset_testkit::{Proxy, eventually, within};
use rustix::process::Signal;

use super::{HELD, Scene, done, holder, wait_for};
use crate::failures::process::Process;
use crate::support::{SOON, idle, nothing_left, patient_client, waiting};

/// Starts another process with `count` queued waiters, whose places last for a second.
async fn process_with(scene: &Scene, count: usize) -> Process {
    let mut process = Process::start("kinds::fair::crowd", &scene.server, &scene.name);
    assert_eq!(process.answer(), "ready");
    let before = scene.queue().await.len();
    process.ask(&format!("{count} 900"));
    scene.queued(before + count).await;
    process
}

#[tokio::test]
async fn fifty_heads_of_a_killed_process_are_passed_over() {
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let mut crowd = process_with(&scene, 50).await;
    let next = wait_for(&scene.lock().await);
    scene.queued(51).await;
    crowd.kill();
    held.release().await.unwrap();
    let guard = done(next).await;
    assert!(scene.queue().await.is_empty());
    guard.release().await.unwrap();
    let turns: i64 = scene.ask(&["EXISTS", HELD]).await;
    assert_eq!(turns, 0, "none of the dead had a turn");
    nothing_left(&scene.server).await;
}

/// A stopped waiter is skipped, and served after it continues.
#[tokio::test]
async fn a_stopped_process_loses_its_place_and_no_more() {
    let scene = Scene::new().await;
    let held = scene.lock().await.lock().await.unwrap();
    let crowd = process_with(&scene, 2).await;
    let next = wait_for(&scene.lock().await);
    scene.queued(3).await;
    crowd.stop();
    held.release().await.unwrap();
    let guard = done(next).await;
    crowd.signal(Signal::CONT);
    scene.queued(2).await;
    guard.release().await.unwrap();
    eventually(SOON, "both had a turn", async || {
        scene.ask::<usize>(&["LLEN", HELD]).await == 2
    })
    .await;
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn waiters_cut_off_only_lose_their_places() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let theirs = patient_client(&proxy.url()).await;
    let held = scene.lock().await.lock().await.unwrap();
    let cut_off: Vec<_> = (0..10).map(|_| wait_for(&scene.lock_of(&theirs))).collect();
    scene.queued(10).await;
    let next = wait_for(&scene.lock().await);
    scene.queued(11).await;
    proxy.refuse(true);
    proxy.cut();
    held.release().await.unwrap();
    // The places in the other process last for three polls of a second, and this waiter polls once
    // a second.
    let guard = within(SOON * 2, next).await.unwrap();
    proxy.refuse(false);
    scene.queued(10).await;
    guard.release().await.unwrap();
    for guard in join_all(cut_off.into_iter().map(serve)).await {
        guard.await.unwrap();
    }
    idle(&theirs).await;
    nothing_left(&scene.server).await;
}

/// Releases the lock as soon as a waiter is granted it.
async fn serve(waiter: tokio::task::JoinHandle<lockset::FairGuard>) -> tokio::task::JoinHandle<()> {
    lockset_testkit::spawn(async move { done(waiter).await.release().await.unwrap() })
}

#[tokio::test]
async fn dropped_waits_leave_the_queue_at_once() {
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let held = scene.lock().await.lock().await.unwrap();
    let dropped: Vec<_> = (0..50).map(|_| wait_for(&scene.lock_of(&client))).collect();
    scene.queued(50).await;
    let next = wait_for(&scene.lock().await);
    scene.queued(51).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    // Half of them while the lock is held, and half during its release.
    for waiter in &dropped[..25] {
        waiter.abort();
    }
    scene.queued(26).await;
    let (released, ()) = tokio::join!(held.release(), async {
        dropped[25..].iter().for_each(|waiter| waiter.abort());
    });
    released.unwrap();
    drop(dropped);
    notifications.until(&queue[50]).await;
    done(next).await.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}

/// An attempt on a free lock notifies the new head, once.
#[tokio::test]
async fn a_new_head_is_notified() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    let mut notifications = scene.notifications().await;
    scene.put(50, "dead", 200).await;
    scene.put(2, "live", 600_000).await;
    eventually(SOON, "the dead are gone", async || {
        assert!(lock.try_lock().await.unwrap().is_none());
        scene.queue().await == ["live1", "live2"]
    })
    .await;
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(notifications.next().await, "live1");
    // This makes the release possible that sends the next message.
    let _: i64 = scene.ask(&["DEL", &scene.queue_key()]).await;
    let guard = lock.try_lock().await.unwrap().expect("the queue is empty");
    scene.put(1, "last", 600_000).await;
    guard.release().await.unwrap();
    assert_eq!(
        notifications.next().await,
        "last1",
        "no waiter was notified twice"
    );
}

/// One call removes a bounded number of dead waiters, and later calls continue.
#[tokio::test]
async fn thousands_of_dead_heads_are_cleared_in_steps() {
    let scene = Scene::new().await;
    scene.put(5_000, "dead", -1).await;
    let lock = scene.lock().await;
    for left in [3_000, 1_000] {
        assert!(lock.try_lock().await.unwrap().is_none());
        assert_eq!(scene.queue().await.len(), left);
    }
    let guard = lock.try_lock().await.unwrap().expect("they are gone");
    guard.release().await.unwrap();
    nothing_left(&scene.server).await;
}

/// The head's time ends just as it is notified. A grant requires a message here, which proves that
/// it was not found by a poll.
#[tokio::test]
async fn a_head_whose_place_ends_at_its_notification_passes_the_lock_on() {
    const ROUNDS: u64 = 40;
    let scene = Scene::new().await;
    let (ours, theirs) = (scene.lock().await, scene.lock().await);
    let mut notifications = scene.notifications().await;
    let (mut taken, mut given_up) = (0, 0);
    for round in 0..ROUNDS {
        let held = ours.lock().await.unwrap();
        let timed = ours.clone();
        // Long enough to subscribe.
        let wait = Duration::from_millis(170);
        let deadline = tokio::time::Instant::now() + wait;
        let head = lockset_testkit::spawn(async move { timed.try_lock_for(wait).await.unwrap() });
        eventually(SOON, "the head is queued, or was", async || {
            scene.queue().await.len() == 1 || head.is_finished()
        })
        .await;
        let before = scene.queue().await;
        let next = wait_for(&theirs);
        eventually(SOON, "the next one is queued", async || {
            let queue = scene.queue().await;
            queue.last().is_some_and(|last| !before.contains(last))
        })
        .await;
        let queue = scene.queue().await;
        // From a millisecond before the deadline to two after it.
        let release_at = deadline - Duration::from_millis(1) + Duration::from_micros(round * 75);
        tokio::time::sleep_until(release_at).await;
        held.release().await.unwrap();
        match done(head).await {
            Some(guard) => {
                taken += 1;
                guard.release().await.unwrap();
            }
            None => given_up += 1,
        }
        notifications
            .until(queue.last().expect("the next one"))
            .await;
        done(next).await.release().await.unwrap();
    }
    assert!(given_up > 0, "{taken} of {ROUNDS} were in time");
    nothing_left(&scene.server).await;
}

/// The head is dropped after its notification: before it reads the message, during its request, or
/// once it holds the lock.
#[tokio::test]
async fn a_head_dropped_after_its_notification_passes_the_lock_on() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let slow = patient_client(&proxy.url()).await;
    let (ours, theirs) = (scene.lock_of(&slow), scene.lock().await);
    let mut notifications = scene.notifications().await;
    let mut waits = Vec::new();
    for round in 0..60_u64 {
        let held = theirs.lock().await.unwrap();
        let head = wait_for(&ours);
        scene.queued(1).await;
        let next = wait_for(&theirs);
        scene.queued(2).await;
        let queue = scene.queue().await;
        proxy.delay_replies(Duration::from_millis(round % 3 * 4));
        held.release().await.unwrap();
        assert_eq!(notifications.next().await, queue[0]);
        tokio::time::sleep(Duration::from_micros(round * 100)).await;
        let dropped = Instant::now();
        head.abort();
        // This drops its guard too, if it has one.
        drop(head);
        assert_eq!(notifications.next().await, queue[1]);
        done(next).await.release().await.unwrap();
        waits.push(dropped.elapsed());
        proxy.pass();
        idle(&slow).await;
    }
    waits.sort();
    assert!(waits[30] < Duration::from_millis(300), "{waits:?}");
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn a_force_unlock_notifies_the_head() {
    let scene = Scene::new().await;
    let lock = scene.lock().await;
    let held = lock.lock().await.unwrap();
    let first = wait_for(&scene.lock().await);
    scene.queued(1).await;
    let second = wait_for(&scene.lock().await);
    scene.queued(2).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(notifications.next().await, queue[0]);
    let guard = done(first).await;
    assert_eq!(holder(&lock).await, queue[0]);
    assert!(held.is_lost());
    assert!(held.release().await.unwrap_err().is_not_held());
    // Neither the places it no longer has nor the queue.
    assert_eq!(scene.queue().await, queue[1..]);
    guard.release().await.unwrap();
    done(second).await.release().await.unwrap();
    assert!(!lock.force_unlock().await.unwrap());
    nothing_left(&scene.server).await;
}

/// Redisson's `testAcquireFailedNotCalledOnRedisTimeout`.
#[tokio::test]
async fn a_wait_that_ends_while_the_server_stands_still_leaves_no_place() {
    let scene = Scene::new().await;
    let client = patient_client(&scene.server.url()).await;
    let held = scene.lock().await.lock().await.unwrap();
    let lock = scene.lock_of(&client);
    let timed =
        lockset_testkit::spawn(async move { lock.try_lock_for(Duration::from_millis(900)).await });
    scene.queued(1).await;
    waiting(&client, 1).await;
    scene.server.stop();
    let ended = done(timed).await;
    scene.server.cont();
    match ended {
        Ok(guard) => assert!(guard.is_none()),
        Err(error) => assert!(error.is_io(), "{error}"),
    }
    idle(&client).await;
    assert!(scene.queue().await.is_empty());
    held.release().await.unwrap();
    nothing_left(&scene.server).await;
}
