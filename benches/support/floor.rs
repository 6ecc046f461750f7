//! The floor: the least that a lock on this server can do, on a connection like lockset's.
//!
//! `SET key owner NX PX`, and a script that deletes the key if it still has that owner. No
//! reentrancy, no renewal, no wake-up, nothing that survives a dropped future. The connection is
//! made and awaited as lockset's command connection is: one multiplexed connection without Nagle's
//! delay, the older protocol, and a timer of tokio's around each call. The floor can send its commands in two other
//! ways, with Nagle's delay and over lockset's own socket, to separate the socket's gain from lockset's cost.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ConnectionInfo, IntoConnectionInfo as _, Value};
use tokio::net::TcpStream;

use super::LEASE;
use super::ours::Hold;
use super::paced_read::{InFlight, PacedRead};

const COMPARE_AND_DELETE: &str = include_str!("compare_and_delete.lua");

pub(crate) const TAKE_ONE: &str = include_str!("take_one.lua");

/// lockset's limit for a reply with the default lease.
const REPLY_MAX: Duration = Duration::from_secs(1);

/// The length of the write queue in lockset's connections.
const WRITE_QUEUE: usize = 1024;

/// Whether the connection sends each write at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nagle {
    Off,
    /// redis-rs's own default.
    On,
}

/// One connection. A clone is the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    connection: MultiplexedConnection,
    /// Counted on lockset's socket alone.
    in_flight: Option<Arc<InFlight>>,
    release: Arc<str>,
}

/// One lock of one owner.
#[derive(Clone, Debug)]
pub(crate) struct FloorLock {
    floor: Floor,
    key: Arc<str>,
    owner: Arc<str>,
}

impl Floor {
    pub(crate) async fn connect(url: &str, nagle: Nagle) -> Self {
        let connection = connect(info(url, nagle), config()).await;
        Self::over(connection, None).await
    }

    /// Over a socket that gives answers in portions, as lockset's does.
    pub(crate) async fn in_portions(url: &str) -> Self {
        let info = info(url, Nagle::Off);
        let in_flight = Arc::<InFlight>::default();
        let stream = TcpStream::connect(info.addr().to_string()).await;
        let stream = stream.expect("the server takes connections");
        stream.set_nodelay(true).expect("a socket of TCP");
        let stream = PacedRead::new(stream, Arc::clone(&in_flight));
        let settings = info.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config())
                .await
                .expect("the server takes connections");
        tokio::spawn(driver);
        Self::over(connection, Some(in_flight)).await
    }

    async fn over(connection: MultiplexedConnection, in_flight: Option<Arc<InFlight>>) -> Self {
        let mut floor = Self {
            connection,
            in_flight,
            release: "".into(),
        };
        floor.release = floor.load(COMPARE_AND_DELETE).await;
        floor
    }

    /// Makes the server know a script.
    pub(crate) async fn load(&mut self, text: &str) -> Arc<str> {
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg(text);
        match self.ask(&load).await {
            Value::BulkString(sha) => String::from_utf8(sha).expect("a SHA is ASCII").into(),
            other => panic!("SCRIPT LOAD answered {other:?}"),
        }
    }

    pub(crate) fn lock(&self, key: &str, owner: &str) -> FloorLock {
        FloorLock {
            floor: self.clone(),
            key: key.into(),
            owner: owner.into(),
        }
    }

    pub(crate) async fn ping(&mut self) {
        let answer = self.ask(&redis::cmd("PING")).await;
        assert_eq!(answer, Value::SimpleString("PONG".to_owned()));
    }

    /// The server's bytes in use.
    pub(crate) async fn used_memory(&mut self) -> i64 {
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let text = match self.ask(&info).await {
            Value::VerbatimString { text, .. } => text,
            Value::BulkString(bytes) => String::from_utf8(bytes).expect("text"),
            other => panic!("INFO says {other:?}"),
        };
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|bytes| bytes.trim().parse().ok())
            .expect("a number of bytes")
    }

    pub(crate) async fn ask(&mut self, command: &Cmd) -> Value {
        let _guard = self.in_flight.as_deref().map(|in_flight| in_flight.add(1));
        let reply = self.connection.send_packed_command(command);
        tokio::time::timeout(REPLY_MAX, reply)
            .await
            .expect("a reply in time")
            .and_then(Value::extract_error)
            .expect("a reply that is no error")
    }
}

impl FloorLock {
    pub(crate) async fn try_acquire(&mut self) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(&*self.key).arg(&*self.owner);
        set.arg("NX").arg("PX").arg(LEASE.as_millis() as u64);
        self.floor.ask(&set).await == Value::Okay
    }

    pub(crate) async fn release(&mut self) {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&*self.floor.release).arg(1);
        release.arg(&*self.key).arg(&*self.owner);
        let answer = self.floor.ask(&release).await;
        assert_eq!(answer, Value::Int(1), "it is held until it is released");
    }

    /// A cycle of lockset's scripts, which the server has to know, without lockset.
    pub(crate) async fn scripts_cycle(&mut self) {
        let hold = Hold {
            key: &self.key,
            holder: &self.owner,
        };
        let taken = self.floor.ask(&hold.acquire()).await;
        assert_eq!(taken, Value::Nil, "nobody else wants it");
        let told = self.floor.ask(&hold.release()).await;
        assert_eq!(told, Value::Int(0), "it is held until it is released");
    }

    pub(crate) async fn cycle(&mut self) {
        assert!(self.try_acquire().await, "nobody else wants it");
        self.release().await;
    }
}

/// A semaphore without leases, holders and waiters.
#[derive(Clone, Debug)]
pub(crate) struct FloorPermits {
    floor: Floor,
    key: Arc<str>,
    take: Arc<str>,
}

impl FloorPermits {
    pub(crate) async fn connect(url: &str, nagle: Nagle, key: &str, permits: u32) -> Self {
        let mut floor = Floor::connect(url, nagle).await;
        floor.ask(redis::cmd("SET").arg(key).arg(permits)).await;
        let take = floor.load(TAKE_ONE).await;
        let key = key.into();
        Self { floor, key, take }
    }

    pub(crate) async fn cycle(&mut self) {
        let mut take = redis::cmd("EVALSHA");
        take.arg(&*self.take).arg(1).arg(&*self.key);
        let left = self.floor.ask(&take).await;
        assert!(matches!(left, Value::Int(0..)), "one is free");
        let mut give = redis::cmd("INCR");
        give.arg(&*self.key);
        assert!(matches!(self.floor.ask(&give).await, Value::Int(1..)));
    }
}

pub(crate) fn info(url: &str, nagle: Nagle) -> ConnectionInfo {
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(nagle == Nagle::Off);
    url.into_connection_info()
        .expect("the test kit's own URL is a valid one")
        .set_tcp_settings(tcp)
}

pub(crate) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WRITE_QUEUE)
}

pub(crate) async fn connect(
    info: ConnectionInfo,
    config: AsyncConnectionConfig,
) -> MultiplexedConnection {
    redis::Client::open(info)
        .expect("a client")
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("the server takes connections")
}
