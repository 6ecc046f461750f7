//! TLS connections work like any other, and an untrusted connection reports why.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockset::{Client, Error, Member, MultiLock, Result, Tls};
use lockset_testkit::{Certificates, Cluster, Sentinels, Server, eventually, within};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{SOON, cycle};

/// Long enough for a machine that stalls, and short enough for a test that waits for its end.
const RENEWED_LEASE: Duration = Duration::from_secs(3);

fn trusting(certificates: &Certificates) -> Tls {
    Tls::new().root_certificates_pem(certificates.ca_pem())
}

fn known(certificates: &Certificates) -> Tls {
    let (certificate, key) = (
        certificates.client_cert_pem(),
        certificates.client_key_pem(),
    );
    trusting(certificates).client_certificate_pem(certificate, key)
}

async fn connect(url: &str, tls: Tls) -> Result<Client> {
    within(SOON, Client::builder(url).tls(tls).build()).await
}

/// Acquires, keeps, waits for and releases every kind of lock.
async fn works(ours: &Client, theirs: &Client) {
    let members = |client: &Client| {
        MultiLock::new([
            Member::from(client.lock("a")),
            Member::from(client.fair_lock("b")),
            Member::from(client.rw_lock("c").read_side()),
            Member::from(client.rw_lock("d").write_side()),
        ])
        .map(|all| all.lease(RENEWED_LEASE))
    };
    let guard = members(ours).unwrap().lock().await.unwrap();
    let waiting = members(theirs).unwrap();
    assert!(waiting.try_lock().await.unwrap().is_none());
    let waiter = lockset_testkit::spawn(async move { waiting.lock().await });
    eventually(SOON, "it waits", async || theirs.stats().waiters > 0).await;
    assert!(
        tokio::time::timeout(RENEWED_LEASE * 5 / 4, guard.lost())
            .await
            .is_err()
    );
    guard.release().await.unwrap();
    let next = within(SOON, waiter).await.unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn locks_work_over_tls() {
    let server = Server::builder().tls().start();
    let client = async || {
        connect(&server.tls_url(), trusting(server.tls()))
            .await
            .unwrap()
    };
    works(&client().await, &client().await).await;

    // By name too, and for clients with and without TLS at once.
    let by_name = format!("rediss://localhost:{}", server.tls_addr().port());
    let by_name = connect(&by_name, trusting(server.tls())).await.unwrap();
    let plain = Client::connect(&server.url()).await.unwrap();
    works(&by_name, &plain).await;
}

/// The certificate is checked against the given name, and the address is used to connect.
#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_server_name_is_checked_in_place_of_the_address() {
    let server = Server::builder().tls().start();
    let url = server.tls_url();
    let named = |name: &str| trusting(server.tls()).server_name(name);
    let client = connect(&url, named("localhost")).await.unwrap();
    let guard = client.lock("x").lock().await.unwrap();
    guard.release().await.unwrap();
    // The name is not resolved, so it need not exist.
    refused(connect(&url, named("cache.example")).await, "another host");
    refused(connect(&url, named("no name")).await, "server name");
}

/// Each new connection uses the same certificates.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_connection_is_replaced_over_tls() {
    let builder = Server::builder().tls().demand_client_certificates();
    let server = builder.start();
    let ours = connect(&server.tls_url(), known(server.tls()))
        .await
        .unwrap();
    let theirs = connect(&server.tls_url(), known(server.tls()))
        .await
        .unwrap();
    let guard = ours
        .lock("x")
        .lease(Duration::from_secs(60))
        .lock()
        .await
        .unwrap();
    let waiter = lockset_testkit::spawn({
        let lock = theirs.lock("x");
        async move { lock.lock().await }
    });
    eventually(SOON, "it waits", async || theirs.stats().waiters == 1).await;
    let mut admin = server.admin().await;
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "SKIPME", "yes"]);
    let killed: u64 = kill.query_async(&mut admin).await.unwrap();
    assert!(killed >= 4, "{killed}");
    guard.reenter().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

