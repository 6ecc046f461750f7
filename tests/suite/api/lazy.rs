//! Clients that are built without a connection.

use lockset::Client;
use lockset_testkit::{Sentinels, Server, eventually, unique_name, within};

use crate::support::{LEASE, SOON};

/// Stops the server and returns its URL.
fn stopped(server: &Server) -> String {
    let url = server.url();
    server.kill();
    url
}

#[tokio::test]
async fn a_lazy_client_is_built_while_its_server_is_down() {
    let server = Server::start();
    let url = stopped(&server);
    assert!(Client::connect(&url).await.unwrap_err().is_io());
    let client = Client::builder(&url).lazy().lease(LEASE).build().await;
    let client = client.expect("a client without a server");
    let lock = client.lock(unique_name("lock"));
    let refused = within(SOON, lock.try_lock()).await.unwrap_err();
    assert!(refused.is_io(), "{refused}");

    server.restart();
    let taken = async || lock.try_lock().await.is_ok_and(|guard| guard.is_some());
    eventually(SOON, "the lock is taken", taken).await;
}

#[tokio::test]
async fn a_lazy_client_makes_no_connection_before_the_first_call() {
    let server = Server::start();
    let client = Client::builder(&server.url()).lazy().build().await.unwrap();
    let connections = async || {
        let clients = server.clients(lockset_testkit::ClientKind::All).await;
        let ours = clients.iter().filter(|line| line.name.contains("lockset-"));
        ours.count()
    };
    assert_eq!(connections().await, 0);
    let guard = client.lock(unique_name("lock")).lock().await.unwrap();
    assert_eq!(connections().await, 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lazy_client_behind_sentinels_finds_the_primary_by_itself() {
    let sentinels = Sentinels::shared().await;
    let builder = Client::builder(&sentinels.url()).lazy();
    let client = builder.build().await.unwrap();
    let lock = client.lock(unique_name("lock"));
    let guard = within(SOON, lock.lock()).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lazy_client_of_a_cluster_is_refused_in_words() {
    let url = "redis+cluster://127.0.0.1:1";
    let refused = Client::builder(url).lazy().build().await.unwrap_err();
    assert!(refused.is_invalid(), "{refused}");
    assert!(refused.to_string().contains("lazy"), "{refused}");
}
