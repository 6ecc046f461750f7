//! A queue shared with Redisson's waiters, which follow their own rules.

use std::time::Duration;

use lockset_testkit::{Redisson, eventually, within};
use tokio::task::JoinHandle;

use super::{HELD, Scene, done, holder, wait_for};
use crate::support::{SOON, idle, nothing_left, patient_client};

const LEASE: Duration = Duration::from_secs(30);

/// A thread of the peer that waits, takes a turn and releases.
fn their_turn(scene: &Scene, peer: &Redisson, thread: u64) -> JoinHandle<()> {
    let (peer, name, mut list) = (peer.clone(), scene.name.clone(), scene.admin.clone());
    lockset_testkit::spawn(async move {
        assert!(peer.fair_lock(&name, thread, LEASE, SOON * 4).await);
        let entry: redis::RedisResult<i64> = redis::cmd("RPUSH")
            .arg(HELD)
            .arg(peer.holder(thread))
            .query_async(&mut list)
            .await;
        entry.unwrap();
        assert_eq!(peer.fair_release(&name, thread).await, Some(1));
    })
}

pub(super) fn our_turn(scene: &Scene, client: &lockset::Client) -> JoinHandle<()> {
    let (lock, mut list) = (scene.lock_of(client), scene.admin.clone());
    lockset_testkit::spawn(async move {
        let guard = lock.lock().await.unwrap();
        let entry: redis::RedisResult<i64> = redis::cmd("RPUSH")
            .arg(HELD)
            .arg(holder(&lock).await)
            .query_async(&mut list)
            .await;
        entry.unwrap();
        guard.release().await.unwrap();
    })
}

/// Rounds of waiters of both kinds, queued one after another and served in that order.
async fn alternating(rounds: u64, clock_offset_ms: i64) {
    let scene = Scene::new().await;
    let ours = patient_client(&scene.server.url()).await;
    let peer = Redisson::connect(&scene.server).await;
    let peer = peer.clock_offset_ms(clock_offset_ms);
    for round in 0..rounds {
        // Each kind starts the queue in turn, and each releases it.
        let ours_first = round % 2 == 0;
        let held = if round % 4 < 2 {
            // Of another client, which hands nothing on in memory.
            Some(scene.lock().await.lock().await.unwrap())
        } else {
            let got = peer.fair_acquire(&scene.name, 99, LEASE, LEASE).await;
            assert_eq!(got, None);
            None
        };
        let mut waiters = Vec::new();
        for place in 0..6 {
            waiters.push(if (place % 2 == 0) == ours_first {
                our_turn(&scene, &ours)
            } else {
                their_turn(&scene, &peer, place)
            });
            scene.queued(waiters.len()).await;
        }
        let queue = scene.queue().await;
        match held {
            Some(held) => held.release().await.unwrap(),
            None => assert_eq!(peer.fair_release(&scene.name, 99).await, Some(1)),
        }
        for waiter in waiters {
            within(SOON * 4, waiter).await.unwrap();
        }
        let turns: Vec<String> = scene.ask(&["LRANGE", HELD, "0", "-1"]).await;
        assert_eq!(turns, queue, "round {round}");
        let _: i64 = scene.ask(&["DEL", HELD]).await;
    }
    assert!(peer.undecodable().is_empty());
    idle(&ours).await;
    nothing_left(&scene.server).await;
}

#[tokio::test]
async fn both_kinds_are_served_as_they_came() {
    alternating(40, 0).await;
}

#[tokio::test]
async fn a_peer_with_a_fast_clock_changes_nothing() {
    alternating(8, 2_000).await;
}

#[tokio::test]
async fn a_peer_with_a_slow_clock_changes_nothing() {
    alternating(8, -2_000).await;
}

