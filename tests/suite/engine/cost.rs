//! The number of commands that each verb costs, counted by the server.

use std::collections::BTreeMap;
use std::time::Duration;

use lockset::{Client, Error, ReentrantGuard};
use lockset_testkit::{Server, eventually, unique_name};

use crate::support::{SOON, idle, is_native, listening, patient_client, waiting};

/// Boxed, because a debug build moves futures by value and would overflow the stack.
#[tokio::test]
async fn futures_are_small() {
    const MAX: usize = 8192;
    let client = Client::builder("redis://127.0.0.1:1").lazy();
    let client = client.build().await.unwrap();
    let (lock, fair, wait) = (client.lock("a"), client.fair_lock("b"), Duration::ZERO);
    let multi = lockset::MultiLock::new([client.lock("x"), client.lock("y")]).unwrap();
    let once = client.once("k").per(Duration::from_secs(1));
    let work = async |_: &ReentrantGuard| Ok::<(), Error>(());
    let sizes = [
        ("lock", size_of_val(&lock.lock())),
        ("try_lock", size_of_val(&lock.try_lock())),
        ("try_lock_for", size_of_val(&lock.try_lock_for(wait))),
        ("fair", size_of_val(&fair.lock())),
        ("multi", size_of_val(&multi.lock())),
        ("with", size_of_val(&lock.with(wait, work))),
        ("claim", size_of_val(&once.claim())),
    ];
    for (what, size) in sizes {
        assert!(size <= MAX, "{what}: {size} of {sizes:?}");
    }
}

/// The commands sent by clients since the last call, without commands called by scripts and the
/// testkit's own.
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
async fn an_uncontended_cycle_is_three_plain_commands_in_two_round_trips() {
    let server = Server::start();
    let client = Client::connect(&server.admin_url()).await.unwrap();
    let lock = client.lock(unique_name("lock"));
    lock.lock().await.unwrap().release().await.unwrap();
    server.reset_stats().await;
    for _ in 0..100 {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    idle(&client).await;
    let commands = server.commandstats().await;
    for command in ["restore", "hdel", "publish"] {
        assert_eq!(commands.get(command), Some(&100), "{command}: {commands:?}");
    }
    assert!(!commands.contains_key("evalsha"), "{commands:?}");
}

#[tokio::test]
async fn by_script_an_uncontended_cycle_is_two_evalsha_and_nothing_else() {
    let server = Server::start();
    let client = Client::builder(&server.url())
        .native(false)
        .build()
        .await
        .unwrap();
    let lock = client.lock(unique_name("lock"));
    lock.lock().await.unwrap().release().await.unwrap();
    server.reset_stats().await;
    for _ in 0..100 {
        lock.lock().await.unwrap().release().await.unwrap();
        drop(lock.try_lock().await.unwrap().expect("it is free"));
    }
    // The last release is in flight. This attempt is sent after it.
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
            lockset_testkit::spawn(
                async move { lock.lock().await.unwrap().release().await.unwrap() },
            )
        })
        .collect();
    waiting(&client, 50).await;
    assert_eq!(commands(&server).await, BTreeMap::new(), "waiting is free");
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    // Alone, each task took two requests. In turn, the tasks hand the lock off in memory, and only
    // check for other waiters now and then.
    let commands = commands(&server).await;
    let known = ["evalsha", "restore"];
    assert!(
        commands
            .keys()
            .all(|command| known.contains(&command.as_str()))
    );
    assert!(commands.values().sum::<u64>() < 50, "{commands:?}");
}

#[tokio::test]
async fn a_contended_wait_is_two_attempts_a_subscription_a_recall_and_one_attempt_more() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let name = unique_name("lock");
    let held = theirs.lock(&name).lock().await.unwrap();
    server.reset_stats().await;
    let lock = ours.lock(&name);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    listening(&server).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    // Three attempts of the waiter and a recall, and the release if it is a script.
    let expected = 4 + u64::from(!is_native());
    let asked = |commands: &BTreeMap<String, u64>| {
        commands["evalsha"] + commands.get("restore").unwrap_or(&0)
    };
    eventually(SOON, "the recall is sent", async || {
        asked(&commands(&server).await) >= expected
    })
    .await;
    let commands = commands(&server).await;
    assert_eq!(asked(&commands), expected, "{commands:?}");
    assert_eq!(commands["subscribe"], 1, "{commands:?}");
    guard.release().await.unwrap();
}
