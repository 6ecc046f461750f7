//! The lock server of an example: the user's own if `REDIS_URL` is set, otherwise a private one.

use lockset_testkit::Server;
use redis::aio::MultiplexedConnection;

use super::Result;

pub(crate) struct LockServer {
    pub(crate) url: String,
    /// The server's kind and address, without a password.
    pub(crate) description: String,
    connection: MultiplexedConnection,
    // Stopped when this value is dropped.
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
        // An error of the parser may contain the URL with its password.
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

    /// The example's own connection, for data other than locks.
    pub(crate) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    /// Removes all keys of locks, semaphores and elections with these names: the counters of fencing tokens, which would
    /// otherwise stay, and the holds and queues of an interrupted run.
    pub(crate) async fn clear(&self, locks: &[String]) -> Result<()> {
        let mut delete = redis::cmd("DEL");
        for lock in locks {
            delete.arg(lock);
            for helper in HELPERS {
                delete.arg(format!("{helper}:{{{lock}}}"));
            }
            // The permits of a semaphore.
            delete.arg(format!("{{{lock}}}:timeout"));
        }
        delete.exec_async(&mut self.connection()).await?;
        Ok(())
    }
}

/// The prefixes of the keys beside a lock's own key.
const HELPERS: [&str; 6] = [
    "redisson_lock_token",
    "redisson_lock_queue",
    "redisson_lock_timeout",
    "lockset_fair_alive",
    "lockset_rw_waiting",
    "lockset_leader",
];

/// Valkey also reports a compatible Redis version, so its own name is checked first.
fn version(info: &str) -> String {
    let field = |key| info.lines().find_map(|line| line.strip_prefix(key));
    match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server without a version".to_owned(),
    }
}
