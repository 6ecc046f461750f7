//! A server, or a topology of servers, as the engine sees it.
//!
//! A [`Transport`] says which link serves a key, and what a fault means. The rest is here, once for all of them.
//! Invariant: everything that depends on sockets or topologies is behind [`Transport`], so a test can replace it as a
//! whole. `script` runs calls over it.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, Value};

use super::process::Process;
use super::transport::{Channels, Commands, Fault, Lane, LinkState, Replies};
use crate::engine::clock::Tick;

pub(crate) trait Transport: Debug + Send + Sync + 'static {
    /// Sends commands back to back over the link that serves `route`, and waits for all replies, for at most `limit`
    /// including the wait for a connection. A connection attempt continues after the limit. Commands whose limit ends
    /// before there is a connection are not sent. A redirection is followed if the keys share the slot of `route`.
    ///
    /// Commands of one lane and server are executed in the order in which these futures are first polled, as long as
    /// the connection stands. Dropping a future does not take its commands back.
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: Commands<'a>,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>>;

    /// The state of the link that serves `route` now; `None` if there is none.
    fn link_state(&self, lane: Lane, route: &str) -> Option<LinkState>;

    /// The address of the server, without secrets. Clients that write it in the same way get equal addresses.
    fn address(&self) -> &str;

    /// Starts the client's task.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// The slot of a key. One script may name keys with equal slots.
    fn slot(&self, _route: &str) -> u16 {
        0
    }

    /// Whether the keys of one slot may be on two servers for a while, because the slot is moving. Commands sent
    /// together for several of them may then be executed in part.
    fn splits_slots(&self) -> bool {
        false
    }

    /// An id of the server of a key, as far as is known now. Keys with equal ids have one server.
    fn server(&self, _route: &str) -> u64 {
        0
    }

    /// One key for each server that serves keys, as far as is known now. A command with this key as its route goes to
    /// that server.
    fn routes(&self) -> Vec<String> {
        vec![String::new()]
    }

    /// How channels reach their subscribers here.
    fn channels(&self) -> Channels {
        Channels::Plain
    }

    /// Whether this is always one server, not a topology with failovers.
    fn is_single_server(&self) -> bool {
        false
    }

    /// Whether every command sent on a lane before its current connection, to the server of `route`, is known to be
    /// executed or dead. If so, none can arrive late.
    fn earlier_commands_settled(&self, lane: Lane, route: &str) -> bool {
        let link = self.link_state(lane, route);
        link.is_some_and(|link| link.earlier_commands_settled)
    }

    /// The host and port of a key's server, for messages.
    fn endpoint(&self, route: &str) -> String {
        let link = self.link_state(Lane::Command, route);
        link.map_or_else(|| self.address().into(), |link| link.endpoint.to_string())
    }

    /// The time of the last reply from the server of `route` on a lane's current connection; [`Tick::ZERO`] if there
    /// was none, or there is no connection.
    fn last_reply_at(&self, lane: Lane, route: &str) -> Tick {
        let link = self.link_state(lane, route);
        link.map_or(Tick::ZERO, |link| link.last_reply_at)
    }

    /// The server process that was met last at the address of `route`; `None` if it does not say. After a reply, this
    /// is the process that sent it or a later one, because every connection asks before it is used.
    fn process(&self, lane: Lane, route: &str) -> Option<Process> {
        self.link_state(lane, route)?.process
    }
}

impl dyn Transport + '_ {
    /// Sends one command, as in [`exchange`](Transport::exchange). An error reply is a fault.
    pub(crate) fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> impl Future<Output = Result<Value, Fault>> + Send + 'a {
        let replies = self.exchange(lane, route, Commands::One([command]), limit);
        replies.map(|replies| replies?.one())
    }

    /// Sends several commands, as in [`exchange`](Transport::exchange). An error reply is a value in its place.
    pub(crate) fn send_together<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> impl Future<Output = Result<Vec<Value>, Fault>> + Send + 'a {
        let replies = self.exchange(lane, route, Commands::Several(commands), limit);
        replies.map(|replies| Ok(replies?.all()))
    }
}
