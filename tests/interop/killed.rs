//! A process of one side is killed while it holds or waits. The other side continues.

use std::time::{Duration, Instant};

use lockset_testkit::{eventually, unique_name, within};

use crate::java::{Java, Settings};
use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SHORT, SOON, rust_client};
use crate::rust_process::RustProcess;

/// Starts a separate Java process with short leases, next to the pair.
async fn doomed(pair: &Pair) -> Java {
    let settings = Settings {
        watchdog_timeout: SHORT,
        fair_wait_timeout: SHORT,
        ..Settings::of(&pair.server.url())
    };
    Java::connect_alone(&settings).await
}

async fn java_is_killed_while_it_holds(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let rival = kind.rival();
    let java = doomed(&pair).await;
    java.tell(1, "lock", &kind.java(&name)).await;
    let lock = rival.rust(&pair.rust, &name);
    let waiter = tokio::spawn(async move { lock.lock().await });
    pair.listening().await;
    tokio::time::sleep(SHORT * 4 / 3).await;
    assert!(!waiter.is_finished(), "it is alive and renews");
    java.kill();
    let guard = within(SOON, waiter).await.unwrap();
    guard.release().await.unwrap();
    pair.nothing_left().await;
}

async fn rust_is_killed_while_it_holds(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let mut rust = RustProcess::start(&pair.server, kind, &name);
    rust.holds();
    let rival = kind.rival().java(&name);
    let waiter = tokio::spawn(pair.java.tell(1, "lock", &rival));
    pair.listening().await;
    tokio::time::sleep(SHORT * 4 / 3).await;
    assert!(!waiter.is_finished(), "it is alive and renews");
    rust.kill();
    // It sleeps for the last lease it was told. A multi-lock does so for one member after another.
    within(SOON, waiter).await.unwrap();
    pair.java.tell(1, "unlock", &rival).await;
    pair.nothing_left().await;
}

async fn java_is_killed_while_it_waits(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let name = unique_name("lock");
    let java = doomed(&pair).await;
    let guard = kind.rust(&pair.rust, &name).lock().await;
    drop(java.ask(1, "lock", &kind.rival().java(&name)));
    pair.listening().await;
    java.kill();
    let lock = kind.rival().rust(&pair.rust, &name);
    let waiter = tokio::spawn(async move { lock.lock().await });
    eventually(SOON, "it waits", async || pair.rust.stats().waiters == 1).await;
    guard.release().await.unwrap();
    // A dead waiter keeps its place in a fair queue until Redisson's own timeout for it.
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    let rival = kind.rival().java(&name);
    within(SOON, pair.java.tell(1, "lock", &rival)).await;
    pair.java.tell(1, "unlock", &rival).await;
    pair.nothing_left().await;
}

async fn rust_is_killed_while_it_waits(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, rival) = (kind.java(&name), kind.rival().java(&name));
    java.tell(1, "lock", &this).await;
    let rust = RustProcess::start(&pair.server, kind.rival(), &name);
    pair.listening().await;
    rust.kill();
    let javas = java.tell(2, "lock", &rival);
    // If the lock is ordered, a waiter of ours queues behind the dead one, finds it and notifies
    // Java.
    if kind == Kind::Fair {
        pair.queued(&name, 2).await;
    }
    let other = rust_client(&pair.server, SHORT).await;
    let lock = kind.rival().rust(&other, &name);
    let rusts = tokio::spawn(async move { lock.lock().await });
    eventually(SOON, "it waits", async || other.stats().waiters == 1).await;
    if kind == Kind::Fair {
        pair.queued(&name, 3).await;
    }
    java.tell(1, "unlock", &this).await;
    let first = async {
        within(SOON, javas).await;
        java.tell(2, "unlock", &rival).await;
    };
    let second = async { within(SOON, rusts).await.unwrap().release().await.unwrap() };
    if kind == Kind::Fair {
        first.await;
        second.await;
    } else {
        tokio::join!(first, second);
    }
    pair.nothing_left().await;
}

for_kinds! {
    java_is_killed_while_it_holds: lock fenced fair read write multi;
    java_is_killed_while_it_waits: lock fenced fair read write multi;
    rust_is_killed_while_it_holds: lock fenced fair read write multi;
    rust_is_killed_while_it_waits: lock fenced fair read write multi;
}

/// One reader of each side. The lease of the dead reader ends and the other one's continues.
async fn a_reader_is_killed(dead_is_java: bool) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    let lock = pair.rust.rw_lock(&name);
    let mut ours = None;
    if dead_is_java {
        let dead = doomed(&pair).await;
        dead.tell(1, "lock", &read).await;
        ours = Some(lock.read().await.unwrap());
        tokio::time::sleep(SHORT).await;
        dead.kill();
    } else {
        let mut dead = RustProcess::start(&pair.server, Kind::Read, &name);
        dead.holds();
        java.tell(1, "lock", &read).await;
        tokio::time::sleep(SHORT).await;
        dead.kill();
    }
    let killed = Instant::now();
    while killed.elapsed() < SHORT * 3 {
        assert!(!java.is(2, "try_lock", &write).await);
        assert!(lock.try_write().await.unwrap().is_none());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(lock.read_side().holders().await.unwrap().len(), 1);
    match ours {
        Some(guard) => guard.release().await.unwrap(),
        None => drop(java.tell(1, "unlock", &read).await),
    }
    assert!(java.is(2, "try_lock", &write).await);
    java.tell(2, "unlock", &write).await;
    pair.nothing_left().await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_reader_of_java_is_killed_and_ours_reads_on() {
    a_reader_is_killed(true).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_reader_of_ours_is_killed_and_javas_reads_on() {
    a_reader_is_killed(false).await;
}