#[tokio::test]
async fn each_kind_notifies_a_head_of_the_other() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock().await;
    let mut notifications = scene.notifications().await;
    let held = lock.lock().await.unwrap();
    let theirs = their_turn(&scene, &peer, 1);
    scene.queued(1).await;
    held.release().await.unwrap();
    assert_eq!(notifications.next().await, peer.holder(1));
    done(theirs).await;

    // Also for force-unlocks.
    let held = lock.lock().await.unwrap();
    let theirs = their_turn(&scene, &peer, 2);
    scene.queued(1).await;
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(notifications.next().await, peer.holder(2));
    done(theirs).await;
    drop(held);

    for forced in [false, true] {
        let acquired = peer.fair_acquire(&scene.name, 3, LEASE, LEASE).await;
        assert_eq!(acquired, None);
        let ours = wait_for(&lock);
        scene.queued(1).await;
        let queue = scene.queue().await;
        if forced {
            assert!(peer.fair_force_unlock(&scene.name).await);
        } else {
            assert_eq!(peer.fair_release(&scene.name, 3).await, Some(1));
        }
        assert_eq!(notifications.next().await, queue[0]);
        done(ours).await.release().await.unwrap();
    }
    // A Redisson waiter becomes the head because our waiter leaves.
    let silent = peer.fair_acquire(&scene.name, 4, LEASE, LEASE).await;
    assert_eq!(silent, None);
    let ours = wait_for(&lock);
    scene.queued(1).await;
    let theirs = their_turn(&scene, &peer, 5);
    scene.queued(2).await;
    assert_eq!(scene.ask::<i64>(&["DEL", &scene.name]).await, 1);
    ours.abort();
    assert_eq!(notifications.next().await, peer.holder(5));
    done(theirs).await;
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    nothing_left(&scene.server).await;
}

/// The lock is free, but the Redisson head does not take it: its place lasts as long as in
/// Redisson.
#[tokio::test]
async fn a_dead_redisson_head_is_skipped_after_its_wait() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    // The place of the next thread lasts for both.
    let (lease, wait) = (Duration::from_millis(1_200), Duration::from_secs(1));
    let acquired = peer.fair_acquire(&scene.name, 1, lease, LEASE).await;
    assert_eq!(acquired, None);
    peer.fair_acquire(&scene.name, 2, lease, wait).await;
    let lock = scene.lock().await;
    let ours = wait_for(&lock);
    scene.queued(2).await;
    let until = scene.score(&peer.holder(2)).await.expect("it waits");
    assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
    assert!(lock.try_lock().await.unwrap().is_none());
    let guard = done(ours).await;
    let now = scene.now().await;
    assert!(now >= until, "{} ms too early", until - now);
    guard.release().await.unwrap();
    nothing_left(&scene.server).await;
}

/// Behind a dead head of ours, a Redisson waiter polls without a pause. It gets the lock once the
/// heartbeat ends, and does not block our waiters.
#[tokio::test]
async fn their_spin_does_no_harm() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let ours = patient_client(&scene.server.url()).await;
    scene.put(1, "dead", 3_000).await;
    let theirs = their_turn(&scene, &peer, 1);
    scene.queued(2).await;
    let after = our_turn(&scene, &ours);
    scene.queued(3).await;
    let queue = scene.queue().await;
    scene.server.reset_stats().await;
    eventually(SOON, "it spins", async || {
        let stats = scene.server.commandstats().await;
        stats.get("eval").is_some_and(|calls| *calls > 100)
    })
    .await;
    let others = ours.lock(lockset_testkit::unique_name("lock"));
    within(SOON, others.lock())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    done(theirs).await;
    done(after).await;
    let turns: Vec<String> = scene.ask(&["LRANGE", HELD, "0", "-1"]).await;
    assert_eq!(turns, queue[1..]);
    let calls = scene.server.commandstats().await["evalsha"];
    assert!(calls <= 12, "{calls} of ours");
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    idle(&ours).await;
    nothing_left(&scene.server).await;
}

/// Redisson's `tryLock()` does not overtake our queue, nor ours Redisson's.
#[tokio::test]
async fn attempts_without_a_wait_respect_the_others_queue() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock().await;
    scene.put(1, "silent", 60_000).await;
    assert!(!peer.fair_try(&scene.name, 1, LEASE).await);
    let keys = [scene.queue_key(), scene.timeouts_key(), scene.alive_key()];
    let deleted: i64 = scene.ask(&["DEL", &keys[0], &keys[1], &keys[2]]).await;
    assert_eq!(deleted, 3);
    assert!(peer.fair_try(&scene.name, 1, LEASE).await);
    assert!(lock.try_lock().await.unwrap().is_none());
    peer.fair_acquire(&scene.name, 2, LEASE, LEASE).await;
    assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(lock.waiters().await.unwrap(), [peer.holder(2)]);
    peer.fair_give_up(&scene.name, 2, LEASE).await;
    let guard = lock
        .try_lock()
        .await
        .unwrap()
        .expect("there are no waiters");
    guard.release().await.unwrap();
    nothing_left(&scene.server).await;
}
