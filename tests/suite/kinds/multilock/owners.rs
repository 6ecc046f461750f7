//! Owners: re-entry, members already held, fencing tokens, and releases.

use std::time::Duration;

use lockset::{Member, MultiLock, Owner};
use lockset_testkit::{Proxy, Server, eventually, within};

use super::{KINDS, Kind, held, mixed, names};
use crate::support::{SOON, client, command, idle, nothing_left, patient_client, waiting};

#[tokio::test]
async fn guards_are_counted_and_the_last_one_releases() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let names = names(5);
    let owner = Owner::new();
    let lock = mixed(&client, &names, 0).owner(&owner);
    let outer = lock.lock().await.unwrap();
    assert_eq!(outer.owner(), &owner);
    let inner = within(SOON, outer.reenter()).await.unwrap();
    // The owner may list a subset, in another order.
    let some = MultiLock::new([
        KINDS[2].member(&client, &names[2]),
        KINDS[0].member(&client, &names[0]),
    ]);
    let some = some.unwrap().owner(&owner).try_lock().await.unwrap();
    let some = some.expect("its own");
    assert_eq!((outer.hold_count(), some.hold_count()), (2, 3));
    assert!(
        mixed(&client, &names, 0)
            .try_lock()
            .await
            .unwrap()
            .is_none()
    );
    outer.release().await.unwrap();
    assert_eq!(held(&server, &names).await, names);
    inner.release().await.unwrap();
    assert_eq!(held(&server, &names).await, [&*names[0], &*names[2]]);
    drop(some);
    nothing_left(&server).await;
    idle(&client).await;
}

#[tokio::test]
async fn a_shared_owner_re_enters_and_no_owner_does_not() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = mixed(&client, &names(3), 0);
    let guard = lock.lock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    let first = guard.owner().clone();
    // The guard's name can be used to re-enter a member.
    let name = guard.name().to_owned();
    let inner = client.lock(name).owner(&first).try_lock().await.unwrap();
    assert_eq!(inner.expect("its own").hold_count(), 2);
    guard.release().await.unwrap();
    assert_ne!(lock.lock().await.unwrap().owner(), &first);
}

#[tokio::test]
async fn a_forgotten_guard_leaves_all_members_to_their_leases() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let names = names(4);
    mixed(&ours, &names, 0).lock().await.unwrap().forget();
    idle(&ours).await;
    assert_eq!(held(&server, &names).await, names);
    assert!(mixed(&ours, &names, 0).try_lock().await.unwrap().is_none());
    let guard = within(SOON, mixed(&ours, &names, 0).lock()).await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

#[tokio::test]
async fn tokens_grow_with_each_grant_and_the_largest_is_that_of_all() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let names = names(4);
    // One counter is far ahead of the clock, as after a change of servers.
    let ahead = format!("redisson_lock_token:{{{}}}", names[2]);
    command(&server, &["SET", &ahead, "9007199254740000"]).await;
    let mut last = (Vec::new(), None);
    for round in 0..6 {
        let client = [&ours, &theirs][round % 2];
        let guard = mixed(client, &names, 0).fenced().lock().await.unwrap();
        let tokens = guard.fencing_tokens();
        assert_eq!(tokens.len(), names.len());
        assert!(tokens.iter().all(Option::is_some));
        assert_eq!(
            guard.fencing_token(),
            tokens.iter().copied().flatten().max()
        );
        assert_eq!(guard.fencing_token(), tokens[2]);
        for (before, now) in std::iter::zip(&last.0, &tokens) {
            assert!(now > before);
        }
        assert!(guard.fencing_token() > last.1);
        let inner = guard.reenter().await.unwrap();
        assert_eq!(
            inner.fencing_tokens(),
            tokens,
            "one for as long as it lasts"
        );
        last = (tokens, guard.fencing_token());
        guard.release().await.unwrap();
        inner.release().await.unwrap();
    }
    let some = MultiLock::new([
        Member::from(ours.lock("a")),
        Member::from(ours.lock("b").fenced()),
    ]);
    let guard = some.unwrap().lock().await.unwrap();
    assert!(guard.fencing_tokens()[0].is_none());
    assert!(guard.fencing_tokens()[1].is_some());
    assert_eq!(guard.fencing_token(), guard.fencing_tokens()[1]);
}

/// For every member and every kind.
#[tokio::test]
async fn a_member_held_by_the_owner_is_re_entered_and_released() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let owner = Owner::new();
    for first in 0..KINDS.len() {
        for own in 0..4 {
            let names = names(4);
            let kind = KINDS[(first + own) % KINDS.len()];
            let alone = MultiLock::new([kind.member(&ours, &names[own])]).unwrap();
            let alone = alone.owner(&owner).lock().await.unwrap();
            let lock = mixed(&ours, &names, first).owner(&owner);
            let all = within(SOON, lock.try_lock()).await.unwrap().expect("free");
            assert_eq!(all.names(), names, "in the order of the names");
            assert_eq!((alone.hold_count(), all.hold_count()), (2, 1));
            all.release().await.unwrap();
            assert_eq!(alone.hold_count(), 1);
            assert_eq!(held(&server, &names).await, [&*names[own]]);
            // Nothing is acquired if another member is held by another client.
            let other = (own + 1) % 4;
            let blocker = KINDS[(first + other) % KINDS.len()];
            let blocker = blocker.keep_out(&theirs, &names[other]).await;
            assert!(lock.try_lock().await.unwrap().is_none());
            let wait = Duration::from_millis(20);
            assert!(lock.try_lock_for(wait).await.unwrap().is_none());
            eventually(SOON, "no share of it is left", async || {
                alone.hold_count() == 1 && held(&server, &names).await.len() == 2
            })
            .await;
            blocker.release().await;
            alone.release().await.unwrap();
            nothing_left(&server).await;
        }
    }
    idle(&ours).await;
}

