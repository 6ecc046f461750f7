//! Locks in a cluster: where commands go, and what becomes of holds and waiters when slots move and
//! nodes die. What holds anywhere is in the conformance suite, which runs in a cluster too.

mod connecting;
mod failover;
mod faults;
mod migration;
mod multilock;
mod outage;
mod strangers;
mod turmoil;

use std::time::Duration;

use futures_util::FutureExt;
use lockset::{Client, ReentrantGuard};
use lockset_testkit::{ClientKind, Cluster, Server, eventually, unique_name};

use crate::support::{SOON, command};
use crate::world::all_channels;

/// Nodes elect, gossip and start within this, also on a busy machine.
const A_WHILE: Duration = Duration::from_secs(20);

/// Renewed every second. A machine that is busy with several clusters at once takes longer for an
/// answer than the leases of other suites allow.
const LEASE: Duration = Duration::from_secs(3);

/// Three primaries without replicas, that give each other time: nothing fails over by itself.
async fn primaries_alone() -> Cluster {
    let patience = Duration::from_secs(60);
    let builder = Cluster::builder().replicas(0).node_timeout(patience);
    builder.start().await
}

async fn client(cluster: &Cluster, lease: Duration) -> Client {
    let builder = Client::builder(&cluster.url()).lease(lease);
    builder.build().await.expect("a client of the cluster")
}

/// A name whose slot this node serves.
async fn name_at(cluster: &Cluster, node: &Server) -> String {
    loop {
        let name = unique_name("lock");
        if cluster.primary_of(&name).await.addr() == node.addr() {
            return name;
        }
    }
}

/// Another primary than the one that serves this key.
async fn another<'a>(cluster: &'a Cluster, key: &str) -> &'a Server {
    let owner = cluster.primary_of(key).await;
    let primaries = cluster.primaries().await.into_iter();
    let mut others = primaries.filter(|node| node.addr() != owner.addr());
    others.next().expect("several primaries")
}

/// Waits until a renewal that is sent from now on was answered.
async fn renewed(guard: &ReentrantGuard, lease: Duration) {
    // Of a hold that is not renewed, only less and less is left.
    let mut left = guard.remaining();
    let longer = async || {
        let before = std::mem::replace(&mut left, guard.remaining());
        let lost = guard.lost().now_or_never();
        assert_eq!(lost, None, "lost instead of renewed");
        left > before
    };
    eventually(A_WHILE.max(lease * 2), "it is renewed", longer).await;
}

/// Waits until somebody listens for the release of a lock at this node.
async fn listened_to_at(node: &Server, name: &str) {
    eventually(A_WHILE, "a waiter listens there", async || {
        let channels = all_channels(node).await;
        channels.iter().any(|channel| channel.contains(name))
    })
    .await;
}

/// The names of the connections of lockset clients to a node.
async fn connections(node: &Server) -> Vec<String> {
    let clients = node.clients(ClientKind::All).await.into_iter();
    let names = clients.map(|line| line.name);
    names.filter(|name| name.starts_with("lockset-")).collect()
}

/// Has the client look at the map again and again, by ending its connection to the node with this name.
async fn look_at_the_map_until(
    cluster: &Cluster,
    client: &Client,
    (node, name): (&Server, &str),
    mut enough: impl AsyncFnMut() -> bool,
) {
    let mut last = None;
    eventually(A_WHILE, "the map was looked at often enough", async || {
        let looks = Some(looks_at_the_map(cluster.nodes()).await);
        // One at a time: a connection that ends again and again is made seldom.
        if std::mem::replace(&mut last, looks) != looks {
            end_command_connections(node).await;
        }
        // So that there is one.
        let _ = client.lock(name).is_locked().await;
        enough().await
    })
    .await;
}

async fn end_command_connections(node: &Server) {
    let clients = node.clients(ClientKind::All).await.into_iter();
    for line in clients.filter(|line| line.name.starts_with("lockset-command-")) {
        command(node, &["CLIENT", "KILL", "ID", &line.id.to_string()]).await;
    }
}

/// How often these nodes were asked for the map and whether the cluster is well, in one.
async fn looks_at_the_map(nodes: &[Server]) -> u64 {
    let mut looks = 0;
    for node in nodes {
        let stats = node.commandstats().await;
        looks += stats.get("cluster|info").copied().unwrap_or_default();
    }
    looks
}

/// The id of the client that holds a lock, by the holder's.
async fn client_id(node: &Server, name: &str) -> String {
    let mut hkeys = redis::cmd("HKEYS");
    let holders = hkeys.arg(name).query_async(&mut node.admin().await).await;
    let holders: Vec<String> = holders.unwrap();
    let id = holders.iter().find_map(|holder| holder.split_once(':'));
    id.expect("a holder").0.to_owned()
}

/// Waits until the cluster has no key of these locks but fencing counters, and no subscription. What clients
/// say of themselves goes with them.
async fn nothing_left(cluster: &Cluster, name: &str) {
    eventually(SOON, "no key and no subscription is left", async || {
        for node in cluster.primaries().await {
            let keys = node.keys().await;
            let stays = ["redisson_lock_token", "lockset_client"];
            let stays = |key: &String| stays.iter().any(|stays| key.starts_with(stays));
            let channels = all_channels(node).await;
            if keys.iter().any(|key| key.contains(name) && !stays(key))
                || channels.iter().any(|channel| channel.contains(name))
            {
                return false;
            }
        }
        true
    })
    .await;
}
