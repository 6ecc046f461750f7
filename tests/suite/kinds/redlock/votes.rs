//! Which servers have a vote, and what a majority guarantees.

use std::time::Duration;

use lockset::{Client, LostReason, Owner, Redlock};
use lockset_testkit::{eventually, unique_name, within};

use super::{LONG, Nodes, client, clients, held_on_exactly, servers};
use crate::support::{LEASE, SOON};

#[tokio::test]
async fn one_at_a_time_and_everywhere() {
    let nodes = Nodes::start(5).await;
    let stranger = nodes.stranger(LONG).await;
    let name = unique_name("redlock");
    let (ours, theirs) = (nodes.redlock.lock(&name), stranger.lock(&name));
    let guard = ours.lock().await.unwrap();
    assert_eq!(guard.name(), name);
    assert_eq!(guard.hold_count(), 1);
    assert!(guard.remaining() > LONG / 2);
    held_on_exactly(5, &nodes.servers, &name).await;
    assert!(
        theirs.try_lock().await.unwrap().is_none(),
        "another process"
    );
    assert!(ours.try_lock().await.unwrap().is_none(), "another call");
    assert!(theirs.is_locked().await.unwrap());
    let holder = theirs.holder().await.unwrap().expect("it is held");
    assert_eq!(holder.hold_count, 1);
    assert!(holder.remaining <= LONG && holder.remaining > LONG / 2);
    guard.release().await.unwrap();
    assert!(!theirs.is_locked().await.unwrap());
    assert_eq!(theirs.holder().await.unwrap(), None);
    let guard = theirs.try_lock().await.unwrap().expect("it is free");
    assert!(ours.try_lock().await.unwrap().is_none(), "the other way");
    drop(guard);
    drop(stranger);
    nodes.nothing_left().await;
}

#[tokio::test]
async fn an_owner_enters_again() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let owner = Owner::new();
    let lock = nodes.redlock.lock(&name).owner(&owner);
    let first = lock.lock().await.unwrap();
    held_on_exactly(3, &nodes.servers, &name).await;
    let second = within(SOON, lock.lock()).await.unwrap();
    let third = first.reenter().await.unwrap();
    let same = Redlock::builder(nodes.clients.iter().rev().cloned()).persistent_nodes();
    let same = same.build().unwrap().lock(&name).owner(&owner);
    let fourth = same.try_lock().await.unwrap().expect("its own lock");
    assert_eq!(first.hold_count(), 4);
    assert_eq!(*fourth.owner(), owner);
    let stranger = nodes.redlock.lock(&name).owner(&Owner::new());
    for guard in [first, second, third] {
        guard.release().await.unwrap();
        assert!(stranger.try_lock().await.unwrap().is_none());
    }
    assert_eq!(fourth.hold_count(), 1);
    fourth.release().await.unwrap();
    nodes.nothing_left().await;
}

#[tokio::test]
async fn on_each_server_it_is_the_reentrant_lock() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    let mut single = Vec::new();
    for server in &nodes.servers[..2] {
        let other = client(server.url(), LONG).await;
        single.push(other.lock(&name).lock().await.unwrap());
    }
    assert!(
        lock.try_lock().await.unwrap().is_none(),
        "two of three are taken"
    );
    single.pop().unwrap().release().await.unwrap();
    let guard = lock.try_lock().await.unwrap().expect("a majority is free");
    held_on_exactly(3, &nodes.servers, &name).await;
    // The third server joins as soon as the lock is free there.
    for server in &nodes.servers[1..] {
        let other = client(server.url(), LONG).await;
        assert!(other.lock(&name).try_lock().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn force_frees_it_everywhere_and_its_guard_is_lost() {
    let nodes = Nodes::start(3).await;
    let stranger = nodes.stranger(LONG).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    assert!(nodes.redlock.lock(&name).force_unlock().await.unwrap());
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    assert!(guard.release().await.unwrap_err().is_not_held());
    assert!(!stranger.lock(&name).force_unlock().await.unwrap());
    nodes.nothing_left().await;
}

#[tokio::test]
async fn servers_that_cannot_be_independent_are_refused() {
    let nodes = Nodes::start(1).await;
    let none = Redlock::new(Vec::<Client>::new()).unwrap_err();
    assert!(none.is_invalid(), "{none}");
    let url = nodes.servers[0].url();
    let by_number = client(format!("{url}3"), LONG).await;
    let by_name = client(url.replace("127.0.0.1", "localhost"), LONG).await;
    for other in [&nodes.clients[0], &by_number, &by_name] {
        let twice = Redlock::new([nodes.clients[0].clone(), other.clone()]).unwrap_err();
        assert!(
            twice.is_invalid() && twice.to_string().contains("one server"),
            "{twice}"
        );
    }
    for bad in ["", "a{b"] {
        let error = nodes.redlock.lock(bad).lock().await.unwrap_err();
        assert!(error.is_invalid(), "{bad:?}: {error}");
        assert_eq!(error.lock_name(), Some(bad));
    }
    let error = nodes.redlock.lock("a").lease(LONG / 1_000_000);
    let error = error.lock().await.unwrap_err();
    assert!(
        error.is_invalid() && error.lock_name() == Some("a"),
        "{error}"
    );
}

/// A restarted server votes again after the longest lease that the client knows of.
#[tokio::test]
async fn a_lease_that_outlasts_the_rest_of_a_restarted_server_is_refused() {
    let servers = servers(1);
    let clients = clients(&servers, LEASE).await;
    let redlock = Redlock::new(clients.clone()).unwrap();
    let longer = LEASE + Duration::from_millis(1);
    for lock in [
        redlock.lock("x").lease(longer),
        redlock.lock("x").fixed_lease(longer),
    ] {
        let error = lock.try_lock().await.unwrap_err();
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some("x"));
        assert!(error.to_string().contains("longest_lease"), "{error}");
    }
    let told = Redlock::builder(clients).longest_lease(longer);
    let lock = told.build().unwrap().lock("x").lease(longer);
    eventually(SOON, "the server has a vote", async || {
        lock.try_lock().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
}

#[tokio::test]
async fn one_server_is_a_majority_of_one() {
    let nodes = Nodes::start(1).await;
    let lock = nodes.redlock.lock(unique_name("redlock"));
    let guard = lock.lock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    drop(guard);
    eventually(SOON, "it is free", async || {
        lock.try_lock().await.unwrap().is_some()
    })
    .await;
    nodes.nothing_left().await;
}
