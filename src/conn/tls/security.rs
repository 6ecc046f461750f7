//! Making a stream secure, by our own hand: what comes out of it can be bounded and paced like any other.
//!
//! Invariant: nothing is passed on before the server has proved its name by a certificate of a trusted authority.

use std::sync::Arc;

use redis::RedisError;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A stream on which the server has proved who it is.
pub(crate) type Secured = TlsStream<TcpStream>;

/// Whom to trust, and as whom to appear.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    config: Option<Arc<ClientConfig>>,
    /// The host that the certificates of all servers name, if not the one that is connected to.
    server_name: Option<Arc<str>>,
}

impl Security {
    pub(super) fn new(config: ClientConfig, server_name: Option<Arc<str>>) -> Self {
        Self {
            config: Some(Arc::new(config)),
            server_name,
        }
    }

    /// Makes a stream to this host secure.
    pub(crate) async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<Secured, RedisError> {
        let config = match &self.config {
            Some(config) => Arc::clone(config),
            None => {
                let what = "no certificates are known";
                return Err((redis::ErrorKind::InvalidClientConfig, what).into());
            }
        };
        let name = self.server_name.as_deref().unwrap_or(host);
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            let what = "not a name that a certificate could be for";
            RedisError::from((redis::ErrorKind::InvalidClientConfig, what, name.to_owned()))
        })?;
        Ok(TlsConnector::from(config).connect(name, stream).await?)
    }
}

/// The authorities that are trusted where the system trusts none: those of Mozilla's list.
pub(super) fn well_known_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}
