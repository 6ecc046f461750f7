//! The keys, counters and clients of a server.
//!
//! Everything is read from the server over a new connection, never from the code under test.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisResult,
};

use super::Server;

/// How long the testkit's own connections wait for a connection or an answer.
const ADMIN_BOUND: Duration = Duration::from_secs(5);

/// The name of the testkit's connections, which excludes them from the results.
const OBSERVER: &str = "lockset-testkit-observer";

/// The clients that [`Server::clients`] lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientKind {
    /// Every client.
    All,
    /// Clients without a subscription.
    Normal,
    /// Clients with at least one subscription.
    PubSub,
}

/// One line of `CLIENT LIST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLine {
    /// The server's id of this connection, never reused.
    pub id: u64,
    /// The client's side of the connection, `HOST:PORT`.
    pub addr: String,
    /// The name that the client set, or an empty string.
    pub name: String,
    /// The number of its channels.
    pub sub: u64,
    /// The number of its patterns.
    pub psub: u64,
    /// The number of its shard channels, or 0 if the server has none.
    pub ssub: u64,
    /// Its last command.
    pub cmd: String,
    fields: BTreeMap<String, String>,
}

impl ClientLine {
    /// A field of the line by the server's name for it, such as `flags` or `age`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    fn parse(line: &str) -> Self {
        let fields: BTreeMap<String, String> = line
            .split(' ')
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let number = |name: &str| text(name).parse().unwrap_or(0);
        Self {
            id: number("id"),
            addr: text("addr"),
            name: text("name"),
            sub: number("sub"),
            psub: number("psub"),
            ssub: number("ssub"),
            cmd: text("cmd"),
            fields,
        }
    }
}

/// Every method panics if the server does not answer within 5 s, with the command and the error.
impl Server {
    /// A connection for the test's own commands, with a reply timeout of 5 s.
    pub async fn admin(&self) -> MultiplexedConnection {
        match self.try_admin().await {
            Ok(connection) => connection,
            Err(error) => panic!("no connection to {}: {error}", self.addr()),
        }
    }

    async fn try_admin(&self) -> RedisResult<MultiplexedConnection> {
        let addr = ConnectionAddr::Tcp(self.addr().ip().to_string(), self.port());
        let info = addr.into_connection_info()?;
        let mut settings = RedisConnectionInfo::default();
        if let Some(password) = &self.launch.password {
            settings = settings.set_password(password);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(ADMIN_BOUND))
            .set_response_timeout(Some(ADMIN_BOUND));
        Client::open(info.set_redis_settings(settings))?
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    /// All keys of database 0, sorted.
    pub async fn keys(&self) -> Vec<String> {
        let keys: Vec<Vec<u8>> = self.ask(&["KEYS", "*"]).await;
        let mut keys: Vec<String> = keys
            .iter()
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        keys.sort();
        keys
    }

    /// How often each command has run since the start or the last
    /// [`reset_stats`](Self::reset_stats).
    ///
    /// The names are the server's: lower case, and `client|list` for a subcommand. Commands that
    /// never ran are absent. Commands in scripts count. The testkit's commands count too: each call
    /// of a testkit method opens a connection, so it adds its own command and those of the
    /// handshake.
    pub async fn commandstats(&self) -> BTreeMap<String, u64> {
        let info: String = self.ask(&["INFO", "commandstats"]).await;
        info.lines()
            .filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let calls = rest.split(',').next()?.parse().ok()?;
                Some((name.to_owned(), calls))
            })
            .collect()
    }

    /// Resets the counters of [`commandstats`](Self::commandstats).
    pub async fn reset_stats(&self) {
        let () = self.ask(&["CONFIG", "RESETSTAT"]).await;
    }

    /// The connected clients in the order of connecting, without the connection that asks.
    pub async fn clients(&self, kind: ClientKind) -> Vec<ClientLine> {
        let command: &[&str] = match kind {
            ClientKind::All => &["CLIENT", "LIST"],
            ClientKind::Normal => &["CLIENT", "LIST", "TYPE", "normal"],
            ClientKind::PubSub => &["CLIENT", "LIST", "TYPE", "pubsub"],
        };
        let list: String = self.ask(command).await;
        let mut clients: Vec<ClientLine> = list
            .lines()
            .map(ClientLine::parse)
            // An earlier connection of the testkit may not be closed yet.
            .filter(|client| client.name != OBSERVER)
            .collect();
        clients.sort_by_key(|client| client.id);
        clients
    }

    /// The channels with at least one subscriber, sorted, without patterns and shard channels.
    pub async fn pubsub_channels(&self) -> Vec<String> {
        let mut channels: Vec<String> = self.ask(&["PUBSUB", "CHANNELS"]).await;
        channels.sort();
        channels
    }

    /// Runs these commands in one pipeline on a new connection, which other inspections do not see.
    pub(crate) async fn try_ask<T: FromRedisValue>(&self, commands: &[&[&str]]) -> RedisResult<T> {
        let mut connection = self.try_admin().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("SETNAME").arg(OBSERVER).ignore();
        for command in commands {
            pipe.cmd(command[0]).arg(&command[1..]);
        }
        pipe.query_async(&mut connection).await
    }

    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &[&str]) -> T {
        match self.try_ask(&[command]).await {
            Ok((answer,)) => answer,
            Err(error) => panic!("{}: {error}", command.join(" ")),
        }
    }
}
