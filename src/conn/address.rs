//! Addresses of servers, the translation of announced addresses, and the addresses of a host name.
//!
//! Invariant: a client looks a name up once at a time. The system blocks a thread for a look-up until the resolver
//! answers, and the time limit of an attempt to connect does not end that.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, Shared};
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};
use rustc_hash::FxHashMap;

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

    /// Returns the address to connect to, with or without TLS.
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

    /// Returns the settings of a connection to this address. Of the address of `model`, only the kind matters.
    pub(super) fn with_settings_of(&self, model: &ConnectionInfo) -> ConnectionInfo {
        let tls = matches!(model.addr(), ConnectionAddr::TcpTls { .. });
        model.clone().set_addr(self.to_connect(tls))
    }
}

/// Lists these addresses for a message, each once and in a fixed order.
pub(super) fn listed(addresses: &[Address]) -> String {
    let names: BTreeSet<String> = addresses.iter().map(Address::to_string).collect();
    Vec::from_iter(names).join(",")
}

/// Returns these addresses, each once, in their order.
pub(super) fn distinct(mut addresses: Vec<Address>) -> Vec<Address> {
    let mut seen = BTreeSet::new();
    addresses.retain(|address| seen.insert(address.clone()));
    addresses
}

/// Counts the servers that replied, by their own ids. A server that replied at two addresses counts once.
pub(super) fn count<'a>(ids: impl Iterator<Item = Option<&'a String>>) -> usize {
    let mut seen = BTreeSet::new();
    ids.filter(|id| id.is_none_or(|id| seen.insert(id))).count()
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

    /// Translates an address that a server announced, of itself or of another server. A panic of the map counts as no
    /// answer. Otherwise it would end the task that asks, which also follows the servers.
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

type Found = Result<Arc<[SocketAddr]>, Arc<io::Error>>;
type Lookup = Shared<BoxFuture<'static, Found>>;

/// The look-ups that are under way, by host and port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lookups(Arc<Mutex<FxHashMap<(String, u16), Lookup>>>);

impl Lookups {
    pub(super) async fn of(&self, host: &str, port: u16) -> io::Result<Arc<[SocketAddr]>> {
        let name = (host.to_owned(), port);
        let look_up = |name| async move {
            let found = tokio::net::lookup_host::<(String, u16)>(name).await?;
            Ok(found.collect())
        };
        self.joined(name, look_up).await
    }

    /// Joins the look-up of this name, or begins it.
    async fn joined<F>(
        &self,
        name: (String, u16),
        look_up: impl FnOnce((String, u16)) -> F,
    ) -> io::Result<Arc<[SocketAddr]>>
    where
        F: Future<Output = io::Result<Arc<[SocketAddr]>>> + Send + 'static,
    {
        let found = {
            let mut under_way = self.0.lock();
            let begin = || {
                let (all, looking) = (self.clone(), look_up(name.clone()));
                let name = name.clone();
                let task = tokio::spawn(async move {
                    let found = looking.await;
                    all.0.lock().remove(&name);
                    found.map_err(Arc::new)
                });
                let joined = |ended| match ended {
                    Ok(found) => found,
                    Err(error) => Err(Arc::new(io::Error::other(error))),
                };
                task.map(joined).boxed().shared()
            };
            under_way.entry(name.clone()).or_insert_with(begin).clone()
        };
        let found = found.await;
        found.map_err(|error| io::Error::new(error.kind(), error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_up_once_at_a_time() {
        let (lookups, begun) = (Lookups::default(), Arc::new(AtomicUsize::new(0)));
        let answers = Arc::new(Semaphore::new(0));
        let asked = || {
            let (begun, answers) = (Arc::clone(&begun), Arc::clone(&answers));
            lookups.joined(("db".to_owned(), 6379), move |_| async move {
                begun.fetch_add(1, Ordering::Relaxed);
                answers.acquire().await.unwrap().forget();
                Ok([SocketAddr::from(([127, 0, 0, 1], 6379))].into())
            })
        };
        // The time of these callers is over before the resolver answers.
        for _ in 0..10 {
            assert!(asked().now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        answers.add_permits(1);
        assert_eq!(asked().await.unwrap().len(), 1);
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        answers.add_permits(1);
        asked().await.unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 2, "an answer is not kept");
    }
}
