//! TLS: the user's own certificates, the secured stream, the advice on its errors. We add TLS to a stream ourselves, so
//! that its output can be bounded and paced like any other stream.
//!
//! Invariants: certificates are always verified. No data passes before the server has proved its name by a certificate
//! of a trusted authority. No text of a private key is ever shown, not even in the message of a parser that failed on
//! it.

use std::error::Error as StdError;
use std::sync::Arc;
use std::{fmt, io};

use redis::RedisError;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription as Alert, CertificateError as Bad, ClientConfig, Error as Cause, RootCertStore,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::api::error::{Error, Result};

/// Certificates for connections over TLS (`rediss://` and the like). Needs the feature `tls`.
///
/// By default a client trusts the authorities that the system trusted when the client was built (Mozilla's
/// list, if the system has none), and presents no certificate of its own. The certificate and the name of the
/// server are always verified.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// use lockset::{Client, Tls};
///
/// let tls = Tls::new()
///     .root_certificates_pem(std::fs::read("ca.crt")?)
///     .client_certificate_pem(std::fs::read("app.crt")?, std::fs::read("app.key")?);
/// let client = Client::builder("rediss://redis.internal:6379").tls(tls).build().await?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "settings do nothing until they are given to a builder"]
pub struct Tls {
    roots: Option<Vec<u8>>,
    /// A certificate and its private key.
    client: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<Arc<str>>,
}

impl Tls {
    /// The default settings: the authorities of the system, no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts these authorities instead of the system's. `certificates` is one or more in PEM.
    ///
    /// Certificates that cannot be read are reported by [`build`](crate::ClientBuilder::build)
    /// ([`is_invalid`](crate::Error::is_invalid)).
    pub fn root_certificates_pem(mut self, certificates: impl Into<Vec<u8>>) -> Self {
        self.roots = Some(certificates.into());
        self
    }

    /// Presents this certificate to servers that ask for one. Both are PEM: `certificate` may be followed by
    /// its intermediate certificates, `key` is its private key, not encrypted.
    ///
    /// A pair that cannot be used is reported by [`build`](crate::ClientBuilder::build)
    /// ([`is_invalid`](crate::Error::is_invalid)).
    pub fn client_certificate_pem(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((certificate.into(), key.into()));
        self
    }

    /// Expects this host in the certificates of all servers, instead of the host that the client connects to.
    ///
    /// For servers behind a tunnel or a NAT, and for clusters whose nodes announce addresses instead of
    /// names. The name is sent to each server (SNI), which has to prove that it owns it. Where the nodes have
    /// different names, use [`address_map`](crate::ClientBuilder::address_map).
    ///
    /// ```no_run
    /// # async fn doc() -> lockset::Result<()> {
    /// use lockset::{Client, Tls};
    ///
    /// let tls = Tls::new().server_name("redis.internal");
    /// let client = Client::builder("rediss://127.0.0.1:16379").tls(tls).build().await?;
    /// # drop(client); Ok(()) }
    /// ```
    pub fn server_name(mut self, name: &str) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Builds the settings of the connections. Reports unusable certificates here, not at the first connection.
    pub(crate) fn security(&self) -> Result<Security> {
        install_crypto_provider();
        let mut roots = RootCertStore::empty();
        if let Some(pem) = &self.roots {
            for root in certificates(pem).ok_or_else(|| unusable(ROOTS_UNREADABLE))? {
                roots.add(root).map_err(|_| unusable(ROOTS_UNREADABLE))?;
            }
        } else {
            roots = system_roots().unwrap_or_else(well_known_roots);
        }
        if let Some(name) = &self.server_name {
            ServerName::try_from(&**name).map_err(|_| unusable(SERVER_NAME_UNUSABLE))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match &self.client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate);
                let chain = chain.ok_or_else(|| unusable(CLIENT_CERTIFICATE_UNREADABLE))?;
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|_| unusable(CLIENT_KEY_UNREADABLE))?;
                let config = config.with_client_auth_cert(chain, key);
                config.map_err(|_| unusable(CLIENT_KEY_OF_ANOTHER))?
            }
        };
        Ok(Security {
            config: Some(Arc::new(config)),
            server_name: self.server_name.clone(),
        })
    }
}

const SERVER_NAME_UNUSABLE: &str = "the server name is not a host name or address";
const ROOTS_UNREADABLE: &str = "the root certificates are not certificates of authorities in PEM; \
                                each starts with -----BEGIN CERTIFICATE-----";
const CLIENT_CERTIFICATE_UNREADABLE: &str = "the client certificate is not a certificate in PEM; \
                                             it starts with -----BEGIN CERTIFICATE-----";
const CLIENT_KEY_UNREADABLE: &str = "the client key is not an unencrypted private key in PEM; \
                                     it starts with -----BEGIN PRIVATE KEY-----";
const CLIENT_KEY_OF_ANOTHER: &str = "the client key does not belong to the client certificate; \
                                     give the key that the certificate was made with";

/// Returns the authorities to trust on a system without any: Mozilla's list.
fn well_known_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}

/// Returns the authorities that the system trusts and this client can parse; `None` if there are none.
fn system_roots() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then_some(roots)
}

