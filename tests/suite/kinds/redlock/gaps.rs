//! How soon a hold regains a missing server. Until then, it depends on fewer servers.

use std::time::{Duration, Instant};

use lockset::Redlock;
use lockset_testkit::{unique_name, within};

use super::{Nodes, clients, held_on, held_on_exactly, on_all, servers};
use crate::support::SOON;

/// A renewal detects a server's data loss within a third of this.
const LEASE: Duration = Duration::from_secs(3);

/// The back-off grows while a server is away, and ends as soon as the server returns.
#[tokio::test(flavor = "multi_thread")]
async fn returning_servers_rejoin_at_once() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    nodes.servers[3].kill();
    nodes.servers[4].stop();
    let guard = nodes.redlock.lock(&name).lock().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(held_on(&nodes.servers[..3], &name).await, 3);
    nodes.servers[3].restart();
    nodes.servers[4].cont();
    let back = Instant::now();
    let all = on_all(&nodes.servers, &name);
    if tokio::time::timeout(Duration::from_secs(2), all)
        .await
        .is_err()
    {
        let clients = nodes.clients.iter().map(lockset::Client::stats);
        panic!("not within 2 s: {:#?}", clients.collect::<Vec<_>>());
    }
    println!("won back after {:?}", back.elapsed());
    guard.release().await.unwrap();
    nodes.nothing_left().await;
}

/// Only the next renewal detects that a server has lost its data, within a third of the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_data_rejoins_at_the_next_renewal() {
    let servers = servers(5);
    let redlock = Redlock::builder(clients(&servers, LEASE).await).persistent_nodes();
    let redlock = redlock.build().unwrap();
    let name = unique_name("redlock");
    let guard = redlock.lock(&name).lock().await.unwrap();
    held_on_exactly(5, &servers, &name).await;
    let mut fastest = Duration::MAX;
    for server in &servers {
        let mut admin = server.admin().await;
        let () = redis::cmd("FLUSHALL")
            .query_async(&mut admin)
            .await
            .unwrap();
        let forgot = Instant::now();
        within(SOON, on_all(&servers, &name)).await;
        println!("won back after {:?}", forgot.elapsed());
        fastest = fastest.min(forgot.elapsed());
        assert!(!guard.is_lost());
    }
    // A third of a lease until the renewal, and some time. A busy machine may be late, but not
    // every time.
    assert!(fastest < LEASE / 2, "{fastest:?}");
    guard.release().await.unwrap();
}
