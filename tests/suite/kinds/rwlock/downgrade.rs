//! A writer that becomes a reader in one step.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use lockset::Owner;
use lockset_testkit::{Redisson, eventually, within};

use super::{Scene, fields};
use crate::support::{BY_MESSAGE, SOON, idle, took_less, waiting};

#[tokio::test]
async fn the_keys_and_messages_of_a_downgrade() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let writer = scene.lock(&ours).write().await.unwrap();
    let holder = scene.holder().await;
    let mut messages = scene.messages().await;
    let owner = writer.owner().clone();
    let reader = writer.downgrade().await.unwrap();
    assert_eq!(scene.hash().await, fields("read", &holder, 0, 1));
    assert_eq!(
        scene.server.keys().await.len(),
        2,
        "the lock and one read hold"
    );
    for lease in [scene.lease().await, scene.read_lease(&holder, 1).await] {
        assert!((25_000..=30_000).contains(&lease), "{lease}");
    }
    assert_eq!(messages.next().await, "1");
    assert_eq!((reader.owner(), reader.hold_count()), (&owner, 1));
    assert!(reader.remaining() > Duration::from_secs(20));
    reader.release().await.unwrap();
    assert_eq!(messages.next().await, "0");
    messages.no_more(&scene).await;
    drop(messages);
    scene.nothing_left([&ours]).await;
}

/// A writer and readers of other clients wait. The values they see tell the order of the grants.
#[tokio::test(flavor = "multi_thread")]
async fn no_writer_comes_between_and_readers_come_at_once() {
    const ROUNDS: u64 = 20;
    const THEIRS: u64 = 1_000;
    let scene = Scene::new().await;
    let [ours, writers, readers] = scene.patient().await;
    let value = Arc::new(AtomicU64::new(0));
    for round in 1..=ROUNDS {
        let writer = scene.lock(&ours).write().await.unwrap();
        value.store(round, Ordering::SeqCst);
        let next = {
            let (lock, value) = (scene.lock(&writers), Arc::clone(&value));
            lockset_testkit::spawn(async move {
                let guard = lock.write().await.unwrap();
                value.store(THEIRS + round, Ordering::SeqCst);
                guard.release().await.unwrap();
            })
        };
        scene.writers_wait(1).await;
        let waiters = [&readers, &readers, &ours].map(|client| {
            let (lock, value) = (scene.lock(client), Arc::clone(&value));
            lockset_testkit::spawn(async move {
                let guard = lock.read().await.unwrap();
                (value.load(Ordering::SeqCst), guard)
            })
        });
        waiting(&readers, 2).await;
        waiting(&ours, 1).await;
        scene.listeners(2).await;
        // The reported wait of a reader excludes the time of its request, so wait longer than that.
        // Otherwise the writer would go first.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let started = Instant::now();
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(value.load(Ordering::SeqCst), round, "another wrote");
        for waiter in waiters {
            let (seen, guard) = within(SOON, waiter).await.unwrap();
            assert_eq!(seen, round, "another wrote before the waiting readers read");
            guard.release().await.unwrap();
        }
        took_less(started, BY_MESSAGE);
        assert_eq!(value.load(Ordering::SeqCst), round, "while it reads");
        assert!(!next.is_finished());
        reader.release().await.unwrap();
        within(SOON, next).await.unwrap();
        assert_eq!(value.load(Ordering::SeqCst), THEIRS + round);
        took_less(started, BY_MESSAGE * 2);
        for client in [&ours, &writers, &readers] {
            idle(client).await;
        }
        eventually(SOON, "all subscriptions are closed", async || {
            scene.server.pubsub_channels().await.is_empty()
        })
        .await;
    }
    scene.nothing_left([&ours, &writers, &readers]).await;
}

