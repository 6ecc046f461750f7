//! Where connections come from and on what the tasks behind them run: the system, or what a test puts in its place.
//!
//! Invariant: nothing above a stream of bytes is replaced, so what runs on a simulated network is what runs on a
//! real one.

use std::future::Future;

use futures_util::future::Either;
#[cfg(feature = "testing")]
use futures_util::future::{BoxFuture, FutureExt};
#[cfg(feature = "testing")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// Where a client finds its servers, in the place of the system's network.
#[cfg(feature = "testing")]
pub trait SimulatedNetwork: std::fmt::Debug + Send + Sync + 'static {
    /// A connection to whatever listens there.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, std::io::Result<Stream>>;

    /// A task of the client, as it is to be run.
    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

/// One end of a connection.
#[cfg(feature = "testing")]
pub type Stream = Box<dyn ReadWrite>;

/// Bytes in both directions.
#[cfg(feature = "testing")]
pub trait ReadWrite: AsyncRead + AsyncWrite + std::fmt::Debug + Unpin + Send {}

#[cfg(feature = "testing")]
impl<S: AsyncRead + AsyncWrite + std::fmt::Debug + Unpin + Send> ReadWrite for S {}

/// The network of a client.
#[derive(Clone, Debug, Default)]
pub(crate) enum Network {
    /// Sockets of the system, tasks of the runtime.
    #[default]
    System,
    #[cfg(feature = "testing")]
    Simulated(std::sync::Arc<dyn SimulatedNetwork>),
}

/// What the tasks of a client are on a network: on that of the system, just themselves.
#[cfg(feature = "testing")]
type Wrapped = BoxFuture<'static, ()>;
#[cfg(not(feature = "testing"))]
type Wrapped = std::future::Ready<()>;

impl Network {
    /// A task as it is to be run: one of a simulated process stands still with that.
    pub(crate) fn task<F>(&self, task: F) -> Either<F, Wrapped>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        match self {
            Self::System => Either::Left(task),
            #[cfg(feature = "testing")]
            Self::Simulated(network) => Either::Right(network.task(task.boxed())),
        }
    }

    /// Starts a task on the current runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        tokio::spawn(self.task(task)).abort_handle()
    }
}
