//! Sharing a lock with Redisson: who gets in, who is notified, and the effects of Redisson's
//! defects.

use std::time::{Duration, Instant};

use lockset::LostReason;
use lockset_testkit::{Redisson, eventually, within};

use super::Scene;
use crate::support::{BY_MESSAGE, LEASE, SOON, took_less, took_less_until};

const WATCHDOG: Duration = Redisson::WATCHDOG_TIMEOUT;

/// A Redisson thread that waits for one side.
fn waits(
    peer: &Redisson,
    scene: &Scene,
    thread: u64,
    reads: bool,
) -> tokio::task::JoinHandle<(bool, Instant)> {
    let (peer, name) = (peer.clone(), scene.name.clone());
    lockset_testkit::spawn(async move {
        let got = if reads {
            peer.read_lock(&name, thread, WATCHDOG, SOON).await
        } else {
            peer.write_lock(&name, thread, WATCHDOG, SOON).await
        };
        (got, Instant::now())
    })
}

/// Long enough for a Redisson thread that has subscribed to check once more and sleep.
async fn asleep() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[tokio::test]
async fn readers_of_both_kinds_read_together_and_the_last_frees_a_writer() {
    for (is_ours_last, is_our_writer) in
        [(false, false), (false, true), (true, false), (true, true)]
    {
        let scene = Scene::new().await;
        let [ours, theirs] = scene.patient().await;
        let peer = Redisson::connect(&scene.server).await;
        let lock = scene.lock(&ours);
        let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
        for thread in [1, 2] {
            let refused = peer.read_acquire(&scene.name, thread, WATCHDOG).await;
            assert_eq!(refused, None);
        }
        let beside = lock.read().await.unwrap();
        beside.release().await.unwrap();
        assert!(lock.try_write().await.unwrap().is_none());
        let refused = peer.write_acquire(&scene.name, 9, WATCHDOG).await;
        assert!(refused.is_some_and(|ttl| ttl > 25_000), "{refused:?}");
        let (our_writer, their_writer) = if is_our_writer {
            let lock = scene.lock(&theirs);
            let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
            (Some(waiter), None)
        } else {
            (None, Some(waits(&peer, &scene, 9, false)))
        };
        scene.listeners(1).await;
        asleep().await;
        let [first, last] = readers;
        first.release().await.unwrap();
        assert_eq!(peer.read_release(&scene.name, 1).await, Some(0));
        let freed;
        if is_ours_last {
            assert_eq!(peer.read_release(&scene.name, 2).await, Some(0));
            assert!(!last.is_lost());
            freed = Instant::now();
            last.release().await.unwrap();
        } else {
            last.release().await.unwrap();
            freed = Instant::now();
            assert_eq!(peer.read_release(&scene.name, 2).await, Some(1));
        }
        if let Some(waiter) = our_writer {
            let guard = within(SOON, waiter).await.unwrap();
            took_less(freed, BY_MESSAGE);
            guard.release().await.unwrap();
        }
        if let Some(waiter) = their_writer {
            let (got, entered) = within(SOON, waiter).await.unwrap();
            assert!(got);
            took_less_until(entered, freed, BY_MESSAGE);
            assert_eq!(peer.write_release(&scene.name, 9).await, Some(1));
        }
        assert!(peer.undecodable().is_empty());
        scene.nothing_left([&ours, &theirs]).await;
    }
}

