//! Fencing tokens keep growing after faults of the counter, the server or the connection.

use lockset::{Client, ReentrantGuard, ReentrantLock};
use lockset_testkit::{Server, eventually, within};

use crate::support::{SOON, ask, command, idle, nothing_left};

const COUNTER: &str = "redisson_lock_token:{x}";

async fn connect(server: &Server) -> Client {
    Client::connect(&server.url()).await.unwrap()
}

fn token_of(guard: &ReentrantGuard) -> u64 {
    guard.fencing_token().expect("it is fenced").get()
}

/// Acquires and releases the lock, and returns its token.
async fn cycle(lock: &ReentrantLock) -> u64 {
    let guard = within(SOON, lock.lock()).await.unwrap();
    let token = token_of(&guard);
    guard.release().await.unwrap();
    token
}

#[tokio::test]
async fn a_cycle_is_one_script_and_a_plain_release() {
    let server = Server::start();
    let client = Client::connect(&server.admin_url()).await.unwrap();
    let lock = client.lock("x").fenced();
    let mut last = cycle(&lock).await;
    server.reset_stats().await;
    for _ in 0..100 {
        let token = cycle(&lock).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    idle(&client).await;
    let calls = server.commandstats().await;
    for command in ["evalsha", "hdel", "publish"] {
        assert_eq!(calls.get(command), Some(&100), "{command}: {calls:?}");
    }
    for command in ["multi", "exec", "restore", "incrby"] {
        assert!(!calls.contains_key(command), "{command}: {calls:?}");
    }
}

#[tokio::test]
async fn tokens_grow_from_client_to_client() {
    let server = Server::start();
    let clients = [connect(&server).await, connect(&server).await];
    let locks = clients.each_ref().map(|client| client.lock("x").fenced());
    let mut last = 0;
    for round in 0..60 {
        for lock in &locks {
            for _ in 0..=round % 4 {
                let token = cycle(lock).await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
    }
}

/// A server becomes a replica of one that lacks the last tokens, and then a primary again. Its clients stay connected.
#[tokio::test]
async fn tokens_grow_at_a_server_with_older_data() {
    let at_once = || {
        Server::builder()
            .args(["--repl-diskless-sync-delay", "0"])
            .start()
    };
    let (server, older) = (at_once(), at_once());
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    let (lock, rival) = (ours.lock("x").fenced(), theirs.lock("x").fenced());
    // The second cycle knows the connection of the first.
    cycle(&lock).await;
    cycle(&lock).await;
    let copy_from = async |replica: &Server, primary: &Server| {
        let port = primary.port().to_string();
        command(replica, &["REPLICAOF", "127.0.0.1", &port]).await;
        let mut admin = replica.admin().await;
        eventually(SOON * 4, "the copy is complete", async || {
            let info: String = ask(&mut admin, &["INFO", "replication"]).await;
            info.contains("master_link_status:up")
        })
        .await;
        command(replica, &["REPLICAOF", "NO", "ONE"]).await;
    };
    copy_from(&older, &server).await;
    let known = cycle(&rival).await;
    copy_from(&server, &older).await;
    let token = cycle(&lock).await;
    assert!(token > known, "{token} after {known}");
}

/// A spoilt counter is an error that names it. The lock is not granted and the counter stays as it was.
#[tokio::test]
async fn a_spoilt_counter_is_named_and_left_alone() {
    let server = Server::start();
    let client = connect(&server).await;
    let mut admin = server.admin().await;
    for text in [
        "x",
        "inf",
        "nan",
        "1e300",
        "-64",
        "12.5",
        "0x10",
        "9007199254740991",
        "9007199254740993",
        "18446744073709551615",
    ] {
        command(&server, &["SET", COUNTER, text]).await;
        let refused = [
            within(SOON, client.lock("x").fenced().lock())
                .await
                .map(drop),
            within(SOON, client.fair_lock("x").fenced().lock())
                .await
                .map(drop),
            within(SOON, client.rw_lock("x").fenced().write())
                .await
                .map(drop),
            within(SOON, client.rw_lock("x").fenced().read())
                .await
                .map(drop),
            within(SOON, both(&client).lock()).await.map(drop),
        ];
        for refused in refused {
            let error = refused.expect_err(text);
            assert!(error.is_wrong_type(), "{text}: {error}");
            let message = error.to_string();
            assert!(message.contains(COUNTER), "{text}: {message}");
            assert!(message.contains("below 2^53"), "{text}: {message}");
        }
        let left: String = ask(&mut admin, &["GET", COUNTER]).await;
        assert_eq!(left, text);
        idle(&client).await;
        command(&server, &["DEL", COUNTER]).await;
        nothing_left(&server).await;
    }
    // This counter has room for one last token.
    command(&server, &["SET", COUNTER, "9007199254740990"]).await;
    let last = cycle(&client.lock("x").fenced()).await;
    assert_eq!(last, 9_007_199_254_740_991);
    let refused = client.lock("x").fenced().lock().await.unwrap_err();
    assert!(refused.is_wrong_type(), "{refused}");
}

fn both(client: &Client) -> lockset::MultiLock {
    let members = [client.lock("x"), client.lock("y")];
    lockset::MultiLock::new(members).unwrap().fenced()
}

#[tokio::test]
async fn after_a_forced_unlock_tokens_grow() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    let (lock, rival) = (ours.lock("x").fenced(), theirs.lock("x").fenced());
    for _ in 0..10 {
        let held = lock.lock().await.unwrap();
        assert!(rival.force_unlock().await.unwrap());
        let next = within(SOON, rival.lock()).await.unwrap();
        assert!(token_of(&next) > token_of(&held));
        assert!(held.release().await.unwrap_err().is_not_held());
        next.release().await.unwrap();
    }
}
