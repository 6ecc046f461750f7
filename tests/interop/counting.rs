//! Hold counts, remaining time and fencing tokens, as the other side sees them.

use std::time::Duration;

use lockset_testkit::unique_name;

use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SOON};

const LEASE: Duration = Duration::from_secs(30);

/// Reading the time takes less than `SOON`, and reading never extends the lease.
#[track_caller]
fn is_a_fresh_lease(remaining: Duration) {
    assert!((LEASE - SOON..=LEASE).contains(&remaining), "{remaining:?}");
}

async fn java_sees_rusts_holds(kind: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, rival) = (kind.java(&name), kind.rival().java(&name));
    let outer = kind.rust(&pair.rust, &name).lock().await;
    let inner = outer.reenter().await;
    assert_eq!(inner.hold_count(), 2);
    assert!(java.is(1, "is_locked", &this).await);
    assert!(!java.is(1, "is_held", &this).await);
    assert_eq!(java.tell(1, "hold_count", &this).await, "0");
    let remaining = java.tell(1, "remaining", &this).await.parse();
    is_a_fresh_lease(Duration::from_millis(remaining.expect("a lease")));
    // Redisson has no call for the hold count of another holder, so the test reads the hash: one for all guards.
    let look = async || java.tell(1, "look", &format!("hash {name}")).await;
    assert!(look().await.contains("=1"));
    let not_its = java.ask(1, "unlock", &this).await.unwrap_err();
    assert!(not_its.contains("IllegalMonitorState"), "{not_its}");
    inner.release().await.unwrap();
    assert!(look().await.contains("=1"));
    assert!(!java.is(1, "try_lock", &rival).await);
    outer.release().await.unwrap();
    assert!(!java.is(1, "is_locked", &this).await);
    assert!(java.is(1, "try_lock", &rival).await);
    java.tell(1, "unlock", &rival).await;
    pair.nothing_left().await;
}

async fn rust_sees_javas_holds(kind: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let this = kind.java(&name);
    let (lock, rival) = (
        kind.rust(&pair.rust, &name),
        kind.rival().rust(&pair.rust, &name),
    );
    assert!(lock.holders().await.is_empty());
    for _ in 0..3 {
        java.tell(1, "lock", &this).await;
    }
    for count in [3, 2, 1] {
        let holders = lock.holders().await;
        let [holder] = &holders[..] else {
            panic!("one holder: {holders:?}");
        };
        assert_eq!(
            (&holder.id, holder.hold_count),
            (&java.holder(1).await, count)
        );
        assert_eq!(java.tell(1, "hold_count", &this).await, count.to_string());
        // Redisson adds the lease of a re-entry to the remaining time of a writer.
        if kind != Kind::Write {
            is_a_fresh_lease(holder.remaining);
        }
        assert!(rival.try_lock().await.is_none());
        java.tell(1, "unlock", &this).await;
    }
    assert!(lock.holders().await.is_empty());
    rival.try_lock().await.unwrap().release().await.unwrap();
    // A lease set by the caller, which is not renewed.
    java.tell(1, "lock_for", &format!("{this} 4000")).await;
    let remaining = lock.holders().await[0].remaining;
    assert!(remaining <= Duration::from_secs(4), "{remaining:?}");
    assert!(!remaining.is_zero());
    java.tell(1, "unlock", &this).await;
    pair.nothing_left().await;
}

/// Each side enters three times, and keeps the other out until its last hold has ended.
async fn a_side_that_entered_three_times_keeps_the_other_out(kind: Kind) {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let (this, rival) = (kind.java(&name), kind.rival().java(&name));
    let mut guards = vec![kind.rust(&pair.rust, &name).lock().await];
    for _ in 0..2 {
        let again = guards[0].reenter().await;
        guards.push(again);
    }
    for count in [3, 2, 1] {
        assert!(guards.iter().all(|guard| guard.hold_count() == count));
        assert!(!java.is(1, "try_lock", &rival).await, "{count} are left");
        guards.pop().unwrap().release().await.unwrap();
    }
    for _ in 0..3 {
        assert!(java.is(1, "try_lock", &this).await);
    }
    let lock = kind.rival().rust(&pair.rust, &name);
    for count in [3, 2, 1] {
        assert!(lock.try_lock().await.is_none(), "{count} are left");
        java.tell(1, "unlock", &this).await;
    }
    lock.try_lock().await.unwrap().release().await.unwrap();
    pair.nothing_left().await;
}

for_kinds! {
    a_side_that_entered_three_times_keeps_the_other_out: lock fenced fair read write;
    java_sees_rusts_holds: lock fenced fair read write;
    rust_sees_javas_holds: lock fenced fair read write;
}

/// Each side keeps the hold count of a multi-lock in the members, so the other side sees the count
/// too.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn a_multi_lock_counts_in_each_member() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let this = Kind::Multi.java(&name);
    for _ in 0..2 {
        java.tell(1, "lock", &this).await;
    }
    for kind in Kind::members() {
        let holders = kind.rust(&pair.rust, &kind.member(&name)).holders().await;
        assert_eq!(holders[0].hold_count, 2, "{kind:?}");
        assert_eq!(holders[0].id, java.holder(1).await, "{kind:?}");
    }
    for _ in 0..2 {
        assert!(
            Kind::Multi
                .rust(&pair.rust, &name)
                .try_lock()
                .await
                .is_none()
        );
        java.tell(1, "unlock", &this).await;
    }
    let outer = Kind::Multi.rust(&pair.rust, &name).lock().await;
    let inner = outer.reenter().await;
    for kind in Kind::members() {
        let hash = format!("hash {}", kind.member(&name));
        assert!(java.tell(1, "look", &hash).await.contains("=1"), "{kind:?}");
    }
    inner.release().await.unwrap();
    assert!(!java.is(1, "try_lock", &this).await);
    outer.release().await.unwrap();
    assert!(java.is(1, "try_lock", &this).await);
    java.tell(1, "unlock", &this).await;
    pair.nothing_left().await;
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn tokens_grow_from_grant_to_grant_of_either_side() {
    let pair = Pair::start().await;
    let (java, name) = (&pair.java, unique_name("lock"));
    let this = Kind::Fenced.java(&name);
    let mut last = 0;
    for _ in 0..5 {
        let guard = Kind::Fenced.rust(&pair.rust, &name).lock().await;
        let ours = guard.token().unwrap().get();
        assert!(ours > last, "{ours} after {last}");
        assert_eq!(java.tell(1, "token", &this).await, ours.to_string());
        guard.release().await.unwrap();
        last = java
            .tell(1, "lock_and_get_token", &this)
            .await
            .parse()
            .unwrap();
        assert!(last > ours, "{last} after {ours}");
        java.tell(1, "unlock", &this).await;
    }
    pair.nothing_left().await;
}
