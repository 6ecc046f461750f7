//! Locks at one server, or at a quorum of several.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockset::{Client, ClientBuilder, Guard, Redlock};

use super::Result;

/// Calls wait for outages shorter than a third of the lease.
const LEASE: Duration = Duration::from_secs(30);

/// A newly started server has no vote in a quorum for this long, because it may have forgotten one
/// in a restart.
pub(crate) const QUORUM_LEASE: Duration = Duration::from_secs(3);

/// The place where locks are kept. Each grant has a fencing token.
#[derive(Clone)]
pub(crate) enum Locks {
    Server(Client),
    Quorum(Redlock),
}

impl Locks {
    /// `urls` is one URL, or the URLs of a quorum separated by spaces.
    pub(crate) async fn connect(urls: &str) -> Result<Self> {
        let is_quorum = urls.contains(' ');
        let lease = if is_quorum { QUORUM_LEASE } else { LEASE };
        Self::with(urls, |builder| builder.lease(lease)).await
    }

    pub(crate) async fn with(
        urls: &str,
        settings: impl Fn(ClientBuilder) -> ClientBuilder,
    ) -> Result<Self> {
        let clients = urls.split(' ');
        let clients = clients.map(|url| settings(Client::builder(url)).build());
        let mut clients = try_join_all(clients).await?;
        Ok(match clients.len() {
            1 => Self::Server(clients.remove(0)),
            _ => Self::Quorum(Redlock::new(clients)?),
        })
    }

    pub(crate) async fn lock(&self, name: &str) -> lockset::Result<Box<dyn Guard>> {
        Ok(match self {
            Self::Server(client) => Box::new(client.lock(name).fenced().lock().await?),
            Self::Quorum(redlock) => Box::new(redlock.lock(name).fenced().lock().await?),
        })
    }

    pub(crate) async fn try_lock(&self, name: &str) -> lockset::Result<Option<Box<dyn Guard>>> {
        Ok(match self {
            Self::Server(client) => client.lock(name).fenced().try_lock().await?.map(boxed),
            Self::Quorum(redlock) => redlock.lock(name).fenced().try_lock().await?.map(boxed),
        })
    }
}

fn boxed(guard: impl Guard) -> Box<dyn Guard> {
    Box::new(guard)
}
