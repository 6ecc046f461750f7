//! The lock server of an example: the user's own if `REDIS_URL` is set, else a private one.

use lockset_testkit::Server;
use redis::aio::MultiplexedConnection;

use super::Result;

pub(crate) struct LockServer {
    pub(crate) url: String,
    /// What it is and where, without a password.
    pub(crate) description: String,
    connection: MultiplexedConnection,
    // Ends with this value.
    _private: Option<Server>,
}

impl LockServer {
    pub(crate) async fn find() -> Result<Self> {
        let (private, url) = match std::env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => (None, url),
            _ => {
                let server = Server::builder().try_start()?;
                let url = server.url();
                (Some(server), url)
            }
        };
        // An error of the parser may repeat the URL, and with it a password.
        let client = redis::Client::open(&*url)
            .map_err(|_| "REDIS_URL is not a URL like redis://user:password@host:6379")?;
        let address = client.get_connection_info().addr();
        let mut connection = client
            .get_multiplexed_async_connection()
            .await
            .map_err(|error| format!("no lock server at {address}: {error}"))?;

        let info: String = redis::cmd("INFO")
            .arg("server")
            .query_async(&mut connection)
            .await?;
        let place = match private {
            Some(_) => "a private server on loopback".to_owned(),
            None => format!("your server at {address} (REDIS_URL)"),
        };
        Ok(Self {
            url,
            description: format!("{}, {place}", version(&info)),
            connection,
            _private: private,
        })
    }

    /// A connection of the example's own, for what is no lock.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Removes all that belongs to locks of these names: the counters of fencing tokens, which
    /// otherwise stay for good; and, after a run that was broken off, holds and queues.
    pub(crate) async fn clear(&self, locks: &[String]) -> Result<()> {
        let mut delete = redis::cmd("DEL");
        for lock in locks {
            delete.arg(lock);
            for helper in HELPERS {
                delete.arg(format!("{helper}:{{{lock}}}"));
            }
        }
        delete.exec_async(&mut self.connection()).await?;
        Ok(())
    }
}

/// The keys beside the one that is called as the lock.
const HELPERS: [&str; 5] = [
    "redisson_lock_token",
    "redisson_lock_queue",
    "redisson_lock_timeout",
    "lockset_fair_alive",
    "lockset_rw_waiting",
];

/// Valkey also names the version of Redis it is compatible with, so its own name comes first.
fn version(info: &str) -> String {
    let field = |key| info.lines().find_map(|line| line.strip_prefix(key));
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server without a version".to_owned(),
    }
}
