//! Defects of Redisson that a test can cause, and why they do no harm to our clients.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use lockset_testkit::{Proxy, Redisson, eventually, unique_name, within};

use crate::java::{Java, Settings, Topology};
use crate::kind::Kind;
use crate::pair::{Pair, SHORT, SOON, ask};

/// A Java writer that downgrades lets readers in but publishes no message. Our waiters find out by
/// their timers.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_downgrade_without_a_message_is_found_by_the_timer() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    java.tell(1, "lock", &write).await;
    java.tell(1, "lock", &read).await;
    let client = redis::Client::open(pair.server.url()).unwrap();
    let mut messages = client.get_async_pubsub().await.unwrap();
    let channel = format!("redisson_rwlock:{{{name}}}");
    messages.subscribe(&channel).await.unwrap();
    let lock = pair.rust.rw_lock(&name);
    let reader = tokio::spawn(async move { lock.read().await.unwrap() });
    eventually(SOON, "it waits", async || pair.rust.stats().waiters == 1).await;
    java.tell(1, "unlock", &write).await;
    let reading = within(SOON, reader).await.unwrap();
    let message = messages.on_message().next().now_or_never();
    assert!(message.is_none(), "Redisson has mended it: {message:?}");
    reading.release().await.unwrap();
    java.tell(1, "unlock", &read).await;
}

/// A fair waiter of Java behind a dead waiter polls without a pause while the lock is free. Our
/// waiters still work, and all get the lock in order once the dead waiter has timed out.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_waiter_that_spins_behind_a_dead_one_does_not_delay_others() {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let fair = Kind::Fair.java(&name);
    let settings = Settings {
        fair_wait_timeout: Duration::from_secs(2),
        ..Settings::of(&pair.server.url())
    };
    let dead = Java::connect_alone(&settings).await;
    let guard = pair.rust.fair_lock(&name).lock().await.unwrap();
    drop(dead.ask(1, "lock", &fair));
    pair.queued(&name, 1).await;
    let spinning = pair.java.tell(1, "lock", &fair);
    pair.queued(&name, 2).await;
    let lock = pair.rust.fair_lock(&name);
    let ours = tokio::spawn(async move { lock.lock().await.unwrap() });
    pair.queued(&name, 3).await;
    dead.kill();
    let held = pair.rust.lock(unique_name("other")).lock().await.unwrap();
    pair.server.reset_stats().await;
    let freed = Instant::now();
    guard.release().await.unwrap();
    let spins = async || {
        let scripts = pair.server.commandstats().await;
        scripts.get("evalsha").is_some_and(|calls| *calls > 500)
    };
    // On its way to the time of the dead one, a few hundred times each second of the fastest timer.
    eventually(SOON, "Java asks without a pause", spins).await;
    within(SOON, spinning).await;
    assert!(freed.elapsed() > SHORT / 2, "behind the dead one");
    assert!(!ours.is_finished(), "behind Java");
    assert!(!held.is_lost(), "our watchdog gets through");
    pair.java.tell(1, "unlock", &fair).await;
    within(SOON, ours).await.unwrap().release().await.unwrap();
    held.release().await.unwrap();
    pair.nothing_left().await;
}

/// An interrupted waiter stays in the queue. It is skipped after Redisson's own timeout.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn the_ghost_of_an_interrupted_waiter_is_passed_over() {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let fair = Kind::Fair.java(&name);
    let settings = Settings {
        fair_wait_timeout: SHORT,
        ..Settings::of(&pair.server.url())
    };
    let java = Java::connect(&settings).await;
    let guard = pair.rust.fair_lock(&name).lock().await.unwrap();
    let interrupted = java.ask(1, "lock_interruptibly", &fair);
    pair.queued(&name, 1).await;
    pair.listening().await;
    java.tell(1, "interrupt", "").await;
    let error = within(SOON, interrupted).await.unwrap_err();
    assert!(error.contains("Interrupted"), "{error}");
    let lock = pair.rust.fair_lock(&name);
    let waiters = lock.waiters().await.unwrap();
    assert_eq!(waiters, [java.holder(1).await], "Redisson has mended it");
    let ours = tokio::spawn(async move { lock.lock().await.unwrap() });
    pair.queued(&name, 2).await;
    guard.release().await.unwrap();
    within(SOON, ours).await.unwrap().release().await.unwrap();
    // Java may also have kept its subscription.
    pair.no_key_left().await;
}

