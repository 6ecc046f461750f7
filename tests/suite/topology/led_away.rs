//! An address that leads new connections to another server while old connections stay open, as a
//! service whose selector moves does, or a load balancer that does not end connections.

use lockset::{Client, LostReason, Redlock};
use lockset_testkit::{ClientKind, Proxy, Sentinels, Server, eventually, unique_name, within};

use crate::support::{LEASE, PATIENCE, SOON, client, client_with_lease, command, cycle, listening};

/// Ends the connections of lockset clients for this lane, and waits until they are closed.
async fn end_connections(server: &Server, lane: &str) {
    let prefix = format!("lockset-{lane}-");
    for line in server.clients(ClientKind::All).await {
        if line.name.starts_with(&prefix) {
            command(server, &["CLIENT", "KILL", "ID", &line.id.to_string()]).await;
        }
    }
    eventually(SOON, "they are closed", async || {
        let clients = server.clients(ClientKind::All).await;
        !clients.iter().any(|line| line.name.starts_with(&prefix))
    })
    .await;
}

/// Waits until no lockset client has a connection to this server.
async fn left_alone(server: &Server) {
    eventually(SOON, "no client is connected to it", async || {
        let clients = server.clients(ClientKind::All).await;
        !clients.iter().any(|line| line.name.starts_with("lockset-"))
    })
    .await;
}

/// Whichever lane meets the new server first.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_at_the_server_that_was_left_is_lost() {
    for lane in ["command", "renewal"] {
        let (old, new) = (Server::start(), Server::start());
        let proxy = Proxy::start(old.addr()).await;
        let ours = client_with_lease(&proxy.url(), LEASE * 3).await;
        let name = unique_name("lock");
        let guard = ours.lock(&name).lock().await.unwrap();
        proxy.lead_to(new.addr());
        end_connections(&old, lane).await;
        let theirs = client_with_lease(&proxy.url(), LEASE * 3).await;
        let other = within(SOON, theirs.lock(&name).lock()).await.unwrap();
        // Makes a connection where the lane was cut.
        cycle(&ours.lock(unique_name("another"))).await;
        let reason = within(SOON, guard.lost()).await;
        assert_eq!(reason, LostReason::Revoked, "{lane}");
        let released = guard.release().await.unwrap_err();
        assert!(released.is_not_held(), "{lane}: {released}");
        left_alone(&old).await;
        assert!(!other.is_lost());
        other.release().await.unwrap();
    }
}

/// A grant of the old server is never taken for one of the new server.
#[tokio::test(flavor = "multi_thread")]
async fn locks_are_taken_at_the_new_server_when_another_lane_has_met_it() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.addr()).await;
    let ours = client_with_lease(&proxy.url(), LEASE * 3).await;
    let guard = ours.lock(unique_name("lock")).lock().await.unwrap();
    proxy.lead_to(new.addr());
    end_connections(&old, "renewal").await;
    // The renewal meets the new server.
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    let name = unique_name("lock");
    let guard = within(SOON, ours.lock(&name).lock()).await.unwrap();
    assert!(new.keys().await.contains(&name));
    assert!(!old.keys().await.contains(&name));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_listens_at_the_new_server() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.addr()).await;
    let ours = client(&proxy.url()).await;
    let (at_old, at_new) = (client(&old.url()).await, client(&new.url()).await);
    let name = unique_name("lock");
    let held = at_old.lock(&name).lock().await.unwrap();
    let other = at_new.lock(&name).lock().await.unwrap();
    let lock = ours.lock(&name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&old).await;
    proxy.lead_to(new.addr());
    end_connections(&old, "command").await;
    cycle(&ours.lock(unique_name("another"))).await;
    listening(&new).await;
    other.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert!(new.keys().await.contains(&name));
    guard.release().await.unwrap();
    held.release().await.unwrap();
}

/// The address may lead to the old server again. What was sent there before is dead by then.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_back_is_followed() {
    let (old, new) = (Server::start(), Server::start());
    let proxy = Proxy::start(old.addr()).await;
    let ours = client(&proxy.url()).await;
    for (from, to) in [(&old, &new), (&new, &old), (&old, &new)] {
        let name = unique_name("lock");
        let guard = ours.lock(&name).lock().await.unwrap();
        assert!(from.keys().await.contains(&name));
        proxy.lead_to(to.addr());
        end_connections(from, "command").await;
        cycle(&ours.lock(unique_name("another"))).await;
        within(SOON, guard.lost()).await;
        left_alone(from).await;
    }
}

/// The second process starts later, and knows nothing of the server that was there before.
#[tokio::test(flavor = "multi_thread")]
async fn a_redlock_is_lost_with_the_server_that_was_left() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let standby = Server::start();
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::start(server.addr()).await);
    }
    // Our process does not reach the last server.
    proxies[2].refuse(true);
    let redlock = async |urls: [String; 3]| {
        let mut clients = Vec::new();
        for url in urls {
            let lazy = Client::builder(&url).lease(LEASE * 3).lazy();
            let lazy = lazy.give_up_after(PATIENCE);
            clients.push(lazy.build().await.unwrap());
        }
        let builder = Redlock::builder(clients.clone()).persistent_nodes();
        (clients, builder.build().unwrap())
    };
    let (clients, ours) = redlock([0, 1, 2].map(|at| proxies[at].url())).await;
    let name = unique_name("redlock");
    let guard = within(SOON, ours.lock(&name).lock()).await.unwrap();
    eventually(SOON, "it is renewed there", async || {
        let clients = servers[0].clients(ClientKind::All).await;
        clients
            .iter()
            .any(|line| line.name.starts_with("lockset-renewal-"))
    })
    .await;
    proxies[0].lead_to(standby.addr());
    end_connections(&servers[0], "command").await;
    let (_, theirs) = redlock([proxies[0].url(), servers[1].url(), servers[2].url()]).await;
    let other = within(SOON, theirs.lock(&name).lock()).await.unwrap();
    cycle(&clients[0].lock(unique_name("another"))).await;
    let reason = within(SOON, guard.lost()).await;
    assert_eq!(reason, LostReason::Revoked);
    assert!(!other.is_lost());
    other.release().await.unwrap();
}

/// The address of the primary is reassigned while the sentinels still name it.
#[tokio::test(flavor = "multi_thread")]
async fn behind_sentinels_too() {
    let sentinels = Sentinels::start().await;
    let (primary, new) = (sentinels.primary().await, Server::start());
    let proxy = Proxy::start(primary.addr()).await;
    let (inner, outer) = (primary.port(), proxy.addr());
    let mapped = Client::builder(&sentinels.url())
        .lease(LEASE * 3)
        .give_up_after(PATIENCE)
        .address_map(move |_, port| {
            (port == inner).then(|| (outer.ip().to_string(), outer.port()))
        });
    let ours = within(SOON, mapped.build()).await.unwrap();
    let name = unique_name("lock");
    let guard = ours.lock(&name).lock().await.unwrap();
    proxy.lead_to(new.addr());
    end_connections(primary, "command").await;
    cycle(&ours.lock(unique_name("another"))).await;
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    let again = within(SOON, ours.lock(&name).lock()).await.unwrap();
    assert!(new.keys().await.contains(&name));
    again.release().await.unwrap();
}
