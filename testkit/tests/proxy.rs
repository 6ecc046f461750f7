//! Every fault of the proxy, observed at a real server and its client.

use std::time::{Duration, Instant};

use lockset_testkit::{ClientKind, Proxy, Server, eventually, within};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisResult, cmd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A bound for expected events.
const SOON: Duration = Duration::from_secs(5);

/// How long to wait for an unexpected event: many local round trips.
const WHILE: Duration = Duration::from_millis(100);

async fn pair() -> (Server, Proxy) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    (server, proxy)
}

/// A client without timeouts, so that only the proxy decides about answers.
async fn client(url: String) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = Client::open(url).unwrap();
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    within(SOON, connecting).await.unwrap()
}

fn incr(client: &MultiplexedConnection, key: &str) -> JoinHandle<RedisResult<u64>> {
    let (mut client, key) = (client.clone(), key.to_owned());
    tokio::spawn(async move { cmd("INCR").arg(key).query_async(&mut client).await })
}

async fn value(server: &Server, key: &str) -> u64 {
    let value: Option<u64> = cmd("GET")
        .arg(key)
        .query_async(&mut server.admin().await)
        .await
        .unwrap();
    value.unwrap_or(0)
}

async fn value_becomes(server: &Server, key: &str, wanted: u64) {
    eventually(SOON, "the server executes the command", async || {
        value(server, key).await == wanted
    })
    .await;
}

#[tokio::test]
async fn passes_everything_at_first() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&client, "a")).await.unwrap().unwrap(), 1);
    assert_eq!(value(&server, "a").await, 1);
    assert_eq!(proxy.connections(), 1);
    drop(client);
    eventually(SOON, "the close is seen", async || proxy.connections() == 0).await;
}

#[tokio::test]
async fn passes_large_values() {
    let (_server, proxy) = pair().await;
    let mut client = client(proxy.url()).await;
    let large = "x".repeat(5_000_000);
    let command = async {
        let () = cmd("SET")
            .arg("a")
            .arg(&large)
            .query_async(&mut client)
            .await?;
        cmd("GET").arg("a").query_async::<String>(&mut client).await
    };
    assert!(within(SOON, command).await.unwrap() == large);
}