/// A waiter of Redisson whose wait ends as its turn comes sends no message. The next one sleeps for the lease it was told,
/// unless one of ours wakes it.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_waiter_that_nobody_told_of_its_turn_is_woken_by_ours() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (fair, lock) = (Kind::Fair.java(&name), pair.rust.fair_lock(&name));
    // Redisson's scripts: its clients cannot be made to give up at this moment.
    let (first, wait) = (
        Redisson::connect(&pair.server).await,
        Duration::from_secs(300),
    );
    let guard = lock.lock().await.unwrap();
    first.fair_acquire(&name, 1, SHORT, wait).await;
    let second = java.tell(1, "lock", &fair);
    pair.queued(&name, 2).await;
    java.sleeps(1).await;
    let ours = tokio::spawn(async move { lock.lock().await.unwrap() });
    pair.queued(&name, 3).await;
    guard.release().await.unwrap();
    first.fair_give_up(&name, 1, wait).await;
    within(SOON, second).await;
    java.tell(1, "unlock", &fair).await;
    within(SOON, ours).await.unwrap().release().await.unwrap();
    pair.nothing_left().await;
}

/// In every mode except single-server, Redisson repeats an acquire that got no answer, and counts
/// it twice: one unlock leaves a hold behind. That hold ends with its lease, because it is not
/// renewed.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_hold_that_was_counted_twice_ends_with_its_lease() {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let this = Kind::Lock.java(&name);
    let proxy = Proxy::start(pair.server.addr()).await;
    let settings = Settings {
        watchdog_timeout: SHORT * 2,
        topology: Topology::Replicated,
        ..Settings::of(&proxy.url())
    };
    let java = Java::connect(&settings).await;
    // After this, Java has cached everything it needs.
    java.tell(1, "lock", &this).await;
    java.tell(1, "unlock", &this).await;
    let holder = java.holder(1).await;
    proxy.hold_replies();
    let locked = java.tell(1, "lock", &this);
    let mut admin = pair.server.admin().await;
    eventually(SOON, "it has asked twice", async || {
        let fields: Vec<String> = ask(&mut admin, &["HVALS", &name]).await;
        fields == ["2"]
    })
    .await;
    proxy.pass();
    within(SOON, locked).await;
    let lock = pair.rust.lock(&name);
    let seen = lock.holder().await.unwrap().unwrap();
    assert_eq!((seen.id, seen.hold_count), (holder, 2));
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    eventually(SOON, "it waits", async || pair.rust.stats().waiters == 1).await;
    java.tell(1, "unlock", &this).await;
    assert!(!waiter.is_finished(), "one hold is left");
    within(SOON, waiter).await.unwrap().release().await.unwrap();
}

/// Redisson's fenced lock takes the refusal of a lock without a lease for a grant with the token
/// -1. Our locks always have a lease.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn java_never_mistakes_our_hold_for_its_hold() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let fenced = Kind::Fenced.java(&name);
    let guard = Kind::Fenced.rust(&pair.rust, &name).lock().await;
    let waiter = java.tell(1, "lock_and_get_token", &fenced);
    pair.listening().await;
    let ours = guard.token().unwrap().get();
    guard.release().await.unwrap();
    let theirs: u64 = within(SOON, waiter).await.parse().expect("a token, not -1");
    assert!(theirs > ours);
    java.tell(1, "unlock", &fenced).await;
    pair.nothing_left().await;
}

/// Redisson allows any thread to unlock a free fair lock. The next holder must not be affected.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_late_unlock_of_a_fair_lock_does_not_free_the_next_hold() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let fair = Kind::Fair.java(&name);
    let lock = pair.rust.fair_lock(&name);
    java.tell(1, "lock_for", &format!("{fair} 200")).await;
    let guard = within(SOON, lock.lock()).await.unwrap();
    java.ask(1, "unlock", &fair).await.unwrap_err();
    assert!(lock.is_locked().await.unwrap());
    guard.release().await.unwrap();
    java.ask(2, "unlock", &fair).await.expect("it says yes");
    assert!(!lock.is_locked().await.unwrap());
    pair.nothing_left().await;
}
