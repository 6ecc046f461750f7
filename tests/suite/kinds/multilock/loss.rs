//! Losing one member loses the whole multi-lock.

use std::time::Duration;

use lockset::{Client, LostReason, Member, MultiGuard, MultiLock, Owner};
use lockset_testkit::{Server, eventually, unique_name, within};

use super::{KINDS, Kind, held, mixed, names};
use crate::support::{LEASE, SOON, client, command, idle, nothing_left, patient_client};

/// Checks all reports of a guard after the loss of `name`. The other members must be free while the
/// guard exists.
async fn check_lost(server: &Server, guard: &MultiGuard, name: &str, reason: LostReason) {
    assert_eq!(within(SOON, guard.lost_member()).await, (name, reason));
    assert_eq!(within(SOON, guard.lost()).await, reason);
    let work = guard.run(std::future::pending::<()>());
    let lost = within(SOON, work).await.unwrap_err();
    assert_eq!((lost.lock_name(), lost.reason()), (name, reason));
    assert!(guard.is_lost());
    assert_eq!(guard.remaining(), Duration::ZERO);
    let error = guard.reenter().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
    assert_eq!(error.lock_name(), Some(name), "{error}");
    nothing_left(server).await;
}

async fn release_says_so(guard: MultiGuard, name: &str) {
    let error = guard.release().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
    assert_eq!(error.lock_name(), Some(name));
}

#[tokio::test]
async fn a_deleted_member_releases_the_others() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for first in 0..KINDS.len() {
        let names = names(4);
        for deleted in &names {
            let guard = mixed(&ours, &names, first).lock().await.unwrap();
            assert!(!guard.is_lost());
            command(&server, &["DEL", deleted]).await;
            check_lost(&server, &guard, deleted, LostReason::Revoked).await;
            release_says_so(guard, deleted).await;
            idle(&ours).await;
        }
    }
}

#[tokio::test]
async fn a_force_unlocked_member_releases_the_others() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let theirs = client(&server.url()).await;
    for by in [&ours, &theirs] {
        for kind in KINDS {
            let names = names(4);
            let position = KINDS.iter().position(|one| *one == kind).unwrap();
            let guard = mixed(&ours, &names, 0).lock().await.unwrap();
            let name = &names[position];
            assert!(force_unlock(by, kind, name).await);
            check_lost(&server, &guard, name, LostReason::Revoked).await;
            release_says_so(guard, name).await;
        }
    }
    idle(&ours).await;
}

async fn force_unlock(by: &Client, kind: Kind, name: &str) -> bool {
    match kind {
        Kind::Reentrant => by.lock(name).force_unlock().await,
        Kind::Fair => by.fair_lock(name).force_unlock().await,
        Kind::Read => by.rw_lock(name).read_side().force_unlock().await,
        Kind::Write => by.rw_lock(name).write_side().force_unlock().await,
    }
    .unwrap()
}

/// Otherwise the remaining members would be renewed forever.
#[tokio::test]
async fn the_end_of_one_fixed_lease_is_the_end_of_all() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let (one, two, three) = (unique_name("a"), unique_name("b"), unique_name("c"));
    let fixed = Duration::from_millis(200);
    let lock = MultiLock::new([
        Member::from(ours.lock(&one)),
        Member::from(ours.fair_lock(&two).fixed_lease(fixed)),
        Member::from(ours.rw_lock(&three).write_side()),
    ])
    .unwrap();
    let guard = lock.lock().await.unwrap();
    assert!(guard.remaining() <= fixed);
    check_lost(&server, &guard, &two, LostReason::Expired).await;
    // Without any call, the watchdog alone releases the others.
    release_says_so(guard, &two).await;
    let guard = lock.lock().await.unwrap();
    nothing_left(&server).await;
    drop(guard);
    idle(&ours).await;
}

