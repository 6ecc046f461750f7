//! Adds TLS to a stream. We do this ourselves, so that its output can be bounded and paced like any other stream.
//!
//! Invariant: no data passes before the server has proved its name by a certificate of a trusted authority.

use std::sync::Arc;

use redis::RedisError;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A stream to a server that has proved its name.
pub(crate) type Secured = TlsStream<TcpStream>;

/// The TLS settings of a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Security {
    config: Option<Arc<ClientConfig>>,
    /// The host name in the certificates of all servers, if it is not the one to connect to.
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

/// The authorities to trust on a system without any: Mozilla's list.
pub(super) fn well_known_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}