/// Other callers wait as long as one write guard of the owner is left.
#[tokio::test]
async fn one_of_several_write_holds() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let (first, second, third) = (
        lock.write().await.unwrap(),
        lock.write().await.unwrap(),
        lock.write().await.unwrap(),
    );
    let holder = scene.holder().await;
    let mut messages = scene.messages().await;
    let waiter = {
        let lock = scene.lock(&theirs);
        lockset_testkit::spawn(async move { lock.read().await.unwrap() })
    };
    scene.listeners(2).await;
    let second = second.downgrade().await.unwrap();
    assert_eq!(scene.hash().await, fields("write", &holder, 1, 0));
    third.release().await.unwrap();
    assert_eq!(scene.hash().await, fields("write", &holder, 1, 0));
    messages.no_more(&scene).await;
    assert!(!waiter.is_finished());
    assert_eq!((first.hold_count(), second.hold_count()), (1, 1));
    let started = Instant::now();
    let first = first.downgrade().await.unwrap();
    let stranger = within(SOON, waiter).await.unwrap();
    took_less(started, BY_MESSAGE);
    assert_eq!(messages.next().await, "1");
    assert_eq!(first.hold_count(), 2);
    assert!(scene.read_lease(&holder, 1).await > 0);
    stranger.release().await.unwrap();
    first.release().await.unwrap();
    second.release().await.unwrap();
    drop(messages);
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson's readers would sleep for the whole lease they were told.
#[tokio::test]
async fn readers_of_redisson_come_at_once() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let writer = scene.lock(&ours).write().await.unwrap();
    let waiters: Vec<_> = (1..=3)
        .map(|thread| {
            let (peer, name) = (peer.clone(), scene.name.clone());
            let lease = Redisson::WATCHDOG_TIMEOUT;
            lockset_testkit::spawn(async move { peer.read_lock(&name, thread, lease, SOON).await })
        })
        .collect();
    scene.listeners(1).await;
    // A Redisson thread checks once more after it has subscribed. A message before the end of that
    // check would be lost.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let started = Instant::now();
    let reader = writer.downgrade().await.unwrap();
    for waiter in waiters {
        assert!(within(SOON, waiter).await.unwrap());
    }
    took_less(started, BY_MESSAGE);
    reader.release().await.unwrap();
    for thread in 1..=3 {
        assert!(peer.read_release(&scene.name, thread).await.is_some());
    }
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn a_lost_lock_is_not_read_on() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let lock = scene.lock(&ours);
    // This client knows that the lease is over.
    let short = lock.clone().fixed_lease(Duration::from_millis(100));
    let writer = short.write().await.unwrap();
    within(SOON, writer.lost()).await;
    let next = within(SOON, scene.lock(&theirs).write()).await.unwrap();
    let error = writer.downgrade().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
    assert_eq!(error.lock_name(), Some(&*scene.name));
    idle(&ours).await;
    let holder = scene.holder().await;
    assert_eq!(scene.hash().await, fields("write", &holder, 1, 0));
    next.release().await.unwrap();
    // This client does not know that the hold was force-unlocked and that another client has the
    // lock.
    for is_read_next in [false, true] {
        let writer = lock.write().await.unwrap();
        let force = scene.lock(&theirs).write_side();
        assert!(force.force_unlock().await.unwrap());
        let (mut reading, mut writing) = (None, None);
        if is_read_next {
            reading = scene.lock(&theirs).try_read().await.unwrap()
        } else {
            writing = scene.lock(&theirs).try_write().await.unwrap()
        }
        let before = scene.hash().await;
        let error = writer.downgrade().await.unwrap_err();
        assert!(error.is_not_held(), "{error}");
        idle(&ours).await;
        assert_eq!(scene.hash().await, before);
        if let Some(guard) = reading {
            guard.release().await.unwrap();
        }
        if let Some(guard) = writing {
            guard.release().await.unwrap();
        }
    }
    scene.nothing_left([&ours, &theirs]).await;
}

/// Dropped before the request is sent, while it is in flight, or after the reply.
#[tokio::test]
async fn a_dropped_downgrade_releases_everything() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    for moment in [0, 0, 1, 5] {
        let writer = scene.lock(&ours).write().await.unwrap();
        let mut downgrade = Box::pin(writer.downgrade());
        std::future::poll_fn(|context| {
            assert!(downgrade.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        if moment > 0 {
            tokio::time::sleep(Duration::from_millis(moment)).await;
        }
        drop(downgrade);
        let next = within(SOON, scene.lock(&theirs).write()).await.unwrap();
        next.release().await.unwrap();
        scene.nothing_left([&ours, &theirs]).await;
    }
    // Never polled at all.
    let writer = scene.lock(&ours).write().await.unwrap();
    drop(writer.downgrade());
    scene.nothing_left([&ours, &theirs]).await;
}
