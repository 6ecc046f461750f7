//! The scores in Redisson's sorted set, which say until when it keeps a waiter. Our waiters survive
//! all changes by Redisson, and no scores drift.

use std::collections::VecDeque;
use std::time::Duration;

use lockset::{Client, FairGuard};
use lockset_testkit::{Redisson, eventually};
use tokio::task::JoinHandle;

use super::redisson::our_turn;
use super::{HELD, Scene, done, wait_for};
use crate::support::{SOON, idle, nothing_left, patient_client};

const LEASE: Duration = Duration::from_secs(30);

/// The place of a waiter without a time limit, in ms.
const PLACE: i64 = 300_000;

/// Redisson's drift tests: a score stays close to the sum of the places before it.
#[tokio::test]
async fn scores_do_not_drift() {
    let scene = Scene::new().await;
    // Two clients in turn, so that no place is used in memory.
    let [ours, others] = [
        patient_client(&scene.server.url()).await,
        patient_client(&scene.server.url()).await,
    ];
    let locks = [scene.lock_of(&ours), scene.lock_of(&others)];
    let mut held = locks[1].lock().await.unwrap();
    let mut waiters = VecDeque::new();
    for place in 0..3 {
        waiters.push_back(wait_for(&locks[place % 2]));
        scene.queued(place + 1).await;
    }
    for round in 0..30 {
        let lock = &locks[(round + 1) % 2];
        // Short waits that time out, and a queue that is never empty.
        let wait = Duration::from_millis(round as u64 % 3);
        assert!(lock.try_lock_for(wait).await.unwrap().is_none());
        waiters.push_back(wait_for(lock));
        idle_but(&ours, 2).await;
        idle_but(&others, 2).await;
        scene.queued(4).await;
        held.release().await.unwrap();
        held = done(waiters.pop_front().expect("three")).await;
        scene.queued(3).await;
        let now = scene.now().await;
        for (place, waiter) in scene.queue().await.iter().enumerate() {
            let score = scene.score(waiter).await.expect("it has one");
            let lasts = score - now;
            let most = PLACE * 7;
            assert!((PLACE - 1_000..=most).contains(&lasts), "{place}: {lasts}");
        }
    }
    held.release().await.unwrap();
    for waiter in waiters {
        done(waiter).await.release().await.unwrap();
    }
    idle(&ours).await;
    idle(&others).await;
    nothing_left(&scene.server).await;
}

/// Waits until a client has only `waiters` waiters and no other work.
async fn idle_but(client: &Client, waiters: usize) {
    eventually(SOON, "only waiters are left", async || {
        let stats = client.stats();
        (stats.waiters, stats.background) == (waiters, 0)
    })
    .await;
}

/// Each Redisson waiter that leaves subtracts its wait from the scores behind it.
#[tokio::test]
async fn ours_outlive_any_number_of_their_shifts() {
    const THEIRS: u64 = 12;
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let wait = Redisson::FAIR_WAIT;
    let acquired = peer.fair_acquire(&scene.name, 0, LEASE, wait).await;
    assert_eq!(acquired, None);
    for thread in 1..=THEIRS {
        peer.fair_acquire(&scene.name, thread, LEASE, wait).await;
    }
    let ours = wait_for(&scene.lock().await);
    scene.queued(THEIRS as usize + 1).await;
    let last = peer.fair_acquire(&scene.name, 99, LEASE, wait).await;
    assert!(last.is_some());
    let queue = scene.queue().await;
    let us = &queue[THEIRS as usize];
    let mut holds = 0;
    for thread in 1..=THEIRS {
        if thread % 3 == 0 {
            peer.fair_give_up(&scene.name, thread, wait).await;
        } else {
            assert_eq!(peer.fair_release(&scene.name, holds).await, Some(1));
            let acquired = peer.fair_acquire(&scene.name, thread, LEASE, wait).await;
            assert_eq!(acquired, None, "its turn");
            holds = thread;
        }
        let lasts = scene.score(us).await.expect("it is queued") - scene.now().await;
        assert!(lasts > 0, "after {thread}: {lasts}");
    }
    assert_eq!(scene.queue().await, [us.clone(), peer.holder(99)]);
    let mut notifications = scene.notifications().await;
    assert_eq!(peer.fair_release(&scene.name, holds).await, Some(1));
    assert_eq!(notifications.next().await, *us);
    done(ours).await.release().await.unwrap();
    assert_eq!(notifications.next().await, peer.holder(99));
    peer.fair_give_up(&scene.name, 99, wait).await;
    nothing_left(&scene.server).await;
}

/// The shift is as long as the wait that the caller specified.
#[tokio::test]
async fn ours_outlive_shifts_of_an_hour() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    // Two, so that no place is used in memory.
    let clients = [
        patient_client(&scene.server.url()).await,
        patient_client(&scene.server.url()).await,
    ];
    let wait = Duration::from_secs(3_600);
    let acquired = peer.fair_acquire(&scene.name, 0, LEASE, wait).await;
    assert_eq!(acquired, None);
    // Redisson, Redisson, ours, ours, and again.
    let mut ours = Vec::new();
    for place in 0..8 {
        match place % 4 {
            0 | 1 => {
                peer.fair_acquire(&scene.name, place + 1, LEASE, wait).await;
            }
            _ => ours.push(our_turn(&scene, &clients[place as usize % 2])),
        }
        scene.queued(place as usize + 1).await;
    }
    peer.fair_acquire(&scene.name, 99, LEASE, wait).await;
    let queue = scene.queue().await;
    let mut notifications = scene.notifications().await;
    let mut ours = ours.into_iter();
    for [takes, gives_up] in [[1, 2], [5, 6]] {
        // At once, so that our polls do not come between a shift and the reading of the scores.
        if takes == 1 {
            assert_eq!(peer.fair_release(&scene.name, 0).await, Some(1));
        }
        let acquired = peer.fair_acquire(&scene.name, takes, LEASE, wait).await;
        assert_eq!(acquired, None, "its turn");
        peer.fair_give_up(&scene.name, gives_up, wait).await;
        assert_eq!(peer.fair_release(&scene.name, takes).await, Some(1));
        for _ in 0..2 {
            done(ours.next().expect("four")).await;
        }
    }
    notifications.until(&peer.holder(99)).await;
    let turns: Vec<String> = scene.ask(&["LRANGE", HELD, "0", "-1"]).await;
    assert_eq!(turns, [&queue[2..4], &queue[6..8]].concat());
    peer.fair_give_up(&scene.name, 99, wait).await;
    let _: i64 = scene.ask(&["DEL", HELD]).await;
    for client in &clients {
        idle(client).await;
    }
    nothing_left(&scene.server).await;
}