/// Asserts that the error blames TLS, says what to check, and is not retryable.
fn refused(client: Result<Client>, what: &str) -> Error {
    let error = client
        .err()
        .unwrap_or_else(|| panic!("not refused: {what}"));
    let told = error.to_string();
    assert!(told.contains("TLS") && told.contains(what), "{told}");
    assert!(error.is_invalid() && !error.is_io(), "{told}");
    error
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_server_that_cannot_be_trusted_is_refused() {
    let also_here = ["--bind", "127.0.0.1", "127.0.0.3"];
    let server = Server::builder().tls().args(also_here).start();
    let url = server.tls_url();
    refused(
        connect(&url, trusting(&Certificates::new())).await,
        "root_certificates_pem",
    );
    // The system's roots do not have it either.
    refused(Client::connect(&url).await, "root_certificates_pem");
    let elsewhere = url.replace("127.0.0.1", "127.0.0.3");
    refused(
        connect(&elsewhere, trusting(server.tls())).await,
        "another host",
    );

    let server = Server::builder().tls_with(Certificates::expired()).start();
    refused(
        connect(&server.tls_url(), trusting(server.tls())).await,
        "expired",
    );
}

/// A TLS server that sends these bytes to each client that has sent something. Returns a count of
/// these clients.
fn says_over_tls(
    listener: TcpListener,
    certificates: &Certificates,
    words: &'static [u8],
) -> Arc<AtomicUsize> {
    let chain = CertificateDer::pem_slice_iter(certificates.server_cert_pem().as_bytes());
    let chain = chain.collect::<std::result::Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificates.server_key_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let times = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&times);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            let count = Arc::clone(&count);
            std::thread::spawn(move || {
                let mut theirs = StreamOwned::new(session, stream);
                let _ = theirs.read(&mut [0; 1024]);
                if theirs
                    .write_all(words)
                    .and_then(|()| theirs.flush())
                    .is_ok()
                {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    times
}

#[tokio::test]
async fn an_unknown_protocol_is_reported_over_tls_too() {
    let certificates = Certificates::new();
    let web = b"HTTP/1.1 400 Bad Request\r\nServer: web\r\n\r\n<html></html>";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    says_over_tls(listener, &certificates, web);
    for url in [format!("rediss://{at}"), format!("rediss://:secret@{at}")] {
        let error = connect(&url, trusting(&certificates)).await.unwrap_err();
        let shown = error.to_string();
        assert!(error.is_invalid() && !error.is_io(), "{shown}");
        assert!(
            shown.contains("not Redis") && shown.contains(&at.to_string()),
            "{shown}"
        );
        assert!(!shown.contains("secret"), "{shown}");
    }
}

/// Like a proxy whose server is down.
#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_known_server_is_awaited_despite_other_answers() {
    let server = Server::builder().tls().start();
    let url = server.tls_url();
    let client = connect(&url, trusting(server.tls())).await.unwrap();
    let lock = client.lock("x").give_up_after(Duration::from_secs(1));
    lock.lock().await.unwrap().release().await.unwrap();
    server.kill();
    let listener = TcpListener::bind(server.tls_addr()).unwrap();
    let times = says_over_tls(listener, server.tls(), b"HTTP/1.1 502 Bad Gateway\r\n\r\n");
    let error = within(SOON, lock.lock()).await.unwrap_err();
    assert!(error.is_io() && error.is_transient(), "{error}");
    assert!(times.load(Ordering::Relaxed) > 0, "it was said");
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_server_that_requires_a_login_is_reported() {
    let builder = Server::builder().tls().demand_client_certificates();
    let server = builder.start();
    let url = server.tls_url();
    let client = connect(&url, known(server.tls())).await.unwrap();
    cycle(&client.lock("x")).await;

    refused(
        connect(&url, trusting(server.tls())).await,
        "client_certificate_pem",
    );
    let stranger = Certificates::new();
    let (certificate, key) = (stranger.client_cert_pem(), stranger.client_key_pem());
    let tls = trusting(server.tls()).client_certificate_pem(certificate, key);
    refused(connect(&url, tls).await, "client_certificate_pem");
}

/// An invalid certificate or key is reported before anything is sent, and never printed.
#[tokio::test]
async fn a_key_is_checked_and_never_shown() {
    let (ours, theirs) = (Certificates::new(), Certificates::new());
    let key = theirs.client_key_pem();
    let secret = key.lines().nth(1).expect("a key in PEM");
    let tls = trusting(&ours).client_certificate_pem(ours.client_cert_pem(), key);
    let shown = format!(
        "{tls:?} {:?}",
        Client::builder("rediss://h").tls(tls.clone())
    );
    assert!(!shown.contains(secret), "{shown}");
    let error = refused(connect("rediss://127.0.0.1:1", tls).await, "client key");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(secret), "{shown}");
    // A certificate of no authority, and a certificate in place of a key.
    let tls = trusting(&ours).client_certificate_pem(ours.client_cert_pem(), ours.ca_pem());
    refused(connect("rediss://127.0.0.1:1", tls).await, "client key");
}

#[tokio::test]
async fn a_tls_client_of_a_plain_server_gets_an_error() {
    let plain = Server::start();
    let url = format!("rediss://{}", plain.addr());
    let error = connect(&url, trusting(&Certificates::new())).await.err();
    let told = error.expect("no TLS there").to_string();
    assert!(told.contains("speak TLS"), "{told}");
}

#[tokio::test]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_plain_client_of_a_tls_server_gets_an_error() {
    let server = Server::builder().tls().start();
    let url = format!("redis://{}", server.tls_addr());
    let error = within(SOON, Client::connect(&url)).await.err();
    let error = error.expect("TLS is spoken there");
    assert!(
        error.is_io() && error.to_string().contains("rediss"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn a_cluster_over_tls() {
    let cluster = Cluster::builder().tls().replicas(0).start().await;
    let client = async || {
        connect(&cluster.url(), known(cluster.node(0).tls()))
            .await
            .unwrap()
    };
    works(&client().await, &client().await).await;
    let stranger = connect(&cluster.url(), trusting(&Certificates::new())).await;
    let told = stranger.expect_err("not to be trusted").to_string();
    assert!(told.contains("certificate"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server that speaks TLS: make test-tls"]
async fn sentinels_over_tls() {
    let sentinels = Sentinels::builder().tls().start().await;
    let client = async || {
        connect(&sentinels.url(), known(sentinels.servers()[0].tls()))
            .await
            .unwrap()
    };
    let (ours, theirs) = (client().await, client().await);
    works(&ours, &theirs).await;
    let lock = ours.lock("x").lease(Duration::from_secs(60));
    let guard = lock.lock().await.unwrap();
    // Replicates the user.
    let mut admin = sentinels.primary().await.admin().await;
    let wait = redis::cmd("WAIT").arg(&["2", "5000"]).to_owned();
    let replicas: u32 = wait.query_async(&mut admin).await.unwrap();
    assert_eq!(replicas, 2);
    sentinels.fail_over().await;
    assert!(theirs.lock("x").try_lock().await.unwrap().is_none());
    guard.release().await.unwrap();
    works(&ours, &theirs).await;
    let stranger = connect(&sentinels.url(), trusting(&Certificates::new())).await;
    let told = stranger.expect_err("not to be trusted").to_string();
    assert!(told.contains("certificate"), "{told}");
}
