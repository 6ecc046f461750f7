//! The layer between the engine and a server, behind [`Transport`].
//!
//! The engine sends commands on lanes, and is called back for events that it did not ask for: a message on a channel,
//! a gap in the messages, a server replaced by another. Sockets, reconnects and topologies are on this side of the
//! seam.
//!
//! ```text
//! transport.rs    the seam: `Transport`, a server or a topology of servers as the engine sees it, with its words;
//!                 whether a command was sent before its future was dropped
//! setup.rs        the settings of every connection, and its network
//! address.rs      addresses of servers, and of a host name
//! credentials.rs  logins from a provider that the user sets
//! link/           one lane's connection, replaced when it falls silent
//! push.rs         messages that come without a request
//! servers.rs      the servers of a client as its transport: one, a cluster, or a primary behind sentinels
//! single.rs       one server: its links; many servers by their addresses
//! cluster/        each command to the node that serves its slot; redirections, the map of slots
//! sentinel/       a primary that sentinels name, followed through failovers
//! tls.rs, url.rs  certificates and secured streams; the forms of URLs
//! error_reply.rs  the meaning of errors; value.rs: texts in replies, and the process that sent them
//! ```

mod address;
mod cluster;
pub(crate) mod credentials;
pub(crate) mod error_reply;
mod link;
mod push;
mod sentinel;
mod servers;
mod setup;
mod single;
#[cfg(test)]
mod tests;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod transport;
pub(crate) mod url;
pub(crate) mod value;

pub(crate) use self::address::{AddressMap, Lookups};
pub(crate) use self::link::RENEWAL_WAIT_MIN;
pub(crate) use self::servers::{can_run_scripts, connect};
pub(crate) use self::setup::{Network, Setup};
#[cfg(feature = "testing")]
pub use self::setup::{ReadWrite, SimulatedNetwork, Stream};
#[cfg(test)]
pub(crate) use self::transport::LinkState;
pub use self::transport::{Channels, command};
pub(crate) use self::transport::{
    EventHandler, Fault, LATE_ARRIVAL_MAX, Lane, Reason, Recipient, Replies, Transport, only, sent,
    words,
};
pub(crate) use self::value::Process;

/// Without the feature there is no TLS.
#[cfg(not(feature = "tls"))]
pub(crate) mod tls {
    use redis::RedisError;
    use tokio::net::TcpStream;

    /// There are no settings.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Security(());

    impl Security {
        /// Fails, because this stream would not be secure.
        #[expect(clippy::unused_async, reason = "as with the feature")]
        pub(crate) async fn secure(&self, _: &str, _: TcpStream) -> Result<TcpStream, RedisError> {
            let what = "TLS needs the feature tls";
            Err((redis::ErrorKind::InvalidClientConfig, what).into())
        }
    }

    /// No error is about TLS.
    pub(super) fn tls_advice(_: &RedisError) -> Option<&'static str> {
        None
    }

    /// As above.
    pub(super) fn may_pass(_: &RedisError) -> bool {
        false
    }
}
