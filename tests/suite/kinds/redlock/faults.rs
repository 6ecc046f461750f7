//! Servers that die, are stopped or become unreachable while a lock is requested or held.

use std::time::{Duration, Instant};

use lockset_testkit::{eventually, unique_name, within};

use super::{LONG, Nodes, held_on, held_on_exactly};
use crate::support::{SOON, nothing_left, took_less};

/// Well below the reply timeout of a server, with leases of 30 s.
const FAST: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_dead_minority_costs_nothing() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    lock.lock().await.unwrap().release().await.unwrap();
    nodes.servers[1].kill();
    nodes.servers[3].kill();
    let began = Instant::now();
    for _ in 0..5 {
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert!(guard.remaining() > LONG / 2);
        guard.release().await.unwrap();
        let guard = lock.try_lock().await.unwrap().expect("it is free");
        guard.release().await.unwrap();
    }
    took_less(began, FAST * 5);
}

#[tokio::test]
async fn a_minority_that_stands_still_costs_nothing() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    lock.lock().await.unwrap().release().await.unwrap();
    nodes.servers[0].stop();
    nodes.servers[4].stop();
    let began = Instant::now();
    for _ in 0..5 {
        lock.lock().await.unwrap().release().await.unwrap();
        drop(lock.lock().await.unwrap());
    }
    took_less(began, FAST * 5);
    nodes.servers[0].cont();
    nodes.servers[4].cont();
    // Requests sent during the fault leave nothing behind.
    nodes.nothing_left().await;
}

#[tokio::test]
async fn without_a_majority_the_error_lists_each_vote() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    nodes.servers[0].kill();
    nodes.servers[1].kill();
    nodes.servers[2].stop();
    let error = within(SOON, lock.try_lock()).await.unwrap_err();
    assert!(error.is_quorum(), "{error}");
    assert_eq!(error.lock_name(), Some(&*name));
    let told = error.to_string();
    assert!(
        told.contains("3 of 5 servers are needed, 2 agreed"),
        "{told}"
    );
    let said = |server: usize| {
        let address = nodes.servers[server].addr().to_string();
        let from = told
            .find(&address)
            .unwrap_or_else(|| panic!("{address}: {told}"));
        told[from..].split(", 127.").next().unwrap().to_owned()
    };
    assert!(said(0).contains("no answer from the server"), "{told}");
    assert!(said(2).contains("no answer within"), "{told}");
    assert!(
        said(3).ends_with("granted") && told.contains("granted"),
        "{told}"
    );
    // None of its keys are left.
    for server in &nodes.servers[3..] {
        nothing_left(server).await;
    }
    nodes.servers[2].cont();
    nothing_left(&nodes.servers[2]).await;
    let guard = within(SOON, lock.lock()).await.unwrap();
    assert!(held_on(&nodes.servers[2..], &name).await >= 3);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_majority_that_comes_back_in_time_is_waited_for() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    nodes.servers[0].stop();
    nodes.servers[1].stop();
    let waiter = lockset_testkit::spawn({
        let lock = lock.clone();
        async move { lock.lock().await }
    });
    eventually(SOON, "it waits", async || {
        nodes
            .clients
            .iter()
            .any(|client| client.stats().waiters == 1)
    })
    .await;
    nodes.servers[0].cont();
    let guard = within(SOON, waiter).await.unwrap().unwrap();
    nodes.servers[1].cont();
    guard.release().await.unwrap();
    nodes.nothing_left().await;
}

#[tokio::test]
async fn a_late_vote_joins_and_a_vote_too_late_is_released() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name);
    nodes.servers[2].stop();
    let guard = lock.lock().await.unwrap();
    nodes.servers[2].cont();
    held_on_exactly(3, &nodes.servers, &name).await;
    guard.release().await.unwrap();
    nodes.nothing_left().await;

    nodes.servers[2].stop();
    let guard = lock.lock().await.unwrap();
    guard.release().await.unwrap();
    nodes.servers[2].cont();
    nodes.nothing_left().await;
}
