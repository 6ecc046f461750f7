//! Networks between a holder and its servers that drop, delay and cut.

use std::time::Instant;

use futures_util::future::join_all;
use lockset::{Client, LostReason, Redlock};
use lockset_testkit::{Proxy, eventually, unique_name, within};

use super::{LONG, Nodes, held_on, held_on_exactly};
use crate::support::{LEASE, SOON, idle, took_less};

/// A process that reaches each server through a separate proxy.
struct Remote {
    proxies: Vec<Proxy>,
    clients: Vec<Client>,
    redlock: Redlock,
}

impl Remote {
    async fn of(nodes: &Nodes, lease: std::time::Duration) -> Self {
        let servers = nodes.servers.iter();
        let proxies = join_all(servers.map(|server| Proxy::start(server.addr()))).await;
        let urls = proxies.iter().map(Proxy::url);
        let clients = join_all(urls.map(|url| super::client(url, lease))).await;
        let redlock = Redlock::builder(clients.clone()).persistent_nodes();
        Self {
            proxies,
            clients,
            redlock: redlock.build().unwrap(),
        }
    }

    async fn idle(&self) {
        for client in &self.clients {
            idle(client).await;
        }
    }
}

/// How many replies were lost.
fn lost_replies(proxies: &[Proxy]) -> u64 {
    proxies.iter().map(Proxy::fired).sum()
}

/// Every server has granted the lock, but no reply arrives.
#[tokio::test]
async fn grants_whose_replies_are_lost_count_once_or_not_at_all() {
    let nodes = Nodes::start(5).await;
    let remote = Remote::of(&nodes, LONG).await;
    let name = unique_name("redlock");
    let lock = remote.redlock.lock(&name);
    for lost in [1, 3, 5] {
        let before = lost_replies(&remote.proxies);
        for proxy in &remote.proxies[..lost] {
            proxy.swallow_reply_to(b"EVALSHA");
        }
        let guard = within(SOON, lock.lock()).await.unwrap();
        // The unconfirmed grants were undone, and these servers rejoined.
        held_on_exactly(5, &nodes.servers, &name).await;
        assert_eq!(lost_replies(&remote.proxies) - before, lost as u64);
        guard.release().await.unwrap();
        nodes.nothing_left().await;
        remote.idle().await;
        for proxy in &remote.proxies {
            proxy.pass();
        }
    }
}

#[tokio::test]
async fn a_minority_beyond_a_black_hole_costs_nothing() {
    let nodes = Nodes::start(5).await;
    let remote = Remote::of(&nodes, LONG).await;
    let name = unique_name("redlock");
    let lock = remote.redlock.lock(&name);
    for proxy in &remote.proxies[..2] {
        proxy.drop_requests();
    }
    let began = Instant::now();
    for _ in 0..5 {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    took_less(began, LONG / 15);
    for proxy in &remote.proxies {
        proxy.pass();
    }
    nodes.nothing_left().await;
    remote.idle().await;
}

/// The holder is on the minority side: it loses the lock by its own clock before another client is
/// granted it on the other side.
#[tokio::test]
async fn a_holder_cut_off_is_lost_before_the_next_gets_it() {
    let nodes = Nodes::start(3).await;
    let remote = Remote::of(&nodes, LEASE).await;
    let name = unique_name("redlock");
    for _ in 0..3 {
        let guard = remote.redlock.lock(&name).lock().await.unwrap();
        for proxy in &remote.proxies[1..] {
            proxy.blackhole_existing();
            proxy.refuse(true);
        }
        let next = nodes.redlock.lock(&name);
        let next = lockset_testkit::spawn(async move { next.lock().await.unwrap() });
        let (reason, next) = within(SOON, async { tokio::join!(guard.lost(), next) }).await;
        assert_eq!(reason, LostReason::Expired);
        assert!(guard.is_lost() && !next.as_ref().unwrap().is_lost());
        assert!(guard.release().await.unwrap_err().is_not_held());
        for proxy in &remote.proxies[1..] {
            proxy.pass();
        }
        // Late requests of the first holder do not affect the second.
        remote.idle().await;
        let next = next.unwrap();
        assert!(held_on(&nodes.servers, &name).await >= 2);
        assert!(!next.is_lost());
        next.release().await.unwrap();
        nodes.nothing_left().await;
    }
}

/// A vote that arrives long after its round.
#[tokio::test]
async fn a_late_attempt_leaves_no_orphan() {
    let nodes = Nodes::start(3).await;
    let remote = Remote::of(&nodes, LONG).await;
    let name = unique_name("redlock");
    let lock = remote.redlock.lock(&name);
    lock.lock().await.unwrap().release().await.unwrap();
    remote.proxies[2].hold_request_containing(name.as_bytes());
    let guard = within(SOON, lock.lock()).await.unwrap();
    eventually(SOON, "it is under way", async || {
        remote.proxies[2].held() == 1
    })
    .await;
    guard.release().await.unwrap();
    remote.proxies[2].release_held();
    nodes.nothing_left().await;
    remote.idle().await;
}

/// Votes that arrive too late do not count, and there is nothing left to release.
#[tokio::test]
async fn late_replies_are_not_votes() {
    let nodes = Nodes::start(3).await;
    let remote = Remote::of(&nodes, LEASE).await;
    let name = unique_name("redlock");
    for proxy in &remote.proxies[..2] {
        proxy.delay_replies(LEASE);
    }
    let error = within(SOON, remote.redlock.lock(&name).try_lock()).await;
    let error = error.unwrap_err();
    assert!(error.is_quorum(), "{error}");
    for proxy in &remote.proxies {
        proxy.pass();
    }
    nodes.nothing_left().await;
    remote.idle().await;
    let guard = within(SOON, remote.redlock.lock(&name).lock()).await;
    guard.unwrap().release().await.unwrap();
}
