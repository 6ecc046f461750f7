//! A server that is reachable but executes no command yet: the client tries again with pauses, and works as soon as
//! the server does.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use lockset::Client;
use lockset_testkit::{ClientKind, Proxy, Server, eventually, unique_name, within};
use redis::aio::MultiplexedConnection;

use crate::support::{SLACK, SOON, ask, cycle, nothing_left, patient_client, took_less};

/// Tries the lock from 20 tasks for this long, as idle workers do.
async fn ask_for(client: &Client, name: &str, time: Duration) {
    let end = Instant::now() + time;
    let lock = client.lock(name).give_up_after(Duration::from_millis(10));
    let calls = (0..20).map(|_| async {
        while Instant::now() < end {
            let _ = lock.try_lock().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    join_all(calls).await;
}

/// A proxy whose server is down may answer the handshake, and close the connection at the first command for the server.
#[tokio::test]
async fn connections_that_die_at_their_first_call_are_made_with_pauses() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = patient_client(&proxy.url()).await;
    let name = unique_name("lock");
    cycle(&client.lock(&name)).await;
    proxy.cut_at(name.as_bytes());
    let before = proxy.asked_for();
    ask_for(&client, &name, Duration::from_secs(3)).await;
    let made = proxy.asked_for() - before;
    assert!(proxy.fired() >= 3, "the client tries again");
    // A pause lasts 0.1 to 0.5 s, and three links connect.
    assert!(made <= 40, "{made} connections in 3 s");
    proxy.pass();
    within(SOON, cycle(&client.lock(&name))).await;
    nothing_left(&server).await;
}

/// A server ends a connection whose messages it cannot get rid of, say.
#[tokio::test]
async fn connections_for_messages_that_end_at_once_are_made_with_pauses() {
    let server = Server::start();
    let holder = patient_client(&server.url()).await;
    let client = patient_client(&server.url()).await;
    let name = unique_name("lock");
    let guard = holder.lock(&name).lock().await.unwrap();
    let mut admin = server.admin().await;
    let kills = async {
        let end = Instant::now() + Duration::from_secs(2);
        let mut killed = 0;
        while Instant::now() < end {
            let words = ["CLIENT", "KILL", "TYPE", "pubsub"];
            killed += ask::<usize>(&mut admin, &words).await;
        }
        guard.release().await.unwrap();
        killed
    };
    let waiter = client.lock(&name);
    let (killed, ()) = within(SOON, join(kills, cycle(&waiter))).await;
    assert!(killed >= 3, "the client tries again");
    assert!(killed <= 25, "{killed} connections in 2 s");
}

/// Kills all connections of clients except this one.
async fn kill_all(admin: &mut MultiplexedConnection) {
    let words = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let _: usize = ask(admin, &words).await;
}

/// A deployment may open too many connections for a while.
#[tokio::test]
async fn a_server_without_room_for_connections_is_asked_again_until_there_is_some() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.lock(unique_name("lock"));
    let held = client.lock(unique_name("held"));
    let guard = held.lock().await.unwrap();
    let mut admin = server.admin().await;
    let _: () = ask(&mut admin, &["CONFIG", "SET", "maxclients", "1"]).await;
    kill_all(&mut admin).await;
    let refused = lock.clone().give_up_after(Duration::from_millis(300));
    let error = refused.lock().await.unwrap_err();
    assert!(error.is_refused(), "{error}");
    assert!(error.to_string().contains("maxclients"), "{error}");
    let calls = async {
        // Each guard is dropped before the other calls are awaited.
        let waits = async { cycle(&lock).await };
        let patient = lock.clone().give_up_after(SOON);
        let tries = async { drop(patient.try_lock().await.unwrap()) };
        let releases = async { guard.release().await.unwrap() };
        tokio::join!(waits, tries, releases)
    };
    let mut asker = admin.clone();
    let mut refusals = async || -> u64 {
        let stats: String = ask(&mut asker, &["INFO", "stats"]).await;
        let row = |row: &str| row.strip_prefix("rejected_connections:")?.parse().ok();
        stats.lines().find_map(row).expect("a number")
    };
    let before = refusals().await;
    let room = async {
        while refusals().await < before + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _: () = ask(&mut admin, &["CONFIG", "SET", "maxclients", "100"]).await;
        Instant::now()
    };
    let (_, room) = within(SOON, join(calls, room)).await;
    // A pause lasts up to half a second.
    took_less(room, SLACK * 3 / 2);
    nothing_left(&server).await;
}

/// A call waits for the next attempt instead of failing with the last refusal.
#[tokio::test]
async fn a_password_that_is_right_again_is_used_by_the_next_call() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let user = |password: &'static str| ["ACL", "SETUSER", "u", "resetpass", password];
    let _: () = ask(
        &mut admin,
        &["ACL", "SETUSER", "u", "on", "~*", "&*", "+@all"],
    )
    .await;
    let _: () = ask(&mut admin, &user(">right")).await;
    let client = patient_client(&format!("redis://u:right@{}", server.addr())).await;
    let lock = client.lock(unique_name("lock"));
    cycle(&lock).await;
    let ours = async || {
        let mut lines = server.clients(ClientKind::All).await;
        lines.retain(|line| line.name.starts_with("lockset-"));
        lines.len()
    };
    for _ in 0..5 {
        let _: () = ask(&mut admin, &user(">wrong")).await;
        let _: usize = ask(&mut admin, &["CLIENT", "KILL", "USER", "u"]).await;
        eventually(SOON, "the connections have ended", async || {
            ours().await == 0
        })
        .await;
        // Several calls, so that the pauses between attempts reach their maximum.
        for _ in 0..4 {
            let error = lock.try_lock().await.unwrap_err();
            assert!(error.is_denied() || error.is_io(), "{error}");
        }
        let _: () = ask(&mut admin, &user(">right")).await;
        within(SOON, cycle(&lock)).await;
    }
    nothing_left(&server).await;
}

/// A connection that the network has dropped is given up after one reply time, and the same call asks over another.
#[tokio::test]
async fn a_try_for_a_permit_goes_on_over_another_connection() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let builder = Client::builder(&proxy.url()).lease(Duration::from_secs(6));
    let ours = builder.build().await.unwrap();
    let semaphore = ours.semaphore(unique_name("permits")).permits(1);
    let guard = semaphore.try_acquire().await.unwrap().expect("a free one");
    guard.release().await.unwrap();
    proxy.blackhole_existing();
    let guard = semaphore.try_acquire().await.unwrap().expect("a free one");
    guard.release().await.unwrap();
}
