//! A reader that requests the write side would wait for itself.

use std::time::{Duration, Instant};

use lockset::{Error, Owner, RwLock};
use lockset_testkit::within;

use super::{Scene, fields};
use crate::support::{BY_MESSAGE, SOON, took_less, waiting};

/// Checks the error of every verb for an owner that reads.
async fn refused(lock: &RwLock) {
    let check = |error: Error| {
        assert!(error.is_upgrade() && error.is_invalid(), "{error}");
        assert!(!error.is_not_held() && !error.is_io());
        let text = error.to_string();
        assert!(text.contains("this owner reads, and"), "{text}");
        assert!(text.contains("it would wait for itself"), "{text}");
        assert!(text.contains("downgrade"), "what to do instead: {text}");
        assert_eq!(
            Some(error.lock_name().unwrap().to_owned()),
            text.split('"').nth(1).map(str::to_owned)
        );
    };
    let asked = Instant::now();
    check(within(SOON, lock.write()).await.unwrap_err());
    check(within(SOON, lock.try_write()).await.unwrap_err());
    let long = Duration::from_secs(60);
    check(within(SOON, lock.try_write_for(long)).await.unwrap_err());
    let side = lock.write_side();
    check(within(SOON, side.lock()).await.unwrap_err());
    check(within(SOON, side.try_lock()).await.unwrap_err());
    check(within(SOON, side.try_lock_for(long)).await.unwrap_err());
    took_less(asked, BY_MESSAGE);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_reads_is_refused_at_once_and_reads_on() {
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    let lock = scene.lock(&ours).owner(&Owner::new());
    let reader = lock.read().await.unwrap();
    let holder = scene.holder().await;
    refused(&lock).await;
    let elsewhere = lock.clone();
    lockset_testkit::spawn(async move { refused(&elsewhere).await })
        .await
        .unwrap();
    assert_eq!(scene.hash().await, fields("read", &holder, 0, 1));
    assert_eq!(scene.server.keys().await.len(), 2, "no writer waits");
    assert!(!reader.is_lost());
    assert_eq!(reader.hold_count(), 1);
    let again = lock.read().await.unwrap();
    again.release().await.unwrap();
    reader.release().await.unwrap();
    // The read hold that prevented it is gone.
    let writer = lock.try_write().await.unwrap().expect("it is free");
    // A downgraded reader, with a writer before it.
    let reader = writer.downgrade().await.unwrap();
    refused(&lock).await;
    reader.release().await.unwrap();
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn a_stranger_waits() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let owner = Owner::new();
    let reader = scene.lock(&ours).owner(&owner).read().await.unwrap();
    let strangers = [
        scene.lock(&ours),
        scene.lock(&ours).owner(&Owner::new()),
        // Another client does not know what this owner holds here.
        scene.lock(&theirs).owner(&owner),
    ];
    for stranger in &strangers {
        assert!(stranger.try_write().await.unwrap().is_none());
        let wait = Duration::from_millis(50);
        assert!(stranger.try_write_for(wait).await.unwrap().is_none());
    }
    let waiters = strangers.map(|stranger| {
        lockset_testkit::spawn(
            async move { stranger.write().await.unwrap().release().await.unwrap() },
        )
    });
    waiting(&ours, 2).await;
    waiting(&theirs, 1).await;
    scene.listeners(2).await;
    assert!(!waiters.iter().any(|waiter| waiter.is_finished()));
    let released = Instant::now();
    reader.release().await.unwrap();
    for waiter in waiters {
        within(SOON, waiter).await.unwrap();
    }
    took_less(released, BY_MESSAGE);
    scene.nothing_left([&ours, &theirs]).await;
}

/// An owner that waits to write does not read, whatever its other tasks do.
#[tokio::test]
async fn an_owner_waiting_to_write_cannot_read() {
    let scene = Scene::new().await;
    let [ours, theirs] = scene.patient().await;
    let owner = Owner::new();
    let held = scene.lock(&theirs).read().await.unwrap();
    let lock = scene.lock(&ours).owner(&owner);
    let waiter = {
        let lock = lock.clone();
        lockset_testkit::spawn(async move { lock.write().await.unwrap() })
    };
    scene.writers_wait(1).await;
    assert!(
        lock.try_read().await.unwrap().is_none(),
        "a writer waits, be it its own"
    );
    held.release().await.unwrap();
    let writer = within(SOON, waiter).await.unwrap();
    let reader = lock.try_read().await.unwrap().expect("it writes");
    writer.release().await.unwrap();
    reader.release().await.unwrap();
    scene.nothing_left([&ours, &theirs]).await;
}
