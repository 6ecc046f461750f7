//! A `Redlock` on simulated servers: which votes count, and for how long.

use std::time::Duration;

use lockset::{Client, Redlock};
use lockset_sim::Server;

const SECOND: Duration = Duration::from_secs(1);
/// Of a client with the default settings.
const LEASE: Duration = Duration::from_secs(30);

async fn three() -> ([Server; 3], [Client; 3], Redlock) {
    let servers = [(); 3].map(|()| Server::new());
    let [a, b, c] = &servers;
    let clients = [a.client().await, b.client().await, c.client().await];
    let redlock = Redlock::new(clients.clone()).unwrap();
    (servers, clients, redlock)
}

/// It may have forgotten a vote that is still valid.
#[tokio::test(start_paused = true)]
async fn a_server_without_a_past_has_no_vote_for_a_lease() {
    let (servers, _clients, redlock) = three().await;
    let lock = redlock.lock("a");
    let young = lock.try_lock().await.unwrap_err();
    assert!(young.is_quorum(), "{young}");
    servers[0].advance(LEASE * 11 / 10).await;
    let held = lock.try_lock().await.unwrap().expect("three votes");

    let others = [
        servers[0].client().await,
        servers[1].client().await,
        servers[2].client().await,
    ];
    let other = Redlock::new(others).unwrap();
    assert!(other.lock("a").try_lock().await.unwrap().is_none());
    for server in &servers[1..] {
        server.kill();
        server.restart_empty();
    }
    let forgotten = other.lock("a").try_lock().await.unwrap_err();
    assert!(forgotten.is_quorum(), "{forgotten}");
    drop(held);
    servers[0].advance(LEASE * 11 / 10).await;
    let again = other.lock("a").try_lock_for(SECOND).await.unwrap();
    assert!(again.is_some());
}

/// Its validity counts from before it was asked for.
#[tokio::test(start_paused = true)]
async fn a_grant_that_took_as_long_as_its_lease_is_none() {
    let (servers, _clients, redlock) = three().await;
    servers[0].advance(LEASE * 11 / 10).await;
    let lock = redlock.lock("a").fixed_lease(SECOND / 2);
    // The connections are made before it takes long.
    drop(lock.try_lock().await.unwrap().expect("three votes"));
    servers[0].advance(SECOND).await;
    for server in &servers {
        server.delay(SECOND * 26 / 100);
    }
    let late = lock.try_lock().await;
    assert!(!matches!(late, Ok(Some(_))), "{late:?}");
}
