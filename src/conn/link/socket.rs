//! The socket under a connection: one of ours, which is read in portions.
//!
//! It connects as the client library would: to all addresses of a name at once, of which the first that
//! answers is taken. TLS is left to the library and its own socket: portions would have to be measured
//! after decryption, where it has no hook.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::first_bytes::{FirstBytes, Recorder};
use super::paced_read::{InFlight, PacedRead};
use crate::clock::Clock;
use crate::hint::Hint;

/// The time that each step of connecting has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) clock: Clock,
    pub(super) limit: Duration,
}

impl Step {
    /// Drives one step; `what` is there when it has been made.
    pub(super) async fn made<T>(
        self,
        what: &str,
        step: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let made = self.clock.within(self.limit, step).await;
        made.unwrap_or_else(|| {
            let why = format!("no {what} within {:?}", self.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
        })
    }
}

/// A connection, and the task behind it, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) connection: MultiplexedConnection,
    pub(super) in_flight: Arc<InFlight>,
    /// Of a task that the client library does not end by itself.
    driver: Option<AbortHandle>,
}

impl Socket {
    /// What the server sends first is recorded in `first_bytes`, unless it is over TLS. `disconnected` is
    /// given when the connection ends by itself.
    pub(super) async fn connect(
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
        step: Step,
        first_bytes: &FirstBytes,
        disconnected: &Arc<Hint>,
    ) -> Result<Self, RedisError> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, info.tcp_settings());
                let stream = step.made("connection", stream).await?;
                let stream = Recorder::new(stream, first_bytes.clone());
                step.made("answer", Self::over(stream, info, config, disconnected))
                    .await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let stream = Recorder::new(stream, first_bytes.clone());
                step.made("answer", Self::over(stream, info, config, disconnected))
                    .await
            }
            _ => {
                let client = redis::Client::open(info.clone())?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Self {
                    connection: step.made("connection", connection).await?,
                    in_flight: Arc::default(),
                    driver: None,
                })
            }
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
        disconnected: &Arc<Hint>,
    ) -> Result<Self, RedisError> {
        let in_flight = Arc::<InFlight>::default();
        let stream = PacedRead::new(stream, Arc::clone(&in_flight));
        let settings = info.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let disconnected = Arc::clone(disconnected);
        let driver = tokio::spawn(async move {
            driver.await;
            disconnected.give();
        });
        Ok(Self {
            connection,
            in_flight,
            driver: Some(driver.abort_handle()),
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.abort();
        }
    }
}

async fn connect_tcp(
    host: &str,
    port: u16,
    settings: &TcpSettings,
) -> Result<TcpStream, RedisError> {
    let addresses = tokio::net::lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(TcpStream::connect).map(Box::pin).collect();
    if attempts.is_empty() {
        let why = "No address found for host";
        return Err((ErrorKind::InvalidClientConfig, why).into());
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(settings.nodelay())?;
    if let Some(keepalive) = settings.keepalive() {
        SockRef::from(&stream).set_tcp_keepalive(keepalive)?;
    }
    Ok(stream)
}
