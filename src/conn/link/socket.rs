//! How a link's connection is made: over a socket of ours, which gives answers in portions.
//!
//! It is connected as the client library would do it: to all addresses of a name at once, of which
//! the first that answers is taken. TLS is left to the library, with the socket it makes: portions
//! would have to be of what was decrypted, which it does not show.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::portions::{Portions, Traffic};

/// A connection, and the task behind it, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) connection: MultiplexedConnection,
    pub(super) traffic: Arc<Traffic>,
    /// Of a task that the client library does not end by itself.
    driver: Option<AbortHandle>,
}

impl Socket {
    pub(super) async fn connect(
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, info.tcp_settings()).await?;
                Self::over(stream, info, config).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                Self::over(stream, info, config).await
            }
            _ => {
                let client = redis::Client::open(info.clone())?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Self {
                    connection: connection.await?,
                    traffic: Arc::default(),
                    driver: None,
                })
            }
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let traffic = Arc::<Traffic>::default();
        let stream = Portions::new(stream, Arc::clone(&traffic));
        let settings = info.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Self {
            connection,
            traffic,
            driver: Some(tokio::spawn(driver).abort_handle()),
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
