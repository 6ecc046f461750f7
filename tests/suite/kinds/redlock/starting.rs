//! Processes that start while a server is away: the server still counts towards the majority.

use futures_util::future::join_all;
use lockset::{Client, Redlock};
use lockset_testkit::{Server, unique_name, within};

use super::{LONG, clients, held_on_exactly, servers};
use crate::support::SOON;

fn urls(servers: &[Server]) -> Vec<String> {
    servers.iter().map(Server::url).collect()
}

/// Clients that have not connected yet, of servers that have a vote at once.
async fn lazy(servers: &[Server]) -> Redlock {
    let urls = urls(servers);
    let clients = urls
        .iter()
        .map(|url| Client::builder(url).lazy().lease(LONG).build());
    let clients = join_all(clients).await.into_iter();
    let clients: Vec<Client> = clients.map(Result::unwrap).collect();
    let redlock = Redlock::builder(clients).persistent_nodes();
    redlock.build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_connects_while_a_minority_is_down() {
    let servers = servers(3);
    servers[1].kill();
    let redlock = within(SOON, Redlock::connect(urls(&servers))).await;
    let lock = redlock.unwrap().lock(unique_name("redlock"));
    // New servers have no vote yet, but all configured servers count.
    let told = lock.try_lock().await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("2 of 3 servers"), "{told}");
    let down = servers[1].addr().to_string();
    assert!(told.to_string().contains(&down), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_majority_is_reported_at_once() {
    let servers = servers(3);
    servers[0].stop();
    servers[1].kill();
    let told = within(SOON, Redlock::connect(urls(&servers))).await;
    let told = told.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    let all = servers.iter().map(|server| server.addr().to_string());
    for server in all {
        assert!(told.to_string().contains(&server), "{told}");
    }
    assert!(told.to_string().contains("1 agreed"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_login_is_reported_despite_other_answers() {
    let secret = Server::builder().args(["--requirepass", "s3cret"]).start();
    let servers = servers(2);
    let mut all = urls(&servers);
    let wrong = all[0].replace("127.0.0.1", "localhost");
    all.push(format!("redis://:wr0ng@{}/", secret.addr()));
    let told = within(SOON, Redlock::connect(&all)).await.unwrap_err();
    assert!(told.is_denied(), "{told}");
    assert!(
        told.to_string().contains(&secret.addr().to_string()),
        "{told}"
    );
    assert!(!told.to_string().contains("wr0ng"), "{told}");
    for (urls, word) in [
        (vec![], "at least one"),
        (vec![all[0].as_str(), wrong.as_str()], "one server"),
        (vec!["redis+cluster://127.0.0.1:1"], "not a single server"),
        (
            vec!["redis+sentinel://127.0.0.1:1/a"],
            "not a single server",
        ),
    ] {
        let told = within(SOON, Redlock::connect(&urls)).await.unwrap_err();
        assert!(told.is_invalid(), "{urls:?}: {told}");
        assert!(told.to_string().contains(word), "{urls:?}: {told}");
    }
}

/// Two of three reachable servers are not a majority of five, and one of three is not a majority.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_seen_is_counted_and_joins_when_it_is() {
    let servers = servers(3);
    let name = unique_name("redlock");
    servers[2].kill();
    let lock = lazy(&servers).await.lock(&name);
    let guard = within(SOON, lock.lock()).await.unwrap();
    servers[2].restart();
    held_on_exactly(3, &servers, &name).await;
    guard.release().await.unwrap();

    servers[0].kill();
    servers[1].kill();
    let late = lazy(&servers).await;
    let told = within(SOON, late.lock(&name).try_lock()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("2 of 3 servers"), "{told}");
    held_on_exactly(0, &servers[2..], &name).await;
}

/// Clients of two servers, one of them under two names. This cannot be known yet.
async fn with_one_twice(servers: &[Server], database: &str) -> Vec<Client> {
    let url = servers[0].url().replace("127.0.0.1", "localhost");
    let other_name = format!("{url}{database}");
    let mut twice = clients(&servers[..1], LONG).await;
    for url in [&other_name, &servers[1].url()] {
        twice.push(Client::builder(url).lazy().build().await.unwrap());
    }
    twice
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_at_a_server_under_two_names_counts_once() {
    let servers = servers(2);
    let twice = with_one_twice(&servers, "").await;
    let redlock = Redlock::builder(twice.clone()).persistent_nodes();
    let name = unique_name("redlock");
    let lock = redlock.build().unwrap().lock(&name);
    let held = twice[0].lock(&name).lock().await.unwrap();
    for _ in 0..20 {
        let told = within(SOON, lock.is_locked()).await.unwrap_err();
        assert!(told.is_quorum(), "{told}");
        assert!(told.to_string().contains("same server"), "{told}");
    }
    let other = twice[2].lock(&name).lock().await.unwrap();
    assert!(within(SOON, lock.is_locked()).await.unwrap());
    held.release().await.unwrap();
    other.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server_under_two_names_has_one_vote() {
    let servers = servers(2);
    let twice = with_one_twice(&servers, "1").await;
    servers[1].kill();
    let redlock = Redlock::builder(twice).persistent_nodes().build().unwrap();
    let lock = redlock.lock(unique_name("redlock"));
    let told = within(SOON, lock.try_lock()).await.unwrap_err();
    assert!(told.is_quorum(), "{told}");
    assert!(told.to_string().contains("same server"), "{told}");
    servers[1].restart();
    let guard = within(SOON, lock.lock()).await.unwrap();
    assert!(guard.remaining() > LONG / 2);
}
