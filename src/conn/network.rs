//! The source of connections and the runner of their tasks: the system, or a simulation in a test.
//!
//! Invariant: nothing above a stream of bytes is replaced, so a simulated network runs the same code as a real one.

use std::future::Future;

use futures_util::future::Either;
#[cfg(feature = "testing")]
use futures_util::future::{BoxFuture, FutureExt};
#[cfg(feature = "testing")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// A network that replaces the system's for a client.
#[cfg(feature = "testing")]
pub trait SimulatedNetwork: std::fmt::Debug + Send + Sync + 'static {
    /// Connects to a listener at this address.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, std::io::Result<Stream>>;

    /// Wraps a task of the client before it is spawned.
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

/// A task that the network has wrapped. The system's network wraps none.
#[cfg(feature = "testing")]
type Wrapped = BoxFuture<'static, ()>;
#[cfg(not(feature = "testing"))]
type Wrapped = std::future::Ready<()>;

impl Network {
    /// The task in the form to spawn. A simulated process that stands still suspends its tasks.
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
