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
use redis::{Cmd, Value};
use tokio::time::Instant;

use crate::api::builder::ClientBuilder;
use crate::api::error::Result;
use crate::client::Client;
use crate::conn::{self, Fault, LinkState, Process, Recipient, Transport, sent};
pub use crate::conn::{EventHandler, Lane, ReadWrite, SimulatedNetwork as Network, Stream};
use crate::engine::clock::{Clock, Tick};
use crate::script::catalog;

/// The reason for missing replies.
#[derive(Clone, Debug)]
pub enum Failure {
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
    fn send<'a>(&'a self, lane: Lane, commands: &'a [&'a Cmd], limit: Duration) -> Replies<'a>;

    /// Where the server is.
    fn address(&self) -> &str;

    /// When the server last replied on the current connection of a lane.
    fn last_reply_at(&self, lane: Lane) -> Option<Instant>;

    /// The run of the server that replied on a lane.
    fn run(&self, lane: Lane) -> Option<Run>;

    /// Starts a task of the client.
    fn spawn(&self, task: BoxFuture<'static, ()>);
}

/// Reports events to a client that it did not ask for.
pub type Events = Arc<dyn EventHandler>;

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
        let connections = connect(events);
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

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unsent(why) => Self::Unsent(why.into()),
            Failure::Unknown(why) => Self::Unknown(why.into()),
        }
    }
}

impl Transport for Simulated {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        _route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, std::result::Result<conn::Replies, Fault>> {
        let sent = async move {
            let replies = self.connections.send(lane, commands, limit);
            Ok(replies.await?.into_iter().collect())
        };
        sent.boxed()
    }

    fn submit(
        &self,
        lane: Lane,
        _route: &str,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        let connections = Arc::clone(&self.connections);
        let commands: Vec<Cmd> = commands.iter().copied().cloned().collect();
        let mut sent = async move {
            let commands: Vec<&Cmd> = commands.iter().collect();
            let replies = connections.send(lane, &commands, limit);
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

    fn link_state(&self, lane: Lane, _route: &str) -> Option<LinkState> {
        let connections = &self.connections;
        let (last_reply_at, run) = (connections.last_reply_at(lane), connections.run(lane));
        let tick = |at| self.clock.tick_of(at);
        Some(LinkState {
            endpoint: connections.address().into(),
            is_open: last_reply_at.is_some(),
            earlier_commands_settled: true,
            last_reply_at: last_reply_at.map_or(Tick::ZERO, tick),
            process: run.map(|(run_id, up_since)| Process {
                run_id,
                up_since: tick(up_since),
            }),
        })
    }

    fn address(&self) -> &str {
        self.connections.address()
    }

    fn is_single_server(&self) -> bool {
        true
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.connections.spawn(task);
    }
}
