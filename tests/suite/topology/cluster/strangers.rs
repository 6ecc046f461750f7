//! Nodes of another cluster take over the addresses of our nodes.

use std::time::Duration;

use lockset_testkit::{Cluster, Proxy, Server, eventually, within};

use super::{
    A_WHILE, LEASE, client, connections, end_command_connections, look_at_the_map_until,
    looks_at_the_map, name_at, renewed,
};
use crate::support::SOON;

const LONG: Duration = Duration::from_secs(30);

/// Three primaries behind proxies, and another cluster with a higher epoch, because it had more
/// failovers.
async fn ours_and_theirs() -> (Cluster, Cluster) {
    let patience = Duration::from_secs(60);
    let alone = Cluster::builder().replicas(0).node_timeout(patience);
    let ours = alone.clone().proxied().start().await;
    let theirs = alone.primaries(4).start().await;
    (ours, theirs)
}

/// Connects the address of this node to a node of the other cluster.
fn reassign(proxy: &Proxy, stranger: &Server) {
    proxy.lead_to(stranger.addr());
    proxy.cut();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_not_believed() {
    let (ours, theirs) = ours_and_theirs().await;
    let client = client(&ours, LONG).await;
    let (gone, stays) = (ours.node(0), ours.node(1));
    let name = name_at(&ours, stays).await;
    let guard = client.lock(&name).lock().await.unwrap();
    let (stranger, others) = theirs.nodes().split_at(1);
    let before = looks_at_the_map(stranger).await;
    reassign(ours.proxy(gone), &stranger[0]);
    look_at_the_map_until(&ours, &client, (stays, &name), async || {
        for other in others {
            let connected = connections(other).await;
            assert!(connected.is_empty(), "adopted: {connected:?}");
        }
        looks_at_the_map(stranger).await > before + 2
    })
    .await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    for node in &ours.nodes()[1..] {
        let name = name_at(&ours, node).await;
        let lock = client.lock(&name).give_up_after(SOON);
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert!(node.keys().await.contains(&name));
        guard.release().await.unwrap();
    }
}

/// The map still has the address, and the old connections to our node stay open.
#[tokio::test(flavor = "multi_thread")]
async fn no_lock_is_taken_at_a_server_that_is_not_our_node() {
    let (ours, theirs) = ours_and_theirs().await;
    let alone = Server::start();
    let client = client(&ours, LEASE).await;
    let node = ours.node(0);
    let (held, name) = (name_at(&ours, node).await, name_at(&ours, node).await);
    let guard = client.lock(&held).lock().await.unwrap();
    for stranger in [theirs.primary_of(&name).await, &alone] {
        ours.proxy(node).lead_to(stranger.addr());
        end_command_connections(node).await;
        let lock = client.lock(&name).give_up_after(SOON / 5);
        let refused = within(SOON, lock.try_lock()).await.unwrap_err();
        assert!(refused.is_io(), "{refused}");
        assert!(refused.to_string().contains("answered"), "{refused}");
        assert!(!stranger.keys().await.contains(&name));
        ours.proxy(node).lead_to(node.addr());
        let lock = client.lock(&name).give_up_after(SOON);
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert!(node.keys().await.contains(&name));
        guard.release().await.unwrap();
    }
    renewed(&guard, LEASE).await;
    guard.release().await.unwrap();
}

/// For example, a client was suspended while its cluster was rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_all_nodes_replaced_is_found_by_its_seeds() {
    let (ours, theirs) = ours_and_theirs().await;
    let client = client(&ours, LONG).await;
    let name = "anew";
    let guard = client.lock(name).lock().await.unwrap();
    for (node, stranger) in ours.nodes().iter().zip(theirs.nodes()) {
        reassign(ours.proxy(node), stranger);
    }
    within(A_WHILE, guard.lost()).await;
    eventually(A_WHILE, "it is taken in the new cluster", async || {
        let Ok(Some(guard)) = client.lock(name).try_lock().await else {
            return false;
        };
        let is_there = theirs
            .primary_of(name)
            .await
            .keys()
            .await
            .contains(&name.to_owned());
        guard.release().await.unwrap();
        is_there
    })
    .await;
}
