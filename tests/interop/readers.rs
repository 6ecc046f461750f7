//! Readers of both sides together: the last one to leave wakes a writer of either side.

use std::time::Instant;

use lockset::Owner;
use lockset_testkit::{unique_name, within};

use crate::kind::Kind;
use crate::pair::{Pair, SOON, by_message};

/// Two readers of each side, who leave in turn. The last one is Java's or Rust's.
async fn the_last_reader_frees_a_writer(last_is_java: bool, writer_is_java: bool) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    let lock = pair.rust.rw_lock(&name);
    let mut ours = Vec::new();
    for thread in [1, 2] {
        java.tell(thread, "lock", &read).await;
        // With an owner, because otherwise the second reader would join the hold of the first.
        let owned = lock.read_side().owner(&Owner::new());
        ours.push(owned.lock().await.unwrap());
    }
    assert_eq!(lock.read_side().holders().await.unwrap().len(), 4);
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(!java.is(3, "try_lock", &write).await);

    let asked = Instant::now();
    let (javas, rusts) = if writer_is_java {
        (Some(java.tell(3, "lock", &write)), None)
    } else {
        let lock = lock.clone();
        (
            None,
            Some(tokio::spawn(async move { lock.write().await.unwrap() })),
        )
    };
    if writer_is_java {
        java.sleeps(3).await;
    }
    pair.listening().await;
    for thread in [1, 2] {
        let left = async |java_leaves: bool, ours: &mut Vec<lockset::ReadGuard>| {
            if java_leaves {
                java.tell(thread, "unlock", &read).await;
            } else {
                ours.pop().unwrap().release().await.unwrap();
            }
        };
        left(!last_is_java, &mut ours).await;
        let is_locked = lock.read_side().is_locked().await.unwrap();
        assert!(is_locked, "one of the other side reads on");
        left(last_is_java, &mut ours).await;
    }
    if let Some(waiter) = javas {
        within(SOON, waiter).await;
        assert!(lock.try_read().await.unwrap().is_none());
        java.tell(3, "unlock", &write).await;
    }
    if let Some(waiter) = rusts {
        let guard = within(SOON, waiter).await.unwrap();
        by_message(asked);
        assert!(!java.is(1, "try_lock", &read).await);
        guard.release().await.unwrap();
    }
    pair.nothing_left().await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn javas_last_reader_frees_javas_writer() {
    the_last_reader_frees_a_writer(true, true).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn javas_last_reader_frees_rusts_writer() {
    the_last_reader_frees_a_writer(true, false).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn rusts_last_reader_frees_javas_writer() {
    the_last_reader_frees_a_writer(false, true).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn rusts_last_reader_frees_rusts_writer() {
    the_last_reader_frees_a_writer(false, false).await;
}

/// Two tasks of our client share one hold at the server. Java's writer waits for both.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn javas_writer_waits_for_readers_that_have_one_hold() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    let lock = pair.rust.rw_lock(&name);
    let (first, second) = tokio::join!(lock.read(), lock.read());
    let (first, second) = (first.unwrap(), second.unwrap());
    let holders = lock.read_side().holders().await.unwrap();
    assert_eq!((holders.len(), holders[0].hold_count), (1, 1));
    java.tell(1, "lock", &read).await;
    java.tell(1, "unlock", &read).await;

    let waiter = java.tell(3, "lock", &write);
    java.sleeps(3).await;
    first.release().await.unwrap();
    assert!(lock.read_side().is_locked().await.unwrap());
    assert!(!second.is_lost());
    second.release().await.unwrap();
    // Without a message it would sleep for as long as the lease.
    within(SOON, waiter).await;
    java.tell(3, "unlock", &write).await;
    pair.nothing_left().await;
}

/// A writer that also reads, and stops writing before it stops reading.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_java_writer_that_downgrades_keeps_writers_out() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    let lock = pair.rust.rw_lock(&name);
    java.tell(1, "lock", &write).await;
    java.tell(1, "lock", &read).await;
    assert!(lock.try_read().await.unwrap().is_none());
    let (readers, writer) = (lock.read_side(), lock.write_side());
    assert_eq!(writer.holder().await.unwrap().unwrap().hold_count, 1);
    assert_eq!(readers.holders().await.unwrap()[0].hold_count, 1);
    java.tell(1, "unlock", &write).await;
    assert!(!writer.is_locked().await.unwrap());
    let reading = lock.try_read().await.unwrap().expect("beside Java's");
    java.tell(1, "unlock", &read).await;
    assert!(lock.try_write().await.unwrap().is_none());
    assert!(!java.is(1, "try_lock", &write).await);
    reading.release().await.unwrap();
    lock.try_write()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    pair.nothing_left().await;
}
