//! The layer between the engine and a server, behind [`Transport`].
//!
//! The engine sends commands on lanes, and is called back for events that it did not ask for: a message on a channel,
//! a gap in the messages, a server replaced by another. Sockets, reconnects and topologies are on this side of the
//! seam.
//!
//! ```text
//! transport.rs    the seam: `Transport`, a server or a topology of servers as the engine sees it, with its words;
//!                 whether a command was sent before its future was dropped
//! setup.rs        the settings of every connection, and its network; address.rs: addresses of servers
//! link/           one lane's connection, replaced when it falls silent
//! push.rs         messages that come without a request
//! single.rs       one server: its links; many servers by their addresses
//! cluster/        each command to the node that serves its slot; redirections, the map of slots
//! sentinel/       a primary that sentinels name, followed through failovers
//! tls.rs, url.rs  certificates and secured streams; the forms of URLs
//! error_reply.rs  the meaning of errors; value.rs: texts in replies, and the process that sent them
//! ```

mod address;
mod cluster;
pub(crate) mod error_reply;
mod link;
mod push;
mod sentinel;
mod setup;
mod single;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod transport;
pub(crate) mod url;
pub(crate) mod value;

use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::address::AddressMap;
use self::cluster::Cluster;
use self::error_reply::connect_error;
pub(crate) use self::link::RENEWAL_WAIT_MIN;
use self::sentinel::follow::FollowedPrimary;
pub(crate) use self::setup::{Network, Opening, Setup};
#[cfg(feature = "testing")]
pub use self::setup::{ReadWrite, SimulatedNetwork, Stream};
use self::single::SingleServer;
pub use self::transport::Channels;
#[cfg(any(test, feature = "testing"))]
pub(crate) use self::transport::LinkState;
pub(crate) use self::transport::sent;
pub(crate) use self::transport::{
    Commands, Fault, LATE_ARRIVAL_MAX, Reason, Recipient, Replies, Transport, words,
};
#[cfg(feature = "testing")]
pub use self::transport::{EventHandler, Lane};
#[cfg(not(feature = "testing"))]
pub(crate) use self::transport::{EventHandler, Lane};
use self::url::Target;
pub(crate) use self::value::Process;
use crate::api::error::{Error, Result};

/// Connects to the target of a URL.
pub(crate) async fn connect(
    target: Target,
    setup: Setup,
    opening: Opening,
) -> Result<Arc<dyn Transport>> {
    match target {
        Target::Single(info) => {
            let server = SingleServer::new(info, &setup);
            if opening == Opening::Eager {
                let at = server.endpoint("");
                let opened = server.open().await;
                opened.map_err(|fault| connect_error(fault, &at))?;
                // Both in one round trip.
                let is_primary = server.is_primary(setup.step_timeout);
                let runs_scripts = can_run_scripts(&server, setup.step_timeout);
                let (is_primary, runs_scripts) =
                    futures_util::future::join(is_primary, runs_scripts).await;
                if !is_primary.map_err(|fault| connect_error(fault, &at))? {
                    return Err(error_reply::not_a_primary(&at));
                }
                runs_scripts?;
            }
            Ok(Arc::new(server))
        }
        Target::Cluster { .. } if opening == Opening::Lazy => Err(Error::invalid(
            "connect",
            "a client of a cluster cannot be lazy, because only the nodes tell how its channels \
             work; leave out ClientBuilder::lazy, and build the client when the \
             cluster is up",
        )),
        Target::Cluster { seeds, model } => {
            let limit = setup.step_timeout;
            let cluster = Cluster::connect(seeds, model, setup).await?;
            can_run_scripts(&cluster, limit).await?;
            Ok(Arc::new(cluster))
        }
        Target::Sentinel {
            sentinels,
            primary,
            sentinel_model,
            model,
        } => {
            let limit = setup.step_timeout;
            let followed = FollowedPrimary::connect(
                sentinels,
                primary,
                [sentinel_model, model],
                setup,
                opening,
            );
            let followed = followed.await?;
            if opening == Opening::Eager {
                can_run_scripts(&followed, limit).await?;
            }
            Ok(Arc::new(followed))
        }
    }
}

/// Tries a script, so that a server or a user without scripts is reported when the client connects.
pub(crate) async fn can_run_scripts(transport: &dyn Transport, limit: Duration) -> Result<()> {
    let probe = redis::cmd("EVAL").arg("return 1").arg(0).to_owned();
    let sent = transport.send(Lane::Command, "", &probe, limit).await;
    let refused = |fault| connect_error(fault, &transport.endpoint(""));
    sent.map(drop).map_err(refused)
}

/// Without the feature there is no TLS.
#[cfg(not(feature = "tls"))]
pub(crate) mod tls {
    use redis::RedisError;
    use tokio::net::TcpStream;

    /// There are no settings.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Security;

    impl Security {
        /// Fails, because this stream would not be secure.
        #[expect(clippy::unused_async, reason = "as with the feature")]
        pub(crate) async fn secure(&self, _: &str, _: TcpStream) -> Result<TcpStream, RedisError> {
            let what = "TLS needs the feature tls";
            Err((redis::ErrorKind::InvalidClientConfig, what).into())
        }
    }
}