/// A member that the same owner also holds separately must stay held.
#[tokio::test]
async fn a_member_held_elsewhere_too_is_kept() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let owner = Owner::new();
    for kind in KINDS {
        let names = names(2);
        let (lost, kept) = (&names[0], &names[1]);
        let alone = MultiLock::new([kind.member(&ours, kept)]).unwrap();
        let alone = alone.owner(&owner).lock().await.unwrap();
        let members = [
            Kind::Reentrant.member(&ours, lost),
            kind.member(&ours, kept),
        ];
        let both = MultiLock::new(members).unwrap().owner(&owner);
        let guard = both.lock().await.unwrap();
        assert_eq!(alone.hold_count(), 2);
        command(&server, &["DEL", lost]).await;
        let told = within(SOON, guard.lost_member()).await;
        assert_eq!(told, (&**lost, LostReason::Revoked));
        eventually(SOON, "its share is released", async || {
            alone.hold_count() == 1
        })
        .await;
        release_says_so(guard, lost).await;
        assert_eq!(alone.hold_count(), 1, "and only once");
        idle_but_for_holds(&ours).await;
        assert_eq!(held(&server, &names).await, [&**kept], "{kind:?}");
        let lost = tokio::time::timeout(LEASE * 3 / 2, alone.lost());
        assert!(lost.await.is_err());
        alone.release().await.unwrap();
        nothing_left(&server).await;
    }
}

async fn idle_but_for_holds(client: &Client) {
    eventually(SOON, "nothing in the background", async || {
        client.stats().background == 0
    })
    .await;
}

/// Two guards over the same holds: both are lost, and each releases its shares once.
#[tokio::test]
async fn guards_over_the_same_holds_fall_together() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for way_out in 0..3 {
        let names = names(4);
        let outer = mixed(&ours, &names, way_out).lock().await.unwrap();
        let inner = outer.reenter().await.unwrap();
        assert_eq!((outer.hold_count(), inner.hold_count()), (2, 2));
        command(&server, &["DEL", &names[3]]).await;
        check_lost(&server, &outer, &names[3], LostReason::Revoked).await;
        check_lost(&server, &inner, &names[3], LostReason::Revoked).await;
        assert_eq!((outer.hold_count(), inner.hold_count()), (0, 0));
        match way_out {
            0 => release_says_so(inner, &names[3]).await,
            1 => inner.forget(),
            _ => drop(inner),
        }
        release_says_so(outer, &names[3]).await;
        idle(&ours).await;
    }
}

/// After a shutdown, the members must not be free before the holders' work has ended.
#[tokio::test]
async fn a_shutdown_leaves_all_members_to_their_leases() {
    let server = Server::start();
    let ours = patient_client(&server.url()).await;
    let names = names(4);
    let guard = mixed(&ours, &names, 0).lock().await.unwrap();
    within(SOON, ours.shutdown()).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Closed);
    assert_eq!(held(&server, &names).await, names);
    assert!(guard.release().await.unwrap_err().is_not_held());
    assert_eq!(held(&server, &names).await, names);
}

/// A member is lost before the multi-lock is complete: the acquire starts over with the free
/// members.
#[tokio::test]
async fn a_member_lost_during_the_wait_is_acquired_again() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let owner = Owner::new();
    let names = names(2);
    let alone = ours.lock(&names[0]).owner(&owner).lock().await.unwrap();
    let held_up = theirs.lock(&names[1]).lock().await.unwrap();
    let both = MultiLock::new(names.iter().map(|name| ours.lock(name))).unwrap();
    let both = both.owner(&owner);
    let waiter = lockset_testkit::spawn(async move { both.lock().await.unwrap() });
    crate::support::waiting(&ours, 1).await;
    command(&server, &["DEL", &names[0]]).await;
    within(SOON, alone.lost()).await;
    held_up.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert!(!guard.is_lost());
    assert_eq!(held(&server, &names).await, names);
    assert!(tokio::time::timeout(LEASE, guard.lost()).await.is_err());
    guard.release().await.unwrap();
    drop(alone);
    nothing_left(&server).await;
    idle(&ours).await;
}
