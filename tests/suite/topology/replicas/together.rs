//! The cost of waiting for replicas with many callers.

use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Member, MultiLock, ReentrantLock};
use lockset_testkit::{Cluster, unique_name, within};

use super::{Group, WITHIN, waits};
use crate::support::{LEASE, SOON, idle, nothing_left};

/// Sixty-four concurrent callers share one or two waits.
#[tokio::test]
async fn many_grants_share_a_few_waits() {
    let group = Group::of(1).await;
    let client = group.client().await;
    // Opens the connection for the waits.
    let first = client.lock(unique_name("first")).replicated(1, WITHIN);
    drop(first.lock().await.unwrap());
    group.links[0].delay_replies(Duration::from_millis(100));
    let name = unique_name("many");
    let lock = |n| client.lock(format!("{name}:{n}")).replicated(1, WITHIN);
    let locks: Vec<ReentrantLock> = (0..64).map(lock).collect();
    let before = waits(&group.primary).await;
    let guards = within(SOON * 2, join_all(locks.iter().map(ReentrantLock::lock))).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let count = waits(&group.primary).await - before;
    assert!((1..=4).contains(&count), "{count} waits");
    let keys = group.replicas[0].keys().await;
    let confirmed = keys.iter().filter(|key| key.starts_with(&name));
    assert_eq!(confirmed.count(), 64);
    drop(guards);
    nothing_left(&group.primary).await;
    idle(&client).await;
}

/// A wait for replicas blocks neither attempts nor renewals.
#[tokio::test]
async fn others_go_on_while_replicas_are_waited_for() {
    let group = Group::of(1).await;
    let client = group.client().await;
    group.links[0].hold_replies();
    let waiter = lockset_testkit::spawn({
        let long = Duration::from_secs(10);
        let lock = client.lock(unique_name("waits")).replicated(1, long);
        async move { lock.lock().await }
    });
    let short = client.lock(unique_name("short")).lease(LEASE * 2);
    let short = short.lock().await.unwrap();
    for _ in 0..50 {
        let guard = client.lock(unique_name("other")).lock().await.unwrap();
        guard.release().await.unwrap();
    }
    tokio::time::sleep(LEASE * 3).await;
    assert!(!short.is_lost() && !waiter.is_finished());
    group.links[0].pass();
    drop(within(SOON, waiter).await.unwrap().unwrap());
}

#[tokio::test]
async fn the_members_of_a_multi_lock_are_waited_for_once() {
    let group = Group::of(1).await;
    let client = group.client().await;
    let name = unique_name("multi");
    let members = || {
        [
            Member::from(client.lock(format!("{name}:1"))),
            Member::from(client.fair_lock(format!("{name}:2"))),
            Member::from(client.rw_lock(format!("{name}:3")).read_side()),
            Member::from(client.rw_lock(format!("{name}:4")).write_side()),
        ]
    };
    let all = MultiLock::new(members()).unwrap().replicated(1, WITHIN);
    let guard = all.lock().await.unwrap();
    assert_eq!(waits(&group.primary).await, 1);
    let keys = group.replicas[0].keys().await;
    let mut names = guard.names().into_iter();
    assert!(
        names.all(|name| keys.iter().any(|key| key == name)),
        "{keys:?}"
    );
    guard.release().await.unwrap();
    // If one member asks for confirmation, all members granted by the same script are confirmed.
    let mut members = members();
    members[0] = Member::from(client.lock(format!("{name}:1")).replicated(1, WITHIN));
    let guard = MultiLock::new(members).unwrap().lock().await.unwrap();
    assert_eq!(waits(&group.primary).await, 2);
    guard.release().await.unwrap();
    nothing_left(&group.primary).await;
}

/// In a cluster, each grant is confirmed at its own node.
#[tokio::test]
async fn each_grant_is_confirmed_at_its_own_node() {
    let cluster = Cluster::shared().await;
    let client = lockset::Client::builder(&cluster.url()).replicated(1, WITHIN);
    let client = client.build().await.unwrap();
    let name = unique_name("lock");
    let locks: Vec<_> = (0..48)
        .map(|n| client.lock(format!("{name}:{n}")))
        .collect();
    let guards = within(SOON * 2, join_all(locks.iter().map(ReentrantLock::lock))).await;
    for guard in guards {
        let guard = guard.unwrap();
        let replica = cluster.replica_of(guard.name()).await;
        let keys = replica.keys().await;
        assert!(keys.iter().any(|key| key == guard.name()));
        guard.release().await.unwrap();
    }
    let spread = MultiLock::new(locks[..4].to_vec()).unwrap();
    spread.lock().await.unwrap().release().await.unwrap();
    let two = locks[0].clone().replicated(2, Duration::from_millis(200));
    let error = two.lock().await.unwrap_err();
    assert!(error.is_not_replicated(), "{error}");
    idle(&client).await;
}
