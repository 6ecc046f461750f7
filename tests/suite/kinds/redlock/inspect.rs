//! Queries of a lock while some servers do not answer.

use std::time::Instant;

use lockset_testkit::{unique_name, within};

use super::{LONG, Nodes, client, held_on_exactly};
use crate::support::{LEASE, SOON, took_less};

/// The silent server has a hold, which makes a majority with one of the others.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_answers_of_a_majority_are_errors() {
    let nodes = Nodes::start(3).await;
    let stranger = nodes.stranger(LEASE).await;
    let name = unique_name("redlock");
    // Another client holds the lock on the third server until the others have it.
    let third = client(nodes.servers[2].url(), LONG).await.lock(&name);
    let third = third.lock().await.unwrap();
    let guard = nodes.redlock.lock(&name).fixed_lease(LONG);
    let guard = guard.lock().await.unwrap();
    held_on_exactly(3, &nodes.servers, &name).await;
    third.release().await.unwrap();
    held_on_exactly(2, &nodes.servers, &name).await;
    let lock = stranger.lock(&name);
    assert!(within(SOON, lock.is_locked()).await.unwrap());
    nodes.servers[1].stop();
    let told = within(SOON, lock.is_locked()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert_eq!(told.lock_name(), Some(&*name));
    assert!(told.to_string().contains("held elsewhere"), "{told}");
    let told = within(SOON, lock.holder()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(!guard.is_lost());
    nodes.servers[1].cont();
    guard.release().await.unwrap();
    assert!(!within(SOON, lock.is_locked()).await.unwrap());
}

/// A restarted server has forgotten the hold, so most servers report the lock as free.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_server_does_not_report_the_lock_as_free() {
    let nodes = Nodes::seasoned(3).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    assert!(!lock.is_locked().await.unwrap());
    nodes.servers[0].restart();
    nodes.servers[1].restart();
    let told = within(SOON, lock.is_locked()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("may have forgotten"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn force_does_not_wait_for_a_silent_minority() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    nodes.all_joined().await;
    nodes.servers[2].stop();
    let began = Instant::now();
    let lock = nodes.redlock.lock(&name);
    assert!(within(SOON, lock.force_unlock()).await.unwrap());
    // A third of the client's reply time, which is a third of the lease.
    took_less(began, LONG / 9);
    assert!(guard.is_lost());
    nodes.servers[2].cont();
}
