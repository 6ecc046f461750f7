//! A lock at one server, however that is found, or at a quorum of several.

use lockset::{Client, FencingToken, Lost, LostReason, ReentrantGuard, ReentrantLock};

use super::Result;

/// Where locks are taken.
pub(crate) enum Locks {
    Server(Client),
}

#[derive(Clone)]
pub(crate) enum Lock {
    Server(ReentrantLock),
}

pub(crate) enum Guard {
    Server(ReentrantGuard),
}

impl Locks {
    /// `urls` is one URL, or those of a quorum with a space between them.
    pub(crate) async fn connect(urls: &str, lease: std::time::Duration) -> Result<Self> {
        let client = Client::builder(urls).lease(lease).build().await?;
        Ok(Self::Server(client))
    }

    /// Each grant of it comes with a fencing token.
    pub(crate) fn lock(&self, name: &str) -> Lock {
        match self {
            Self::Server(client) => Lock::Server(client.lock(name).fenced()),
        }
    }

    pub(crate) async fn shutdown(self) -> lockset::Result<()> {
        match self {
            Self::Server(client) => client.shutdown().await,
        }
    }
}

impl Lock {
    pub(crate) async fn lock(&self) -> lockset::Result<Guard> {
        Ok(match self {
            Self::Server(lock) => Guard::Server(lock.lock().await?),
        })
    }

    pub(crate) async fn try_lock(&self) -> lockset::Result<Option<Guard>> {
        Ok(match self {
            Self::Server(lock) => lock.try_lock().await?.map(Guard::Server),
        })
    }
}

impl Guard {
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        match self {
            Self::Server(guard) => guard.fencing_token(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::Server(guard) => guard.is_lost(),
        }
    }

    pub(crate) async fn lost(&self) -> LostReason {
        match self {
            Self::Server(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        match self {
            Self::Server(guard) => guard.run(work).await,
        }
    }

    pub(crate) async fn release(self) -> lockset::Result<()> {
        match self {
            Self::Server(guard) => guard.release().await,
        }
    }
}