#[tokio::test]
async fn writers_of_both_kinds_exclude_each_other_and_all_readers() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let (lock, name) = (scene.lock(&ours), &*scene.name);
    // Ours, then Redisson's.
    let writer = lock.write().await.unwrap();
    assert!(peer.read_acquire(name, 1, WATCHDOG).await.is_some());
    assert!(peer.write_acquire(name, 1, WATCHDOG).await.is_some());
    let waiters = [
        waits(&peer, &scene, 1, false),
        waits(&peer, &scene, 2, true),
    ];
    scene.listeners(1).await;
    asleep().await;
    assert!(!waiters.iter().any(|waiter| waiter.is_finished()));
    let freed = Instant::now();
    writer.release().await.unwrap();
    let mut entered = 0;
    for (waiter, thread) in waiters.into_iter().zip([1, 2]) {
        // Each side lets the other in, in either order.
        if thread == 1 {
            let (got, at) = within(SOON, waiter).await.unwrap();
            assert!(got);
            took_less_until(at, freed, BY_MESSAGE);
            assert!(lock.try_read().await.unwrap().is_none());
            assert!(lock.try_write().await.unwrap().is_none());
            let our_waiter = {
                let lock = scene.lock(&theirs);
                lockset_testkit::spawn(async move { lock.read().await.unwrap() })
            };
            scene.listeners(2).await;
            asleep().await;
            let freed = Instant::now();
            assert_eq!(peer.write_release(name, 1).await, Some(1));
            let guard = within(SOON, our_waiter).await.unwrap();
            took_less(freed, BY_MESSAGE);
            guard.release().await.unwrap();
        } else {
            assert!(within(SOON, waiter).await.unwrap().0);
            assert!(peer.read_release(name, 2).await.is_some());
        }
        entered += 1;
    }
    assert_eq!(entered, 2);
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson's readers do not know of our waiting writer. Our readers let it go first.
#[tokio::test]
async fn a_reader_of_redisson_does_not_let_our_writer_go_first() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let reader = scene.lock(&ours).read().await.unwrap();
    let lock = scene.lock(&theirs);
    let waiter = lockset_testkit::spawn(async move { lock.write().await.unwrap() });
    scene.writers_wait(1).await;
    scene.listeners(1).await;
    assert_eq!(peer.read_acquire(&scene.name, 1, WATCHDOG).await, None);
    assert!(scene.lock(&ours).try_read().await.unwrap().is_none());
    reader.release().await.unwrap();
    assert!(!waiter.is_finished());
    let freed = Instant::now();
    assert_eq!(peer.read_release(&scene.name, 1).await, Some(1));
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    took_less(freed, BY_MESSAGE);
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson downgrades a hold without publishing a message.
#[tokio::test]
async fn a_silent_downgrade_of_redisson_is_found_by_the_next_poll() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let name = &*scene.name;
    assert_eq!(peer.write_acquire(name, 1, WATCHDOG).await, None);
    assert_eq!(peer.read_acquire(name, 1, WATCHDOG).await, None);
    let waiters = [&ours, &ours, &theirs].map(|client| {
        let lock = scene.lock(client);
        lockset_testkit::spawn(async move { lock.read().await.unwrap() })
    });
    scene.listeners(2).await;
    asleep().await;
    let mut messages = scene.messages().await;
    let downgraded = Instant::now();
    assert_eq!(peer.write_release(name, 1).await, Some(1));
    messages.no_more(&scene).await;
    for waiter in waiters {
        let guard = within(SOON, waiter).await.unwrap();
        let waited = downgraded.elapsed();
        // The poll after that comes later.
        assert!(waited < Duration::from_millis(1_800), "{waited:?}");
        guard.forget();
    }
    assert_eq!(peer.read_release(name, 1).await, Some(0));
}

