//! Makes one connection of a link to its server, diagnoses failures, and reports a connection that replaces another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};
use tokio::runtime::Handle;

use super::connection::{Connection, DialParams, Socket};
use super::handshake::Handshake;
use super::server::{Generation, Reachability, SharedProcess};
use super::wire::{FirstBytes, Meaning, SharedTick, WireParams};
use crate::conn::address::Address;
use crate::conn::error_reply::{CHECK_TLS, USE_TLS, may_pass, tls_advice, without_arguments};
use crate::conn::push::PushState;
use crate::conn::setup::{FindScript, Network, Setup};
use crate::conn::tls::Security;
use crate::conn::transport::{EventHandler, Fault, Reason};
use crate::engine::clock::Clock;
use crate::engine::hint::Hint;

#[derive(Debug)]
pub(super) struct Connector {
    info: ConnectionInfo,
    /// The address of the server, for messages.
    pub(super) endpoint: Arc<str>,
    pub(super) clock: Clock,
    pub(super) network: Network,
    /// The longest time for one step of connecting.
    step_timeout: Duration,
    /// Shared by all links to the server.
    reachability: Arc<Reachability>,
    events: Arc<dyn EventHandler>,
    /// Whether the events receive messages, as on a push connection.
    takes_messages: bool,
    security: Security,
    scripts: FindScript,
    /// Given when a connection has ended by itself.
    disconnected: Arc<Hint>,
    handshake: Handshake,
    /// `None` for a helper's connection that is not one of the client's lanes.
    lane: Option<&'static str>,
    /// Whether there was a connection before.
    has_connected: AtomicBool,
    /// The client's runtime. Other runtimes may stand still at any time.
    pub(super) runtime: Handle,
    /// A connection without a reply for this long is silent.
    silence: Duration,
    /// Whether a call during a back-off fails at once with the last refusal, because callers of this link can use
    /// another one.
    repeats_refusals: bool,
}

/// The reason why a connection is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client does not need it.
    Closed,
    /// The connection broke, or is silent.
    Broken,
    /// Its server takes no writes.
    Demoted,
    /// Another process answers at its address.
    Replaced,
}

/// The purpose of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Calls of waiting callers.
    Calls,
    /// Renewals. With a short lease each has little time, because the next one has to follow.
    Renewals,
    /// Messages, which are reported, as are gaps.
    Push,
    /// Commands that must follow a subscription, where subscriptions have a connection of their own.
    BehindPush,
}

impl Connector {
    pub(super) fn new(
        info: ConnectionInfo,
        label: String,
        setup: &Setup,
        reachability: &Arc<Reachability>,
        process: &Arc<SharedProcess>,
        purpose: Purpose,
    ) -> Self {
        Self {
            silence: setup.silence,
            repeats_refusals: matches!(purpose, Purpose::Push | Purpose::BehindPush),
            endpoint: endpoint(info.addr()).into(),
            info,
            clock: setup.clock,
            network: setup.network.clone(),
            step_timeout: setup.step_timeout,
            reachability: Arc::clone(reachability),
            events: Arc::clone(&setup.events),
            takes_messages: purpose == Purpose::Push,
            security: setup.security.clone(),
            scripts: setup.scripts,
            disconnected: Arc::clone(&setup.disconnected),
            runtime: setup.runtime.clone(),
            lane: lane(&label),
            has_connected: AtomicBool::new(false),
            handshake: Handshake::new(label, setup, process),
        }
    }

    /// Notes that a connection of this link is now in use. Reports it if it replaces another.
    pub(super) fn note_connected(&self) {
        let is_another = self.has_connected.swap(true, Ordering::AcqRel);
        if let (true, Some(lane)) = (is_another, self.lane) {
            self.events.reconnected(lane, &self.endpoint);
        }
    }

    /// Adds the server to the reason.
    pub(super) fn named(&self, why: impl Into<Reason>) -> Reason {
        let why = why.into();
        let message = format!("{}: {why}", self.endpoint);
        why.with_message(message)
    }

    pub(super) fn earlier_commands_settled(&self) -> bool {
        self.handshake.earlier_commands_settled()
    }

    pub(super) fn process(&self) -> &SharedProcess {
        self.handshake.process()
    }

    /// Whether another process has been met at its address since.
    pub(super) fn is_replaced(&self, connection: &Connection) -> bool {
        self.process().is_earlier(connection.generation())
    }

    /// A connection without a reply for this long is silent.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    /// Waits until an attempt may begin.
    pub(super) async fn wait_turn(&self) {
        self.reachability.wait_turn(self.clock).await;
    }

    /// A server that was not in use is needed again.
    pub(super) fn named_again(&self) {
        self.reachability.named_again();
    }

