//! A cluster: each command goes to the node that serves the slot of its key.
//!
//! Routing is our own, over one [`SingleServer`] for each node, because order and outcome matter more
//! here than convenience: a command is sent again only when a node answered that it was not executed.
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
//!
//! Where channels are sharded, a node has a link for nothing but subscriptions
//! ([`Hearing`](super::hearing::Hearing) says why), and what has to come after a subscription is held
//! back until that has ended ([`Gate`]).

mod gate;
mod keeper;
mod redirect;
mod slots;
mod survey;
mod view;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use redis::{Cmd, ConnectionInfo, Value};
use tokio::task::AbortHandle;

use self::gate::Gate;
use self::redirect::Redirect;
use self::slots::{SlotMap, slot_of};
use super::answer::is_not_now;
use super::link::Link;
use super::nodes::{Address, Nodes};
use super::single::SingleServer;
use super::{Channels, Fault, Lane, Setup, Transport};
use crate::hint::Hint;

/// A command follows so many redirections; nodes that go on contradicting each other need a while.
const REDIRECTIONS_MAX: usize = 5;

static ASKING: LazyLock<Cmd> = LazyLock::new(|| redis::cmd("ASKING"));

#[derive(Debug)]
pub(crate) struct Cluster {
    inner: Arc<Inner>,
    keeper: AbortHandle,
}

#[derive(Debug)]
struct Inner {
    nodes: Nodes,
    /// As the user named them.
    seeds: Vec<Address>,
    address: String,
    channels: Channels,
    map: RwLock<SlotMap<Node>>,
    /// Who served a slot at the last look.
    served: Mutex<Vec<Address>>,
    /// Given when the map may be old.
    wanted: Hint,
    gate: Gate,
}

/// One node and where it is.
#[derive(Clone, Debug)]
struct Node {
    address: Address,
    server: Arc<SingleServer>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        // One address has one server.
        Arc::ptr_eq(&self.server, &other.server)
    }
}

impl Cluster {
    /// Asks the seeds for the map.
    pub(crate) async fn connect(
        seeds: Vec<Address>,
        model: ConnectionInfo,
        setup: Setup,
    ) -> Result<Self, Fault> {
        let nodes = Nodes::new(model, setup);
        let view = survey::survey(&nodes, &seeds, 0).await.map_err(no_seed)?;
        if view.ranges.is_empty() {
            let message = "the cluster serves no slot yet: create it first";
            return Err(Fault::Unsent(message.to_owned()));
        }
        let mut asked: Vec<Address> = Vec::new();
        asked.extend(view.ranges.iter().map(|(.., address)| address.clone()));
        asked.dedup();
        let mut names: Vec<String> = seeds.iter().map(Address::to_string).collect();
        names.sort_unstable();
        names.dedup();
        let inner = Arc::new(Inner {
            channels: survey::channels(&nodes, &asked).await,
            nodes,
            seeds,
            address: names.join(","),
            map: RwLock::new(SlotMap::empty()),
            served: Mutex::default(),
            wanted: Hint::default(),
            gate: Gate::default(),
        });
        let mark = inner.wanted.mark();
        inner.adopt(&view);
        let keeper = keeper::keep(Arc::clone(&inner), view, mark);
        let keeper = tokio::spawn(keeper).abort_handle();
        Ok(Self { inner, keeper })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// None of the seeds has a map. What one of them answered says more than that another is away.
fn no_seed(faults: Vec<(Address, Fault)>) -> Fault {
    let mut silent = Vec::new();
    for (address, fault) in faults {
        match fault {
            Fault::Answered(_) | Fault::Declined(_) => return fault,
            Fault::Unsent(why) | Fault::Unknown(why) => silent.push(format!("{address}: {why}")),
        }
    }
    Fault::Unsent(format!(
        "no node of the cluster answers ({})",
        silent.join("; ")
    ))
}

impl Inner {
    fn node(&self, address: &Address) -> Node {
        Node {
            address: address.clone(),
            server: self.nodes.at(address),
        }
    }

    /// Who serves the slot of a key.
    fn owner(&self, route: &str) -> Result<Node, Fault> {
        let slot = slot_of(route.as_bytes());
        let owner = self.map.read().owner(slot).cloned();
        owner.ok_or_else(|| {
            self.wanted.give();
            Fault::Unsent(format!(
                "no node serves slot {slot}, to which the key belongs"
            ))
        })
    }

    fn link<'a>(&self, node: &'a Node, lane: Lane, subscribes: bool) -> &'a Link {
        match (lane, self.channels) {
            (Lane::Push, Channels::Sharded) if !subscribes => node.server.behind_push(),
            _ => node.server.link(lane),
        }
    }