/// Another task of the same owner acquires a member while the multi-lock waits for it.
#[tokio::test]
async fn a_member_acquired_by_the_owner_during_the_wait_is_re_entered() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let owner = Owner::new();
    // Two readers get in together, each with its own hold.
    for kind in [Kind::Reentrant, Kind::Fair, Kind::Write] {
        let names = names(3);
        let first = KINDS.iter().position(|other| *other == kind).unwrap() + 3;
        let blocker = kind.keep_out(&theirs, &names[1]).await;
        let alone = MultiLock::new([kind.member(&ours, &names[1])]).unwrap();
        let alone = alone.owner(&owner);
        let one = lockset_testkit::spawn(async move { alone.lock().await.unwrap() });
        waiting(&ours, 1).await;
        let all = mixed(&ours, &names, first).owner(&owner);
        let all = lockset_testkit::spawn(async move { all.lock().await.unwrap() });
        waiting(&ours, 2).await;
        blocker.release().await;
        let (one, all) = (within(SOON, one).await, within(SOON, all).await);
        let (one, all) = (one.unwrap(), all.unwrap());
        assert_eq!((one.hold_count(), all.hold_count()), (2, 1), "{kind:?}");
        all.release().await.unwrap();
        assert_eq!(held(&server, &names).await, [&*names[1]]);
        one.release().await.unwrap();
        nothing_left(&server).await;
    }
}

#[tokio::test]
async fn a_read_member_of_its_own_cannot_be_written() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let owner = Owner::new();
    let names = names(4);
    for (position, name) in names.iter().enumerate() {
        let reading = client.rw_lock(name).owner(&owner).read().await.unwrap();
        let members = names.iter().enumerate().map(|(at, other)| match at {
            at if at == position => Kind::Write.member(&client, other),
            at => [Kind::Reentrant, Kind::Fair][at % 2].member(&client, other),
        });
        let lock = MultiLock::new(members).unwrap().owner(&owner);
        for error in [
            lock.try_lock().await.unwrap_err(),
            within(SOON, lock.lock()).await.unwrap_err(),
        ] {
            assert!(error.is_upgrade() && error.is_invalid(), "{error}");
            assert_eq!(error.lock_name(), Some(&**name));
        }
        eventually(SOON, "nothing else is held", async || {
            held(&server, &names).await == [&**name]
        })
        .await;
        reading.release().await.unwrap();
    }
    nothing_left(&server).await;
}

/// Two owners hold one member each, request both, and release what they hold. If a waiter kept a
/// re-entered member, each would wait for the other forever.
#[tokio::test]
async fn re_entered_members_are_not_held_during_a_wait() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    for second in [&ours, &theirs] {
        let names = names(2);
        let owners = [Owner::new(), Owner::new()];
        let mut alone = Vec::new();
        let mut waiters = Vec::new();
        for (client, (name, owner)) in [&ours, second].into_iter().zip(names.iter().zip(&owners)) {
            alone.push(client.lock(name).owner(owner).lock().await.unwrap());
        }
        for (client, owner) in [&ours, second].into_iter().zip(&owners) {
            let both = MultiLock::new(names.iter().map(|name| client.lock(name)));
            let both = both.unwrap().owner(owner);
            waiters.push(lockset_testkit::spawn(async move {
                let guard = both.lock().await.unwrap();
                guard.release().await.unwrap();
            }));
        }
        eventually(SOON, "both wait", async || {
            let waiters = ours.stats().waiters + theirs.stats().waiters;
            waiters == 2
        })
        .await;
        for guard in alone {
            guard.release().await.unwrap();
        }
        for waiter in waiters {
            within(SOON, waiter).await.unwrap();
        }
        nothing_left(&server).await;
    }
}

/// Several guards over the same holds are released at once during an operation on these holds: each
/// release waits for its turn on one hold after another, so all must use the same order.
#[tokio::test]
async fn releases_over_the_same_holds_do_not_wait_for_each_other() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let owner = Owner::new();
    for held_first in 0..4 {
        let names = names(4);
        let lock = mixed(&ours, &names, 0).owner(&owner);
        let kind = KINDS[held_first];
        let first = MultiLock::new([kind.member(&ours, &names[held_first])]).unwrap();
        let first = first.owner(&owner).lock().await.unwrap();
        let one = lock.lock().await.unwrap();
        let two = lock.lock().await.unwrap();
        let three = one.reenter().await.unwrap();
        proxy.delay_replies(Duration::from_millis(50));
        let all = async { tokio::join!(three.reenter(), one.release(), two.release()) };
        let (four, one, two) = within(SOON, all).await;
        proxy.pass();
        one.and(two).unwrap();
        assert_eq!(three.hold_count(), 2);
        four.unwrap().release().await.unwrap();
        three.release().await.unwrap();
        first.release().await.unwrap();
        assert_eq!(held(&server, &names).await, [""; 0]);
    }
    nothing_left(&server).await;
    idle(&ours).await;
}
