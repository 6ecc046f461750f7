//! Routes commands to nodes, and follows redirections.
//!
//! Invariant: the undoing of an attempt does not overtake it. A command is sent again only while its caller drives
//! it, so an abandoned attempt is in one place at most, and its undoing follows on the same path.
//! docs/design/ordering.md has the argument.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use redis::{Cmd, RedisError, Value};

use super::redirect::{Redirect, is_half_done};
use super::slots::{SlotMap, slot_of};
use super::subscribe_barrier::SubscribeBarrier;
use crate::conn::address::Address;
use crate::conn::error_reply::is_temporary;
use crate::conn::link::Link;
use crate::conn::nodes::Nodes;
use crate::conn::single::SingleServer;
use crate::conn::transport::{Channels, Fault, Lane, Reason};
use crate::engine::hint::Hint;

/// The redirections that one command follows. Nodes that still contradict each other need more time.
const REDIRECTIONS_MAX: usize = 5;

static ASKING: LazyLock<Cmd> = LazyLock::new(|| redis::cmd("ASKING"));

pub(super) struct Router {
    pub(super) nodes: Nodes,
    /// In the order and form of the user's URL.
    pub(super) seeds: Vec<Address>,
    address: String,
    pub(super) channels: Channels,
    pub(super) map: RwLock<SlotMap<Node>>,
    /// The nodes that served a slot in the last map.
    pub(super) served: Mutex<Vec<Address>>,
    /// Given when the map may be old, for example when a connection has ended by itself.
    pub(super) refresh_wanted: Arc<Hint>,
    barrier: SubscribeBarrier,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the nodes, as each has a preload.
        f.debug_struct("Router")
            .field("seeds", &self.address)
            .field("channels", &self.channels)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// A node with its address.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) address: Address,
    pub(super) server: Arc<SingleServer>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        // One address has one server.
        Arc::ptr_eq(&self.server, &other.server)
    }
}

impl Router {
    /// A router without a map.
    pub(super) fn new(nodes: Nodes, seeds: Vec<Address>, channels: Channels) -> Self {
        let mut names: Vec<String> = seeds.iter().map(Address::to_string).collect();
        names.sort_unstable();
        names.dedup();
        Self {
            refresh_wanted: Arc::clone(&nodes.setup().disconnected),
            nodes,
            seeds,
            address: names.join(","),
            channels,
            map: RwLock::new(SlotMap::empty()),
            served: Mutex::default(),
            barrier: SubscribeBarrier::default(),
        }
    }

