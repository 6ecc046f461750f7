//! Requests and replies lost between a client and a cluster node.

use std::time::Duration;

use lockset::Owner;
use lockset_testkit::{ClientKind, Cluster, eventually, within};

use super::{
    A_WHILE, LEASE, another, client, look_at_the_map_until, looks_at_the_map, name_at,
    nothing_left, renewed,
};
use crate::support::{SOON, cycle, hold_counts, idle, waiting};

async fn behind_proxies() -> Cluster {
    let patience = Duration::from_secs(60);
    let builder = Cluster::builder().replicas(0).node_timeout(patience);
    builder.proxied().start().await
}

/// The server executed the command but the client does not know: the retry counts once.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_an_answer_counts_once() {
    let cluster = behind_proxies().await;
    let client = client(&cluster, LEASE).await;
    let node = cluster.node(1);
    for round in 0..10 {
        let name = name_at(&cluster, node).await;
        let lock = client.lock(&name).owner(&Owner::new());
        let proxy = cluster.proxy(node);
        proxy.swallow_reply_to(name.as_bytes());
        let first = lock.lock().await.unwrap();
        let counts = hold_counts(node, std::slice::from_ref(&name)).await;
        assert_eq!(counts, [1], "round {round}");
        let second = lock.lock().await.unwrap();
        assert_eq!(second.hold_count(), 2, "round {round}");
        second.release().await.unwrap();
        let counts = hold_counts(node, std::slice::from_ref(&name)).await;
        assert_eq!(counts, [1], "round {round}");
        proxy.swallow_reply_to(name.as_bytes());
        first.release().await.unwrap();
        nothing_left(&cluster, &name).await;
    }
    let fired = cluster.proxy(node).fired();
    assert!(fired > 10, "replies were lost: {fired}");
    idle(&client).await;
}

/// Clients cannot reach one node of a healthy cluster: calls fail in time, and work again
/// afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_cut_off_is_an_error_and_the_others_work() {
    let cluster = behind_proxies().await;
    let client = client(&cluster, LEASE).await;
    let (node, other) = (cluster.node(0), cluster.node(1));
    let (name, elsewhere) = (
        name_at(&cluster, node).await,
        name_at(&cluster, other).await,
    );
    let guard = client.lock(&elsewhere).lock().await.unwrap();
    cycle(&client.lock(&name)).await;
    let proxy = cluster.proxy(node);
    proxy.drop_replies();
    let error = within(SOON, client.lock(&name).try_lock()).await;
    assert!(
        error.as_ref().is_err_and(lockset::Error::is_io),
        "{error:?}"
    );
    renewed(&guard, LEASE).await;
    proxy.pass();
    proxy.cut();
    let again = async || matches!(client.lock(&name).try_lock().await, Ok(Some(_)));
    eventually(A_WHILE, "it can be taken again", again).await;
    guard.release().await.unwrap();
    nothing_left(&cluster, "lock").await;
    idle(&client).await;
}

/// Connections cut at random lose no hold and leave nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_over_cut_connections() {
    let cluster = behind_proxies().await;
    let (ours, theirs) = (client(&cluster, LEASE).await, client(&cluster, LEASE).await);
    let node = cluster.node(2);
    let name = name_at(&cluster, node).await;
    for _ in 0..10 {
        let guard = ours.lock(&name).lock().await.unwrap();
        let lock = theirs.lock(&name);
        let waiter = lockset_testkit::spawn(async move { lock.lock().await });
        waiting(&theirs, 1).await;
        cluster.proxy(node).cut();
        guard.release().await.unwrap();
        let guard = within(SOON, waiter).await.unwrap().unwrap();
        cluster.proxy(node).cut();
        guard.release().await.unwrap();
    }
    nothing_left(&cluster, &name).await;
    idle(&ours).await;
    idle(&theirs).await;
}

/// The recall channel belongs to no slot, so a change of the map does not affect it on any node.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_the_map_keeps_the_recall_subscription() {
    let cluster = behind_proxies().await;
    let client = client(&cluster, Duration::from_secs(30)).await;
    let channel = format!("lockset_recall:{}", client.id());
    let node = another(&cluster, &channel).await;
    let name = name_at(&cluster, node).await;
    cycle(&client.lock(&name).sticky(Duration::from_secs(60))).await;
    let listens = async || {
        let subscribed = node.clients(ClientKind::PubSub).await.into_iter();
        let mut ours = subscribed.filter(|line| line.name.ends_with(client.id()));
        ours.next().map(|line| line.id)
    };
    eventually(SOON, "it listens", async || listens().await.is_some()).await;
    let connection = listens().await;
    let others = cluster.nodes().iter();
    let mut others = others.filter(|other| other.addr() != node.addr());
    let other = others.next().expect("three nodes");
    let elsewhere = name_at(&cluster, other).await;
    let before = looks_at_the_map(cluster.nodes()).await;
    look_at_the_map_until(&cluster, &client, (other, &elsewhere), async || {
        // Two checks of all three nodes have completed.
        looks_at_the_map(cluster.nodes()).await > before + 6
    })
    .await;
    assert_eq!(
        listens().await,
        connection,
        "it listens on another connection"
    );
    client.shutdown().await.unwrap();
}
