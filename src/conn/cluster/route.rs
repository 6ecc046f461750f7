//! Where each command goes, and where it goes next when a node says that another serves the slot.
//!
//! **What undoes an attempt does not overtake it.** What undoes it is sent once nobody drives it any
//! more, so it is not sent again from then on, and there are three places where it can be.
//! 1. On its way to, or at, the node that the undoing goes to: it is ahead of it, as both take the same
//!    link, and a link makes an end of each connection before it uses the next one.
//! 2. At a node that does not serve the slot any more when it gets to it: that answers with a
//!    redirection, and does not execute it. Whoever would follow that is gone.
//! 3. Executed at a node before the slot left that. Then the keys took the outcome along; or, if the
//!    node was taken over by a replica that had not heard of it, it is lost, and what is written to a
//!    node that was taken over is lost when it learns of that.
//!
//! A slot that is on its way (`ASK`) changes nothing in this: the map stays as it is, and both commands
//! go from the old node, which has the slot until its last key has left, to the new one, on the link
//! of their lane. What remains is a command that the network holds back while its slot leaves a node
//! and comes back to it.
//!
//! Two commands that are both alive and both redirected may change places: a release and the attempt
//! behind it. The attempt is refused then, and waits like any other.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use redis::{Cmd, RedisError, Value};

use super::gate::Gate;
use super::redirect::Redirect;
use super::slots::{SlotMap, slot_of};
use crate::conn::error_reply::is_temporary;
use crate::conn::link::Link;
use crate::conn::nodes::{Address, Nodes};
use crate::conn::single::SingleServer;
use crate::conn::{Channels, Fault, Lane, Reason};
use crate::hint::Hint;

/// A command follows so many redirections; nodes that go on contradicting each other need a while.
const REDIRECTIONS_MAX: usize = 5;

static ASKING: LazyLock<Cmd> = LazyLock::new(|| redis::cmd("ASKING"));

pub(super) struct Router {
    pub(super) nodes: Nodes,
    /// As the user named them.
    pub(super) seeds: Vec<Address>,
    address: String,
    pub(super) channels: Channels,
    pub(super) map: RwLock<SlotMap<Node>>,
    /// Who served a slot at the last look.
    pub(super) served: Mutex<Vec<Address>>,
    /// Given when the map may be old, as when a connection has ended by itself.
    pub(super) wanted: Arc<Hint>,
    gate: Gate,
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not all nodes with all that is sent to each of them at first.
        f.debug_struct("Router")
            .field("seeds", &self.address)
            .field("channels", &self.channels)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// One node and where it is.
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
    /// Without a map yet.
    pub(super) fn new(nodes: Nodes, seeds: Vec<Address>, channels: Channels) -> Self {
        let mut names: Vec<String> = seeds.iter().map(Address::to_string).collect();
        names.sort_unstable();
        names.dedup();
        Self {
            wanted: Arc::clone(&nodes.setup().disconnected),
            nodes,
            seeds,
            address: names.join(","),
            channels,
            map: RwLock::new(SlotMap::empty()),
            served: Mutex::default(),
            gate: Gate::default(),
        }
    }

