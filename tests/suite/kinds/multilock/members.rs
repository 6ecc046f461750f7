//! The possible members, all-or-nothing acquisition, and the cost of a cycle.

use std::time::{Duration, Instant};

use lockset::{MULTI_LOCK_MEMBERS_MAX, Member, MultiLock, NAME_BYTES_MAX};
use lockset_testkit::{Server, within};

use super::{KINDS, Kind, held, mixed, names};
use crate::support::{
    BY_MESSAGE, LEASE, SOON, client, command, idle, listening, nothing_left, patient_client,
    took_less, waiting,
};

#[tokio::test]
async fn any_mix_of_one_to_a_hundred_is_acquired_and_released() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for count in [1, 2, 3, 10, MULTI_LOCK_MEMBERS_MAX] {
        for first in 0..KINDS.len() {
            let names = names(count);
            let guard = mixed(&client, &names, first).lock().await.unwrap();
            assert_eq!(held(&server, &names).await, names);
            assert_eq!(guard.names(), names);
            assert_eq!(guard.hold_count(), 1);
            assert!(guard.remaining() > Duration::from_secs(20));
            guard.release().await.unwrap();
            nothing_left(&server).await;
            idle(&client).await;
        }
    }
}

#[tokio::test]
async fn invalid_settings_are_refused_with_a_reason() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let none = MultiLock::new(Vec::<Member>::new()).unwrap_err();
    assert!(none.is_invalid() && none.to_string().contains("at least one"));

    let names = names(MULTI_LOCK_MEMBERS_MAX + 1);
    let many = MultiLock::new(names.iter().map(|name| client.lock(name))).unwrap_err();
    assert!(many.is_invalid(), "{many}");
    let bound = MULTI_LOCK_MEMBERS_MAX.to_string();
    assert!(many.to_string().contains(&bound), "{many}");

    let long = "n".repeat(NAME_BYTES_MAX + 1);
    for bad in ["", "a{b", "{}a", &long] {
        for kind in KINDS {
            let members = [
                Kind::Reentrant.member(&client, "good"),
                kind.member(&client, bad),
            ];
            let error = MultiLock::new(members).unwrap_err();
            assert!(error.is_invalid() && error.lock_name() == Some(bad));
        }
    }
    let short = MultiLock::new([client.lock("x"), client.lock("y").lease(Duration::ZERO)]);
    let error = short.unwrap().lock().await.unwrap_err();
    assert!(error.is_invalid() && error.lock_name() == Some("y"));
}

/// For a held member of every kind and in every position.
#[tokio::test]
async fn all_or_nothing_and_all_with_the_message() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for first in 0..KINDS.len() {
        for busy in 0..5 {
            let names = names(5);
            let lock = mixed(&ours, &names, first);
            let kind = KINDS[(first + busy) % KINDS.len()];
            let blocker = kind.keep_out(&theirs, &names[busy]).await;
            let before = server.keys().await;

            assert!(lock.try_lock().await.unwrap().is_none());
            assert_eq!(server.keys().await, before, "{kind:?} {busy}");
            let wait = Duration::from_millis(20);
            assert!(lock.try_lock_for(wait).await.unwrap().is_none());
            idle(&ours).await;
            assert_eq!(server.keys().await, before, "{kind:?} {busy}");

            let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
            listening(&server).await;
            assert_eq!(held(&server, &names).await, [&*names[busy]]);
            let freed = Instant::now();
            blocker.release().await;
            let guard = within(SOON, waiter).await.unwrap();
            took_less(freed, BY_MESSAGE);
            assert_eq!(held(&server, &names).await, names);
            guard.release().await.unwrap();
            nothing_left(&server).await;
        }
    }
}

#[tokio::test]
async fn a_member_of_a_foreign_type_is_named_and_nothing_is_taken() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for first in 0..KINDS.len() {
        for foreign in 0..5 {
            let names = names(5);
            let lock = mixed(&client, &names, first);
            command(&server, &["RPUSH", &names[foreign], "theirs"]).await;
            let wait = Duration::from_millis(50);
            for error in [
                lock.try_lock().await.unwrap_err(),
                lock.try_lock_for(wait).await.unwrap_err(),
                within(SOON, lock.lock()).await.unwrap_err(),
            ] {
                assert!(error.is_wrong_type(), "{error}");
                assert_eq!(error.lock_name(), Some(&*names[foreign]), "{error}");
            }
            idle(&client).await;
            assert_eq!(server.keys().await, [&*names[foreign]]);
            command(&server, &["DEL", &names[foreign]]).await;
        }
    }
}