#[tokio::test]
async fn dies_on_drop() {
    let (_server, proxy) = pair().await;
    let address = proxy.addr();
    let client = client(proxy.url()).await;
    drop(proxy);
    within(SOON, incr(&client, "a")).await.unwrap().unwrap_err();
    // Not at once: while another thread starts a process, that process has a copy of the socket.
    eventually(SOON, "the port is closed", async || {
        TcpStream::connect(address).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn drops_replies() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.drop_replies();
    let lost = incr(&client, "a");
    value_becomes(&server, "a", 1).await;
    eventually(SOON, "it is dropped", async || proxy.dropped() > 0).await;
    proxy.pass();
    let after = incr(&client, "a");
    value_becomes(&server, "a", 2).await;
    tokio::time::sleep(WHILE).await;
    assert!(!lost.is_finished(), "a dropped reply never comes");
    assert!(!after.is_finished(), "nor does one after it");
    let new = self::client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 3);
}

#[tokio::test]
async fn a_connection_that_lost_nothing_passes_again() {
    let (_server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.drop_replies();
    proxy.drop_requests();
    proxy.pass();
    assert_eq!(within(SOON, incr(&client, "a")).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn drops_requests() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.drop_requests();
    let lost = incr(&client, "a");
    eventually(SOON, "it is dropped", async || proxy.dropped_requests() > 0).await;
    proxy.pass();
    let after = incr(&client, "a");
    tokio::time::sleep(WHILE).await;
    assert!(!lost.is_finished() && !after.is_finished());
    assert_eq!(value(&server, "a").await, 0);
    let new = self::client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn holds_replies() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.hold_replies();
    let late = incr(&client, "a");
    value_becomes(&server, "a", 1).await;
    tokio::time::sleep(WHILE).await;
    assert!(!late.is_finished());
    proxy.pass();
    assert_eq!(within(SOON, late).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn holds_requests() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.hold_requests();
    let late = incr(&client, "a");
    tokio::time::sleep(WHILE).await;
    assert_eq!(value(&server, "a").await, 0);
    proxy.pass();
    assert_eq!(within(SOON, late).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn holds_can_be_dropped() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.hold_requests();
    let lost = incr(&client, "a");
    tokio::time::sleep(WHILE).await;
    proxy.drop_requests();
    eventually(SOON, "it is dropped", async || proxy.dropped_requests() > 0).await;
    proxy.pass();
    tokio::time::sleep(WHILE).await;
    assert!(!lost.is_finished());
    assert_eq!(value(&server, "a").await, 0);
}

#[tokio::test]
async fn delays_replies() {
    let (_server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.delay_replies(Duration::from_millis(200));
    let started = Instant::now();
    let (first, second) = (incr(&client, "a"), incr(&client, "a"));
    assert_eq!(within(SOON, first).await.unwrap().unwrap(), 1);
    assert_eq!(within(SOON, second).await.unwrap().unwrap(), 2);
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");

    proxy.delay_replies(Duration::from_secs(3600));
    let late = incr(&client, "a");
    tokio::time::sleep(WHILE).await;
    assert!(!late.is_finished());
    proxy.pass();
    assert_eq!(within(SOON, late).await.unwrap().unwrap(), 3);
}

#[tokio::test]
async fn works_under_paused_time() {
    let (_server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(3600)).await;
    proxy.delay_replies(WHILE);
    let started = Instant::now();
    assert_eq!(incr(&client, "a").await.unwrap().unwrap(), 1);
    assert!(started.elapsed() >= WHILE, "the network keeps real time");
}

#[tokio::test]
async fn blackholes_existing_connections_only() {
    let (server, proxy) = pair().await;
    let old = client(proxy.url()).await;
    proxy.blackhole_existing();
    let lost = incr(&old, "a");
    let new = client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "b")).await.unwrap().unwrap(), 1);

    proxy.pass();
    server.kill();
    within(SOON, incr(&new, "b")).await.unwrap().unwrap_err();
    tokio::time::sleep(WHILE).await;
    assert!(!lost.is_finished(), "not even a dead server is noticed");
    assert_eq!(proxy.connections(), 1);
}

#[tokio::test]
async fn a_blackhole_hides_a_client_that_disconnects() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.blackhole_existing();
    drop(client);
    eventually(SOON, "the proxy sees it", async || proxy.connections() == 0).await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(server.clients(ClientKind::All).await.len(), 1);

    proxy.cut();
    eventually(SOON, "the server sees the cut", async || {
        server.clients(ClientKind::All).await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn cuts_existing_connections() {
    let (server, proxy) = pair().await;
    let old = client(proxy.url()).await;
    proxy.cut();
    assert_eq!(proxy.connections(), 0);
    within(SOON, incr(&old, "a")).await.unwrap().unwrap_err();
    assert_eq!(value(&server, "a").await, 0, "nothing passes after a cut");
    let new = client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 1);
}

#[tokio::test]
async fn refuses_new_connections() {
    let (_server, proxy) = pair().await;
    let old = client(proxy.url()).await;
    proxy.refuse(true);
    let mut refused = TcpStream::connect(proxy.addr()).await.unwrap();
    let end = within(SOON, refused.read(&mut [0; 8])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert_eq!(within(SOON, incr(&old, "a")).await.unwrap().unwrap(), 1);

    proxy.refuse(false);
    let new = client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 2);
}

#[tokio::test]
async fn swallows_the_next_reply() {
    let (server, proxy) = pair().await;
    let struck = client(proxy.url()).await;
    let other = client(proxy.url()).await;
    proxy.swallow_next_reply_then_cut();
    within(SOON, incr(&struck, "a")).await.unwrap().unwrap_err();
    assert_eq!(value(&server, "a").await, 1, "executed without a reply");
    assert_eq!(proxy.fired(), 1);
    assert_eq!(within(SOON, incr(&other, "a")).await.unwrap().unwrap(), 2);
    assert_eq!((proxy.fired(), proxy.connections()), (1, 1));
}

#[tokio::test]
async fn swallows_the_reply_to_a_marker() {
    let (server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.swallow_reply_to(b"marked");
    assert_eq!(within(SOON, incr(&client, "a")).await.unwrap().unwrap(), 1);
    assert_eq!(proxy.fired(), 0);
    within(SOON, incr(&client, "marked"))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(value(&server, "marked").await, 1);
    assert_eq!((proxy.fired(), proxy.connections()), (1, 0));

    let again = self::client(proxy.url()).await;
    let second = within(SOON, incr(&again, "marked")).await.unwrap();
    assert_eq!(second.unwrap(), 2, "it fires once");
}

#[tokio::test]
async fn finds_a_marker_split_over_two_chunks() {
    let (server, proxy) = pair().await;
    proxy.swallow_reply_to(b"marked");
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    client.set_nodelay(true).unwrap();
    client.write_all(b"INCR mar").await.unwrap();
    tokio::time::sleep(WHILE).await;
    client.write_all(b"ked\r\n").await.unwrap();
    let end = within(SOON, client.read(&mut [0; 8])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");
    assert_eq!((proxy.fired(), value(&server, "marked").await), (1, 1));
}

#[tokio::test]
async fn cuts_each_connection_at_a_marker() {
    let (server, proxy) = pair().await;
    proxy.cut_at(b"marked");
    for cut in 1..=2 {
        let client = client(proxy.url()).await;
        assert_eq!(
            within(SOON, incr(&client, "a")).await.unwrap().unwrap(),
            cut
        );
        let answer = within(SOON, incr(&client, "marked")).await.unwrap();
        answer.unwrap_err();
        assert_eq!((proxy.fired(), proxy.connections()), (cut, 0));
    }
    let mut admin = server.admin().await;
    let exists: u32 = cmd("EXISTS")
        .arg("marked")
        .query_async(&mut admin)
        .await
        .unwrap();
    assert_eq!(exists, 0, "it was not delivered");
}

#[tokio::test]
async fn passing_disarms() {
    let (_server, proxy) = pair().await;
    let client = client(proxy.url()).await;
    proxy.swallow_next_reply_then_cut();
    proxy.swallow_reply_to(b"a");
    proxy.hold_request_containing(b"a");
    proxy.cut_at(b"a");
    proxy.refuse(true);
    proxy.pass();
    assert_eq!(within(SOON, incr(&client, "a")).await.unwrap().unwrap(), 1);
    let new = self::client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 2);
    assert_eq!((proxy.fired(), proxy.held()), (0, 0));
}

#[tokio::test]
async fn holds_a_marked_request_and_all_behind_it() {
    let (server, proxy) = pair().await;
    let held = client(proxy.url()).await;
    let other = client(proxy.url()).await;
    proxy.hold_request_containing(b"marked");
    assert_eq!(within(SOON, incr(&held, "a")).await.unwrap().unwrap(), 1);

    let marked = incr(&held, "marked");
    eventually(SOON, "the request is caught", async || proxy.held() == 1).await;
    let behind = incr(&held, "a");
    let second = within(SOON, incr(&other, "marked")).await.unwrap();
    assert_eq!(second.unwrap(), 1, "it catches once");
    tokio::time::sleep(WHILE).await;
    assert_eq!(value(&server, "a").await, 1);

    proxy.release_held();
    assert_eq!(within(SOON, marked).await.unwrap().unwrap(), 2);
    assert_eq!(within(SOON, behind).await.unwrap().unwrap(), 2);
    assert_eq!(proxy.held(), 0);
}

#[tokio::test]
async fn a_held_request_outlives_its_client() {
    for by_cut in [false, true] {
        let (server, proxy) = pair().await;
        let client = client(proxy.url()).await;
        proxy.hold_request_containing(b"marked");
        let marked = incr(&client, "marked");
        eventually(SOON, "the request is caught", async || proxy.held() == 1).await;

        if by_cut {
            proxy.cut();
            within(SOON, marked).await.unwrap().unwrap_err();
        } else {
            marked.abort();
            drop(client);
        }
        eventually(SOON, "the client is gone", async || {
            proxy.connections() == 0
        })
        .await;
        tokio::time::sleep(WHILE).await;
        assert_eq!(value(&server, "marked").await, 0);

        proxy.release_held();
        value_becomes(&server, "marked", 1).await;
        eventually(SOON, "nothing is left of it", async || {
            server.clients(ClientKind::All).await.is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_dead_server_closes_its_clients() {
    let (server, proxy) = pair().await;
    let old = client(proxy.url()).await;
    server.kill();
    within(SOON, incr(&old, "a")).await.unwrap().unwrap_err();
    eventually(SOON, "the close is seen", async || proxy.connections() == 0).await;

    let mut none = TcpStream::connect(proxy.addr()).await.unwrap();
    let end = within(SOON, none.read(&mut [0; 8])).await;
    assert!(matches!(end, Ok(0) | Err(_)), "{end:?}");

    server.restart();
    let new = client(proxy.url()).await;
    assert_eq!(within(SOON, incr(&new, "a")).await.unwrap().unwrap(), 1);
}
