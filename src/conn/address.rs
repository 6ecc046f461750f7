//! Addresses of servers, and the translation of announced addresses.

use std::fmt;
use std::sync::Arc;

use redis::ConnectionAddr;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Address {
    /// The address with the connection settings of `model`: with or without TLS.
    pub(super) fn connect_like(&self, model: &ConnectionAddr) -> ConnectionAddr {
        let (host, port) = (self.host.to_string(), self.port);
        match model {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            // In brackets, as in a URL, because an IPv6 address has colons itself.
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Translates the addresses that servers announce into addresses that this client can reach.
#[derive(Clone, Default)]
pub(crate) struct AddressMap(Option<Arc<Mapping>>);

type Mapping = dyn Fn(&str, u16) -> Option<(String, u16)> + Send + Sync;

impl AddressMap {
    pub(crate) fn of(
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(map)))
    }

    /// Translates an address that a server announced, of itself or of another server.
    pub(super) fn resolve(&self, announced: Address) -> Address {
        let map = self.0.as_ref();
        match map.and_then(|map| map(&announced.host, announced.port)) {
            Some((host, port)) => Address {
                host: host.into(),
                port,
            },
            None => announced,
        }
    }
}

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AddressMap")
            .field(&self.0.is_some())
            .finish()
    }
}