    /// Sends what has no key to the first node that can be reached.
    async fn send_to_any(
        &self,
        lane: Lane,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Value, Fault> {
        let mut fault = Fault::Unsent("no node serves any slot".to_owned());
        let nodes = self.map.read().nodes();
        for node in nodes {
            match node.server.link(lane).send(command, limit).await {
                Err(Fault::Unsent(why)) => {
                    self.wanted.give();
                    fault = of_node(Fault::Unsent(why), &node.address);
                }
                answer => return answer,
            }
        }
        Err(fault)
    }

    async fn send(
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
                return Err(Fault::Unsent(message));
            }
        }
        let mut node = self.owner(route)?;
        let mut behind = None;
        for _ in 0..=REDIRECTIONS_MAX {
            let left = clock.now().until(end);
            if left.is_zero() {
                let message = format!("no time was left to follow a redirection within {limit:?}");
                return Err(of_node(Fault::Unsent(message), &node.address));
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
                    return Err(of_node(fault, &node.address));
                }
            };
            match Redirect::of(error, &node.address) {
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
                    let message = "the answer to another command".to_owned();
                    return Err(Fault::Unknown(message));
                }
                None => {
                    if is_not_now(error) {
                        self.wanted.give();
                    }
                    return Err(fault);
                }
            }
        }
        Err(unsettled(slot, &node))
    }

    /// As [`Transport::send_together`].
    async fn send_together(
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
            match redirect_in(&answers, &node.address) {
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
    Fault::Unsent(format!(
        "redirected from node to node, last to {}; the cluster has not settled who serves slot {slot}",
        last.address
    ))
}

/// What a node answered instead of executing it.
fn redirect_in(answers: &[Value], asked: &Address) -> Option<Redirect> {
    answers.iter().find_map(|answer| match answer {
        Value::ServerError(no) => Redirect::of(&no.clone().into(), asked),
        _ => None,
    })
}

/// The same, and which node it is about.
fn of_node(fault: Fault, node: &Address) -> Fault {
    match fault {
        Fault::Unsent(why) => Fault::Unsent(format!("{node}: {why}")),
        Fault::Unknown(why) => Fault::Unknown(format!("{node}: {why}")),
        answer => answer,
    }
}

fn is_about_a_subscription(command: &Cmd) -> bool {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(verb)) => verb.ends_with(b"SUBSCRIBE"),
        _ => false,
    }
}

impl Transport for Cluster {
    fn send<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Fault>> {
        match route.is_empty() {
            true => self.inner.send_to_any(lane, command, limit).boxed(),
            false => self.inner.send(lane, route, command, limit).boxed(),
        }
    }

    fn send_together<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<Value>, Fault>> {
        self.inner
            .send_together(lane, route, commands, limit)
            .boxed()
    }

    fn past_is_settled(&self, lane: Lane, route: &str) -> bool {
        let owner = self.inner.owner(route);
        owner.is_ok_and(|node| self.inner.link(&node, lane, false).past_is_settled())
    }

    fn slot(&self, route: &str) -> u16 {
        slot_of(route.as_bytes())
    }

    fn server(&self, route: &str) -> u64 {
        // A server is known for as long as this lives, so its place in memory names it.
        let owner = self.inner.owner(route);
        owner.map_or(0, |node| Arc::as_ptr(&node.server).addr() as u64)
    }

    fn address(&self) -> &str {
        &self.inner.address
    }

    fn channels(&self) -> Channels {
        self.inner.channels
    }
}
