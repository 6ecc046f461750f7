//! Error messages about servers: they name the server and the problem.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lockset::{Client, Error, Owner};
use lockset_testkit::{Cluster, Replicated, Server, unique_name, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{LEASE, SOON, client, hasty_client, took_less};

/// The message names this server, contains no password and does not mention TLS.
fn is_plain(error: &Error, at: SocketAddr) -> bool {
    let told = error.to_string();
    told.contains(&at.to_string())
        && !told.contains("secret")
        && !told.contains("rediss")
        && !told.contains('\n')
}

async fn refused(url: &str) -> Error {
    within(SOON * 2, Client::connect(url)).await.unwrap_err()
}

#[tokio::test]
async fn an_error_names_the_server() {
    let server = Server::start();
    let [patient, hasty] = [
        client(&server.url()).await,
        hasty_client(&server.url()).await,
    ];
    let lock = patient.lock(unique_name("lock"));
    let mut admin = server.admin().await;
    let mut full = redis::cmd("CONFIG");
    full.arg("SET").arg("maxmemory").arg("1");
    let () = full.query_async(&mut admin).await.unwrap();
    let error = within(SOON, lock.try_lock()).await.unwrap_err();
    assert!(
        error.is_refused() && is_plain(&error, server.addr()),
        "{error}"
    );
    let lock = hasty.lock(unique_name("lock"));
    server.stop();
    let error = within(SOON, lock.try_lock()).await.unwrap_err();
    server.cont();
    assert!(error.is_io() && is_plain(&error, server.addr()), "{error}");
    server.kill();
    for _ in 0..2 {
        let error = within(SOON, lock.try_lock()).await.unwrap_err();
        assert!(error.is_io() && is_plain(&error, server.addr()), "{error}");
    }
    let error = refused(&server.url()).await;
    assert!(error.is_io() && is_plain(&error, server.addr()), "{error}");
}

#[tokio::test]
async fn an_error_about_a_hold_or_a_client_names_the_server() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let guard = client.lock(unique_name("lock")).lock().await.unwrap();
    let mut admin = server.admin().await;
    let () = redis::cmd("FLUSHALL")
        .query_async(&mut admin)
        .await
        .unwrap();
    let error = guard.release().await.unwrap_err();
    assert!(
        error.is_not_held() && is_plain(&error, server.addr()),
        "{error}"
    );
    let lock = client.rw_lock(unique_name("lock")).owner(&Owner::new());
    let reading = lock.read().await.unwrap();
    let error = lock.try_write().await.unwrap_err();
    assert!(
        error.is_upgrade() && is_plain(&error, server.addr()),
        "{error}"
    );
    reading.release().await.unwrap();
    let lock = client.lock("x");
    client.shutdown().await.unwrap();
    let error = lock.try_lock().await.unwrap_err();
    assert!(
        error.is_closed() && is_plain(&error, server.addr()),
        "{error}"
    );
}

#[tokio::test]
async fn in_a_cluster_it_names_the_node() {
    let cluster = Cluster::builder().replicas(0);
    let cluster = cluster.node_timeout(Duration::from_secs(60)).start().await;
    let client = client(&cluster.url()).await;
    let name = unique_name("lock");
    let node = cluster.primary_of(&name).await;
    let mut full = redis::cmd("CONFIG");
    full.arg("SET").arg("maxmemory").arg("1");
    let () = full.query_async(&mut node.admin().await).await.unwrap();
    let error = client.lock(&name).try_lock().await.unwrap_err();
    assert!(
        error.is_refused() && is_plain(&error, node.addr()),
        "{error}"
    );
    node.stop();
    let error = client.lock(&name).try_lock().await.unwrap_err();
    node.cont();
    assert!(error.is_io() && is_plain(&error, node.addr()), "{error}");
}

#[tokio::test]
async fn a_wrong_password_quotes_the_server_and_not_the_password() {
    let server = Server::builder().args(["--requirepass", "right"]).start();
    let url = format!("redis://:secret@{}", server.addr());
    let error = refused(&url).await;
    assert!(
        error.is_denied() && is_plain(&error, server.addr()),
        "{error}"
    );
    assert!(error.to_string().contains("WRONGPASS"), "{error}");
    let error = refused(&format!("redis://{}", server.addr())).await;
    assert!(
        error.is_denied() && is_plain(&error, server.addr()),
        "{error}"
    );
}

