//! The lock on the seats: at one server, however that is found, or at a quorum of several.

use lockset::{Client, FencingToken, Lost, ReentrantGuard, ReentrantLock};

use crate::support::Result;

#[derive(Clone)]
pub(crate) enum SeatLock {
    Server(ReentrantLock),
}

pub(crate) enum SeatGuard {
    Server(ReentrantGuard),
}

impl SeatLock {
    /// `urls` is one URL, or those of a quorum. Also gives the clients, to be shut down.
    pub(crate) async fn connect(urls: &str, name: &str) -> Result<(Self, Vec<Client>)> {
        let client = Client::connect(urls).await?;
        // Each grant of a fenced lock comes with a token for the database.
        let lock = Self::Server(client.lock(name).fenced());
        Ok((lock, vec![client]))
    }

    pub(crate) async fn lock(&self) -> lockset::Result<SeatGuard> {
        Ok(match self {
            Self::Server(lock) => SeatGuard::Server(lock.lock().await?),
        })
    }
}

impl SeatGuard {
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        match self {
            Self::Server(guard) => guard.fencing_token(),
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
