//! The Redlock on independent servers that fail in various ways.

mod away;
mod claims;
mod faults;
mod gaps;
mod inspect;
mod owners;
mod partition;
mod rejoin;
mod retry;
mod starting;
mod successors;
mod tokens;
mod turns;
mod votes;

use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Client, ClientStats, Redlock};
use lockset_testkit::{Server, eventually};

use crate::support::{LEASE, SOON, idle, nothing_left};

/// Long enough that no lease ends within a test.
const LONG: Duration = Duration::from_secs(30);

/// The independent servers of one test, and a Redlock over them.
struct Nodes {
    servers: Vec<Server>,
    clients: Vec<Client>,
    redlock: Redlock,
}

impl Nodes {
    /// Starts servers that have a vote at once, with leases of 30 s.
    async fn start(count: usize) -> Self {
        let servers = servers(count);
        let clients = clients(&servers, LONG).await;
        let redlock = Redlock::builder(clients.clone()).persistent_nodes();
        Self {
            servers,
            clients,
            redlock: redlock.build().unwrap(),
        }
    }

    /// Starts servers that have been up for a short lease.
    async fn seasoned(count: usize) -> Self {
        Self::seasoned_for(count, LEASE).await
    }

    /// Starts servers that have been up for this lease.
    async fn seasoned_for(count: usize, lease: Duration) -> Self {
        let servers = servers(count);
        let clients = clients(&servers, lease).await;
        let redlock = Redlock::new(clients.clone()).unwrap();
        let nodes = Self {
            servers,
            clients,
            redlock,
        };
        nodes.all_vote().await;
        nodes
    }

    /// Waits until every server has a vote.
    async fn all_vote(&self) {
        let lock = self.redlock.lock("all vote");
        eventually(SOON * 2, "every server has a vote", async || {
            let Ok(Some(guard)) = lock.try_lock().await else {
                return false;
            };
            let joined = tokio::time::timeout(LEASE / 3, on_all(&self.servers, "all vote"));
            let all = joined.await.is_ok();
            guard.release().await.unwrap();
            all
        })
        .await;
        for server in &self.servers {
            nothing_left(server).await;
        }
    }

    /// Another process with the same servers in another order.
    async fn stranger(&self, lease: Duration) -> Redlock {
        let mut clients = clients(&self.servers, lease).await;
        clients.reverse();
        Redlock::builder(clients)
            .persistent_nodes()
            .build()
            .unwrap()
    }

    /// Waits until one of our holds counts on every server.
    async fn all_joined(&self) {
        eventually(SOON, "all have joined", async || {
            // A vote that came late is in the background until it has joined.
            let joined = |stats: ClientStats| stats.holds == 1 && stats.background == 0;
            self.clients.iter().all(|client| joined(client.stats()))
        })
        .await;
    }

    /// Waits until all servers are empty and all clients are idle.
    async fn nothing_left(&self) {
        for server in &self.servers {
            nothing_left(server).await;
        }
        for client in &self.clients {
            idle(client).await;
        }
    }
}

fn servers(count: usize) -> Vec<Server> {
    // Each takes some time.
    std::thread::scope(|scope| {
        let starting: Vec<_> = (0..count).map(|_| scope.spawn(Server::start)).collect();
        starting
            .into_iter()
            .map(|server| server.join().unwrap())
            .collect()
    })
}

async fn clients(servers: &[Server], lease: Duration) -> Vec<Client> {
    let urls = servers.iter().map(Server::url);
    join_all(urls.map(|url| client(url, lease))).await
}

async fn client(url: String, lease: Duration) -> Client {
    let builder = Client::builder(&url).lease(lease);
    builder
        .build()
        .await
        .expect("a client for the test's own server")
}

/// On how many of these servers a lock is held.
async fn held_on(servers: &[Server], name: &str) -> usize {
    let mut held = 0;
    for server in servers {
        held += usize::from(server.keys().await.iter().any(|key| key == name));
    }
    held
}

/// Waits until a lock is held on all of these servers.
async fn on_all(servers: &[Server], name: &str) {
    while held_on(servers, name).await < servers.len() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a lock is held on exactly `count` of these servers.
async fn held_on_exactly(count: usize, servers: &[Server], name: &str) {
    let what = format!("it is held on {count}");
    eventually(SOON, &what, async || held_on(servers, name).await == count).await;
}
