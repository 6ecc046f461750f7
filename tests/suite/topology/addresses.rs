//! Servers that announce addresses which clients cannot reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use lockset::Client;
use lockset_testkit::{ClientKind, Cluster, FailOver, Proxy, Sentinels, eventually, within};

use crate::support::SOON;

/// How often an idle client checks the nodes of a cluster, on a busy machine too.
const A_WHILE: Duration = Duration::from_secs(20);

/// A cluster whose nodes announce host names that do not resolve.
async fn with_inner_names() -> Cluster {
    let cluster = Cluster::start().await;
    for node in cluster.nodes() {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("cluster-announce-hostname");
        set.arg(format!("node-{}.inner.invalid", node.port()));
        set.arg("cluster-preferred-endpoint-type").arg("hostname");
        let _: () = set.query_async(&mut node.admin().await).await.unwrap();
    }
    for node in cluster.nodes() {
        eventually(SOON, "it knows the names of all", async || {
            let mut slots = redis::cmd("CLUSTER");
            slots.arg("SLOTS");
            let slots = slots.query_async(&mut node.admin().await).await;
            let slots: redis::Value = slots.unwrap();
            !format!("{slots:?}").contains("\"?\"") && format!("{slots:?}").contains("inner")
        })
        .await;
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_cluster_are_reached_through_the_map() {
    let cluster = with_inner_names().await;
    let url = cluster.url();
    let lost = Client::builder(&url).build().await;
    let lost = match lost {
        Ok(client) => client.lock("x").try_lock().await.map(drop),
        Err(error) => Err(error),
    };
    assert!(lost.unwrap_err().is_io(), "such a name does not resolve");

    let mapped = Client::builder(&url).address_map(|host, port| {
        let is_inner = host.ends_with(".inner.invalid");
        is_inner.then(|| ("127.0.0.1".to_owned(), port))
    });
    let client = within(SOON, mapped.build()).await.unwrap();
    // In slots of every node.
    for number in 0..20 {
        let lock = client.lock(format!("lock:{number}"));
        let guard = within(SOON, lock.lock()).await.unwrap();
        let waiter = lockset_testkit::spawn(async move { lock.lock().await });
        eventually(SOON, "it waits", async || client.stats().waiters == 1).await;
        guard.release().await.unwrap();
        let next = within(SOON, waiter).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// A node's announcement is translated before it is compared with the current map.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_agrees_is_asked_for_the_map_once() {
    let cluster = with_inner_names().await;
    let asked = async || {
        let mut asked = [0, 0];
        for node in cluster.nodes() {
            let stats = node.commandstats().await;
            for (count, verb) in asked.iter_mut().zip(["cluster|slots", "cluster|info"]) {
                *count += stats.get(verb).copied().unwrap_or_default();
            }
        }
        asked
    };
    for node in cluster.nodes() {
        node.reset_stats().await;
    }
    let mapped = Client::builder(&cluster.url()).address_map(|host, port| {
        let is_inner = host.ends_with(".inner.invalid");
        is_inner.then(|| ("127.0.0.1".to_owned(), port))
    });
    let _client = within(SOON, mapped.build()).await.unwrap();
    // A check whether the map has changed does not ask for the state of the cluster.
    eventually(A_WHILE, "nodes were looked at", async || {
        let [slots, info] = asked().await;
        slots >= info + 4
    })
    .await;
    let [_, info] = asked().await;
    assert!(info <= 6, "each seed once, not {info}");
}

/// A moved slot is followed to the address that the map translates from the redirection.
#[tokio::test(flavor = "multi_thread")]
async fn redirections_are_followed_through_the_map() {
    let cluster = with_inner_names().await;
    let mapped = Client::builder(&cluster.url()).address_map(|host, port| {
        let is_inner = host.ends_with(".inner.invalid");
        is_inner.then(|| ("127.0.0.1".to_owned(), port))
    });
    let client = within(SOON, mapped.build()).await.unwrap();
    let lock = client.lock("moved");
    let guard = within(SOON, lock.lock()).await.unwrap();
    let (slot, from) = (
        cluster.slot("moved").await,
        cluster.primary_of("moved").await,
    );
    let primaries = cluster.primaries().await;
    let to = primaries.iter().find(|node| node.addr() != from.addr());
    cluster.migrate(slot, to.expect("another primary")).await;
    within(SOON, guard.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    guard.release().await.unwrap();
}

/// It panics for the replica that takes over, from a while before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_map_that_panics_has_no_answer_and_ends_nothing() {
    let cluster = Cluster::start().await;
    let replica = cluster.replica_of("x").await.port();
    let (panics, panicked) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let (may_panic, counted) = (Arc::clone(&panics), Arc::clone(&panicked));
    let mapped = Client::builder(&cluster.url()).address_map(move |_, port| {
        if port == replica && may_panic.load(Ordering::Relaxed) {
            counted.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
        None
    });
    let client = within(SOON, mapped.build()).await.unwrap();
    let guard = within(SOON, client.lock("x").lock()).await.unwrap();
    panics.store(true, Ordering::Relaxed);
    eventually(A_WHILE, "the map was asked in the background", async || {
        panicked.load(Ordering::Relaxed) > 0
    })
    .await;
    cluster.fail_over("x", FailOver::Graceful).await;
    let renewals = || client.stats().totals.renewals.renewed;
    let before = renewals();
    eventually(A_WHILE, "it is renewed there", async || renewals() > before).await;
    guard.release().await.unwrap();
    let again = within(SOON, client.lock("{x}again").lock()).await.unwrap();
    again.release().await.unwrap();
}

/// The primary is behind a proxy with another address.
#[tokio::test(flavor = "multi_thread")]
async fn the_primary_named_by_sentinels_is_translated() {
    let sentinels = Sentinels::start().await;
    let primary = sentinels.primary().await;
    let proxy = Proxy::start(primary.addr()).await;
    let (inner, outer) = (primary.port(), proxy.addr());
    let mapped = Client::builder(&sentinels.url()).address_map(move |_, port| {
        (port == inner).then(|| (outer.ip().to_string(), outer.port()))
    });
    let client = within(SOON, mapped.build()).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    guard.release().await.unwrap();
    assert!(proxy.connections() > 0, "it went through the proxy");
    eventually(SOON, "none goes past it", async || {
        let all = primary.clients(ClientKind::All).await;
        let ours = all.iter().filter(|line| line.name.starts_with("lockset-"));
        ours.count() == proxy.connections()
    })
    .await;
}