fn unusable(why: &str) -> Error {
    Error::invalid("connect", format!("TLS: {why}"))
}

/// Parses one or more certificates.
fn certificates(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    certificates.ok().filter(|read| !read.is_empty())
}

/// Installs a crypto provider unless the program has one. If a program builds rustls with several providers and
/// chooses none, rustls would panic.
fn install_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        // This fails if another thread was faster, but then there is a provider.
        drop(ring::default_provider().install_default());
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("root_certificates", &self.roots.is_some())
            .field("client_certificate", &self.client.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// The TLS settings of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    config: Option<Arc<ClientConfig>>,
    /// The host name in the certificates of all servers, if it is not the one to connect to.
    server_name: Option<Arc<str>>,
}

impl Security {
    /// Makes a stream to this host secure: the server has proved its name.
    pub(crate) async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, RedisError> {
        let Some(config) = self.config.clone() else {
            let what = "no certificates are known";
            return Err((redis::ErrorKind::InvalidClientConfig, what).into());
        };
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            let what = "not a name that a certificate could be for";
            RedisError::from((redis::ErrorKind::InvalidClientConfig, what, name.to_owned()))
        })?;
        Ok(TlsConnector::from(config).connect(name, stream).await?)
    }
}

/// Returns the advice for a connection that failed because of TLS; `None` if it failed for another reason.
pub(super) fn tls_advice(error: &RedisError) -> Option<&'static str> {
    Some(match reason(error)? {
        // A bad signature comes from another authority of the same name.
        Cause::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "the server's certificate is not from a trusted authority; give the authority's \
             certificate with Tls::root_certificates_pem, or check that this is your \
             server"
        }
        Cause::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the server's certificate has expired; renew it, or check the clock of this machine"
        }
        Cause::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the server's certificate is not valid yet; check the clock of this machine"
        }
        Cause::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is for another host; connect by a name or address that it \
             lists, or check that this is your server"
        }
        Cause::InvalidCertificate(_) => "the server's certificate cannot be trusted; check it",
        Cause::AlertReceived(
            Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::DecryptError
            | Alert::AccessDenied,
        ) => {
            "the server refuses this client; give a certificate that it trusts with \
             Tls::client_certificate_pem"
        }
        Cause::InvalidMessage(_) => {
            "the server does not speak TLS on this port; connect to its TLS port, or use a URL \
             without TLS"
        }
        _ => "the TLS handshake failed; check versions and certificates on both sides",
    })
}

/// Whether the error may come from a proxy while the server is away, because it is not about certificates.
pub(super) fn may_pass(error: &RedisError) -> bool {
    matches!(
        reason(error),
        Some(
            Cause::InvalidMessage(_)
                | Cause::AlertReceived(
                    Alert::InternalError | Alert::UserCanceled | Alert::CloseNotify
                )
        )
    )
}

/// Returns the cause of a failed handshake, unwrapped from the errors of redis and io.
fn reason(error: &RedisError) -> Option<&Cause> {
    let source = StdError::source(error)?;
    let source: &(dyn StdError + 'static) =
        match source.downcast_ref::<Arc<dyn StdError + Send + Sync + 'static>>() {
            Some(shared) => &**shared,
            None => source,
        };
    match source.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref()?.downcast_ref(),
        None => source.downcast_ref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::url;

    #[test]
    fn an_unusable_certificate_or_key_is_reported_and_never_shown() {
        let begun = "-----BEGIN PRIVATE KEY-----\ns3cret";
        let stray = "s3cret\n-----END PRIVATE KEY-----";
        for (tls, wrong) in [
            (Tls::new().root_certificates_pem("s3cret"), "root"),
            (Tls::new().root_certificates_pem(""), "root"),
            (Tls::new().root_certificates_pem(begun), "root"),
            (
                Tls::new().root_certificates_pem(
                    "-----BEGIN CERTIFICATE-----\ns3cret\n-----END CERTIFICATE-----",
                ),
                "root",
            ),
            (
                Tls::new().client_certificate_pem("s3cret", begun),
                "client certificate",
            ),
            (
                Tls::new().client_certificate_pem(stray, stray),
                "client certificate",
            ),
        ] {
            let target = url::parse("rediss://h").unwrap();
            let error = target.security(Some(&tls)).unwrap_err();
            assert!(error.is_invalid() && !error.is_io(), "{error}");
            let shown = format!("{error} {error:?} {tls:?}");
            assert!(shown.contains(wrong) && shown.contains("TLS"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
    }

    #[test]
    fn certificates_belong_to_a_url_with_tls() {
        for url in [
            "redis://h",
            "redis+cluster://h",
            "redis+sentinel://h/m",
            "unix:///s",
        ] {
            let target = url::parse(url).unwrap();
            let error = target.security(Some(&Tls::new())).unwrap_err();
            assert!(
                error.is_invalid() && error.to_string().contains("rediss"),
                "{error}"
            );
            assert!(target.security(None).is_ok());
        }
        for url in ["rediss://h", "rediss+cluster://h", "rediss+sentinel://h/m"] {
            assert!(url::parse(url).unwrap().security(Some(&Tls::new())).is_ok());
        }
    }
}
