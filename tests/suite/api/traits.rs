//! Code that is generic over locks and guards.

use std::time::Duration;

use lockset::{Client, Guard, Lock, LostReason, Member, MultiLock, Owner, Redlock};
use lockset_testkit::{Server, within};

use crate::primitive::{Primitive, for_every_primitive};
use crate::support::{LEASE, SOON, client, client_with_lease, idle, nothing_left};

/// Works with any lock: acquires it in each way, re-enters it and releases it.
async fn use_it<L: Lock>(lock: L) -> lockset::Result<()> {
    let owner = Owner::new();
    let lock = lock.owner(&owner).lease(Duration::from_secs(9)).fenced();
    let outer = lock.lock().await?;
    assert_eq!(outer.name(), lock.name());
    assert_eq!(outer.owner(), &owner);
    let inner = lock.try_lock().await?.expect("the owner has it");
    let again = outer.reenter().await?;
    assert_eq!(again.hold_count(), 3);
    assert_eq!(again.fencing_token(), outer.fencing_token());
    assert!(outer.fencing_token().is_some() && !outer.is_lost());
    assert_eq!(outer.run(async { 7 }).await, Ok(7));
    again.release().await?;
    inner.release().await?;
    outer.release().await?;
    let fixed = lock.fixed_lease(Duration::from_secs(9));
    let last = fixed.try_lock_for(SOON).await?.expect("it is free");
    assert!(last.remaining() > Duration::from_secs(5));
    last.release().await
}

#[tokio::test]
async fn a_function_over_any_lock() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let rw = client.rw_lock("rw");
    let members = [client.lock("a"), client.lock("b")];
    let redlock = Redlock::builder([client.clone()])
        .persistent_nodes()
        .build();
    // Spawned on separate tasks, so their futures must be `Send`.
    let all = [
        lockset_testkit::spawn(use_it(client.lock("reentrant"))),
        lockset_testkit::spawn(use_it(client.fair_lock("fair"))),
        lockset_testkit::spawn(use_it(rw.read_side())),
        lockset_testkit::spawn(use_it(client.rw_lock("w").write_side())),
        lockset_testkit::spawn(use_it(MultiLock::new(members).unwrap())),
        lockset_testkit::spawn(use_it(redlock.unwrap().lock("redlock"))),
    ];
    for one in all {
        within(SOON, one).await.unwrap().unwrap();
    }
    nothing_left(&server).await;
}

/// A type that stores a guard without naming the kind of lock.
#[derive(Debug)]
struct Session {
    guard: Box<dyn Guard>,
}

async fn any_guard_in_a_struct<P: Primitive>() {
    let server = Server::start();
    let client = client_with_lease(&server.url(), LEASE * 3).await;
    let lock = P::of(&client, "x").fenced();
    let taken = lock.lock().await.unwrap();
    let (owner, token) = (taken.owner().clone(), taken.fencing_token());
    let holder = taken.holder_id().to_owned();
    let guard = Box::new(taken);
    let session = Session { guard };

    let used = lockset_testkit::spawn(async move {
        let guard = &session.guard;
        assert_eq!(guard.name(), "x");
        assert_eq!(guard.owner(), &owner);
        assert_eq!(guard.holder_id(), holder);
        assert_eq!(guard.fencing_token(), token);
        assert!(token.is_some() && !guard.remaining().is_zero());
        let again: Box<dyn Guard> = guard.reenter().await.unwrap();
        assert_eq!(guard.hold_count(), 2);
        again.release().await.unwrap();
        assert_eq!(guard.hold_count(), 1);
        let borrowed = String::from("done");
        assert_eq!(guard.run(async { &*borrowed }).await, Ok("done"));
        session
    });
    used.await.unwrap().guard.release().await.unwrap();
    nothing_left(&server).await;

    let guard: Box<dyn Guard> = Box::new(lock.lock().await.unwrap());
    assert!(lock.force_unlock().await.unwrap());
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert!(guard.is_lost());
    let lost = guard.run(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(lost.reason(), LostReason::Revoked);
    assert!(guard.release().await.unwrap_err().is_not_held());

    let dropped: Box<dyn Guard> = Box::new(lock.lock().await.unwrap());
    drop(dropped);
    idle(&client).await;
    nothing_left(&server).await;

    let forgotten: Box<dyn Guard> = Box::new(lock.lock().await.unwrap());
    forgotten.forget();
    idle(&client).await;
    assert!(lock.is_locked().await.unwrap());
}

for_every_primitive! {"current_thread":
    any_guard_in_a_struct
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    any_guard_in_a_struct
}

/// Guards of several kinds, held and released together.
#[tokio::test]
async fn guards_of_several_kinds_in_one_list() {
    let server = Server::start();
    let client: Client = client(&server.url()).await;
    let multi = MultiLock::new([
        Member::from(client.lock("a")),
        Member::from(client.fair_lock("b")),
    ]);
    let held: [Box<dyn Guard>; 4] = [
        Box::new(client.lock("reentrant").lock().await.unwrap()),
        Box::new(client.fair_lock("fair").lock().await.unwrap()),
        Box::new(client.rw_lock("rw").read().await.unwrap()),
        Box::new(multi.unwrap().lock().await.unwrap()),
    ];
    let names: Vec<&str> = held.iter().map(|guard| guard.name()).collect();
    assert_eq!(names, ["reentrant", "fair", "rw", "a"]);
    for guard in held {
        guard.release().await.unwrap();
    }
    nothing_left(&server).await;
}
