//! The socket under a connection, and the task that drives it.
//!
//! Connects as the client library does: to all addresses of a name at once, and the first that answers is used.

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::SockRef;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::wire::{Wire, WireParams, timed_out};
use crate::conn::network::Network;
use crate::conn::tls::Security;
use crate::engine::hint::Hint;

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialParams<'a> {
    pub(crate) info: &'a ConnectionInfo,
    pub(crate) security: &'a Security,
    /// The time for each step of connecting.
    pub(crate) limit: Duration,
    pub(crate) wire: &'a WireParams,
    /// Given when the connection ends by itself.
    pub(crate) disconnected: &'a Arc<Hint>,
    pub(crate) network: &'a Network,
}

impl DialParams<'_> {
    async fn connected<S>(
        &self,
        stream: impl Future<Output = Result<S, RedisError>>,
    ) -> Result<S, RedisError> {
        let connected = self.wire.clock.within(self.limit, stream).await;
        connected.unwrap_or_else(|| Err(timed_out("connection", self.limit)))
    }
}

/// A connection with the task behind it, which ends on drop.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) wire: Wire,
    driver: AbortHandle,
}

impl Socket {
    /// Makes a connection, on which nothing was sent yet.
    pub(crate) async fn connect(terms: DialParams<'_>) -> Result<Self, RedisError> {
        let settings = terms.info.tcp_settings();
        #[cfg(feature = "testing")]
        if let (Network::Simulated(there), ConnectionAddr::Tcp(host, port)) =
            (terms.network, terms.info.addr())
        {
            let stream = async { Ok(there.connect(host, *port).await?) };
            let stream = terms.connected(stream).await?;
            return Ok(Self::over(stream, terms));
        }
        match terms.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, settings);
                let stream = terms.connected(stream).await?;
                Ok(Self::over(stream, terms))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                Ok(Self::over(stream, terms))
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let secured = async {
                    let stream = connect_tcp(host, *port, settings).await?;
                    terms.security.secure(host, stream).await
                };
                let stream = terms.connected(secured).await?;
                Ok(Self::over(stream, terms))
            }
            other => {
                let what = "no such kind of connection";
                Err((ErrorKind::InvalidClientConfig, what, other.to_string()).into())
            }
        }
    }

    fn over<S>(stream: S, terms: DialParams<'_>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (wire, driver) = Wire::new(stream, terms.wire.clone());
        let disconnected = Arc::clone(terms.disconnected);
        let driver = terms.network.spawn(async move {
            driver.await;
            disconnected.notify();
        });
        Self { wire, driver }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.driver.abort();
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