    /// The seeds in a fixed order.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn node(&self, address: &Address) -> Node {
        Node {
            address: address.clone(),
            server: self.nodes.at(address),
        }
    }

    /// The node that serves the slot of a key.
    pub(super) fn owner(&self, route: &str) -> Result<Node, Fault> {
        let slot = slot_of(route.as_bytes());
        let owner = self.map.read().owner(slot).cloned();
        owner.ok_or_else(|| {
            self.refresh_wanted.give();
            Fault::Unsent(format!("no node serves slot {slot}, to which the key belongs").into())
        })
    }

    pub(super) fn link<'a>(&self, node: &'a Node, lane: Lane, subscribes: bool) -> &'a Link {
        match (lane, self.channels) {
            (Lane::Push, Channels::Sharded) if !subscribes => node.server.behind_push(),
            _ => node.server.link(lane),
        }
    }

    /// Parses a redirection, with the address at which the node can be reached.
    fn redirect(&self, error: &RedisError, asked: &Address) -> Option<Redirect> {
        let redirect = Redirect::of(error, asked)?;
        Some(match redirect {
            Redirect::Moved { slot, to } => {
                let to = self.nodes.resolve(to);
                Redirect::Moved { slot, to }
            }
            Redirect::Ask { slot, to } => {
                let to = self.nodes.resolve(to);
                Redirect::Ask { slot, to }
            }
        })
    }

    /// The first redirection among these replies.
    fn redirect_in(&self, replies: &[Value], asked: &Address) -> Option<Redirect> {
        replies.iter().find_map(|reply| match reply {
            Value::ServerError(no) => self.redirect(&no.clone().into(), asked),
            _ => None,
        })
    }

    /// Sends a command without a key to the first node that can be reached.
    pub(super) async fn send_to_any(
        &self,
        lane: Lane,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let mut fault = Fault::Unsent("no node serves any slot".into());
        let nodes = self.map.read().nodes();
        for node in nodes {
            match node.server.link(lane).send(command, limit).await {
                Err(Fault::Unsent(why)) => {
                    self.refresh_wanted.give();
                    fault = Fault::Unsent(why);
                }
                result => return result,
            }
        }
        Err(fault)
    }

    pub(super) async fn send(
        &self,
        lane: Lane,
        route: &str,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let clock = self.nodes.setup().clock;
        let end = clock.now().after(limit);
        let subscribes = lane == Lane::Push && is_about_a_subscription(command);
        let slot = slot_of(route.as_bytes());
        let has_barrier = lane == Lane::Push && self.channels == Channels::Sharded;
        let _subscribing = (has_barrier && subscribes).then(|| self.barrier.begin(slot));
        if has_barrier && !subscribes {
            let ended = self.barrier.pending(slot).ended();
            if clock.within(limit, ended).await.is_none() {
                let message = format!("no reply to a subscription within {limit:?}");
                return Err(Fault::Unsent(Reason::timed_out(message)));
            }
        }
        let mut node = self.owner(route)?;
        let mut behind = None;
        for hop in 0..=REDIRECTIONS_MAX {
            // No time has passed yet. A link has one shared timer for commands that have the whole limit.
            let is_fresh = hop == 0 && !has_barrier;
            let remaining = if is_fresh {
                limit
            } else {
                clock.now().until(end)
            };
            if remaining.is_zero() {
                let message = format!("no time was left to follow a redirection within {limit:?}");
                let message = format!("{}: {message}", node.address);
                return Err(Fault::Unsent(Reason::timed_out(message)));
            }
            let link = self.link(&node, lane, subscribes);
            let fault = match link.send_behind(behind.take(), command, remaining).await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let error = match &fault {
                Fault::Answered(error) => error,
                _ => {
                    self.refresh_wanted.give();
                    return Err(fault);
                }
            };
            match self.redirect(error, &node.address) {
                Some(Redirect::Moved { slot: of, to }) if of == slot => {
                    node = self.node(&to);
                    self.map.write().learn(slot, &node);
                    self.refresh_wanted.give();
                }
                Some(Redirect::Ask { to, .. }) => {
                    node = self.node(&to);
                    behind = Some(&*ASKING);
                }
                // The reply belongs to another command: see `PushState`.
                Some(Redirect::Moved { .. }) => {
                    link.close();
                    return Err(Fault::Unknown("the answer to another command".into()));
                }
                None => {
                    if is_temporary(error) {
                        self.refresh_wanted.give();
                    }
                    return Err(fault);
                }
            }
        }
        Err(too_many_redirections(slot, &node))
    }

    /// Sends commands back to back, as in [`Transport::send_together`](crate::conn::Transport::send_together).
    pub(super) async fn send_together(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let clock = self.nodes.setup().clock;
        let end = clock.now().after(limit);
        let slot = slot_of(route.as_bytes());
        let mut node = self.owner(route)?;
        let mut is_asking = false;
        for hop in 0..=REDIRECTIONS_MAX {
            let remaining = if hop == 0 {
                limit
            } else {
                clock.now().until(end)
            };
            if remaining.is_zero() {
                break;
            }
            let link = self.link(&node, lane, false);
            let replies = if is_asking {
                let asking = commands.iter();
                let asking: Vec<&Cmd> = asking.flat_map(|command| [&*ASKING, command]).collect();
                let replies = link.send_together(&asking, remaining).await;
                replies.map(|replies| replies.into_iter().skip(1).step_by(2).collect())
            } else {
                link.send_together(commands, remaining).await
            };
            let replies: Vec<Value> = match replies {
                Ok(replies) => replies,
                Err(fault) => {
                    self.refresh_wanted.give();
                    return Err(fault);
                }
            };
            match self.redirect_in(&replies, &node.address) {
                _ if is_half_done(&replies) => return Ok(replies),
                None => return Ok(replies),
                Some(Redirect::Moved { slot: of, to }) => {
                    let to = self.node(&to);
                    self.map.write().learn(of, &to);
                    self.refresh_wanted.give();
                    if of != slot {
                        return Ok(replies);
                    }
                    (node, is_asking) = (to, false);
                }
                Some(Redirect::Ask { slot: of, .. }) if of != slot => return Ok(replies),
                Some(Redirect::Ask { to, .. }) => (node, is_asking) = (self.node(&to), true),
            }
        }
        Err(too_many_redirections(slot, &node))
    }
}

/// Every node replied that it did not execute the command.
fn too_many_redirections(slot: u16, last: &Node) -> Fault {
    let why = format!(
        "redirected from node to node, last to {}; the nodes do not agree yet which of them \
         serves slot {slot}",
        last.address
    );
    Fault::Unsent(why.into())
}

fn is_about_a_subscription(command: &Cmd) -> bool {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(verb)) => verb.ends_with(b"SUBSCRIBE"),
        _ => false,
    }
}
