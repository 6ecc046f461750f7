//! TLS in the testkit: between servers and clients and among servers, if the binary supports it.

use std::time::Duration;

use lockset_testkit::{Certificates, Cluster, Sentinels, Server};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncCommands as _, AsyncConnectionConfig, Client, ClientTlsConfig, RedisResult,
    TlsCertificates,
};

const SOON: Duration = Duration::from_secs(10);

/// A timeout long enough for a busy machine.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON))
}

/// A connection that trusts the authority, and presents the client's certificate if requested.
async fn connect(
    url: &str,
    certificates: &Certificates,
    show: bool,
) -> RedisResult<MultiplexedConnection> {
    let client_tls = show.then(|| ClientTlsConfig {
        client_cert: certificates.client_cert_pem().into(),
        client_key: certificates.client_key_pem().into(),
    });
    let tls = TlsCertificates {
        client_tls,
        root_cert: Some(certificates.ca_pem().into()),
    };
    let client = Client::build_with_tls(url, tls)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&patient())
        .await?;
    // In TLS 1.3, a client only learns of a rejection after the handshake.
    let () = connection.ping().await?;
    Ok(connection)
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_server_supports_tls_beside_its_plain_port() {
    let server = Server::builder().tls().start();
    let mut client = connect(&server.tls_url(), server.tls(), false)
        .await
        .unwrap();
    let () = client.set("a", 1).await.unwrap();
    assert_eq!(server.keys().await, ["a"]);

    let by_name = server.tls_url().replace("127.0.0.1", "localhost");
    connect(&by_name, server.tls(), true).await.unwrap();

    let stranger = Certificates::new();
    let refused = connect(&server.tls_url(), &stranger, false)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");

    server.restart();
    connect(&server.tls_url(), server.tls(), false)
        .await
        .unwrap();
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_server_can_demand_a_certificate() {
    let server = Server::builder().tls().demand_client_certificates().start();
    connect(&server.tls_url(), server.tls(), true)
        .await
        .unwrap();
    connect(&server.tls_url(), server.tls(), false)
        .await
        .unwrap_err();
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_certificate_can_be_out_of_date() {
    let server = Server::builder().tls_with(Certificates::expired()).start();
    let refused = connect(&server.tls_url(), server.tls(), true)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("xpired"), "{refused}");
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_cluster_supports_tls() {
    let cluster = Cluster::builder().tls().start().await;
    assert!(cluster.url().starts_with("rediss+cluster://"));
    let owner = cluster.primary_of("a").await;
    let mut client = connect(&owner.tls_url(), owner.tls(), true).await.unwrap();
    let () = client.set("a", 1).await.unwrap();

    // Redirections lead to a TLS port.
    let primaries = cluster.primaries().await;
    let other = primaries
        .iter()
        .find(|node| node.addr() != owner.addr())
        .unwrap();
    let mut lost = connect(&other.tls_url(), owner.tls(), true).await.unwrap();
    let moved = lost.get::<_, u64>("a").await.unwrap_err();
    let (target, _) = moved.redirect_node().unwrap();
    assert_eq!(target, owner.tls_addr().to_string());

    let slot = cluster.slot("a").await;
    cluster.migrate(slot, other).await;
    assert_eq!(lost.get::<_, u64>("a").await.unwrap(), 1);
    cluster.kill_primary_of("a").await;
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn sentinels_speak_it() {
    let sentinels = Sentinels::builder().tls().hurried().start().await;
    assert!(sentinels.url().starts_with("rediss+sentinel://"));
    let sentinel = &sentinels.sentinels()[0];
    let mut asking = connect(&sentinel.tls_url(), sentinel.tls(), true)
        .await
        .unwrap();
    let (_, port): (String, u16) = redis::cmd("SENTINEL")
        .arg(&["GET-MASTER-ADDR-BY-NAME", "main"])
        .query_async(&mut asking)
        .await
        .unwrap();
    let primary = sentinels.primary().await;
    assert_eq!(port, primary.tls_addr().port());
    sentinels.fail_over().await;
    sentinels.is_well().await;
}

#[test]
fn tls_support_of_a_binary_is_detected() {
    let yes = Server::supports_tls();
    assert_eq!(Server::supports_tls(), yes);
    let outcome = Server::builder().tls().try_start();
    assert_eq!(outcome.is_ok(), yes);
}

#[test]
fn keys_are_not_shown() {
    let certificates = Certificates::new();
    assert_eq!(format!("{certificates:?}"), "Certificates { .. }");
}