/// A task of ours or a thread of the peer that holds the lock or waits for it.
enum Turn {
    Ours(JoinHandle<FairGuard>),
    /// A thread of the peer.
    Theirs(u64),
}

/// In a mixed queue that is never empty, scores stay close to the sum of the places.
#[tokio::test]
async fn scores_of_a_mixed_queue_do_not_drift() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock().await;
    let wait = Redisson::FAIR_WAIT;
    let mut turns = VecDeque::new();
    for round in 0..64_u64 {
        turns.push_back(if round % 2 == 0 {
            Turn::Ours(wait_for(&lock))
        } else {
            peer.fair_acquire(&scene.name, round, LEASE, wait).await;
            Turn::Theirs(round)
        });
        // If our waiter is first, it has been granted the lock. A Redisson thread has to ask.
        let is_ours = matches!(turns.front(), Some(Turn::Ours(_)));
        scene.queued(turns.len() - usize::from(is_ours)).await;
        if round == 0 {
            // Otherwise the first Redisson thread may come before it.
            let is_held = async || lock.holder().await.unwrap().is_some();
            eventually(SOON, "ours has the lock", is_held).await;
        }
        if round < 4 {
            continue;
        }
        match turns.pop_front().expect("five") {
            Turn::Ours(task) => done(task).await.release().await.unwrap(),
            Turn::Theirs(thread) => {
                let acquired = peer.fair_acquire(&scene.name, thread, LEASE, wait).await;
                assert_eq!(acquired, None, "its turn");
                assert_eq!(peer.fair_release(&scene.name, thread).await, Some(1));
            }
        }
        let now = scene.now().await;
        for waiter in scene.queue().await {
            let score = scene.score(&waiter).await.expect("it has one");
            let lasts = score - now;
            assert!((1..=PLACE * 9).contains(&lasts), "round {round}: {lasts}");
        }
    }
}

/// Java programs that wait forever pass the longest time.
#[tokio::test]
async fn an_endless_redisson_wait_does_not_block_us() {
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let lock = scene.lock().await;
    let endless = Duration::from_millis(i64::MAX.unsigned_abs());
    for leaves in [true, false] {
        let acquired = peer.fair_acquire(&scene.name, 1, LEASE, LEASE).await;
        assert_eq!(acquired, None);
        peer.fair_acquire(&scene.name, 2, LEASE, endless).await;
        let ours = wait_for(&lock);
        scene.queued(2).await;
        if leaves {
            peer.fair_give_up(&scene.name, 2, endless).await;
            assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
        } else {
            assert_eq!(peer.fair_release(&scene.name, 1).await, Some(1));
            let acquired = peer.fair_acquire(&scene.name, 2, LEASE, endless).await;
            assert_eq!(acquired, None);
            assert_eq!(peer.fair_release(&scene.name, 2).await, Some(1));
        }
        done(ours).await.release().await.unwrap();
    }
}

/// Behind many of our waiters its score is far ahead, and our turns do not lower it.
#[tokio::test]
async fn a_dead_head_of_theirs_behind_many_of_ours_is_kept_no_longer() {
    const OURS: usize = 10;
    let scene = Scene::new().await;
    let peer = Redisson::connect(&scene.server).await;
    let client = patient_client(&scene.server.url()).await;
    let lock = scene.lock_of(&client);
    let held = lock.lock().await.unwrap();
    let mut waiters = Vec::new();
    for place in 1..=OURS {
        waiters.push(wait_for(&lock));
        scene.queued(place).await;
    }
    peer.fair_acquire(&scene.name, 1, LEASE, Duration::from_secs(1))
        .await;
    let last = wait_for(&lock);
    scene.queued(OURS + 2).await;
    let score = async || scene.score(&peer.holder(1)).await.expect("it waits");
    let lasts = score().await - scene.now().await;
    assert!(lasts > PLACE * OURS as i64, "{lasts}");
    held.release().await.unwrap();
    for waiter in waiters {
        done(waiter).await.release().await.unwrap();
    }
    let lasts = score().await - scene.now().await;
    assert!(lasts <= PLACE, "{lasts}");
    assert!(lasts > PLACE - 60_000, "{lasts}");
    assert!(lock.try_lock().await.unwrap().is_none());
    // The real time would be too long for a test.
    let soon = (scene.now().await + 300).to_string();
    let timeouts = scene.timeouts_key();
    let changed = ["ZADD", &*timeouts, "XX", "CH", &*soon, &*peer.holder(1)];
    assert_eq!(scene.ask::<i64>(&changed).await, 1);
    done(last).await.release().await.unwrap();
    idle(&client).await;
    nothing_left(&scene.server).await;
}