    /// The seeds, in one order.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn node(&self, address: &Address) -> Node {
        Node {
            address: address.clone(),
            server: self.nodes.at(address),
        }
    }

    /// Who serves the slot of a key.
    pub(super) fn owner(&self, route: &str) -> Result<Node, Fault> {
        let slot = slot_of(route.as_bytes());
        let owner = self.map.read().owner(slot).cloned();
        owner.ok_or_else(|| {
            self.wanted.give();
            Fault::Unsent(format!("no node serves slot {slot}, to which the key belongs").into())
        })
    }

    pub(super) fn link<'a>(&self, node: &'a Node, lane: Lane, subscribes: bool) -> &'a Link {
        match (lane, self.channels) {
            (Lane::Push, Channels::Sharded) if !subscribes => node.server.behind_push(),
            _ => node.server.link(lane),
        }
    }

    /// Whom a node says to ask instead, at the address that leads there.
    fn redirect(&self, error: &RedisError, asked: &Address) -> Option<Redirect> {
        let redirect = Redirect::of(error, asked)?;
        Some(match redirect {
            Redirect::Moved { slot, to } => {
                let to = self.nodes.lead(to);
                Redirect::Moved { slot, to }
            }
            Redirect::Ask { slot, to } => {
                let to = self.nodes.lead(to);
                Redirect::Ask { slot, to }
            }
        })
    }

    /// What a node answered instead of executing it.
    fn redirect_in(&self, answers: &[Value], asked: &Address) -> Option<Redirect> {
        answers.iter().find_map(|answer| match answer {
            Value::ServerError(no) => self.redirect(&no.clone().into(), asked),
            _ => None,
        })
    }

    /// Sends what has no key to the first node that can be reached.
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
                    self.wanted.give();
                    fault = Fault::Unsent(why);
                }
                answer => return answer,
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
        let gated = lane == Lane::Push && self.channels == Channels::Sharded;
        let _subscribing = (gated && subscribes).then(|| self.gate.enter(slot));
        if gated && !subscribes {
            let passed = self.gate.ahead(slot).passed();
            if clock.within(limit, passed).await.is_none() {
                let message = format!("no reply to a subscription within {limit:?}");
                return Err(Fault::Unsent(Reason::timed_out(message)));
            }
        }
        let mut node = self.owner(route)?;
        let mut behind = None;
        for _ in 0..=REDIRECTIONS_MAX {
            let left = clock.now().until(end);
            if left.is_zero() {
                let message = format!("no time was left to follow a redirection within {limit:?}");
                let message = format!("{}: {message}", node.address);
                return Err(Fault::Unsent(Reason::timed_out(message)));
            }
            let link = self.link(&node, lane, subscribes);
            let fault = match link.send_behind(behind.take(), command, left).await {
                Ok(value) => return Ok(value),
                Err(fault) => fault,
            };
            let error = match &fault {
                Fault::Answered(error) => error,
                _ => {
                    self.wanted.give();
                    return Err(fault);
                }
            };
            match self.redirect(error, &node.address) {
                Some(Redirect::Moved { slot: of, to }) if of == slot => {
                    node = self.node(&to);
                    self.map.write().learn(slot, &node);
                    self.wanted.give();
                }
                Some(Redirect::Ask { to, .. }) => {
                    node = self.node(&to);
                    behind = Some(&*ASKING);
                }
                // The answer to another command: see `Hearing`.
                Some(Redirect::Moved { .. }) => {
                    link.close();
                    return Err(Fault::Unknown("the answer to another command".into()));
                }
                None => {
                    if is_temporary(error) {
                        self.wanted.give();
                    }
                    return Err(fault);
                }
            }
        }
        Err(unsettled(slot, &node))
    }

    /// As [`Transport::send_together`](crate::conn::Transport::send_together).
    pub(super) async fn send_together(
        &self,
        lane: Lane,
        route: &str,
        commands: &[Cmd],
        limit: Duration,
    ) -> Result<Vec<Value>, Fault> {
        let clock = self.nodes.setup().clock;
        let end = clock.now().after(limit);
        let slot = slot_of(route.as_bytes());
        let mut node = self.owner(route)?;
        let mut is_asking = false;
        for _ in 0..=REDIRECTIONS_MAX {
            let left = clock.now().until(end);
            if left.is_zero() {
                break;
            }
            let link = self.link(&node, lane, false);
            let answers = match is_asking {
                false => link.send_together(commands, left).await,
                true => {
                    let asked: Vec<Cmd> = commands
                        .iter()
                        .flat_map(|command| [ASKING.clone(), command.clone()])
                        .collect();
                    let answers = link.send_together(&asked, left).await;
                    answers.map(|answers| answers.into_iter().skip(1).step_by(2).collect())
                }
            };
            let answers = match answers {
                Ok(answers) => answers,
                Err(fault) => {
                    self.wanted.give();
                    return Err(fault);
                }
            };
            match self.redirect_in(&answers, &node.address) {
                None => return Ok(answers),
                Some(Redirect::Moved { slot: of, to }) => {
                    let to = self.node(&to);
                    self.map.write().learn(of, &to);
                    self.wanted.give();
                    if of != slot {
                        return Ok(answers);
                    }
                    (node, is_asking) = (to, false);
                }
                Some(Redirect::Ask { slot: of, .. }) if of != slot => return Ok(answers),
                Some(Redirect::Ask { to, .. }) => (node, is_asking) = (self.node(&to), true),
            }
        }
        Err(unsettled(slot, &node))
    }
}

/// Each of the nodes said that it did not execute it.
fn unsettled(slot: u16, last: &Node) -> Fault {
    let why = format!(
        "redirected from node to node, last to {}; the cluster has not settled who serves slot {slot}",
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
