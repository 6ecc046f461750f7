//! One side holds the lock. The other side is refused, and the release message wakes it.

use std::time::{Duration, Instant};

use lockset_testkit::{unique_name, within};

use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SOON, by_message};

const A_MOMENT: Duration = Duration::from_millis(100);

async fn java_waits_for_rust(kind: Kind) {
    java_waits(kind, kind.rival()).await;
}

async fn java_waits(held: Kind, wanted: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let wish = wanted.java(&name);
    let guard = held.rust(&pair.rust, &name).lock().await;
    assert!(!java.is(1, "try_lock", &wish).await);
    let waiter = java.tell(1, "lock", &wish);
    java.sleeps(1).await;
    guard.release().await.unwrap();
    within(SOON, waiter).await;
    assert!(held.rust(&pair.rust, &name).try_lock().await.is_none());
    java.tell(1, "unlock", &wish).await;
    pair.nothing_left().await;
}

async fn rust_waits_for_java(kind: Kind) {
    rust_waits(kind, kind.rival()).await;
}

async fn rust_waits(held: Kind, wanted: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let lock = wanted.rust(&pair.rust, &name);
    let hold = held.java(&name);
    java.tell(1, "lock", &hold).await;
    assert!(lock.try_lock().await.is_none());
    let asked = Instant::now();
    let waiter = tokio::spawn(async move { lock.lock().await });
    pair.listening().await;
    java.tell(1, "unlock", &hold).await;
    let guard = within(SOON, waiter).await.unwrap();
    by_message(asked);
    assert!(!java.is(1, "try_lock", &hold).await);
    guard.release().await.unwrap();
    assert!(java.is(1, "try_lock", &hold).await);
    java.tell(1, "unlock", &hold).await;
    pair.nothing_left().await;
}

/// Both sides time out as asked and leave no place in a queue. Java sometimes leaves a
/// subscription.
async fn a_wait_times_out(kind: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, rival) = (kind.java(&name), kind.rival().java(&name));
    let guard = kind.rust(&pair.rust, &name).lock().await;
    assert!(!java.is(1, "try_lock_for", &format!("{rival} 100")).await);
    guard.release().await.unwrap();
    java.tell(1, "lock", &this).await;
    let lock = kind.rival().rust(&pair.rust, &name);
    assert!(lock.try_lock_for(A_MOMENT).await.is_none());
    java.tell(1, "unlock", &this).await;
    lock.try_lock().await.unwrap().release().await.unwrap();
    pair.no_key_left().await;
}

for_kinds! {
    a_wait_times_out: lock fenced fair read write multi;
    java_waits_for_rust: lock fenced fair read write multi;
    rust_waits_for_java: lock fenced fair read write multi;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn java_reads_after_rust_has_written() {
    java_waits(Kind::Write, Kind::Read).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn rust_reads_after_java_has_written() {
    rust_waits(Kind::Write, Kind::Read).await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn java_reads_beside_a_downgraded_rust_writer() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let writing = pair.rust.rw_lock(&name).write().await.unwrap();
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    assert!(!java.is(1, "try_lock", &read).await);
    let reader = java.tell(1, "lock", &read);
    java.sleeps(1).await;
    let reading = writing.downgrade().await.unwrap();
    within(SOON, reader).await;
    assert!(!java.is(2, "try_lock", &write).await);
    reading.release().await.unwrap();
    assert!(!java.is(2, "try_lock", &write).await, "Java reads on");
    java.tell(1, "unlock", &read).await;
    assert!(java.is(2, "try_lock", &write).await);
    java.tell(2, "unlock", &write).await;
    pair.nothing_left().await;
}

/// Readers of the writer's own client briefly share the write hold. Then it becomes a read hold,
/// and Java gets a message.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn java_reads_beside_readers_that_have_a_rust_writers_hold() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let lock = pair.rust.rw_lock(&name);
    let (read, write) = (Kind::Read.java(&name), Kind::Write.java(&name));
    assert!(java.is(1, "try_lock", &read).await);
    java.tell(1, "unlock", &read).await;
    let mut read_by_it = 0;
    for _ in 0..50 {
        let writing = lock.write().await.unwrap();
        let holder = writing.holder_id().to_owned();
        let release = async {
            tokio::task::yield_now().await;
            writing.release().await.unwrap();
        };
        let ((), reading) = tokio::join!(release, lock.read());
        let reading = reading.unwrap();
        read_by_it += u32::from(reading.holder_id() == holder);
        within(SOON, java.tell(1, "lock", &read)).await;
        assert!(!reading.is_lost(), "Java reads beside it");
        assert!(!java.is(2, "try_lock", &write).await);
        reading.release().await.unwrap();
        assert!(!java.is(2, "try_lock", &write).await, "Java reads on");
        java.tell(1, "unlock", &read).await;
    }
    assert!(read_by_it > 0, "ours had what the writer had");
    assert!(java.is(2, "try_lock", &write).await);
    java.tell(2, "unlock", &write).await;
    pair.nothing_left().await;
}

/// A multi-lock consists of its members, for both sides.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_multi_lock_waits_for_one_of_its_members() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let multi = Kind::Multi.rust(&pair.rust, &name);
    for kind in Kind::members() {
        let member = kind.rival().java(&kind.member(&name));
        java.tell(1, "lock", &member).await;
        assert!(multi.try_lock().await.is_none(), "{kind:?}");
        let asked = Instant::now();
        let waiter = tokio::spawn({
            let multi = multi.clone();
            async move { multi.lock().await }
        });
        pair.listening().await;
        java.tell(1, "unlock", &member).await;
        let guard = within(SOON, waiter).await.unwrap();
        by_message(asked);
        assert!(!java.is(1, "try_lock", &member).await, "{kind:?}");
        let waiter = java.tell(1, "lock", &member);
        java.sleeps(1).await;
        guard.release().await.unwrap();
        within(SOON, waiter).await;
        java.tell(1, "unlock", &member).await;
        pair.nothing_left().await;
    }
}

/// A plain attempt of Java, which never queues, must not overtake queued waiters.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_free_fair_lock_belongs_to_its_queue() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let fair = Kind::Fair.java(&name);
    let guard = Kind::Fair.rust(&pair.rust, &name).lock().await;
    let holder = java.holder(1).await;
    let waiter = java.tell(1, "lock", &fair);
    pair.queued(&name, 1).await;
    let ours = pair.rust.fair_lock(&name);
    assert_eq!(ours.waiters().await.unwrap(), [holder]);
    guard.release().await.unwrap();
    assert!(ours.try_lock().await.unwrap().is_none());
    within(SOON, waiter).await;
    java.tell(1, "unlock", &fair).await;
    pair.nothing_left().await;
}
