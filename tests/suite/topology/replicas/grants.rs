//! Confirmed grants survive a failover, and unconfirmed grants are undone.

use std::time::Duration;

use lockset::{Client, MultiLock, Owner};
use lockset_testkit::{Server, eventually, unique_name, within};

use super::{BRIEFLY, Group, WITHIN, waits};
use crate::primitive::Guard;
use crate::support::{LEASE, SOON, idle, nothing_left};

#[tokio::test]
async fn a_confirmed_grant_is_on_as_many_replicas() {
    let group = Group::of(2).await;
    let client = group.client().await;
    let names = [unique_name("a"), unique_name("b"), unique_name("c")];
    let lock = client.lock(&names[0]).replicated(2, WITHIN);
    let lock = lock.lock().await.unwrap();
    let fair = client.fair_lock(&names[1]).replicated(2, WITHIN);
    let fair = fair.lock().await.unwrap();
    let rw = client.rw_lock(&names[2]).replicated(2, WITHIN);
    let write = rw.write().await.unwrap();
    for replica in &group.replicas {
        let keys = replica.keys().await;
        assert!(names.iter().all(|name| keys.contains(name)), "{keys:?}");
    }
    write.release().await.unwrap();
    let read = rw.read().await.unwrap();
    for replica in &group.replicas {
        let keys = replica.keys().await;
        let own = format!("{{{}}}:", names[2]);
        assert!(keys.iter().any(|key| key.starts_with(&own)), "{keys:?}");
    }
    assert_eq!(waits(&group.primary).await, 4);
    for released in [
        lock.release().await,
        fair.release().await,
        read.release().await,
    ] {
        released.unwrap();
    }
    nothing_left(&group.primary).await;
    idle(&client).await;
}

/// A confirmed hold survives its primary. An unconfirmed hold may not.
#[tokio::test]
async fn a_confirmed_hold_survives_a_failover_and_an_unconfirmed_one_may_not() {
    let group = Group::of(2).await;
    let client = group.client().await;
    let (kept, gone) = (unique_name("kept"), unique_name("gone"));
    group.links[1].hold_replies();
    let confirmed = client.lock(&kept).replicated(1, WITHIN);
    let confirmed = confirmed.lock().await.unwrap();
    group.links[0].hold_replies();
    // Granted without waiting for the replicas, which do not have it.
    let unconfirmed = client.lock(&gone).lock().await.unwrap();
    group.primary.kill();
    group.promote(0).await;
    let other = Client::connect(&group.replicas[0].url()).await.unwrap();
    assert!(other.lock(&kept).try_lock().await.unwrap().is_none());
    let holder = other.lock(&kept).holder().await.unwrap().expect("a holder");
    assert!(holder.remaining > confirmed.remaining() - SOON);
    assert!(other.lock(&gone).try_lock().await.unwrap().is_some());
    confirmed.forget();
    unconfirmed.forget();
}

/// For every kind, and for the largest multi-lock: a hold that is not confirmed is not held.
#[tokio::test]
async fn a_grant_that_too_few_confirm_is_released_and_the_next_one_gets_it() {
    // The other replica needs some time to confirm.
    const FOR_ONE: Duration = Duration::from_millis(500);
    let group = Group::of(2).await;
    group.replicas[1].stop();
    let client = group.client().await;
    let name = unique_name("lock");
    let rw = client.rw_lock(&name).replicated(2, FOR_ONE);
    let both = [client.lock(&name), client.lock(format!("{name}:2"))];
    let both = MultiLock::new(both).unwrap().replicated(2, FOR_ONE);
    let plain = client.lock(&name).replicated(2, FOR_ONE);
    let fair = client.fair_lock(&name).replicated(2, FOR_ONE);
    let errors = [
        plain.lock().await.map(drop).unwrap_err(),
        plain.try_lock().await.map(drop).unwrap_err(),
        plain.try_lock_for(SOON).await.map(drop).unwrap_err(),
        fair.lock().await.map(drop).unwrap_err(),
        rw.read().await.map(drop).unwrap_err(),
        rw.write().await.map(drop).unwrap_err(),
        both.lock().await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_not_replicated() && error.is_refused(), "{error}");
        assert!(error.lock_name().unwrap().starts_with(&name), "{error}");
        let said = "1 of 2 replicas confirmed within 500ms";
        assert!(error.to_string().contains(said), "{error}");
    }
    // The undo is complete before the call returns, so the test need not wait.
    let keys = group.primary.keys().await;
    assert!(keys.is_empty(), "{keys:?}");
    let stranger = group.client().await;
    let guard = stranger.lock(&name).try_lock().await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    let one = plain.replicated(1, WITHIN).try_lock().await.unwrap();
    one.expect("one of two is enough").release().await.unwrap();
    group.replicas[1].cont();
    idle(&client).await;
}

