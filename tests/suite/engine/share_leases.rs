//! Guards of one owner share a hold, each with its own lease: the hold follows the guards that
//! remain.

use std::time::Duration;

use lockset::{LostReason, Owner};
use lockset_testkit::{Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{LEASE, SOON, client, idle, nothing_left};

/// A helper with a renewed lease re-enters a hold with a fixed lease, and leaves. The server does not have the hold for
/// the lease of the helper, which may be much longer.
async fn a_renewed_lease_ends_with_its_guard<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let fixed = LEASE * 2;
    for (is_released, lease) in [(true, LEASE), (false, LEASE), (true, LEASE * 60)] {
        let (owner, name) = (Owner::new(), unique_name("terms"));
        let lock = P::of(&ours, &name).owner(&owner);
        let guard = lock.clone().fixed_lease(fixed).lock().await.unwrap();
        let helper = lock.lease(lease).lock().await.unwrap();
        if is_released {
            helper.release().await.unwrap()
        } else {
            drop(helper)
        }
        assert!(!guard.is_lost() && guard.remaining() <= fixed);
        assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
        // The hold is no longer renewed, although the first guard exists.
        nothing_left(&server).await;
        assert!(guard.release().await.unwrap_err().is_not_held());
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A guard with a fixed lease ends on time in a hold that is renewed for another guard.
async fn a_fixed_lease_ends_within_a_renewed_hold<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let (owner, name) = (Owner::new(), unique_name("terms"));
    let lock = P::of(&ours, &name).owner(&owner);
    let outer = lock.lock().await.unwrap();
    let short = lock.clone().fixed_lease(LEASE / 3);
    let guards = [
        short.lock().await.unwrap(),
        short.lock().await.unwrap().reenter().await.unwrap(),
    ];
    for inner in &guards {
        assert!(inner.remaining() <= LEASE / 3);
    }
    for inner in guards {
        let (reason, work) = within(SOON, async {
            tokio::join!(inner.lost(), inner.run(std::future::pending::<()>()))
        })
        .await;
        assert_eq!(reason, LostReason::Expired);
        assert_eq!(work.unwrap_err().reason(), LostReason::Expired);
        assert!(inner.is_lost());
        assert_eq!(inner.remaining(), Duration::ZERO);
        assert!(inner.reenter().await.expect_err("lost").is_not_held());
        let error = inner.release().await.unwrap_err();
        assert!(error.is_not_held());
        assert!(names_it::<P>(&name, error.lock_name()), "{error}");
    }
    assert!(!outer.is_lost());
    assert_eq!(outer.hold_count(), 1);
    assert!(tokio::time::timeout(LEASE * 2, outer.lost()).await.is_err());
    outer.release().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

/// A guard with a renewed lease outlives one with a fixed lease, in either order of acquisition.
async fn the_remaining_guards_decide<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let (owner, name) = (Owner::new(), unique_name("terms"));
    let lock = P::of(&ours, &name).owner(&owner);
    let fixed = lock.clone().fixed_lease(LEASE);
    let outer = fixed.lock().await.unwrap();
    let inner = lock.lock().await.unwrap();
    assert_eq!(within(SOON, outer.lost()).await, LostReason::Expired);
    assert!(outer.release().await.unwrap_err().is_not_held());
    assert!(tokio::time::timeout(LEASE * 2, inner.lost()).await.is_err());
    // The opposite order.
    let last = fixed.lock().await.unwrap();
    inner.release().await.unwrap();
    assert_eq!(within(SOON, last.lost()).await, LostReason::Expired);
    drop(last);
    idle(&ours).await;
    nothing_left(&server).await;
}

for_every_primitive! {"multi_thread":
    a_renewed_lease_ends_with_its_guard
    a_fixed_lease_ends_within_a_renewed_hold
    the_remaining_guards_decide
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    a_renewed_lease_ends_with_its_guard
    a_fixed_lease_ends_within_a_renewed_hold
    the_remaining_guards_decide
}