    /// Counts the end of a connection as a failed attempt if the connection answered no call.
    pub(super) fn note_end(&self, connection: &Connection, end: Ended) {
        match end {
            Ended::Closed => {}
            Ended::Broken if connection.has_answered() => self.reachability.served(),
            // Where an address leads to several servers in turn, connections end whether or not they answer.
            Ended::Broken | Ended::Demoted | Ended::Replaced => {
                self.reachability.failed_after(connection.made_at())
            }
        }
    }

    /// Whether a call now fails with the last refusal.
    pub(super) fn repeats_refusal(&self) -> bool {
        self.repeats_refusals && self.reachability.is_backing_off(self.clock.now())
    }

    pub(super) async fn connect(&self) -> Result<Connection, Fault> {
        let first_bytes = FirstBytes::default();
        let began = self.clock.now();
        let events = self.takes_messages.then(|| Arc::clone(&self.events));
        let push = Arc::new(PushState::new(events));
        let last_reply = SharedTick::at(began);
        let introduced = self.introduced(&push, &first_bytes, &last_reply);
        match introduced.await {
            Ok((socket, generation)) => {
                self.reachability.succeeded(began.until(self.clock.now()));
                Ok(Connection::new(
                    socket,
                    push,
                    self.clock,
                    last_reply,
                    generation,
                    self.scripts,
                ))
            }
            Err(error) => {
                let fault = self.diagnose(without_arguments(error), &first_bytes);
                self.reachability.failed(self.clock.now());
                Err(fault)
            }
        }
    }

    async fn introduced(
        &self,
        push: &Arc<PushState>,
        first_bytes: &FirstBytes,
        last_reply: &SharedTick,
    ) -> Result<(Socket, Generation), RedisError> {
        let settings = self.info.redis_settings();
        let limit = self.reachability.step_timeout(self.step_timeout);
        let wire = WireParams {
            clock: self.clock,
            protocol: settings.protocol(),
            silence: self.silence,
            last_reply: last_reply.clone(),
            push: Arc::clone(push),
            first_bytes: first_bytes.clone(),
        };
        let terms = DialParams {
            info: &self.info,
            security: &self.security,
            limit,
            wire: &wire,
            disconnected: &self.disconnected,
            network: &self.network,
        };
        let socket = Socket::connect(terms).await?;
        let generation = self.handshake.run(&socket.wire, settings, limit).await?;
        Ok((socket, generation))
    }

    /// The reason why connecting failed, in the server's own words if possible.
    fn diagnose(&self, error: RedisError, first_bytes: &FirstBytes) -> Fault {
        // A server that was reached before speaks the protocol. A reply in another protocol comes from a proxy, and
        // the server may come back.
        let was_reached = self.reachability.was_reached();
        let is_tls = tls_advice(&error).is_some() && !(was_reached && may_pass(&error));
        let is_refused = error.kind() == ErrorKind::AuthenticationFailed;
        if error.code().is_some() || is_refused || is_tls {
            return Fault::Declined(error);
        }
        let is_cut = error.is_connection_dropped() && !error.is_connection_refusal();
        let hint = match (self.info.addr(), first_bytes.meaning()) {
            // The reply of a proxy in front of a server that is away.
            (_, Meaning::Error(said)) if was_reached && said.kind() == ErrorKind::Parse => "",
            (_, Meaning::Error(said)) => return Fault::Declined(without_arguments(said)),
            (ConnectionAddr::Tcp(..), Meaning::Tls) => USE_TLS,
            _ if was_reached => "",
            (ConnectionAddr::Tcp(..), Meaning::Silence) if is_cut => USE_TLS,
            (ConnectionAddr::TcpTls { .. }, _) if is_cut || error.is_timeout() => CHECK_TLS,
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
            let host = host.as_str().into();
            Address { host, port: *port }.to_string()
        }
        other => other.to_string(),
    }
}

/// The lane in the name that a connection has at the server.
fn lane(label: &str) -> Option<&'static str> {
    let rest = label.strip_prefix("lockset-")?;
    // Commands behind a subscription belong to the waiters for messages.
    let rest = rest.strip_prefix("behind-").unwrap_or(rest);
    let lanes = ["command", "renewal", "push", "confirm"];
    lanes.into_iter().find(|lane| rest.starts_with(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_is_in_the_name() {
        assert_eq!(lane("lockset-renewal-8f0c"), Some("renewal"));
        assert_eq!(lane("lockset-behind-push-8f0c"), Some("push"));
        assert_eq!(lane("lockset-sentinel-8f0c"), None);
        assert_eq!(lane("other"), None);
    }
}
