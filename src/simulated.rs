//! A client on a server that the crate `lockset-sim` simulates. That crate provides its connections and its clock.
//!
//! For that crate alone. It is not part of the documented API, and it changes with the engine. Invariant: it translates
//! and decides nothing, so the real engine runs here.

use std::fmt::Debug;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::api::error::Result;
use crate::client::{Client, ClientBuilder};
use crate::conn::{
    self, Channels, EventHandler, Fault, LinkState, Process, Recipient, Transport, sent,
};
pub use crate::conn::{ReadWrite, SimulatedNetwork as Network, Stream};
use crate::engine::clock::{Clock, Tick};
use crate::script::catalog;

/// Which of a client's connections a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Commands of callers, and their undoing.
    Command,
    /// Renewals.
    Renewal,
    /// Subscriptions, and commands that must come after them.
    Push,
    /// Waits for replicas.
    Confirm,
}

/// The reason for missing replies.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server refused the connection with an error.
    Declined(RedisError),
    /// Not sent.
    Unsent(String),
    /// Sent, perhaps executed, not answered.
    Unknown(String),
}

/// The replies to some commands, errors among them.
pub type Replies<'a> =
    Pin<Box<dyn Future<Output = std::result::Result<Vec<Value>, Failure>> + Send + 'a>>;

/// One run of a server: its id, and the time of its start.
pub type Run = (Arc<str>, Instant);

/// The internal `Transport`, method by method.
pub trait Connections: Debug + Send + Sync + 'static {
    /// Sends commands right behind each other over one connection.
    fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> Replies<'a>;

    /// Whether nothing sent before on this lane can arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool;

    /// Keys with equal slots may be named in one script.
    fn slot(&self, route: &str) -> u16;

    /// Keys with equal servers are served by one server.
    fn server(&self, route: &str) -> u64;

    /// Where the server is.
    fn address(&self) -> &str;

    /// When the server last replied on the current connection of a lane.
    fn last_reply_at(&self, lane: Lane, route: &str) -> Option<Instant>;

    /// The run of the server that replied on a lane.
    fn run(&self, lane: Lane, route: &str) -> Option<Run>;

    /// Whether channels belong to slots.
    fn has_sharded_channels(&self) -> bool;

    /// Whether it is one server for good.
    fn is_single_server(&self) -> bool;

    /// Starts a task of the client.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Reports events to a client that it did not ask for.
#[derive(Clone, Debug)]
pub struct Events(Arc<dyn EventHandler>);

impl Events {
    /// A message on a channel.
    pub fn message(&self, channel: &[u8], message: &[u8]) {
        self.0.message(channel, message);
    }

    /// Messages may have been missed, and every subscription is gone.
    pub fn gap(&self) {
        self.0.gap();
    }

    /// Another server answers for some keys now.
    pub fn moved(&self) {
        self.0.moved();
    }
}

/// A client with this id and these settings, on tokio's clock. The URL of the builder is not used.
///
/// # Errors
/// [`is_invalid`](crate::Error::is_invalid): a setting cannot work.
pub fn client(
    builder: ClientBuilder,
    id: &str,
    connect: impl FnOnce(Events) -> Arc<dyn Connections>,
) -> Result<Client> {
    let clock = Clock::of_runtime();
    builder.build_over(id, clock, |events| {
        let connections = connect(Events(events));
        Arc::new(Simulated { clock, connections })
    })
}

/// A client with this id on tokio's clock, which finds the servers of its URL on another network.
///
/// # Errors
/// As for [`ClientBuilder::build`].
pub async fn client_on(
    builder: ClientBuilder,
    id: &str,
    network: Arc<dyn Network>,
) -> Result<Client> {
    let network = conn::Network::Simulated(network);
    builder.build_on(network, Clock::of_runtime(), id).await
}

/// Marks that a command is handed to a connection. The code that polls has to call it at that moment.
pub fn mark_sent() {
    sent::mark();
}

/// Lists the scripts: the name, the SHA and the text of each.
pub fn scripts() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    catalog::ALL
        .iter()
        .map(|(name, script)| (*name, script.sha(), script.text()))
}

#[derive(Debug)]
struct Simulated {
    clock: Clock,
    connections: Arc<dyn Connections>,
}

impl From<conn::Lane> for Lane {
    fn from(lane: conn::Lane) -> Self {
        match lane {
            conn::Lane::Command => Self::Command,
            conn::Lane::Renewal => Self::Renewal,
            conn::Lane::Push => Self::Push,
            conn::Lane::Confirm => Self::Confirm,
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Declined(error) => Self::Declined(error),
            Failure::Unsent(why) => Self::Unsent(why.into()),
            Failure::Unknown(why) => Self::Unknown(why.into()),
        }
    }
}

impl Transport for Simulated {
    fn exchange<'a>(
        &'a self,
        lane: conn::Lane,
        route: &'a str,
        commands: conn::Commands<'a>,
        limit: Duration,
    ) -> BoxFuture<'a, std::result::Result<conn::Replies, Fault>> {
        let sent = async move {
            let commands = commands.as_slice();
            let replies = self.connections.send(lane.into(), route, commands, limit);
            Ok(replies.await?.into_iter().collect())
        };
        sent.boxed()
    }

    fn submit(
        &self,
        lane: conn::Lane,
        route: &str,
        commands: conn::Commands<'_>,
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let connections = Arc::clone(&self.connections);
        let route = route.to_owned();
        let commands: Vec<Cmd> = commands.as_slice().iter().copied().cloned().collect();
        let mut sent = async move {
            let commands: Vec<&Cmd> = commands.iter().collect();
            let replies = connections.send(lane.into(), &route, &commands, limit);
            let outcome = replies.await.map_err(Fault::from);
            to.received(outcome.map(|replies| replies.into_iter().collect()));
        }
        .boxed();
        // It is sent when it is first polled, or not at all.
        let mut context = Context::from_waker(Waker::noop());
        let was_sent = AtomicBool::new(false);
        let is_pending = pin!(sent::track(&was_sent, Pin::new(&mut sent)))
            .poll(&mut context)
            .is_pending();
        let is_sent = was_sent.into_inner();
        if is_pending && is_sent {
            self.connections.spawn(sent);
        }
        is_sent || !is_pending
    }

    fn link_state(&self, lane: conn::Lane, route: &str) -> Option<LinkState> {
        let (lane, connections) = (lane.into(), &self.connections);
        let last_reply_at = connections.last_reply_at(lane, route);
        let run = connections.run(lane, route);
        let tick = |at| self.clock.tick_of(at);
        Some(LinkState {
            endpoint: connections.address().into(),
            earlier_commands_settled: connections.earlier_commands_settled(lane, route),
            last_reply_at: last_reply_at.map_or(Tick::ZERO, tick),
            process: run.map(|(run_id, up_since)| Process {
                run_id,
                up_since: tick(up_since),
            }),
        })
    }

    fn slot(&self, route: &str) -> u16 {
        self.connections.slot(route)
    }

    fn server(&self, route: &str) -> u64 {
        self.connections.server(route)
    }

    fn address(&self) -> &str {
        self.connections.address()
    }

    fn channels(&self) -> Channels {
        if self.connections.has_sharded_channels() {
            Channels::Sharded
        } else {
            Channels::Plain
        }
    }

    fn is_single_server(&self) -> bool {
        self.connections.is_single_server()
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.connections.spawn(task);
    }
}
