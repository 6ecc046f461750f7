//! Replicas that become primaries while locks are held and waited for.

use std::time::{Duration, Instant};

use lockset::LostReason;
use lockset_testkit::{Cluster, FailOver, Server, eventually, within};

use super::{A_WHILE, LEASE, client, connections, listened_to_at, nothing_left, renewed};
use crate::support::{BY_MESSAGE, SOON, idle, took_less_until, waiting};

/// Long enough for an election within half the lease, before the next renewal is late.
const RIDES_IT_OUT: Duration = Duration::from_secs(12);
const LONG: Duration = Duration::from_secs(30);

/// Whether a replica has this key.
async fn has_copy(replica: &Server, key: &str) -> bool {
    let mut pipe = redis::pipe();
    pipe.cmd("READONLY").ignore().cmd("EXISTS").arg(key);
    let found = pipe.query_async(&mut replica.admin().await).await;
    let (found,): (u8,) = found.unwrap();
    found == 1
}

/// Disconnects the replicas of a primary for good.
async fn cut_off(primary: &Server) {
    let mut admin = primary.admin().await;
    let mut pipe = redis::pipe();
    pipe.cmd("ACL")
        .arg(&["SETUSER", "default", "-psync", "-sync"]);
    pipe.cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]);
    let _: redis::Value = pipe.query_async(&mut admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_an_orderly_failover() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster, RIDES_IT_OUT).await;
    let theirs = client(&cluster, LONG).await;
    let name = "{orderly}reentrant";
    let (fair, written) = ("{orderly}fair", "{orderly}written");
    let guard = ours.lock(name).lock().await.unwrap();
    let fair_guard = ours.fair_lock(fair).lock().await.unwrap();
    let read_guard = ours.rw_lock(written).read().await.unwrap();
    let lock = theirs.lock(name);
    let mut waiters = vec![lockset_testkit::spawn(async move {
        lock.lock().await.unwrap().release().await.unwrap();
        Instant::now()
    })];
    let lock = theirs.fair_lock(fair);
    waiters.push(lockset_testkit::spawn(async move {
        lock.lock().await.unwrap().release().await.unwrap();
        Instant::now()
    }));
    let lock = theirs.rw_lock(written);
    waiters.push(lockset_testkit::spawn(async move {
        lock.write().await.unwrap().release().await.unwrap();
        Instant::now()
    }));
    let all_listen = async || {
        let node = cluster.primary_of(name).await;
        for name in [name, fair, written] {
            listened_to_at(node, name).await;
        }
    };
    waiting(&theirs, 3).await;
    all_listen().await;
    let places = ours.fair_lock(fair).waiters().await.unwrap();
    cluster.fail_over(name, FailOver::Graceful).await;
    renewed(&guard, RIDES_IT_OUT).await;
    all_listen().await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(ours.fair_lock(fair).waiters().await.unwrap(), places);
    let mut released = vec![Instant::now()];
    guard.release().await.unwrap();
    released.push(Instant::now());
    fair_guard.release().await.unwrap();
    released.push(Instant::now());
    read_guard.release().await.unwrap();
    for (waiter, released) in waiters.into_iter().zip(released) {
        let got = within(SOON, waiter).await.unwrap();
        // By a message, not by a timer.
        took_less_until(got, released, BY_MESSAGE);
    }
    nothing_left(&cluster, "orderly").await;
    idle(&ours).await;
    idle(&theirs).await;
}

/// The old primary neither answers nor closes its connections, and is no longer used when it
/// continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_survives_a_primary_that_freezes() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster, RIDES_IT_OUT).await;
    let theirs = client(&cluster, RIDES_IT_OUT).await;
    let name = "freezes";
    let guard = ours.lock(name).lock().await.unwrap();
    let lock = theirs.lock(name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&theirs, 1).await;
    let primary = cluster.primary_of(name).await;
    let replica = cluster.replica_of(name).await;
    let copied = async || has_copy(replica, name).await;
    eventually(SOON, "the replica has heard of the hold", copied).await;
    primary.stop();
    cluster.promoted(name, primary).await;
    renewed(&guard, RIDES_IT_OUT).await;
    listened_to_at(replica, name).await;
    primary.cont();
    cluster.is_well().await;
    renewed(&guard, RIDES_IT_OUT).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    renewed(&guard, RIDES_IT_OUT).await;
    guard.release().await.unwrap();
    nothing_left(&cluster, name).await;
    idle(&ours).await;
    idle(&theirs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_replicated_survives_the_death_of_its_primary() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster, RIDES_IT_OUT).await;
    let theirs = client(&cluster, LONG).await;
    let name = "replicated";
    let guard = ours.lock(name).lock().await.unwrap();
    let replica = cluster.replica_of(name).await;
    let copied = async || has_copy(replica, name).await;
    eventually(SOON, "the replica has heard of the hold", copied).await;
    cluster.kill_primary_of(name).await;
    renewed(&guard, RIDES_IT_OUT).await;
    assert!(theirs.lock(name).try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    let guard = theirs.lock(name).try_lock().await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    nothing_left(&cluster, name).await;
}

