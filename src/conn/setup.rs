//! The settings of a client's connections, and the network that makes them: the system's, or a simulated one in a test.
//!
//! Invariant: nothing above a stream of bytes is replaced, so a simulated network runs the same code as a real one.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use redis::{ConnectionInfo, ProtocolVersion};
#[cfg(feature = "testing")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::address::{AddressMap, Lookups};
use super::credentials::Provider;
use super::tls::Security;
use super::transport::EventHandler;
use crate::engine::clock::Clock;
use crate::engine::hint::Hint;

/// The settings of all connections of a client.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// The runtime that makes and drives the connections.
    pub(crate) runtime: Handle,
    /// Whether the first connections are made on first use, not before `connect` returns.
    pub(crate) is_lazy: bool,
    /// The longest that one step of connecting may take, such as a round trip.
    pub(crate) step_timeout: Duration,
    /// The longest wait for a reply of a server that is not the caller's target, such as a sentinel.
    pub(crate) reply_timeout: Duration,
    /// A connection without a reply for this long counts as broken.
    pub(crate) silence: Duration,
    /// Shown in the names of the connections.
    pub(crate) client_id: Arc<str>,
    pub(crate) scripts: FindScript,
    pub(crate) events: Arc<dyn EventHandler>,
    /// Signalled when a connection to a server has ended by itself.
    pub(crate) disconnected: Arc<Hint>,
    /// Translates the addresses that servers announce.
    pub(crate) address_map: AddressMap,
    pub(crate) lookups: Lookups,
    /// For connections over TLS.
    pub(crate) security: Security,
    /// The provider of the logins at servers, but not at sentinels.
    pub(crate) provider: Provider,
}

#[cfg(test)]
impl Setup {
    /// Settings for tests, without a receiver of events.
    pub(super) fn sample(reply_timeout: Duration) -> Self {
        #[derive(Debug)]
        struct Unheard;

        impl EventHandler for Unheard {
            fn message(&self, _channel: &[u8], _message: &[u8]) {}
            fn gap(&self) {}
            fn moved(&self) {}
        }

        Self {
            clock: Clock::System,
            network: Network::System,
            runtime: Handle::current(),
            is_lazy: false,
            step_timeout: reply_timeout * 5,
            reply_timeout,
            silence: reply_timeout,
            client_id: "x".into(),
            scripts: |_| None,
            events: Arc::new(Unheard),
            disconnected: Arc::default(),
            address_map: AddressMap::default(),
            lookups: Lookups::default(),
            security: Security::default(),
            provider: Provider::default(),
        }
    }
}

/// Finds a script by its SHA. Returns its number, which is below 64, and its text.
pub(crate) type FindScript = fn(&[u8]) -> Option<(u8, &'static str)>;

pub(super) fn with_protocol(info: ConnectionInfo, protocol: ProtocolVersion) -> ConnectionInfo {
    let settings = info.redis_settings().clone();
    info.set_redis_settings(settings.set_protocol(protocol))
}

/// The settings of a connection that takes messages. Only RESP3 delivers them on the connection that subscribed.
pub(super) fn with_pushes(info: ConnectionInfo) -> ConnectionInfo {
    with_protocol(info, ProtocolVersion::RESP3)
}

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
    Simulated(Arc<dyn SimulatedNetwork>),
}

impl Network {
    /// The task in the form to spawn. A simulated process that stands still suspends its tasks.
    pub(crate) fn task(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        match self {
            Self::System => task.boxed(),
            #[cfg(feature = "testing")]
            Self::Simulated(network) => network.task(task.boxed()),
        }
    }

    /// Starts a task on the current runtime.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        tokio::spawn(self.task(task)).abort_handle()
    }
}
