//! Servers that are not what they seem: another server at the same address, a server that a replica
//! may replace, and processes with different maximum leases.

use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Client, Redlock};
use lockset_testkit::{Proxy, Replicated, Server, eventually, unique_name, within};

use super::{LONG, Nodes, client, clients, held_on_exactly, servers};
use crate::support::{LEASE, SOON, nothing_left};

/// Waits until the server has been up for this long, by what it reports in whole seconds.
async fn up_for(server: &Server, seconds: u64) {
    eventually(SOON * 2, "it is up for long", async || {
        let mut admin = server.admin().await;
        let info = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut admin)
            .await;
        let info: redis::InfoDict = info.unwrap();
        info.get::<u64>("uptime_in_seconds").unwrap() >= seconds
    })
    .await;
}

/// The standby has been up for as long as the server it replaces, and does not have that server's
/// data.
#[tokio::test(flavor = "multi_thread")]
async fn another_server_at_a_known_address_has_no_vote_for_a_lease() {
    let nodes = Nodes::seasoned(3).await;
    let standby = servers(1);
    let proxy = Proxy::start(nodes.servers[0].addr()).await;
    let first = client(proxy.url(), LEASE).await;
    let mut all = vec![first.clone()];
    all.extend(clients(&nodes.servers[1..], LEASE).await);
    let lock = Redlock::new(all).unwrap().lock(unique_name("redlock"));
    up_for(&standby[0], 4).await;
    lock.lock().await.unwrap().release().await.unwrap();
    proxy.lead_to(standby[0].addr());
    proxy.cut();
    nodes.servers[2].kill();
    // Otherwise its first reply may come too late to be counted.
    eventually(SOON, "it is connected", async || first.ping().await.is_ok()).await;
    let told = lock.try_lock().await.expect_err("it has no vote yet");
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("may have forgotten"), "{told}");
    eventually(SOON, "it has a vote", async || {
        matches!(lock.try_lock().await, Ok(Some(_)))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_replicas_is_refused() {
    let replicated = Replicated::start().await;
    let others = servers(2);
    let mut urls: Vec<_> = others.iter().map(Server::url).collect();
    urls.push(replicated.primary().url());
    let told = within(SOON, Redlock::connect(&urls)).await.unwrap_err();
    assert!(told.is_invalid(), "{told}");
    let at = replicated.primary().addr().to_string();
    assert!(told.to_string().contains(&at), "{told}");
    assert!(told.to_string().contains("has replicas"), "{told}");
}

/// This holds without an earlier check, because the first vote reports the replicas. A setting
/// allows replicas.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_replicas_has_no_vote() {
    let replicated = Replicated::start().await;
    let client = client(replicated.primary().url(), LEASE).await;
    let lock = Redlock::new([client.clone()])
        .unwrap()
        .lock(unique_name("redlock"));
    // Before that, it is too young for a vote.
    eventually(SOON * 2, "it is refused for its replicas", async || {
        let told = lock.try_lock().await.expect_err("it has no vote");
        assert!(told.is_quorum(), "{told}");
        told.to_string().contains("has replicas")
    })
    .await;
    let confirmed = lock.clone().replicated(1, LEASE / 3);
    eventually(SOON, "a replica confirms it", async || {
        matches!(confirmed.try_lock().await, Ok(Some(_)))
    })
    .await;
    let declared = Redlock::builder([client])
        .persistent_nodes()
        .build()
        .unwrap();
    let lock = declared.lock(unique_name("redlock"));
    lock.lock().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_without_an_identity_have_no_vote() {
    let servers = servers(3);
    let mut all = Vec::new();
    for server in &servers {
        let mut admin = server.admin().await;
        let mut user = redis::cmd("ACL");
        user.arg(&[
            "SETUSER", "u", "reset", "on", ">s3cret", "~*", "&*", "+@all", "-info",
        ]);
        let () = user.query_async(&mut admin).await.unwrap();
        let url = server.admin_url().replace("redis://", "redis://u:s3cret@");
        all.push(client(url, LONG).await);
    }
    let redlock = Redlock::builder(all).persistent_nodes().build().unwrap();
    let lock = redlock.lock(unique_name("redlock"));
    let told = within(SOON, lock.lock()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("+info"), "{told}");
}

/// The holder is cut off and holds the lock by its own clock. Two of the servers do not have its
/// hold, and have been up for more than a lease of the other processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_longer_lease_of_another_process_is_noticed() {
    const LONGER: Duration = Duration::from_secs(6);
    let nodes = Nodes::seasoned(3).await;
    let proxies = nodes.servers.iter();
    let proxies = join_all(proxies.map(|server| Proxy::start(server.addr()))).await;
    let urls = proxies.iter().map(Proxy::url);
    let ours: Vec<Client> = join_all(urls.map(|url| client(url, LONGER))).await;
    let lock = Redlock::new(ours).unwrap();
    let name = unique_name("redlock");
    let lock = lock.lock(&name);
    eventually(LONGER * 2, "they have votes", async || {
        matches!(lock.try_lock().await, Ok(Some(_)))
    })
    .await;
    for server in &nodes.servers {
        nothing_left(server).await;
    }
    nodes.servers[2].restart();
    let guard = within(SOON, lock.lock()).await.unwrap();
    held_on_exactly(2, &nodes.servers, &name).await;
    for proxy in &proxies {
        proxy.blackhole_existing();
        proxy.refuse(true);
    }
    nodes.servers[0].restart();
    // They come later than that, and see what is left of the lease then.
    up_for(&nodes.servers[0], 2).await;
    let others = Redlock::new(clients(&nodes.servers, LEASE).await).unwrap();
    let others = others.lock(&name);
    let mut tries = 0;
    while !guard.is_lost() {
        let got = others.try_lock().await;
        let left = guard.remaining();
        assert!(
            !matches!(got, Ok(Some(_))) || guard.is_lost(),
            "two have it, the first for {left:?} still"
        );
        tries += 1;
        tokio::time::sleep(LEASE / 40).await;
    }
    assert!(tries > 20, "{tries}");
    eventually(LONGER * 2, "it is had again", async || {
        matches!(others.try_lock().await, Ok(Some(_)))
    })
    .await;
}
