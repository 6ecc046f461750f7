//! What every connection of a client is made with, and when the first ones are made.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{Cmd, ConnectionAddr, ConnectionInfo, Value};
use tokio::runtime::Handle;

use super::address::AddressMap;
use super::network::Network;
use super::tls::Security;
use super::transport::EventHandler;
use crate::clock::Clock;
use crate::hint::Hint;

/// The server is probed this often on an idle connection, so that a dead peer is noticed.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// What every connection of a client is made with.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) clock: Clock,
    pub(crate) network: Network,
    /// Where its connections are made and driven.
    pub(crate) runtime: Handle,
    /// The longest that one step of connecting may take, such as a round trip.
    pub(crate) step_timeout: Duration,
    /// The longest wait for a reply from what stands between a caller and the server, such as a sentinel.
    pub(crate) reply_timeout: Duration,
    /// No reply within this is taken as a broken connection.
    pub(crate) silence: Duration,
    /// Shown in the names of its connections.
    pub(crate) client_id: Arc<str>,
    pub(crate) preload: Arc<Preload>,
    pub(crate) events: Arc<dyn EventHandler>,
    /// Given when a connection to a server has ended by itself.
    pub(crate) disconnected: Arc<Hint>,
    /// For the addresses that servers announce.
    pub(crate) address_map: AddressMap,
    /// For those over TLS.
    pub(crate) security: Security,
}

/// What is loaded into a server before a connection to it is used; the server may refuse it.
#[derive(Debug, Default)]
pub(crate) struct Preload {
    /// Asks which parts the server has.
    pub(crate) check: Option<Cmd>,
    /// Loads them, one command a part.
    pub(crate) load: Vec<Cmd>,
}

impl Preload {
    /// What has to be loaded after this reply to `check`: a 1 for each part that is there. All of it, if
    /// the reply does not say.
    pub(crate) fn missing(&self, present: Option<&Value>) -> Vec<Cmd> {
        let present = match present {
            Some(Value::Array(present)) => present.as_slice(),
            _ => &[],
        };
        let parts = self.load.iter().enumerate();
        let missing = parts.filter(|(at, _)| present.get(*at) != Some(&Value::Int(1)));
        missing.map(|(_, part)| part.clone()).collect()
    }
}

/// When a client makes its first connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Before it is handed out.
    Eager,
    /// When they are needed.
    Lazy,
}

/// The settings that all connections share.
pub(super) fn with_defaults(info: ConnectionInfo) -> ConnectionInfo {
    let info = info.set_tcp_settings(tcp_settings());
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        // Here the first command of the client library is what makes the server say why it refuses us.
        return info;
    }
    // It would send its own name on each connection, which costs a round trip.
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    info.set_redis_settings(settings)
}

/// The settings that all connections over TCP share.
pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(
        socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE),
    )
}
