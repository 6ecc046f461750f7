//! Distant servers, and the load that a connection to them can carry.

use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::{Cluster, Proxy, Server, eventually, unique_name, within};

use crate::support::{PATIENCE, SOON, nothing_left};

/// The round trip across an ocean by an indirect route.
const FAR: Duration = Duration::from_millis(400);

async fn works(client: &Client) -> bool {
    let lock = client.lock(unique_name("lock"));
    match lock.try_lock().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

#[tokio::test]
async fn a_distant_server_is_connected_and_reconnected() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    proxy.delay_replies(FAR);
    let client = within(SOON, Client::connect(&proxy.url())).await.unwrap();
    assert!(works(&client).await);
    for _ in 0..2 {
        proxy.cut();
        eventually(SOON, "it works again", async || works(&client).await).await;
    }
    drop(client);
    nothing_left(&server).await;
}

#[tokio::test]
async fn so_is_a_cluster() {
    let cluster = Cluster::builder().replicas(0).proxied().start().await;
    for node in cluster.nodes() {
        cluster.proxy(node).delay_replies(FAR);
    }
    let client = Client::builder(&cluster.url()).connect_timeout(PATIENCE);
    let client = within(SOON * 2, client.build()).await.unwrap();
    eventually(SOON, "it works", async || works(&client).await).await;
    for node in cluster.nodes() {
        cluster.proxy(node).cut();
    }
    eventually(SOON * 2, "it works again", async || works(&client).await).await;
}

#[tokio::test]
async fn a_connect_timeout_bounds_each_step() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let connect = async |timeout| {
        let builder = Client::builder(&proxy.url()).connect_timeout(timeout);
        within(SOON, builder.build()).await
    };
    let zero = connect(Duration::ZERO).await.unwrap_err();
    assert!(zero.is_invalid(), "{zero}");
    proxy.delay_replies(Duration::from_millis(700));
    let short = connect(Duration::from_millis(100)).await.unwrap_err();
    assert!(short.is_io(), "{short}");
    assert!(short.to_string().contains("100ms"), "{short}");
    let (timeout, began) = (Duration::from_millis(1_200), Instant::now());
    connect(timeout).await.unwrap();
    assert!(began.elapsed() > timeout, "all steps together take longer");
}

/// The number of scripts sent, counted by the server.
async fn sent(server: &Server) -> u64 {
    let commands = server.commandstats().await;
    let loads = commands.iter().filter(|(name, _)| *name == "script|load");
    loads.map(|(_, calls)| calls).sum()
}

/// Takes and releases a lock by scripts.
async fn works_by_script(client: &Client) -> bool {
    let lock = client.fair_lock(unique_name("fair"));
    match lock.try_lock().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

#[tokio::test]
async fn a_connection_loads_a_script_with_the_first_call_of_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    assert!(works_by_script(&client).await);
    if !server.commandstats().await.contains_key("script|load") {
        // Old servers do not count subcommands separately.
        return;
    }
    assert_eq!(sent(&server).await, 2, "one to acquire, one to release");
    assert!(works_by_script(&client).await && works_by_script(&client).await);
    assert_eq!(sent(&server).await, 2, "once over a connection");

    let mut admin = server.admin().await;
    let mut flush = redis::cmd("SCRIPT");
    let () = flush.arg("FLUSH").query_async(&mut admin).await.unwrap();
    server.reset_stats().await;
    proxy.cut();
    let works = async || works_by_script(&client).await;
    eventually(SOON, "it works again", works).await;
    assert!(sent(&server).await >= 2, "over the new connection");
    assert!(!server.commandstats().await.contains_key("eval"));
}
