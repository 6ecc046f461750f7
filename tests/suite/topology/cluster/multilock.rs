//! Multi-locks whose members are in one slot, and in several.

use std::time::Duration;

use lockset::{Client, Member, MultiLock};
use lockset_testkit::{Cluster, Server, within};

use super::{LEASE, client, name_at, nothing_left, primaries_alone};
use crate::support::{SOON, idle, waiting};

async fn scripts_run(node: &Server) -> u64 {
    let stats = node.commandstats().await;
    let runs = ["eval", "evalsha"].map(|verb| stats.get(verb).copied().unwrap_or(0));
    runs.iter().sum()
}

fn of_all_kinds(client: &Client, names: &[String; 3]) -> MultiLock {
    let [lock, fair, written] = names;
    MultiLock::new([
        Member::from(client.lock(lock)),
        Member::from(client.fair_lock(fair)),
        Member::from(client.rw_lock(written).write_side()),
    ])
    .unwrap()
}

#[tokio::test]
async fn members_of_one_slot_use_one_script() {
    let cluster = primaries_alone().await;
    // This client sends no renewals during the test.
    let client = client(&cluster, Duration::from_secs(30)).await;
    let names = ["one", "two", "three"].map(|name| format!("{{together}}{name}"));
    let all = of_all_kinds(&client, &names);
    // Opens the connection first.
    all.lock().await.unwrap().release().await.unwrap();
    let node = cluster.primary_of(&names[0]).await;
    let before = scripts_run(node).await;
    let guard = all.lock().await.unwrap();
    assert_eq!(scripts_run(node).await, before + 1);
    guard.release().await.unwrap();
    assert_eq!(scripts_run(node).await, before + 2);
    nothing_left(&cluster, "together").await;
    idle(&client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_several_slots_exclude_and_are_released() {
    let cluster = Cluster::shared().await;
    let (ours, theirs) = (client(cluster, LEASE).await, client(cluster, LEASE).await);
    let primaries = cluster.primaries().await;
    let mut names = Vec::new();
    for node in &primaries[..3] {
        names.push(name_at(cluster, node).await);
    }
    names.sort();
    let names: [String; 3] = names.try_into().expect("three");
    // The last member is held, so the members before it are released.
    let last = ours.fair_lock(&names[2]).lock().await.unwrap();
    let kinds = |client: &Client| {
        MultiLock::new([
            Member::from(client.lock(&names[0])),
            Member::from(client.rw_lock(&names[1]).write_side()),
            Member::from(client.fair_lock(&names[2])),
        ])
        .unwrap()
    };
    assert!(kinds(&theirs).try_lock().await.unwrap().is_none());
    let soon = Duration::from_millis(50);
    assert!(kinds(&theirs).try_lock_for(soon).await.unwrap().is_none());
    for name in &names[..2] {
        nothing_left(cluster, name).await;
    }
    last.release().await.unwrap();

    let guard = kinds(&ours).lock().await.unwrap();
    assert_eq!(guard.names(), names);
    for (node, name) in primaries
        .iter()
        .flat_map(|node| names.iter().map(move |name| (node, name)))
    {
        let here = cluster.primary_of(name).await.addr() == node.addr();
        assert_eq!(node.keys().await.contains(name), here, "{name}");
    }
    let lock = kinds(&theirs);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    waiting(&theirs, 1).await;
    guard.release().await.unwrap();
    drop(within(SOON, waiter).await.unwrap());
    for name in &names {
        nothing_left(cluster, name).await;
    }
    idle(&ours).await;
    idle(&theirs).await;
}

/// Two multi-locks of the same members, in any order and in any slots, do not deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn two_multi_locks_of_the_same_members_take_turns() {
    let cluster = Cluster::shared().await;
    let mut names = Vec::new();
    for node in cluster.primaries().await {
        names.push(name_at(cluster, node).await);
    }
    let mut tasks = Vec::new();
    for turn in 0..2 {
        let client = client(cluster, LEASE).await;
        let mut names = names.clone();
        if turn == 1 {
            names.reverse();
        }
        tasks.push(lockset_testkit::spawn(async move {
            for _ in 0..20 {
                let members: Vec<_> = names.iter().map(|name| client.lock(name)).collect();
                let guard = MultiLock::new(members).unwrap().lock().await.unwrap();
                guard.release().await.unwrap();
            }
            client
        }));
    }
    for task in tasks {
        idle(&within(Duration::from_secs(60), task).await.unwrap()).await;
    }
    for name in &names {
        nothing_left(cluster, name).await;
    }
}
