//! The socket under a connection: one of ours, which is read in portions.
//!
//! It connects as the client library would: to all addresses of a name at once, of which the first that
//! answers is taken. TLS is left to the library and its own socket: portions would have to be measured, and
//! replies bounded, after decryption, where it has no hook.

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
use super::last_reply::LastReply;
use super::loan::Loan;
use super::paced_read::{InFlight, PacedRead};
use super::wire::Wire;
use crate::clock::Clock;
use crate::conn::push::PushState;
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
    pub(super) end: End,
    /// Of a task that the client library does not end by itself.
    driver: Option<AbortHandle>,
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

/// The streams that the client library may be asked to give back.
#[derive(Debug)]
enum Lent {
    Tcp(Loan<Recorder<TcpStream>>),
    #[cfg(unix)]
    Unix(Loan<Recorder<tokio::net::UnixStream>>),
}

/// What the wire is made with.
#[derive(Clone, Debug)]
pub(super) struct WireTerms {
    pub(super) clock: Clock,
    /// Without a reply for so long, the connection is silent.
    pub(super) silence: Duration,
    pub(super) last_reply: LastReply,
    pub(super) disconnected: Arc<Hint>,
}

impl Socket {
    /// What the server sends first is recorded in `first_bytes`, unless it is over TLS. `disconnected` is
    /// given when the connection ends by itself.
    pub(super) async fn connect(
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
        step: Step,
        first_bytes: &FirstBytes,
        push: &Arc<PushState>,
        disconnected: &Arc<Hint>,
    ) -> Result<Self, RedisError> {
        let protocol = info.redis_settings().protocol();
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = connect_tcp(host, *port, info.tcp_settings());
                let stream = step.made("connection", stream).await?;
                let loan = Loan::new(Recorder::new(stream, first_bytes.clone()));
                let lent = Lent::Tcp(loan.clone());
                let socket = Self::over(
                    Bounded::new(loan, protocol, Arc::clone(push)),
                    lent,
                    info,
                    config,
                    disconnected,
                );
                step.made("answer", socket).await
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let loan = Loan::new(Recorder::new(stream, first_bytes.clone()));
                let lent = Lent::Unix(loan.clone());
                let socket = Self::over(
                    Bounded::new(loan, protocol, Arc::clone(push)),
                    lent,
                    info,
                    config,
                    disconnected,
                );
                step.made("answer", socket).await
            }
            _ => {
                let client = redis::Client::open(info.clone())?;
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                let end = End::Library {
                    connection: step.made("connection", connection).await?,
                    in_flight: Arc::default(),
                };
                Ok(Self {
                    end,
                    driver: None,
                    lent: None,
                })
            }
        }
    }

    async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        lent: Lent,
        info: &ConnectionInfo,
        config: AsyncConnectionConfig,
        disconnected: &Arc<Hint>,
    ) -> Result<Self, RedisError> {
        let in_flight = Arc::<InFlight>::default();
        let stream = PacedRead::new(stream, Arc::clone(&in_flight));
        let settings = info.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        Ok(Self {
            end: End::Library {
                connection,
                in_flight,
            },
            driver: Some(driven(driver, disconnected)),
            lent: Some(lent),
        })
    }

    /// Takes the stream back from the client library, which has no command in flight, if it was lent.
    pub(super) fn onto_wire(mut self, terms: WireTerms) -> Self {
        match self.lent.take() {
            Some(Lent::Tcp(loan)) => self.taken_back(&loan, terms),
            #[cfg(unix)]
            Some(Lent::Unix(loan)) => self.taken_back(&loan, terms),
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
            driver: Some(driven(driver, &terms.disconnected)),
            lent: None,
        }
    }
}

/// Runs the task behind a connection; `disconnected` is given when it ends by itself.
fn driven(
    driver: impl Future<Output = ()> + Send + 'static,
    disconnected: &Arc<Hint>,
) -> AbortHandle {
    let disconnected = Arc::clone(disconnected);
    let task = tokio::spawn(async move {
        driver.await;
        disconnected.give();
    });
    task.abort_handle()
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
