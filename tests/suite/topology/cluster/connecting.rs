//! Connecting to a cluster, with errors that say what to do.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Cluster, Server, eventually, within};

use super::{LEASE, client, client_id, connections, name_at, nothing_left};
use crate::support::{SOON, idle};

#[tokio::test]
async fn each_lock_is_kept_where_its_slot_is_served() {
    let cluster = Cluster::shared().await;
    // A long lease, so that no renewal causes a connection.
    let client = client(cluster, Duration::from_secs(30)).await;
    for node in cluster.primaries().await {
        let name = name_at(cluster, node).await;
        let guard = client.lock(&name).lock().await.unwrap();
        assert!(node.keys().await.contains(&name));
        let id = client_id(node, &name).await;
        let own = ["command", "renewal"].map(|lane| format!("lockset-{lane}-{id}"));
        // This includes nodes without a request so far.
        for node in cluster.primaries().await {
            eventually(SOON, "two connections, and none for the map", async || {
                let mut named = connections(node).await;
                named.retain(|name| name.ends_with(&id));
                named.sort();
                named == own
            })
            .await;
        }
        guard.release().await.unwrap();
        nothing_left(cluster, &name).await;
    }
    idle(&client).await;
}

/// The client never connects to a replica.
#[tokio::test]
async fn replicas_are_left_alone() {
    let cluster = Cluster::builder().start().await;
    let client = client(&cluster, LEASE).await;
    for node in cluster.primaries().await {
        let name = name_at(&cluster, node).await;
        drop(client.lock(&name).lock().await.unwrap());
        let replica = cluster.replica_of(&name).await;
        assert_eq!(connections(replica).await, Vec::<String>::new());
    }
}

#[tokio::test]
async fn one_seed_that_answers_is_enough() {
    let cluster = Cluster::shared().await;
    let gone = Server::start();
    let alone = Server::start();
    gone.kill();
    let seed = cluster.node(1).addr();
    let url = format!("redis+cluster://{},{seed}", gone.addr());
    let client = within(SOON, Client::connect(&url)).await.unwrap();
    let name = name_at(cluster, cluster.node(0)).await;
    drop(client.lock(&name).try_lock().await.unwrap().unwrap());
    // A seed that is not a cluster node is reported, after the other seeds were tried.
    let url = format!("redis+cluster://{},{seed}", alone.addr());
    within(SOON, Client::connect(&url)).await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_is_named_by_its_seeds() {
    let (one, two) = (Server::start(), Server::start());
    one.kill();
    two.kill();
    let url = format!("redis+cluster://u:s3cret@{},{}", one.addr(), two.addr());
    let error = within(SOON, Client::connect(&url)).await.unwrap_err();
    assert!(error.is_io(), "{error}");
    for part in [one.addr().to_string(), two.addr().to_string()] {
        assert!(error.to_string().contains(&part), "{error}");
    }
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

/// Neither is more than the other.
#[tokio::test]
async fn seeds_of_two_clusters_are_refused() {
    let alone = || Cluster::builder().primaries(1).replicas(0).start();
    let (one, other) = tokio::join!(alone(), alone());
    let url = format!("{},{}", one.url(), other.addrs()[0]);
    eventually(SOON, "both have answered in time", async || {
        let refused = Client::connect(&url).await;
        refused.is_err_and(|error| error.is_invalid() && error.to_string().contains("clusters"))
    })
    .await;
}

#[tokio::test]
async fn an_error_for_a_wrong_scheme_names_the_right_one() {
    let server = Server::start();
    let url = format!("redis+cluster://{}", server.addr());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(error.to_string().contains("redis://"), "{error}");

    let cluster = Cluster::shared().await;
    let node = cluster.node(0);
    // Like Redisson, the client takes one node of a cluster for a single server, and can use its
    // slots.
    let single = Client::connect(&node.url()).await.unwrap();
    let name = name_at(cluster, node).await;
    drop(single.lock(&name).lock().await.unwrap());
    let name = name_at(cluster, cluster.node(1)).await;
    let error = single.lock(&name).lock().await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
    assert_eq!(error.lock_name(), Some(&*name));
}

#[tokio::test]
async fn the_password_is_set_on_all_nodes() {
    let builder = Cluster::builder().replicas(0);
    let cluster = builder.args(["--requirepass", "s3cret"]).start().await;
    let with = |login: &str| cluster.url().replace("://", &format!("://{login}@"));
    let client = Client::connect(&with(":s3cret")).await.unwrap();
    for node in cluster.primaries().await {
        let name = name_at(&cluster, node).await;
        drop(client.lock(&name).lock().await.unwrap());
    }
    let error = Client::connect(&with(":wr0ng")).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    let told = format!("{error} {error:?} {client:?}");
    assert!(
        !told.contains("s3cret") && !told.contains("wr0ng"),
        "{told}"
    );
    let error = Client::connect(&cluster.url()).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
}

/// As elsewhere, the longest duration means no limit.
#[tokio::test]
async fn a_connection_may_take_as_long_as_it_likes() {
    let cluster = Cluster::shared().await;
    let builder = Client::builder(&cluster.url()).connect_timeout(Duration::MAX);
    let client = within(SOON, builder.build()).await.unwrap();
    let name = name_at(cluster, cluster.node(0)).await;
    let guard = within(SOON, client.lock(&name).lock()).await.unwrap();
    guard.release().await.unwrap();
}

/// The connections and the map's background task end with the client.
#[tokio::test]
async fn a_dropped_client_leaves_nothing() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let client = client(&cluster, LEASE).await;
    for node in cluster.primaries().await {
        let name = name_at(&cluster, node).await;
        drop(client.lock(&name).lock().await.unwrap());
    }
    idle(&client).await;
    drop(client);
    eventually(SOON, "its connections are closed", async || {
        let mut left = 0;
        for node in cluster.nodes() {
            left += connections(node).await.len();
        }
        left == 0
    })
    .await;
}