/// The guard is lost as soon as the client learns of the new primary, not at the next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_not_replicated_is_lost_at_once() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster, LONG).await;
    let name = "forgotten";
    let primary = cluster.primary_of(name).await;
    let replica = cluster.replica_of(name).await;
    cut_off(primary).await;
    let guard = ours.lock(name).lock().await.unwrap();
    let elsewhere = ours.lock("elsewhere").lock().await.unwrap();
    assert!(!has_copy(replica, name).await);
    cluster.kill_primary_of(name).await;
    // Any command to the slot finds out. Both names are in one slot.
    assert!(!ours.lock("{forgotten}other").is_locked().await.unwrap());
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LostReason::Revoked);
    assert!(!elsewhere.is_lost(), "that one is where it was");
    elsewhere.release().await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(error.is_not_held(), "{error}");
}

/// An idle client learns of the failover long before its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_holder_learns_of_a_lost_hold() {
    for freezes in [false, true] {
        let cluster = Cluster::start().await;
        let ours = client(&cluster, LONG * 4).await;
        let name = "quiet";
        let primary = cluster.primary_of(name).await;
        let replica = cluster.replica_of(name).await;
        cut_off(primary).await;
        let guard = ours.lock(name).lock().await.unwrap();
        assert!(!has_copy(replica, name).await);
        if freezes {
            primary.stop()
        } else {
            primary.kill()
        }
        cluster.promoted(name, primary).await;
        let reason = within(A_WHILE, guard.lost()).await;
        assert_eq!(reason, LostReason::Revoked);
        if freezes {
            primary.cont();
        }
    }
}

/// A hold whose lease ends before there is a new primary is lost by the local clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_lost_at_its_deadline_while_there_is_no_primary() {
    let patience = Duration::from_secs(60);
    let cluster = Cluster::builder().node_timeout(patience).start().await;
    let ours = client(&cluster, LEASE).await;
    let name = "headless";
    let guard = ours.lock(name).lock().await.unwrap();
    let primary = cluster.primary_of(name).await;
    let replica = cluster.replica_of(name).await;
    primary.kill();
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Expired);
    let error = ours.lock(name).try_lock().await.unwrap_err();
    assert!(error.is_io(), "{error}");
    assert!(error.to_string().contains("check that it is up"), "{error}");
    let which = primary.addr().to_string();
    assert!(error.to_string().contains(&which), "{error}");
    let mut takeover = redis::cmd("CLUSTER");
    takeover.arg("FAILOVER").arg("TAKEOVER");
    let told = takeover.query_async(&mut replica.admin().await).await;
    let () = told.unwrap();
    let again = async || matches!(ours.lock(name).try_lock().await, Ok(Some(_)));
    eventually(A_WHILE, "it can be taken again", again).await;
}

/// Replicas have no connections, and each primary has every connection once.
#[tokio::test(flavor = "multi_thread")]
async fn connections_do_not_pile_up() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster, RIDES_IT_OUT).await;
    let theirs = client(&cluster, LONG).await;
    let name = "piled";
    let guard = ours.lock(name).lock().await.unwrap();
    let lock = theirs.lock(name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&theirs, 1).await;
    for _ in 0..3 {
        listened_to_at(cluster.primary_of(name).await, name).await;
        let old = cluster.fail_over(name, FailOver::Graceful).await;
        renewed(&guard, RIDES_IT_OUT).await;
        eventually(A_WHILE, "the replica is left alone", async || {
            connections(old).await.is_empty()
        })
        .await;
    }
    let mut all = Vec::new();
    for node in cluster.nodes() {
        let mut here = connections(node).await;
        // Another check of the map may be in flight.
        here.retain(|name| !name.contains("-map-"));
        let found = here.len();
        here.sort();
        here.dedup();
        assert_eq!(here.len(), found, "one of each lane and client: {here:?}");
        all.extend(here);
    }
    guard.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    nothing_left(&cluster, name).await;
}
