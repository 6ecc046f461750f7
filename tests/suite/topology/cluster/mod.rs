//! Locks in a cluster: routing of commands, and holds and waiters when slots move and nodes die.
//! Promises that hold everywhere are in the conformance suite, which also runs in a cluster.

mod connecting;
mod failover;
mod faults;
mod migration;
mod multilock;
mod outage;
mod strangers;
mod tags;
mod turmoil;

use std::time::Duration;

use futures_util::FutureExt;
use lockset::{Client, ReentrantGuard};
use lockset_testkit::{ClientKind, Cluster, Server, eventually, unique_name};

use crate::support::{SOON, command};
use crate::world::all_channels;

/// An upper bound for elections, gossip and starting nodes, also on a busy machine.
const A_WHILE: Duration = Duration::from_secs(20);

/// Renewed every second. A machine that runs several clusters answers more slowly than the leases
/// of other suites allow.
const LEASE: Duration = Duration::from_secs(3);

/// Three primaries without replicas, with a long node timeout, so that there is no automatic
/// failover.
async fn primaries_alone() -> Cluster {
    let patience = Duration::from_secs(60);
    let builder = Cluster::builder().replicas(0).node_timeout(patience);
    builder.start().await
}

async fn client(cluster: &Cluster, lease: Duration) -> Client {
    let builder = Client::builder(&cluster.url()).lease(lease);
    builder.build().await.expect("a client of the cluster")
}

/// A name in a slot of this node.
async fn name_at(cluster: &Cluster, node: &Server) -> String {
    loop {
        let name = unique_name("lock");
        if cluster.primary_of(&name).await.addr() == node.addr() {
            return name;
        }
    }
}

/// A primary other than the one that serves this key.
async fn another<'a>(cluster: &'a Cluster, key: &str) -> &'a Server {
    let owner = cluster.primary_of(key).await;
    let primaries = cluster.primaries().await.into_iter();
    let mut others = primaries.filter(|node| node.addr() != owner.addr());
    others.next().expect("several primaries")
}

/// Waits until a renewal sent after this call has been answered.
async fn renewed(guard: &ReentrantGuard, lease: Duration) {
    // Without a renewal, the remaining time only decreases.
    let mut left = guard.remaining();
    let longer = async || {
        let before = std::mem::replace(&mut left, guard.remaining());
        let lost = guard.lost().now_or_never();
        assert_eq!(lost, None, "lost instead of renewed");
        left > before
    };
    eventually(A_WHILE.max(lease * 2), "it is renewed", longer).await;
}

/// Waits until a client is subscribed to the release of a lock at this node.
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

/// Makes the client check the map repeatedly, by killing its connection to the node with this name.
async fn look_at_the_map_until(
    cluster: &Cluster,
    client: &Client,
    (node, name): (&Server, &str),
    mut enough: impl AsyncFnMut() -> bool,
) {
    let mut last = None;
    eventually(A_WHILE, "the map was looked at often enough", async || {
        let looks = Some(looks_at_the_map(cluster.nodes()).await);
        // One connection at a time, because reconnecting backs off.
        if std::mem::replace(&mut last, looks) != looks {
            end_command_connections(node).await;
        }
        // Causes a connection.
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

/// How often these nodes were asked for the map or the state of the cluster.
async fn looks_at_the_map(nodes: &[Server]) -> u64 {
    let mut looks = 0;
    for node in nodes {
        let stats = node.commandstats().await;
        looks += stats.get("cluster|info").copied().unwrap_or_default();
    }
    looks
}

/// The id of the client that holds a lock, taken from the holder id.
async fn client_id(node: &Server, name: &str) -> String {
    let mut hkeys = redis::cmd("HKEYS");
    let holders = hkeys.arg(name).query_async(&mut node.admin().await).await;
    let holders: Vec<String> = holders.unwrap();
    let id = holders.iter().find_map(|holder| holder.split_once(':'));
    id.expect("a holder").0.to_owned()
}

/// Waits until the cluster has no keys of these locks except fencing counters, and no subscription.
/// Client announcements end with their clients.
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
