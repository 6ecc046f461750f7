//! Addresses of servers, and the translation of announced addresses.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

impl Address {
    pub(super) fn new(host: impl Into<Arc<str>>, port: u16) -> Self {
        let host = host.into();
        Self { host, port }
    }

    /// How to connect to it, with or without TLS.
    pub(super) fn to_connect(&self, tls: bool) -> ConnectionAddr {
        let (host, port) = (self.host.to_string(), self.port);
        if tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// The settings of a connection to it. Of the address of `model`, only the kind matters.
    pub(super) fn with_settings_of(&self, model: &ConnectionInfo) -> ConnectionInfo {
        let tls = matches!(model.addr(), ConnectionAddr::TcpTls { .. });
        model.clone().set_addr(self.to_connect(tls))
    }
}

/// These addresses, each once and in a fixed order, for messages.
pub(super) fn listed(addresses: &[Address]) -> String {
    let names: BTreeSet<String> = addresses.iter().map(Address::to_string).collect();
    Vec::from_iter(names).join(",")
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

    /// Translates an address that a server announced, of itself or of another server. A map that panics has no answer:
    /// the task that asks would end with it, and with the task all that follows the servers.
    pub(super) fn resolve(&self, announced: Address) -> Address {
        let map = self.0.as_ref();
        let mapped = |map: &Arc<Mapping>| map(&announced.host, announced.port);
        match map.and_then(|map| catch_unwind(AssertUnwindSafe(|| mapped(map))).ok()?) {
            Some((host, port)) => Address::new(host, port),
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