#[tokio::test]
async fn a_server_without_replicas_confirms_nothing() {
    let server = Server::start();
    let client = Client::builder(&server.url()).replicated(1, BRIEFLY);
    let client = client.build().await.unwrap();
    let error = client.lock("x").lock().await.unwrap_err();
    assert!(error.is_not_replicated(), "{error}");
    let said = "0 of 1 replicas confirmed";
    assert!(error.to_string().contains(said), "{error}");
    nothing_left(&server).await;
    idle(&client).await;
}

/// The next waiter in the queue is granted the lock over another connection, and is not confirmed
/// either.
#[tokio::test]
async fn a_waiter_is_confirmed_as_well() {
    let group = Group::of(1).await;
    let (ours, theirs) = (group.client().await, group.client().await);
    for is_well in [true, false] {
        let name = unique_name("lock");
        let held = theirs.lock(&name).lock().await.unwrap();
        let within_time = if is_well { WITHIN } else { BRIEFLY };
        let waiter = lockset_testkit::spawn({
            let lock = ours.lock(&name).replicated(1, within_time);
            async move { lock.lock().await }
        });
        let listens = async || group.primary.pubsub_channels().await.len() == 1;
        eventually(SOON, "it waits", listens).await;
        if !is_well {
            group.links[0].hold_replies();
        }
        held.release().await.unwrap();
        match within(SOON * 2, waiter).await.unwrap() {
            Ok(guard) if is_well => {
                assert!(group.replicas[0].keys().await.contains(&name));
                guard.release().await.unwrap();
            }
            Err(error) if !is_well => assert!(error.is_not_replicated(), "{error}"),
            other => panic!("{other:?}"),
        }
        assert!(theirs.lock(&name).try_lock().await.unwrap().is_some());
        let silent = async || group.primary.pubsub_channels().await.is_empty();
        eventually(SOON, "no client is subscribed", silent).await;
    }
}

/// A re-entry is not a grant and needs no confirmation. An unconfirmed hold cannot be re-entered.
#[tokio::test]
async fn an_owner_enters_a_confirmed_hold_without_another_wait() {
    let group = Group::of(1).await;
    let client = group.client().await;
    let owner = Owner::new();
    let name = unique_name("lock");
    let lock = client.lock(&name).owner(&owner).replicated(1, WITHIN);
    group.links[0].hold_replies();
    let tasks = [lock.clone(), lock.clone()].map(|lock| {
        let call = async move { lock.lock().await };
        lockset_testkit::spawn(call)
    });
    let is_granted = async || group.primary.keys().await.contains(&name);
    eventually(SOON, "it is granted", is_granted).await;
    assert_eq!(client.stats().holds, 0, "it is not held yet");
    group.links[0].pass();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(within(SOON, task).await.unwrap().unwrap());
    }
    guards.push(lock.try_lock().await.unwrap().expect("its own lock"));
    guards.push(guards[0].reenter().await.unwrap());
    assert_eq!(guards[0].hold_count(), 4);
    assert_eq!(waits(&group.primary).await, 1);
    for guard in guards {
        Guard::release(guard).await.unwrap();
    }
    nothing_left(&group.primary).await;
}

#[tokio::test]
async fn invalid_input_is_reported_before_anything_is_sent() {
    let server = Server::start();
    let builder = || Client::builder(&server.url()).lease(LEASE);
    let client = builder().build().await.unwrap();
    for (count, within) in [(0, BRIEFLY), (1, Duration::ZERO), (1, LEASE / 2)] {
        let error = builder().replicated(count, within).build().await;
        assert!(error.unwrap_err().is_invalid());
        let error = client.lock("x").replicated(count, within).lock().await;
        let error = error.unwrap_err();
        assert!(
            error.is_invalid() && error.lock_name() == Some("x"),
            "{error}"
        );
    }
    // With its own lease.
    let lock = client.lock("x").replicated(1, LEASE / 3).lease(LEASE / 2);
    assert!(lock.lock().await.unwrap_err().is_invalid());
    assert!(server.keys().await.is_empty());
}