/// The server repeats the arguments of an unknown command, which may contain the password.
#[tokio::test]
async fn a_password_is_not_printed_if_its_command_is_renamed() {
    for (renamed, query) in [("AUTH", ""), ("HELLO", "?protocol=resp3")] {
        let server = Server::builder()
            .args(["--rename-command", renamed, "OTHERWISE"])
            .start();
        let url = format!("redis://:s3cret-word@{}{query}", server.addr());
        let error = refused(&url).await;
        let told = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
        assert!(told.contains(renamed) && error.is_invalid(), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
    }
}

#[tokio::test]
async fn a_password_is_not_printed_if_a_sentinel_does_not_know_its_command() {
    let server = Server::builder()
        .args(["--rename-command", "HELLO", "OTHERWISE"])
        .start();
    let login = "sentinel_user=u&sentinel_password=s3cret-word";
    let error = refused(&format!("redis+sentinel://{}/main?{login}", server.addr())).await;
    let told = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
    assert!(told.contains("HELLO") && error.is_invalid(), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}

/// With and without a database in the URL.
#[tokio::test]
async fn a_missing_password_is_reported_with_a_database_too() {
    let server = Server::builder().args(["--requirepass", "x"]).start();
    let error = refused(&format!("redis://{}/3", server.addr())).await;
    assert!(error.is_denied() && !error.is_transient(), "{error}");
    assert!(error.to_string().contains("NOAUTH"), "{error}");
}

#[tokio::test]
async fn a_server_with_too_many_clients_says_so() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let mut few = redis::cmd("CONFIG");
    few.arg("SET").arg("maxclients").arg("1");
    let () = few.query_async(&mut admin).await.unwrap();
    for _ in 0..20 {
        let error = refused(&server.url()).await;
        let told = error.to_string();
        assert!(told.contains("max number of clients"), "{told}");
        assert!(
            error.is_refused() && is_plain(&error, server.addr()),
            "{told}"
        );
    }
}

/// Starts a server that sends these bytes to each client that has sent something.
async fn says(words: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    lockset_testkit::spawn(async move {
        while let Ok((mut theirs, _)) = listener.accept().await {
            lockset_testkit::spawn(async move {
                let _ = theirs.read(&mut [0; 1024]).await;
                let _ = theirs.write_all(words).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn an_unknown_protocol_is_reported() {
    let at = says(b"HTTP/1.1 400 Bad Request\r\nServer: web\r\n\r\n<html></html>").await;
    let error = refused(&format!("redis://:secret@{at}")).await;
    assert!(error.is_invalid() && is_plain(&error, at), "{error}");
    let told = error.to_string();
    assert!(
        told.contains("not Redis") && told.contains("HTTP/1.1 400"),
        "{told}"
    );
}

/// Redis's protected mode answers so, and ends the connection.
#[tokio::test]
async fn a_server_that_takes_no_connections_from_here_says_so() {
    let at = says(b"-DENIED Redis is running in protected mode. And so on\r\n").await;
    for url in [format!("redis://{at}"), format!("redis://:secret@{at}/3")] {
        let error = refused(&url).await;
        let told = error.to_string();
        assert!(told.contains("protected mode"), "{told}");
        assert!(error.is_denied() && is_plain(&error, at), "{told}");
    }
}

#[tokio::test]
async fn tls_is_mentioned_where_it_is_likely() {
    // The answers of a server that expects TLS.
    let at = says(b"\x15\x03\x03\x00\x02\x02\x46").await;
    let error = refused(&format!("redis://{at}")).await;
    assert!(error.to_string().contains("rediss"), "{error}");
    let silent = says(b"").await;
    let error = refused(&format!("redis://{silent}")).await;
    assert!(error.to_string().contains("rediss"), "{error}");
    // A server that is merely silent, or busy.
    let server = Server::start();
    server.stop();
    let builder = Client::builder(&server.url()).connect_timeout(LEASE);
    let error = within(SOON, builder.build()).await.unwrap_err();
    server.cont();
    assert!(error.is_io() && is_plain(&error, server.addr()), "{error}");
}

#[tokio::test]
async fn a_replica_is_reported_at_connect() {
    let replicated = Replicated::start().await;
    let replica = replicated.replica(0);
    let began = Instant::now();
    let error = refused(&replica.url()).await;
    took_less(began, SOON / 2);
    assert!(
        error.is_refused() && is_plain(&error, replica.addr()),
        "{error}"
    );
    assert!(error.to_string().contains("replica"), "{error}");
    Client::connect(&replicated.primary().url()).await.unwrap();
}
