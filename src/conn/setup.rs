//! The settings of a client's connections, and the time of the first ones.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use tokio::runtime::Handle;

use super::address::AddressMap;
use super::network::Network;
use super::tls::Security;
use super::transport::EventHandler;
use crate::engine::clock::Clock;
use crate::engine::hint::Hint;

/// The interval of keep-alive probes on an idle connection, which reveal a dead peer.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// The settings of all connections of a client.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// The runtime that makes and drives the connections.
    pub(crate) runtime: Handle,
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
    /// Given when a connection to a server has ended by itself.
    pub(crate) disconnected: Arc<Hint>,
    /// Translates the addresses that servers announce.
    pub(crate) address_map: AddressMap,
    /// For connections over TLS.
    pub(crate) security: Security,
}

/// Finds a script by its SHA. Returns its number, which is below 64, and its text.
pub(crate) type FindScript = fn(&[u8]) -> Option<(u8, &'static str)>;

/// The time of a client's first connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Before `connect` returns.
    Eager,
    /// On first use.
    Lazy,
}

/// The settings of all connections over TCP.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(
        socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE),
    )
}