/// Found while the call waits for another member.
#[tokio::test]
async fn a_member_that_becomes_foreign_during_the_wait_is_named() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let names = names(5);
    let lock = mixed(&ours, &names, 0);
    let blocker = Kind::Fair.keep_out(&theirs, &names[1]).await;
    let waiter = lockset_testkit::spawn(async move { lock.lock().await });
    waiting(&ours, 1).await;
    command(&server, &["RPUSH", &names[4], "theirs"]).await;
    blocker.release().await;
    let error = within(SOON, waiter).await.unwrap().unwrap_err();
    assert!(error.is_wrong_type() && error.lock_name() == Some(&names[4]));
    idle(&ours).await;
    assert_eq!(server.keys().await, [&*names[4]]);
}

/// A foreign key in place of one member is left alone, and the other members are released.
#[tokio::test]
async fn a_member_that_became_foreign_does_not_keep_the_others_at_release() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for first in 0..KINDS.len() {
        for foreign in [0, 2, 4] {
            let names = names(5);
            let guard = mixed(&client, &names, first).lock().await.unwrap();
            command(&server, &["DEL", &names[foreign]]).await;
            command(&server, &["RPUSH", &names[foreign], "theirs"]).await;
            let error = guard.release().await.unwrap_err();
            assert!(error.is_not_held(), "{error}");
            assert_eq!(error.lock_name(), Some(&*names[foreign]));
            assert_eq!(held(&server, &names).await, [&*names[foreign]]);
            idle(&client).await;
            command(&server, &["FLUSHALL"]).await;
        }
    }
}

#[tokio::test]
async fn one_script_acquires_all_and_one_releases_all() {
    const CYCLES: u64 = 20;
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let names = names(10);
    let lock = mixed(&client, &names, 0);
    // The first calls load their scripts.
    lock.lock().await.unwrap().release().await.unwrap();
    server.reset_stats().await;
    for cycle in 0..CYCLES {
        let guard = lock.lock().await.unwrap();
        let taken = server.commandstats().await["evalsha"];
        assert_eq!(taken, cycle * 2 + 1, "one to take all");
        match cycle % 2 {
            0 => guard.release().await.unwrap(),
            _ => drop(guard),
        }
        idle(&client).await;
    }
    let stats = server.commandstats().await;
    assert_eq!(stats["evalsha"], CYCLES * 2, "{stats:?}");
    for other in ["eval", "subscribe", "script|load"] {
        assert!(!stats.contains_key(other), "{stats:?}");
    }
    // A hundred members with two round trips as well.
    let names = super::names(MULTI_LOCK_MEMBERS_MAX);
    let lock = mixed(&client, &names, 0).fenced();
    server.reset_stats().await;
    lock.lock().await.unwrap().release().await.unwrap();
    assert_eq!(server.commandstats().await["evalsha"], 2);
}

#[tokio::test]
async fn all_members_are_renewed() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let names = names(12);
    let guard = mixed(&ours, &names, 0).lock().await.unwrap();
    assert!(
        tokio::time::timeout(LEASE * 3, guard.lost_member())
            .await
            .is_err()
    );
    assert_eq!(held(&server, &names).await, names);
    assert!(guard.remaining() > LEASE / 4);
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// A lease set on the multi-lock overrides the leases of the members. Without one, each member has
/// its own.
#[tokio::test]
async fn a_lease_for_all_overrides_those_of_members() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let (short, long) = (Duration::from_secs(3), Duration::from_secs(60));
    let members = || {
        [
            Member::from(client.lock("a").lease(long)),
            Member::from(client.fair_lock("b").fixed_lease(short)),
            Member::from(client.rw_lock("c").write_side()),
        ]
    };
    let left = async |name: &str| match command(&server, &["PTTL", name]).await {
        redis::Value::Int(left) => Duration::from_millis(left.try_into().unwrap()),
        other => panic!("{other:?}"),
    };
    let guard = MultiLock::new(members()).unwrap().lock().await.unwrap();
    assert!(left("a").await > short * 15 && left("b").await <= short);
    assert!(left("c").await > short * 5 && left("c").await <= short * 10);
    assert!(guard.remaining() <= short);
    guard.release().await.unwrap();

    let all = MultiLock::new(members()).unwrap().lease(long);
    let guard = all.lock().await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(left(name).await > short * 15, "{name}");
    }
    assert!(guard.remaining() > short * 15);
    guard.release().await.unwrap();
}
