//! Force-unlocking a lock that the other side holds.

use lockset::LostReason;
use lockset_testkit::{unique_name, within};

use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SHORT, SOON};

async fn rust_frees_javas_hold(kind: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, lock) = (kind.java(&name), kind.rust(&pair.rust, &name));
    assert!(!lock.force_unlock().await, "it is free");
    java.tell(1, "lock", &this).await;
    java.tell(1, "lock", &this).await;
    let waiter = java.tell(2, "lock", &kind.rival().java(&name));
    java.sleeps(2).await;
    assert!(lock.force_unlock().await);
    within(SOON, waiter).await;
    assert!(!java.is(1, "is_held", &this).await);
    assert_eq!(java.tell(1, "hold_count", &this).await, "0");
    let not_held = java.ask(1, "unlock", &this).await.unwrap_err();
    assert!(not_held.contains("IllegalMonitorState"), "{not_held}");
    java.tell(2, "unlock", &kind.rival().java(&name)).await;
    pair.nothing_left().await;
}

async fn java_frees_rusts_hold(kind: Kind) {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, lock) = (kind.java(&name), kind.rust(&pair.rust, &name));
    assert!(!java.is(1, "force_unlock", &this).await, "it is free");
    let guard = lock.lock().await;
    assert!(java.is(1, "force_unlock", &this).await);
    assert!(java.is(1, "try_lock", &kind.rival().java(&name)).await);
    // The next renewal finds the loss.
    assert_eq!(within(SHORT, guard.lost()).await, LostReason::Revoked);
    assert!(guard.release().await.unwrap_err().is_not_held());
    assert!(lock.try_lock().await.is_none(), "it is Java's");
    java.tell(1, "unlock", &kind.rival().java(&name)).await;
    pair.nothing_left().await;
}

for_kinds! {
    rust_frees_javas_hold: lock fenced fair read write;
    java_frees_rusts_hold: lock fenced fair read write;
}

/// Neither side can force-unlock a multi-lock, but each can force-unlock a member.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_multi_lock_is_lost_with_one_of_its_members() {
    let pair = Pair::with_leases(SHORT, SHORT).await;
    let (java, name) = (&pair.java, unique_name("lock"));
    for kind in Kind::members() {
        let guard = Kind::Multi.rust(&pair.rust, &name).lock().await;
        let member = kind.java(&kind.member(&name));
        assert!(java.is(1, "force_unlock", &member).await, "{kind:?}");
        assert_eq!(within(SHORT, guard.lost()).await, LostReason::Revoked);
        assert!(guard.release().await.unwrap_err().is_not_held());
        pair.nothing_left().await;
    }
}
