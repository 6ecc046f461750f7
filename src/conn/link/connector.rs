//! Makes one connection of a link to its server, diagnoses failures, and reports a connection that replaces another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};

use super::connection::{Connection, Socket};
use super::handshake::Handshake;
use super::server::{PAUSE_MAX, Reachability, SharedProcess};
use super::wire::WireParams;
use crate::conn::address::Address;
use crate::conn::error_reply::{CHECK_TLS, USE_TLS, is_foreign, without_arguments};
use crate::conn::setup::{Setup, with_pushes};
use crate::conn::tls::{may_pass, tls_advice};
use crate::conn::transport::{Fault, Lane, Reason};
use crate::engine::clock::Tick;
use crate::observe::counts::LANES;

#[derive(Debug)]
pub(super) struct Connector {
    info: ConnectionInfo,
    /// `None` for a link to ask for the map of a cluster.
    lane: Option<Lane>,
    pub(super) setup: Setup,
    /// The address of the server, for messages.
    pub(super) endpoint: Arc<str>,
    pub(super) reachability: Arc<Reachability>,
    pub(super) process: Arc<SharedProcess>,
    pub(super) handshake: Handshake,
    /// Whether there was a connection before.
    has_connected: AtomicBool,
}

/// The reason why a connection is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client does not need it.
    Closed,
    /// The connection broke, or is silent.
    Broken,
    /// Its server takes no writes or has logged it out, or another process answers at its address.
    Unfit,
}

/// A renewal waits at least this long for its reply, however short the lease.
pub(crate) const RENEWAL_WAIT_MIN: Duration = Duration::from_millis(25);

/// The name of a lane, or of the links to ask for the map of a cluster. Shown by `CLIENT LIST`, so that an operator can
/// identify the connections.
fn label(lane: Option<Lane>) -> &'static str {
    lane.map_or("map", |lane| LANES[lane as usize])
}

impl Connector {
    pub(super) fn new(
        info: ConnectionInfo,
        lane: Option<Lane>,
        setup: &Setup,
        reachability: &Arc<Reachability>,
        process: &Arc<SharedProcess>,
    ) -> Self {
        let label = format!("lockset-{}-{}", label(lane), setup.client_id);
        Self {
            endpoint: endpoint(info.addr()).into(),
            info: match lane {
                Some(Lane::Push) => with_pushes(info),
                _ => info,
            },
            lane,
            setup: setup.clone(),
            reachability: Arc::clone(reachability),
            process: Arc::clone(process),
            handshake: Handshake::new(label, setup, process),
            has_connected: AtomicBool::new(false),
        }
    }

    /// Notes that a connection of this link is now in use. Reports it if it replaces another.
    pub(super) fn note_connected(&self) {
        let is_another = self.has_connected.swap(true, Ordering::AcqRel);
        if is_another && self.lane.is_some() {
            let lane = label(self.lane);
            self.setup.events.reconnected(lane, &self.endpoint);
        }
    }

    /// Adds the server to the reason.
    pub(super) fn named(&self, why: impl Into<Reason>) -> Reason {
        let why = why.into();
        let message = format!("{}: {why}", self.endpoint);
        why.with_message(message)
    }

    /// Whether another process has been met at its address since.
    pub(super) fn is_replaced(&self, connection: &Connection) -> bool {
        self.process.is_earlier(connection.generation)
    }

    /// Counts the end of a connection as a failed attempt if the connection was of no use: it answered no call, or it was
    /// to bring messages and ended soon, and who waits for them subscribes again.
    pub(super) fn note_end(&self, connection: &Connection, end: Ended) {
        let lived = connection.made.until(self.setup.clock.now());
        let is_of_use = self.lane != Some(Lane::Push) || lived > PAUSE_MAX;
        match end {
            Ended::Closed => {}
            Ended::Broken if connection.has_answered() && is_of_use => self.reachability.served(),
            // Where an address leads to several servers in turn, connections end whether or not they answer.
            Ended::Broken | Ended::Unfit => self.reachability.failed_after(connection.made),
        }
    }

    /// Whether a call during a back-off fails at once with the last refusal, because no caller waits for it: without
    /// messages, waiters poll.
    pub(super) fn repeats_refusal(&self) -> bool {
        self.lane == Some(Lane::Push) && self.reachability.is_backing_off(self.setup.clock.now())
    }

    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        let setup = &self.setup;
        let began = setup.clock.now();
        // Only a push connection takes messages.
        let takes_messages = self.lane == Some(Lane::Push);
        let events = takes_messages.then(|| Arc::clone(&setup.events));
        let wire = WireParams::new(&self.info, setup, events);
        match self.introduced(&wire).await {
            Ok((socket, generation)) => {
                let took = began.until(setup.clock.now());
                self.reachability.succeeded(took);
                Ok(Connection::new(socket, generation, setup.scripts))
            }
            Err(error) => {
                let fault = self.diagnose(error, wire.last_reply.get() > Tick::ZERO);
                self.reachability.failed(setup.clock.now());
                Err(fault)
            }
        }
    }

    async fn introduced(&self, wire: &WireParams) -> Result<(Socket, u64), RedisError> {
        let Setup {
            clock, provider, ..
        } = &self.setup;
        let limit = self.reachability.step_timeout(self.setup.step_timeout);
        let socket = Socket::connect(&self.info, &self.setup, limit, wire.clone()).await?;
        let settings = self.info.redis_settings();
        // Not before there is a server to give them to.
        let settings = provider.settings(settings, *clock, limit).await?;
        let introduced = self.handshake.run(&socket.wire, &settings, limit).await;
        let generation = introduced.map_err(|error| provider.judged(error))?;
        Ok((socket, generation))
    }

    /// The reason why connecting failed, in the server's own words if possible.
    fn diagnose(&self, error: RedisError, has_replied: bool) -> Fault {
        // A server that was reached before speaks the protocol. A reply in another protocol comes from a proxy, and
        // the server may come back.
        let was_reached = self.reachability.was_reached();
        let is_tls = tls_advice(&error).is_some() && !(was_reached && may_pass(&error));
        let is_foreign = is_foreign(&error) && !was_reached;
        let is_refused = error.kind() == ErrorKind::AuthenticationFailed;
        if error.code().is_some() || is_refused || is_tls || is_foreign {
            return Fault::Declined(without_arguments(error));
        }
        let is_cut = error.is_connection_dropped() && !error.is_connection_refusal();
        let hint = match self.info.addr() {
            _ if was_reached => "",
            ConnectionAddr::Tcp(..) if is_cut && !has_replied => USE_TLS,
            ConnectionAddr::TcpTls { .. } if is_cut || error.is_timeout() => CHECK_TLS,
            _ => "",
        };
        let message = format!("{error}{hint}");
        Fault::Unsent(self.named(Reason::from(error).with_message(message)))
    }
}

/// An address as messages show it.
fn endpoint(at: &ConnectionAddr) -> String {
    match at {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Address::new(host.as_str(), *port).to_string()
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_is_in_the_name() {
        for (lane, name) in [(Some(Lane::Renewal), "renewal"), (None, "map")] {
            assert_eq!(label(lane), name);
        }
    }
}
