//! The socket under a connection, which is ours and read in portions.
//!
//! Connects as the client library does: to all addresses of a name at once, and the first that answers is used. TLS
//! sits between the socket and its reader, so replies are bounded and portions measured after decryption.

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

use super::bounded::Bounded;
use super::first_bytes::{FirstBytes, Recorder};
use super::loan::Loan;
use super::paced_read::{InFlight, PacedRead};
use super::shared_tick::SharedTick;
use super::wire::Wire;
use crate::conn::network::Network;
use crate::conn::push::PushState;
use crate::conn::tls::Security;
use crate::engine::clock::Clock;
use crate::engine::hint::Hint;

/// The time for each step of connecting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) clock: Clock,
    pub(crate) limit: Duration,
}

impl Step {
    /// Drives one step. `what` names its result for the error.
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

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) info: &'a ConnectionInfo,
    pub(crate) security: &'a Security,
    pub(crate) step: Step,
    /// Records what the server sends first.
    pub(crate) first_bytes: &'a FirstBytes,
    /// Records when the server last replied.
    pub(crate) last_reply: &'a SharedTick,
    pub(crate) push: &'a Arc<PushState>,
    /// Given when the connection ends by itself.
    pub(crate) disconnected: &'a Arc<Hint>,
    pub(crate) network: &'a Network,
}

/// A connection with the task behind it, which ends on drop.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) end: End,
    /// The task behind the connection, which the client library does not end by itself.
    driver: AbortHandle,
    lent: Option<Lent>,
}

/// Our end of a connection.
#[derive(Debug)]
pub(super) enum End {
    Library {
        connection: MultiplexedConnection,
        in_flight: Arc<InFlight>,
    },
    Wire(Wire),
}

/// The streams that the client library may have to return.
#[derive(Debug)]
enum Lent {
    Tcp(Loan<Recorder<TcpStream>>),
    #[cfg(unix)]
    Unix(Loan<Recorder<tokio::net::UnixStream>>),
    #[cfg(feature = "testing")]
    Simulated(Loan<Recorder<crate::conn::network::Stream>>),
}

/// The settings of the wire.
#[derive(Clone, Debug)]
pub(super) struct WireTerms {
    pub(super) clock: Clock,
    /// A connection without a reply for this long is silent.
    pub(super) silence: Duration,
    pub(super) last_reply: SharedTick,
    pub(super) disconnected: Arc<Hint>,
    pub(super) network: Network,
}

impl Socket {
    /// Makes a connection with the client library at our end.
    pub(crate) async fn connect(
        terms: Terms<'_>,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let step = terms.step;
        #[cfg(feature = "testing")]
        if let (Network::Simulated(there), ConnectionAddr::Tcp(host, port)) =
            (terms.network, terms.info.addr())
        {
            let stream = async { Ok(there.connect(host, *port).await?) };
            let stream = step.made("connection", stream).await?;
            let loan = Loan::new(Recorder::new(stream, terms.first_bytes.clone()));
            let lent = Some(Lent::Simulated(loan.clone()));
            let socket = Self::over(loan, lent, terms, config);
            return step.made("answer", socket).await;
        }
        match terms.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, terms.info.tcp_settings());
                let stream = step.made("connection", stream).await?;
                let loan = Loan::new(Recorder::new(stream, terms.first_bytes.clone()));
                let lent = Some(Lent::Tcp(loan.clone()));
                let socket = Self::over(loan, lent, terms, config);
                step.made("answer", socket).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let loan = Loan::new(Recorder::new(stream, terms.first_bytes.clone()));
                let lent = Some(Lent::Unix(loan.clone()));
                let socket = Self::over(loan, lent, terms, config);
                step.made("answer", socket).await
            }
            ConnectionAddr::TcpTls { host, port, .. } => {
                let settings = terms.info.tcp_settings();
                let secured = async {
                    let stream = connect_tcp(host, *port, settings).await?;
                    terms.security.secure(host, stream).await
                };
                let stream = step.made("connection", secured).await?;
                let stream = Recorder::new(stream, terms.first_bytes.clone());
                let socket = Self::over(stream, None, terms, config);
                step.made("answer", socket).await
            }
            other => {
                let what = "no such kind of connection";
                Err((ErrorKind::InvalidClientConfig, what, other.to_string()).into())
            }
        }
    }

    /// The client library's end, until the stream is [taken back](Self::onto_wire).
    pub(crate) fn library(&self) -> Option<&MultiplexedConnection> {
        match &self.end {
            End::Library { connection, .. } => Some(connection),
            End::Wire(_) => None,
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        lent: Option<Lent>,
        terms: Terms<'_>,
        config: AsyncConnectionConfig,
    ) -> Result<Self, RedisError> {
        let settings = terms.info.redis_settings();
        let (protocol, push) = (settings.protocol(), Arc::clone(terms.push));
        let noted = (terms.last_reply.clone(), terms.step.clock);
        let stream = Bounded::new(stream, protocol, push, noted);
        let in_flight = Arc::<InFlight>::default();
        let stream = PacedRead::new(stream, Arc::clone(&in_flight));
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Self {
            end: End::Library {
                connection,
                in_flight,
            },
            driver: driven(terms.network, driver, terms.disconnected),
            lent,
        })
    }

    /// Takes the stream back from the client library if it was lent. The library must have no command in flight.
    pub(super) fn onto_wire(mut self, terms: WireTerms) -> Self {
        match self.lent.take() {
            Some(Lent::Tcp(loan)) => self.taken_back(&loan, terms),
            #[cfg(unix)]
            Some(Lent::Unix(loan)) => self.taken_back(&loan, terms),
            #[cfg(feature = "testing")]
            Some(Lent::Simulated(loan)) => self.taken_back(&loan, terms),
            None => self,
        }
    }

    fn taken_back<S>(self, loan: &Loan<Recorder<S>>, terms: WireTerms) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(stream) = loan.take_back() else {
            return self;
        };
        let (wire, driver) = Wire::new(stream, terms.clock, terms.silence, terms.last_reply);
        // The library's driver ends with `self`.
        Self {
            end: End::Wire(wire),
            driver: driven(&terms.network, driver, &terms.disconnected),
            lent: None,
        }
    }
}

/// Runs the task behind a connection. Gives `disconnected` when the task ends by itself.
fn driven(
    network: &Network,
    driver: impl Future<Output = ()> + Send + 'static,
    disconnected: &Arc<Hint>,
) -> AbortHandle {
    let disconnected = Arc::clone(disconnected);
    network.spawn(async move {
        driver.await;
        disconnected.give();
    })
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