#[tokio::test]
async fn force_from_either_side() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.quick().await;
    let peer = Redisson::connect(&scene.server).await;
    let (lock, name) = (scene.lock(&ours), &*scene.name);
    // Redisson force-unlocks our hold: the next renewal detects it, and our waiter is notified.
    let writer = lock.write().await.unwrap();
    assert!(!peer.read_force_unlock(name).await);
    assert!(peer.write_force_unlock(name).await);
    assert_eq!(within(SOON, writer.lost()).await, LostReason::Revoked);
    assert!(writer.release().await.unwrap_err().is_not_held());
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap()];
    let waiter = {
        let lock = scene.lock(&theirs);
        lockset_testkit::spawn(async move { lock.write().await.unwrap() })
    };
    scene.listeners(1).await;
    assert!(!peer.write_force_unlock(name).await);
    assert!(peer.read_force_unlock(name).await);
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    for reader in readers {
        assert_eq!(within(SOON, reader.lost()).await, LostReason::Revoked);
        assert!(reader.release().await.unwrap_err().is_not_held());
    }
    // We force-unlock Redisson's holds: all its waiters are notified.
    for reads in [true, false] {
        let refused = if reads {
            peer.read_acquire(name, 1, WATCHDOG).await
        } else {
            peer.write_acquire(name, 1, WATCHDOG).await
        };
        assert_eq!(refused, None);
        let waiter = waits(&peer, &scene, 2, false);
        eventually(SOON, "it waits", async || {
            !scene.server.pubsub_channels().await.is_empty()
        })
        .await;
        asleep().await;
        // The other side is asked first, because the waiter may hold the lock once it is free.
        let (read, write) = (lock.read_side(), lock.write_side());
        let wrong = if reads {
            write.force_unlock().await
        } else {
            read.force_unlock().await
        };
        assert!(!wrong.unwrap());
        let forced = Instant::now();
        let right = if reads {
            read.force_unlock().await
        } else {
            write.force_unlock().await
        };
        assert!(right.unwrap());
        let (got, entered) = within(SOON, waiter).await.unwrap();
        assert!(
            got && entered - forced < BY_MESSAGE,
            "{:?}",
            entered - forced
        );
        let released = if reads {
            peer.read_release(name, 1).await
        } else {
            peer.write_release(name, 1).await
        };
        assert_eq!(released, None, "it no longer holds the lock");
        assert_eq!(peer.write_release(name, 2).await, Some(1));
    }
    scene.nothing_left([&ours, &theirs]).await;
}

/// Redisson's unlock of a lock that it lost still publishes a message.
#[tokio::test]
async fn an_unlock_of_a_lost_lock_does_no_harm() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let peer = Redisson::connect(&scene.server).await;
    let (lock, name) = (scene.lock(&ours), &*scene.name);
    let mut messages = scene.messages().await;
    assert_eq!(peer.read_release(name, 1).await, None);
    assert_eq!(messages.next().await, "0");
    assert_eq!(peer.write_release(name, 1).await, None);
    assert_eq!(messages.any().await, "1");
    // While we hold the lock, both Redisson unlocks, of holds that ended long ago.
    for reads in [true, false] {
        let (mut reader, mut writer) = (None, None);
        if reads {
            reader = Some(lock.read().await.unwrap())
        } else {
            writer = Some(lock.write().await.unwrap())
        }
        let waiter = {
            let lock = scene.lock(&theirs);
            lockset_testkit::spawn(async move { lock.write().await.unwrap() })
        };
        scene.writers_wait(1).await;
        scene.listeners(2).await;
        let before = scene.hash().await;
        assert_eq!(peer.read_release(name, 1).await, None);
        assert_eq!(peer.write_release(name, 1).await, None);
        // Redisson's messages wake our waiters without a grant.
        for payload in ["0", "1"] {
            let channel = Redisson::rw_channel(name);
            let _: i64 = scene.ask(&["PUBLISH", &channel, payload]).await;
        }
        asleep().await;
        assert_eq!(scene.hash().await, before);
        assert!(!waiter.is_finished());
        if let Some(guard) = reader {
            guard.release().await.unwrap();
        }
        if let Some(guard) = writer {
            guard.release().await.unwrap();
        }
        within(SOON, waiter).await.unwrap().release().await.unwrap();
        eventually(SOON, "the subscription is closed", async || {
            scene.server.pubsub_channels().await.len() == 1
                && scene.ask::<i64>(&["EXISTS", name]).await == 0
        })
        .await;
        tokio::time::sleep(LEASE / 4).await;
    }
    drop(messages);
    scene.nothing_left([&ours, &theirs]).await;
}
