//! Latches and semaphores of both sides wake each other and share one count.

use std::time::{Duration, Instant};

use lockset_testkit::{eventually, stalls, took_less, unique_name, within};

use crate::pair::{Pair, SOON};

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn java_waits_for_rust_that_counts_down() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("latch"));
    let (latch, words) = (pair.rust.latch(&name), format!("latch {name}"));
    assert!(latch.init(2).await.unwrap());
    assert!(!java.is(1, "init", &format!("{words} 5")).await);
    let waiter = java.tell(1, "wait", &words);
    pair.listening().await;
    latch.count_down().await.unwrap();
    java.tell(2, "count_down", &words).await;
    within(SOON, waiter).await;
    assert_eq!(latch.count().await.unwrap(), 0);
    // Java's own `delete` does not wake waiters.
    pair.all_have_unsubscribed().await;
    assert!(java.is(1, "init", &format!("{words} 1")).await);
    let waiter = java.tell(1, "wait", &words);
    pair.listening().await;
    assert!(latch.delete().await.unwrap());
    within(SOON, waiter).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn rust_waits_for_java_that_counts_down() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("latch"));
    let (latch, words) = (pair.rust.latch(&name), format!("latch {name}"));
    assert!(java.is(1, "init", &format!("{words} 2")).await);
    assert!(!latch.init(5).await.unwrap());
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    pair.listening().await;
    assert!(latch.count_down_as("a").await.unwrap());
    assert!(!latch.count_down_as("a").await.unwrap());
    assert_eq!(java.tell(1, "left", &words).await, "1");
    java.tell(1, "count_down", &words).await;
    within(SOON, waiting).await.unwrap().unwrap();
    // With a count of 0, Redisson leaves the latch closed, and it can never be opened.
    assert!(java.is(1, "init", &format!("{words} 0")).await);
    within(SOON, latch.wait()).await.unwrap();
    assert!(latch.init(1).await.unwrap());
    assert!(!java.is(1, "wait_for", &format!("{words} 50")).await);
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn permits_of_both_sides_count_together() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("semaphore"));
    let words = format!("semaphore {name}");
    let semaphore = pair.rust.plain_semaphore(&name).permits(2);
    let permit = semaphore.acquire().await.unwrap();
    assert!(!java.is(1, "init", &format!("{words} 9")).await);
    assert!(java.is(1, "try_acquire", &words).await);
    assert!(!java.is(1, "try_acquire", &words).await);
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    // Rust wakes Java.
    let waiter = java.tell(1, "acquire", &words);
    java.sleeps(1).await;
    permit.release().await.unwrap();
    within(SOON, waiter).await;
    // Java wakes Rust.
    stalls::begin();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.many(2).acquire().await }
    });
    pair.listening().await;
    let since = Instant::now();
    java.tell(1, "release", &format!("{words} 2")).await;
    let both = within(SOON, waiting).await.unwrap().unwrap();
    // By its message.
    took_less(since, Duration::from_millis(900));
    both.release().await.unwrap();
    assert_eq!(java.tell(1, "left", &words).await, "2");
    // A release does not recreate a semaphore that Java deleted.
    let permit = semaphore.acquire().await.unwrap();
    assert!(java.is(1, "delete", &words).await);
    permit.release().await.unwrap();
    assert!(!semaphore.release(1).await.unwrap());
    assert_eq!(java.tell(1, "left", &words).await, "0");
}

/// At most one holder of a single permit at a time, on either side.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn both_sides_take_turns_with_one_permit() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("semaphore"));
    let words = format!("semaphore {name}");
    let semaphore = pair.rust.plain_semaphore(&name).permits(1);
    semaphore.try_set(1).await.unwrap();
    let of_java = async {
        for _ in 0..50 {
            java.tell(1, "acquire", &words).await;
            java.tell(1, "release", &words).await;
        }
    };
    let of_rust = async {
        for _ in 0..50 {
            let permit = semaphore.acquire().await.unwrap();
            assert_eq!(semaphore.available().await.unwrap(), 0);
            permit.release().await.unwrap();
        }
    };
    within(SOON * 12, futures_util::future::join(of_java, of_rust)).await;
    eventually(SOON, "all permits are back", async || {
        semaphore.available().await.unwrap() == 1
    })
    .await;
}

/// Permits with leases: each side wakes the other, and takes what the other let expire.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn leased_permits_of_both_sides_count_together() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("permits"));
    let words = format!("permits {name}");
    let semaphore = pair.rust.semaphore(&name).permits(2);
    let ours = semaphore.acquire().await.unwrap();
    assert!(!java.is(1, "init", &format!("{words} 9")).await);
    let id = java.tell(1, "acquire", &words).await;
    assert!(semaphore.try_acquire().await.unwrap().is_none());
    let holders = semaphore.holders().await.unwrap();
    assert!(holders.iter().any(|holder| holder.id == id), "{holders:?}");
    // Rust wakes Java.
    let waiter = java.tell(1, "acquire", &words);
    pair.listening().await;
    ours.release().await.unwrap();
    let second = within(SOON, waiter).await;
    // Java wakes Rust.
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    pair.listening().await;
    assert!(java.is(1, "release", &format!("{words} {second}")).await);
    let next = within(SOON, waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
    // What Java let expire comes back to Rust, and the other way round.
    java.tell(1, "lease", &format!("{words} 300")).await;
    let back = within(SOON, semaphore.acquire()).await.unwrap();
    let lease = Duration::from_millis(300);
    back.release().await.unwrap();
    let fixed = semaphore
        .clone()
        .fixed_lease(lease)
        .acquire()
        .await
        .unwrap();
    let third = within(SOON, java.tell(1, "acquire", &words)).await;
    assert!(fixed.release().await.unwrap_err().is_not_held());
    for id in [id, third] {
        assert!(java.is(1, "release", &format!("{words} {id}")).await);
    }
    eventually(SOON, "all permits are back", async || {
        semaphore.available().await.unwrap() == 2
    })
    .await;
    assert_eq!(java.tell(1, "left", &words).await, "2");
}
