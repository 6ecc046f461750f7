//! Frozen or dead nodes: the effect on other locks, and the recovery.

use std::time::Duration;

use lockset::LostReason;
use lockset_testkit::{Cluster, eventually, within};

use super::{A_WHILE, LEASE, client, name_at, nothing_left, primaries_alone, renewed};
use crate::support::{SOON, cycle, idle};

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_node_does_not_delay_locks_on_others() {
    let cluster = primaries_alone().await;
    let client = client(&cluster, LEASE).await;
    let frozen = cluster.node(0);
    let at_frozen = name_at(&cluster, frozen).await;
    let mut others = Vec::new();
    for node in &cluster.nodes()[1..] {
        let name = name_at(&cluster, node).await;
        others.push(client.lock(&name).lock().await.unwrap());
    }
    let mut names = Vec::new();
    for _ in 0..20 {
        names.push(name_at(&cluster, cluster.node(1)).await);
    }
    let guard = client.lock(&at_frozen).lock().await.unwrap();
    frozen.stop();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    for other in &others {
        renewed(other, LEASE).await;
        let lock = client.lock(other.name());
        assert!(lock.try_lock().await.unwrap().is_none());
    }
    // Locks on other nodes work as usual while a caller waits for a lock on the frozen node.
    let waits = client.lock(&at_frozen);
    let waiter = lockset_testkit::spawn(async move { waits.lock().await });
    for name in names {
        let guard = within(SOON, client.lock(&name).lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    let error = within(SOON, waiter).await.unwrap().unwrap_err();
    assert!(error.is_io(), "{error}");
    frozen.cont();
    drop(guard);
    for other in others {
        other.release().await.unwrap();
    }
    let again = async || matches!(client.lock(&at_frozen).try_lock().await, Ok(Some(_)));
    eventually(A_WHILE, "it can be taken again", again).await;
    nothing_left(&cluster, "lock").await;
    idle(&client).await;
}

/// Most primaries are dead: the rest refuse to serve, and the error says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_down_is_an_error_until_it_is_up_again() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let client = client(&cluster, LEASE).await;
    let alive = cluster.node(2);
    let name = name_at(&cluster, alive).await;
    let at_dead = name_at(&cluster, cluster.node(0)).await;
    let guard = client.lock(&name).lock().await.unwrap();
    for dead in &cluster.nodes()[..2] {
        dead.kill();
    }
    assert_eq!(within(A_WHILE, guard.lost()).await, LostReason::Expired);
    drop(guard);
    let error = client.lock(&name).try_lock().await.map(drop).unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(error.to_string().contains("The cluster is down"), "{error}");
    assert_eq!(error.lock_name(), Some(&*name));
    let error = client
        .lock(&at_dead)
        .try_lock()
        .await
        .map(drop)
        .unwrap_err();
    assert!(error.is_io(), "{error}");
    for dead in &cluster.nodes()[..2] {
        dead.restart();
    }
    cluster.is_well().await;
    for node in cluster.nodes() {
        let name = name_at(&cluster, node).await;
        let again = async || matches!(client.lock(&name).try_lock().await, Ok(Some(_)));
        eventually(A_WHILE, "it can be taken again", again).await;
    }
    nothing_left(&cluster, "lock").await;
    idle(&client).await;
}

/// Some slots are lost, and the cluster serves the rest.
#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_dead_node_are_an_error_and_the_others_go_on() {
    let builder = Cluster::builder().replicas(0);
    let partial = ["--cluster-require-full-coverage", "no"];
    let cluster = builder.args(partial).start().await;
    let client = client(&cluster, LEASE).await;
    let dead = cluster.node(0);
    let gone = name_at(&cluster, dead).await;
    let name = name_at(&cluster, cluster.node(1)).await;
    let guard = client.lock(&name).lock().await.unwrap();
    dead.kill();
    for _ in 0..3 {
        let error = client.lock(&gone).try_lock().await.unwrap_err();
        assert!(error.is_io() || error.is_refused(), "{error}");
        renewed(&guard, LEASE).await;
    }
    guard.release().await.unwrap();
    // A new client can connect too.
    let late = super::client(&cluster, Duration::from_secs(3)).await;
    cycle(&late.lock(&name)).await;
}

/// Calls end only after `give_up_after`, and the cluster is up again before that.
#[tokio::test(flavor = "multi_thread")]
async fn calls_outlast_a_cluster_that_is_down_for_a_moment() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let client = client(&cluster, A_WHILE * 3).await;
    let (alive, dead) = (cluster.node(2), cluster.node(0));
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(name_at(&cluster, alive).await);
    }
    let locks: Vec<_> = names.iter().map(|name| client.lock(name)).collect();
    let held = locks[0].lock().await.unwrap();
    dead.stop();
    let impatient = locks[3].clone().give_up_after(Duration::from_millis(200));
    eventually(A_WHILE, "the cluster is down", async || {
        let tried = impatient.try_lock().await.map(drop);
        tried.is_err_and(|error| error.to_string().contains("The cluster is down"))
    })
    .await;
    // By default a call that asks once ends after two seconds.
    let free = locks[1].clone().give_up_after(A_WHILE);
    let other = locks[2].clone();
    let calls = lockset_testkit::spawn(async move {
        let tries = async { drop(free.try_lock().await.unwrap().unwrap()) };
        let waits = async { drop(other.lock().await.unwrap()) };
        let releases = async { held.release().await.unwrap() };
        tokio::join!(tries, waits, releases)
    });
    // Several retries long.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        !calls.is_finished(),
        "a call ended before the cluster was up"
    );
    dead.cont();
    within(A_WHILE, calls).await.unwrap();
    nothing_left(&cluster, "lock").await;
    idle(&client).await;
}
