//! Abandoned attempts at a server that is stopped or away for a long time.

use std::pin::pin;
use std::time::Duration;

use lockset::{Client, Owner};
use lockset_testkit::{Server, eventually, unique_name};

use crate::primitive::{Primitive, for_every_primitive};
use crate::support::SOON;

/// Long enough to tell a lease from an immediate end.
const LEASE: Duration = Duration::from_secs(2);

/// How long to wait for an answer that does not come.
const MOMENT: Duration = Duration::from_millis(30);

async fn client(server: &Server) -> Client {
    let builder = Client::builder(&server.url()).lease(LEASE);
    builder.build().await.unwrap()
}

/// The server executes an attempt late, possibly after more than its lease. Afterwards the lock is
/// free.
async fn an_attempt_that_runs_late_is_undone<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let name = unique_name("late");
    let lock = P::of(&ours, &name);
    drop(lock.try_lock().await.unwrap().expect("it is free"));
    crate::support::idle(&ours).await;
    server.stop();
    let attempt = tokio::time::timeout(MOMENT, lock.try_lock()).await;
    assert!(attempt.is_err(), "it was answered");
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert_eq!(ours.stats().background, 1, "it is still to be undone");
    server.cont();
    let rival = P::rival(&theirs, &name);
    // Before a lease that began now would end.
    eventually(LEASE * 3 / 4, "it is free", async || {
        matches!(rival.try_lock().await, Ok(Some(_)))
    })
    .await;
    crate::support::idle(&ours).await;
}

/// As above, for the renewal before a re-entry, whose hold is over when it runs.
async fn a_renewal_that_runs_late_takes_nothing<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let name = unique_name("late");
    let lock = P::of(&ours, &name).owner(&Owner::new());
    let guard = lock.lock().await.unwrap();
    server.stop();
    // Another lease needs a renewal.
    let again = lock.lease(LEASE * 2);
    let entry = tokio::time::timeout(MOMENT, again.lock()).await;
    assert!(entry.is_err(), "it was answered");
    // The client abandons the connection that carries the renewal.
    tokio::time::sleep(LEASE / 2).await;
    drop(guard);
    tokio::time::sleep(LEASE * 3 / 2).await;
    server.cont();
    let rival = P::rival(&theirs, &name);
    eventually(LEASE * 3 / 2, "it is free", async || {
        matches!(rival.try_lock().await, Ok(Some(_)))
    })
    .await;
    crate::support::idle(&ours).await;
}

/// A waiter that leaves while the server is stopped is removed once the server continues, though
/// its lease is over: a place in the server's queue has no lease.
async fn an_abandoned_place_is_removed_however_late<P: Primitive>() {
    let server = Server::start();
    let (ours, theirs) = (client(&server).await, client(&server).await);
    let name = unique_name("late");
    let guard = P::rival(&theirs, &name).lock().await.unwrap();
    let lock = P::of(&ours, &name);
    {
        let mut call = pin!(lock.lock());
        let waits = tokio::time::timeout(LEASE / 4, &mut call).await;
        assert!(waits.is_err(), "it is held elsewhere");
        server.stop();
        // Lasts until the client abandons the connection of the attempt, so that no further command
        // is sent.
        let told = tokio::time::timeout(LEASE / 2, &mut call).await;
        assert!(!matches!(told, Ok(Ok(_))), "it is not granted");
    }
    tokio::time::sleep(LEASE * 3 / 2).await;
    server.cont();
    crate::support::idle(&ours).await;
    // The cleanup must not depend on another release or attempt, which would find the heartbeat
    // expired.
    crate::support::nothing_left(&server).await;
    drop(guard);
}

/// A command that was still waiting for a connection was never executed, so it needs no undo.
async fn an_unsent_attempt_is_not_undone<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server).await;
    let name = unique_name("unsent");
    let lock = P::of(&ours, &name);
    server.stop();
    // The client abandons its connection.
    assert!(lock.try_lock().await.is_err());
    eventually(SOON, "no more than one queue is left", async || {
        ours.stats().background <= 1
    })
    .await;
    for _ in 0..20 {
        let attempt = tokio::time::timeout(MOMENT / 10, lock.try_lock()).await;
        assert!(attempt.is_err(), "it was answered");
        eventually(SOON, "nothing was added to the queue", async || {
            ours.stats().background <= 1
        })
        .await;
    }
    server.cont();
    crate::support::idle(&ours).await;
    crate::support::nothing_left(&server).await;
}

/// All undos wait together.
async fn many_attempts_are_undone_together<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server).await;
    let names: Vec<_> = (0..50).map(|_| unique_name("many")).collect();
    let locks: Vec<_> = names.iter().map(|name| P::of(&ours, name)).collect();
    server.stop();
    let attempts = locks.iter().map(P::try_lock);
    let attempts = futures_util::future::join_all(attempts);
    assert!(tokio::time::timeout(MOMENT, attempts).await.is_err());
    eventually(SOON, "they wait in one queue", async || {
        ours.stats().background == 1
    })
    .await;
    server.cont();
    crate::support::idle(&ours).await;
    crate::support::nothing_left(&server).await;
}

for_every_primitive! {"multi_thread":
    an_attempt_that_runs_late_is_undone
    a_renewal_that_runs_late_takes_nothing
    an_abandoned_place_is_removed_however_late
    an_unsent_attempt_is_not_undone
    many_attempts_are_undone_together
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    an_attempt_that_runs_late_is_undone
    a_renewal_that_runs_late_takes_nothing
    an_abandoned_place_is_removed_however_late
    an_unsent_attempt_is_not_undone
    many_attempts_are_undone_together
}
