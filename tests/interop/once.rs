//! Only one caller per key and window, on either side: `once` is `tryLock(0, window, unit)` without
//! an unlock.

use std::time::{Duration, Instant};

use lockset::OnceRun::Duplicate;
use lockset::{Claim, Error, Once};
use lockset_testkit::{eventually, unique_name, within};

use crate::pair::{Pair, SHORT, SOON};

const WINDOW: Duration = Duration::from_secs(15);

/// The server counts in whole milliseconds, by a clock of its own.
const ROUNDED: Duration = Duration::from_millis(10);

fn java_claims(key: &str, window: Duration) -> String {
    format!("lock {key} {}", window.as_millis())
}

async fn claimed(once: &Once) -> Claim {
    once.claim().await.unwrap().expect("the key is free")
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_claim_of_rust_keeps_java_out_until_it_is_undone() {
    let pair = Pair::start().await;
    let (java, key) = (&pair.java, unique_name("once"));
    let once = pair.rust.once(&key).per(WINDOW);
    let claim = claimed(&once).await;
    assert!(!java.is(1, "claim", &java_claims(&key, WINDOW)).await);
    let left = java.tell(1, "remaining", &format!("lock {key}")).await;
    let left = Duration::from_millis(left.parse().expect("milliseconds"));
    assert!(left <= WINDOW && left > WINDOW - SOON, "{left:?}");
    claim.undo().await.unwrap();
    assert!(java.is(1, "claim", &java_claims(&key, WINDOW)).await);
    assert!(once.claim().await.unwrap().is_none(), "it is Java's");
    java.tell(1, "unlock", &format!("lock {key}")).await;
    pair.nothing_left().await;
}

/// An abandoned claim wakes Java like a release.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn an_undo_wakes_java_that_waits() {
    let pair = Pair::start().await;
    let (java, key) = (&pair.java, unique_name("once"));
    let lock = format!("lock {key}");
    let claim = claimed(&pair.rust.once(&key).per(WINDOW)).await;
    let waiter = java.tell(1, "lock", &lock);
    java.sleeps(1).await;
    claim.undo().await.unwrap();
    within(SOON, waiter).await;
    java.tell(1, "unlock", &lock).await;
    pair.nothing_left().await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_claim_of_java_keeps_rust_out_until_it_is_undone() {
    let pair = Pair::start().await;
    let (java, key) = (&pair.java, unique_name("once"));
    let once = pair.rust.once(&key).per(WINDOW);
    assert!(java.is(1, "claim", &java_claims(&key, WINDOW)).await);
    match once.run(async { Ok::<_, Error>(()) }).await.unwrap() {
        Duplicate { remaining, .. } => {
            assert!(
                remaining <= WINDOW && remaining > WINDOW - SOON,
                "{remaining:?}"
            );
        }
        ran => panic!("{ran:?} beside Java's claim"),
    }
    java.tell(1, "unlock", &format!("lock {key}")).await;
    claimed(&once).await.undo().await.unwrap();
    pair.nothing_left().await;
}

/// A claim is not renewed, and ends for both sides at the same time.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_window_ends_for_both_sides() {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, key) = (&pair.java, unique_name("once"));
    let once = pair.rust.once(&key).per(SHORT);
    let since = Instant::now();
    drop(claimed(&once).await);
    let mut asked = since;
    eventually(SHORT + SOON, "the window of Rust ends", async || {
        asked = Instant::now();
        java.is(1, "claim", &java_claims(&key, SHORT)).await
    })
    .await;
    let took = since.elapsed();
    assert!(took + ROUNDED >= SHORT, "{took:?} are no window");
    eventually(SHORT + SOON, "the window of Java ends", async || {
        once.claim().await.unwrap().is_some()
    })
    .await;
    let took = asked.elapsed();
    assert!(took + ROUNDED >= SHORT, "{took:?} are no window");
}
