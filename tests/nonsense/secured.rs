//! The same bounds over TLS: replies are bounded after decryption.

use std::sync::Arc;

use futures_util::future::join_all;
use lockset::{Client, Tls};
use lockset_testkit::{Certificates, Server};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::peak::Peak;
use crate::relay::{LANES, Relay};
use crate::{ALONE, MEMORY_MAX, Scene, endless, short};

/// A TLS acceptor with the server's certificate.
fn acceptor(certificates: &Certificates) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(certificates.server_cert_pem().as_bytes());
    let chain = chain.collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_slice(certificates.server_key_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

impl Scene {
    async fn secured() -> Self {
        let certificates = Certificates::new();
        let server = Server::start();
        let relay = Relay::over_tls(server.addr(), acceptor(&certificates));
        let tls = Tls::new().root_certificates_pem(certificates.ca_pem());
        let builder = Client::builder(&relay.url()).tls(tls);
        Self::of(server, relay, builder).await
    }
}

#[tokio::test]
async fn any_nonsense_over_tls_is_an_error_and_the_client_recovers() {
    let _alone = ALONE.lock().await;
    let all = short();
    for lane in LANES {
        join_all(all.iter().map(async |nonsense| {
            Scene::secured().await.bears(lane, nonsense).await;
        }))
        .await;
    }
}

#[tokio::test]
async fn endless_replies_are_bounded_in_memory_over_tls() {
    let _alone = ALONE.lock().await;
    // One case per bound.
    let named = [
        "a line without end",
        "a text of 16 MB",
        "messages",
        "confirmations",
    ];
    let all = endless().into_iter();
    for nonsense in all.filter(|nonsense| named.contains(&nonsense.name)) {
        let scenes = [(); 3].map(|()| Scene::secured());
        let scenes = join_all(scenes).await;
        let peak = Peak::begin();
        let all = scenes.iter().zip(LANES);
        join_all(all.map(|(scene, lane)| scene.bears(lane, &nonsense))).await;
        let peak = peak.end();
        println!("{} over TLS: {} KiB at most", nonsense.name, peak >> 10);
        assert!(peak < MEMORY_MAX, "{}: {peak}", nonsense.name);
    }
}
