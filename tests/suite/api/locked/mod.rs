//! Functions with the attribute `#[locked]`.

mod kinds;
mod order;
mod refused;
mod shapes;
mod when_busy;

use std::time::Duration;

use lockset::Client;
use lockset_testkit::Server;

use crate::support::client;

/// The error type of the functions in these tests.
#[derive(Debug)]
enum Failed {
    Lock(lockset::Error),
    Work(&'static str),
}

impl From<lockset::Error> for Failed {
    fn from(error: lockset::Error) -> Self {
        Self::Lock(error)
    }
}

impl Failed {
    fn lock(self) -> lockset::Error {
        match self {
            Self::Lock(error) => error,
            Self::Work(why) => panic!("the work failed: {why}"),
        }
    }
}

async fn start() -> (Server, Client) {
    let server = Server::start();
    let client = client(&server.url()).await;
    (server, client)
}

/// Whether an exclusive lock of this name is held.
async fn is_held(client: &Client, name: &str) -> bool {
    client.lock(name).is_locked().await.expect("an answer")
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(30);
