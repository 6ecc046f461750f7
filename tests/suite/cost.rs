//! What the verbs cost in commands, counted by the server.

use std::collections::BTreeMap;

use lockset_testkit::{Server, unique_name};

use crate::support::{idle, listening, patient_client, waiting};

/// What clients sent since the last look: without what scripts call, and the kit's own looks.
async fn commands(server: &Server) -> BTreeMap<String, u64> {
    let mut commands = server.commandstats().await;
    let inside = [
        "pttl", "hset", "pexpire", "hdel", "hexists", "publish", "time",
    ];
    let looks = [
        "info",
        "config|resetstat",
        "client|setname",
        "client|setinfo",
        "client|list",
        "pubsub|channels",
    ];
    commands.retain(|name, _| !inside.iter().chain(&looks).any(|other| name == other));
    commands
}

#[tokio::test]
async fn an_uncontended_cycle_is_two_evalsha_and_nothing_else() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.lock(unique_name("lock"));
    lock.lock().await.unwrap().release().await.unwrap();
    server.reset_stats().await;
    for _ in 0..100 {
        lock.lock().await.unwrap().release().await.unwrap();
        drop(lock.try_lock().await.unwrap().expect("it is free"));
    }
    // The last release is on its way: this attempt goes behind it.
    drop(lock.try_lock().await.unwrap().expect("it is free"));
    let expected = BTreeMap::from([("evalsha".to_owned(), 2 * 201)]);
    idle(&client).await;
    assert_eq!(commands(&server).await, expected);
}

#[tokio::test]
async fn contention_inside_a_client_costs_no_round_trip() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let held = client.lock(&name).lock().await.unwrap();
    server.reset_stats().await;
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let lock = client.lock(&name);
            tokio::spawn(async move { lock.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    waiting(&client, 50).await;
    assert_eq!(commands(&server).await, BTreeMap::new(), "waiting is free");
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    // Each of them took two scripts when alone. In turn they pass it on in memory, but for a look at
    // who else waits now and then.
    let commands = commands(&server).await;
    assert_eq!(commands.keys().collect::<Vec<_>>(), ["evalsha"]);
    assert!(commands["evalsha"] < 50, "{commands:?}");
}

#[tokio::test]
async fn a_contended_wait_is_two_attempts_a_subscription_and_one_more() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let held = theirs.lock(&name).lock().await.unwrap();
    server.reset_stats().await;
    let lock = ours.lock(&name);
    let waiter = tokio::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let commands = commands(&server).await;
    // Three attempts of the waiter and the release.
    assert_eq!(commands["evalsha"], 4, "{commands:?}");
    assert_eq!(commands["subscribe"], 1, "{commands:?}");
    guard.release().await.unwrap();
}
