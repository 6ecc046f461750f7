//! Handles whose time limit is shorter than the server's response time, and their effect on the
//! shared connection.

use std::time::Duration;

use lockset::Client;
use lockset_testkit::{Proxy, Server, eventually, unique_name};
use tokio::time::timeout;

use crate::primitive::Primitive;
use crate::support::{LEASE, SOON, cycle, idle, nothing_left, patient_client};

/// The server takes five times as long to answer.
const IMPATIENT: Duration = Duration::from_millis(10);

async fn through_a_proxy() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = patient_client(&proxy.url()).await;
    (server, proxy, client)
}

/// Retries, because a busy machine may take longer to answer than the handle waits.
pub(crate) async fn taken<P: Primitive>(lock: &P) -> P::Guard {
    for _ in 0..20 {
        if let Ok(guard) = lock.lock().await {
            return guard;
        }
    }
    panic!("no answer in time, twenty times");
}

/// A server that answers is slow, not dead: the connection is kept.
#[tokio::test]
async fn abandoned_calls_keep_the_shared_connection() {
    let (server, proxy, client) = through_a_proxy().await;
    let lock = client.lock(unique_name("lock"));
    lock.lock().await.unwrap().release().await.unwrap();
    proxy.delay_replies(IMPATIENT * 5);
    let asked_for = proxy.asked_for();
    let impatient = client.lock(unique_name("lock")).give_up_after(IMPATIENT);
    let others = async {
        for _ in 0..5 {
            lock.lock().await.unwrap().release().await.unwrap();
        }
    };
    let gave_up = async {
        for _ in 0..30 {
            let error = impatient.try_lock().await.unwrap_err();
            assert!(error.is_io(), "{error}");
        }
    };
    tokio::join!(others, gave_up);
    assert_eq!(proxy.asked_for(), asked_for, "no connection was replaced");
    proxy.pass();
    idle(&client).await;
    nothing_left(&server).await;
}

/// Abandoned calls that leave a lock held do not break the renewal connection of others either.
#[tokio::test]
async fn abandoned_calls_do_not_break_renewals() {
    let (server, proxy, client) = through_a_proxy().await;
    // A sixth of it without a reply ends the connection for renewals.
    let lease = Duration::from_secs(6);
    let renewed = client.lock(unique_name("lock")).lease(lease);
    let renewed = renewed.lock().await.unwrap();
    let mut guards = Vec::new();
    for _ in 0..20 {
        let lock = client.lock(unique_name("lock")).at_least(LEASE * 2);
        let lock = lock.give_up_after(IMPATIENT * 3);
        guards.push(taken(&lock).await);
    }
    proxy.delay_replies(IMPATIENT * 20);
    let asked_for = proxy.asked_for();
    for guard in guards {
        let error = guard.release().await.unwrap_err();
        assert!(error.is_io(), "{error}");
    }
    let watched = lease + Duration::from_secs(1);
    assert!(timeout(watched, renewed.lost()).await.is_err());
    assert_eq!(proxy.asked_for(), asked_for, "no connection was replaced");
    proxy.pass();
    drop(renewed);
    idle(&client).await;
    nothing_left(&server).await;
}

/// If a short lease is among the client's leases, the reply timeout of renewals is short as well.
#[tokio::test]
async fn a_short_lease_is_renewed_over_another_connection_when_one_is_dead() {
    let (server, proxy, client) = through_a_proxy().await;
    let lease = LEASE * 2;
    let lock = client.lock(unique_name("lock")).lease(lease);
    let guard = lock.lock().await.unwrap();
    assert!(timeout(lease, guard.lost()).await.is_err());
    proxy.blackhole_existing();
    assert!(timeout(lease * 3, guard.lost()).await.is_err());
    // The connection for calls is dead as well.
    drop(guard);
    idle(&client).await;
    nothing_left(&server).await;
}

/// No caller waits for the full timeout of a silent connection.
#[tokio::test]
async fn callers_detect_a_dead_connection_together() {
    let (server, proxy, client) = through_a_proxy().await;
    let lock = client.lock(unique_name("lock"));
    cycle(&lock).await;
    let impatient = lock.give_up_after(IMPATIENT * 10);
    proxy.blackhole_existing();
    eventually(SOON, "there is another connection", async || {
        matches!(impatient.try_lock().await, Ok(Some(_)))
    })
    .await;
    idle(&client).await;
    nothing_left(&server).await;
}
