//! A lock at one server, however that is found, or at a quorum of several.

use std::time::Duration;

use futures_util::future::try_join_all;
use lockset::{
    Client, ClientBuilder, FencingToken, Lost, LostReason, Redlock, RedlockGuard, RedlockLock,
    ReentrantGuard, ReentrantLock,
};

use super::Result;

/// An outage that is shorter than a third of it is waited for.
const LEASE: Duration = Duration::from_secs(30);

/// A server that was started has no vote in a quorum for as long as this, in case that it was
/// restarted and has forgotten one.
pub(crate) const QUORUM_LEASE: Duration = Duration::from_secs(3);

/// Where locks are taken.
pub(crate) enum Locks {
    Server(Client),
    Quorum(Redlock),
}

#[derive(Clone)]
pub(crate) enum Lock {
    Server(ReentrantLock),
    Quorum(RedlockLock),
}

pub(crate) enum Guard {
    Server(ReentrantGuard),
    Quorum(RedlockGuard),
}

impl Locks {
    /// `urls` is one URL, or those of a quorum with a space between them.
    pub(crate) async fn connect(urls: &str) -> Result<Self> {
        let lease = match urls.contains(' ') {
            true => QUORUM_LEASE,
            false => LEASE,
        };
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

    /// Each grant of it comes with a fencing token.
    pub(crate) fn lock(&self, name: &str) -> Lock {
        match self {
            Self::Server(client) => Lock::Server(client.lock(name).fenced()),
            Self::Quorum(redlock) => Lock::Quorum(redlock.lock(name).fenced()),
        }
    }
}

impl Lock {
    pub(crate) async fn lock(&self) -> lockset::Result<Guard> {
        Ok(match self {
            Self::Server(lock) => Guard::Server(lock.lock().await?),
            Self::Quorum(lock) => Guard::Quorum(lock.lock().await?),
        })
    }

    pub(crate) async fn try_lock(&self) -> lockset::Result<Option<Guard>> {
        Ok(match self {
            Self::Server(lock) => lock.try_lock().await?.map(Guard::Server),
            Self::Quorum(lock) => lock.try_lock().await?.map(Guard::Quorum),
        })
    }
}

impl Guard {
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        match self {
            Self::Server(guard) => guard.fencing_token(),
            Self::Quorum(guard) => guard.fencing_token(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Server(guard) => guard.is_lost(),
            Self::Quorum(guard) => guard.is_lost(),
        }
    }

    pub(crate) async fn lost(&self) -> LostReason {
        match self {
            Self::Server(guard) => guard.lost().await,
            Self::Quorum(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        match self {
            Self::Server(guard) => guard.run(work).await,
            Self::Quorum(guard) => guard.run(work).await,
        }
    }

    pub(crate) async fn release(self) -> lockset::Result<()> {
        match self {
            Self::Server(guard) => guard.release().await,
            Self::Quorum(guard) => guard.release().await,
        }
    }
}
