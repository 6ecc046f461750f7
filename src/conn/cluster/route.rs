//! Routes commands to nodes, and follows redirections.
//!
//! Invariant: the undoing of an attempt does not overtake it. A command is sent again only while its caller drives
//! it, so an abandoned attempt is in one place at most, and its undoing follows on the same path.
//! docs/design/ordering.md has the argument.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLock;
use redis::{Cmd, Value};

use super::map::{Redirect, SlotMap, is_half_done, slot_of};
use crate::conn::address::Address;
use crate::conn::error_reply::is_temporary;
use crate::conn::link::Link;
use crate::conn::single::{Nodes, SingleServer};
use crate::conn::transport::{Channels, Fault, Lane, Reason, Replies, command, errors_in};
use crate::engine::hint::Hint;

/// The number of redirections that one command follows. Nodes that still contradict each other after them need more
/// time.
const REDIRECTIONS_MAX: usize = 5;

#[derive(Debug)]
pub(crate) struct Router {
    pub(super) nodes: Nodes,
    /// In the order and form of the user's URL.
    pub(super) seeds: Vec<Address>,
    pub(crate) channels: Channels,
    pub(super) map: RwLock<SlotMap<Node>>,
    /// Signalled when the map may be old, for example when a connection has ended by itself.
    pub(super) refresh_wanted: Arc<Hint>,
}

/// A node with its address.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(super) address: Address,
    pub(crate) server: Arc<SingleServer>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        // One address has one server.
        Arc::ptr_eq(&self.server, &other.server)
    }
}

impl Router {
    /// Makes a router without a map.
    pub(super) fn new(nodes: Nodes, seeds: Vec<Address>, channels: Channels) -> Self {
        Self {
            refresh_wanted: Arc::clone(&nodes.setup.disconnected),
            nodes,
            seeds,
            channels,
            map: RwLock::new(SlotMap::empty()),
        }
    }

    pub(super) fn node(&self, address: &Address) -> Node {
        let (address, server) = (address.clone(), self.nodes.at(address));
        // Set before any connection is made, because the map may say only later which node should be there.
        server.process.asks_node.store(true, Ordering::Relaxed);
        Node { address, server }
    }

    /// Returns a key for each node that serves a slot.
    pub(crate) fn routes(&self) -> Vec<String> {
        self.map.read().routes()
    }

    /// Returns the node that serves the slot of a key.
    pub(crate) fn owner(&self, route: &str) -> Result<Node, Fault> {
        let slot = slot_of(route.as_bytes());
        let owner = self.map.read().owner(slot).cloned();
        owner.ok_or_else(|| {
            self.refresh_wanted.notify();
            Fault::Unsent(format!("no node serves slot {slot}, to which the key belongs").into())
        })
    }

    /// Calls `action` for each node that does not serve the slot of a key now, but may have served it earlier.
    pub(crate) fn at_others(&self, route: &str, action: impl Fn(&SingleServer)) {
        let owner = self.owner(route).ok().map(|owner| owner.server.number);
        self.nodes.at_each(|server| {
            if Some(server.number) != owner {
                action(server);
            }
        });
    }

    pub(crate) async fn exchange(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        limit: Duration,
    ) -> Result<Replies, Fault> {
        let clock = self.nodes.setup.clock;
        let end = clock.now().after(limit);
        let is_one = commands.len() == 1;
        let slot = slot_of(route.as_bytes());
        let mut node = self.owner(route)?;
        let mut is_asking = false;
        for hop in 0..=REDIRECTIONS_MAX {
            // No time has passed yet. A link has one shared timer for commands that have the whole limit.
            let remaining = if hop == 0 {
                limit
            } else {
                clock.now().until(end)
            };
            if remaining.is_zero() {
                return Err(no_time_left(&node, limit));
            }
            let link = node.server.link(lane);
            let replies = if std::mem::take(&mut is_asking) {
                Box::pin(asking(link, commands, remaining)).await
            } else {
                link.exchange(commands, remaining).await
            };
            let replies = replies.inspect_err(|_| self.refresh_wanted.notify())?;
            match self.redirect_in(&replies, &node.address) {
                Some(moved) if !moved.asks && moved.slot == slot => {
                    if moved.to == node.address {
                        // Another connection may lead to another node behind this address.
                        link.leave();
                    }
                    node = self.learn(&moved);
                }
                Some(ask) if ask.asks && (ask.slot == slot || is_one) => {
                    (node, is_asking) = (self.node(&ask.to), true);
                }
                // The reply belongs to another command: see `PushState`.
                Some(_) if is_one => {
                    link.close();
                    return Err(Fault::Unknown("the answer to another command".into()));
                }
                redirect => {
                    if let Some(moved) = redirect.filter(|redirect| !redirect.asks) {
                        self.learn(&moved);
                    } else if errors_in(&replies).any(|error| is_temporary(&error)) {
                        self.refresh_wanted.notify();
                    }
                    return Ok(replies);
                }
            }
        }
        Err(too_many_redirections(slot, &node))
    }

    /// Notes that a node serves a slot, and wants the rest of the map.
    fn learn(&self, moved: &Redirect) -> Node {
        let node = self.node(&moved.to);
        self.map.write().learn(moved.slot, &node);
        self.refresh_wanted.notify();
        node
    }

    /// Returns the first redirection among these replies, with the address at which the node can be reached. `None` if
    /// the commands are half done.
    fn redirect_in(&self, replies: &[Value], asked: &Address) -> Option<Redirect> {
        if is_half_done(replies) {
            return None;
        }
        let mut redirect = errors_in(replies).find_map(|no| Redirect::of(&no, asked))?;
        redirect.to = self.nodes.setup.address_map.resolve(redirect.to);
        Some(redirect)
    }
}

/// Sends each command behind an `ASKING`.
async fn asking(link: &Arc<Link>, commands: &[&Cmd], limit: Duration) -> Result<Replies, Fault> {
    let asking = command(&["ASKING"]);
    let pairs = commands.iter();
    let pairs: Vec<&Cmd> = pairs.flat_map(|command| [&asking, command]).collect();
    let replies = link.exchange(&pairs, limit);
    let replies = replies.await?;
    let replies = replies.chunks_exact(2).map(|pair| match pair {
        // The second error is only a consequence of the first.
        [no @ Value::ServerError(_), Value::ServerError(_)] => no.clone(),
        pair => pair[1].clone(),
    });
    Ok(replies.collect())
}

fn no_time_left(node: &Node, limit: Duration) -> Fault {
    let message = format!("no time was left to follow a redirection within {limit:?}");
    let message = format!("{}: {message}", node.address);
    Fault::Unsent(Reason::timed_out(message))
}

/// Makes the fault of a command that every node has refused to execute.
fn too_many_redirections(slot: u16, last: &Node) -> Fault {
    let why = format!(
        "redirected from node to node, last to {}; the nodes do not agree yet which of them \
         serves slot {slot}",
        last.address
    );
    Fault::Unsent(why.into())
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use redis::IntoConnectionInfo;

    use super::super::map::View;
    use super::*;
    use crate::conn::setup::Setup;
    use crate::conn::tests::{BOUND, FakeServer, at_once, bulk};
    use crate::conn::transport::EventHandler;

    #[derive(Debug, Default)]
    struct Moves(AtomicBool);

    impl EventHandler for Moves {
        fn message(&self, _channel: &[u8], _message: &[u8]) {}
        fn gap(&self) {}
        fn moved(&self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn router(events: Arc<dyn EventHandler>) -> Router {
        let model = "redis://h".into_connection_info().unwrap();
        let setup = Setup {
            events,
            ..Setup::sample(BOUND)
        };
        Router::new(Nodes::new(model, setup), Vec::new(), Channels::Plain)
    }

    /// Another cluster may have taken over an address that a redirection names.
    #[tokio::test]
    async fn a_node_met_by_a_redirection_is_left_if_the_map_has_another_there() {
        let refused = "-NOPERM no right".to_owned();
        for (id, is_left) in [(bulk("stranger"), true), (refused, false)] {
            let stranger = FakeServer::start(move |asked| match asked {
                "PING" => at_once("+OK"),
                "CLUSTER MYID" => at_once(&id),
                _ => at_once("-ERR no"),
            });
            let stranger = stranger.await;
            let moved = format!("-MOVED {} {}", slot_of(b"x"), stranger.address);
            let redirects = FakeServer::start(move |asked| match asked {
                "PING" => at_once(&moved),
                _ => at_once("-ERR no"),
            });
            let redirects = redirects.await;
            let [ours, other] = [&redirects, &stranger].map(|node| node.address.clone());
            let before = View {
                ranges: vec![(0, 16_383, ours.clone())],
                ..View::default()
            };
            let after = View {
                ranges: vec![(0, 1, ours), (2, 16_383, other.clone())],
                ids: [("id".to_owned(), other)].into(),
                ..View::default()
            };
            let moves = Arc::<Moves>::default();
            let router = router(Arc::clone(&moves) as _);
            router.adopt(&before, &before);
            let ping = command(&["PING"]);
            let pings = [&ping];
            let send = || router.exchange(Lane::Command, "x", &pings, BOUND);
            assert_eq!(send().await.expect("it is new").as_slice(), [Value::Okay]);
            router.adopt(&after, &before);
            let sent = send().await;
            assert_eq!(sent.is_err(), is_left, "{sent:?}");
            assert_eq!(
                moves.0.load(Ordering::SeqCst),
                is_left,
                "its holds are checked"
            );
        }
    }

    /// For example, both nodes of a shard are behind one address.
    #[tokio::test]
    async fn a_redirection_to_the_address_that_was_asked_is_followed_over_another_connection() {
        let (here, made) = (Arc::<OnceLock<Address>>::default(), AtomicUsize::new(0));
        let known = Arc::clone(&here);
        let node = FakeServer::start(move |asked| match asked {
            "PING" if made.load(Ordering::SeqCst) > 1 => at_once("+OK"),
            "PING" => at_once(&format!("-MOVED {} {}", slot_of(b"x"), known.get()?)),
            asked => {
                let is_new = asked == "CLIENT INFO";
                made.fetch_add(is_new.into(), Ordering::SeqCst);
                at_once("-ERR no")
            }
        });
        let node = node.await;
        here.set(node.address.clone()).expect("it is new");
        let view = View {
            ranges: vec![(0, 16_383, node.address.clone())],
            ..View::default()
        };
        let router = router(Arc::<Moves>::default());
        router.adopt(&view, &view);
        let ping = command(&["PING"]);
        let sent = router.exchange(Lane::Command, "x", &[&ping], BOUND).await;
        assert_eq!(sent.expect("a reply").as_slice(), [Value::Okay]);
    }

    /// The node serves no slot yet.
    #[tokio::test]
    async fn a_refresh_keeps_the_connection_to_a_node_that_takes_a_slot_over() {
        let takes_over = FakeServer::start(|asked| match asked {
            "PING" => at_once("+OK"),
            _ => at_once("-ERR no"),
        });
        let takes_over = takes_over.await;
        let ask = format!("-ASK {} {}", slot_of(b"x"), takes_over.address);
        let serves = FakeServer::start(move |asked| match asked {
            "PING" => at_once(&ask),
            _ => at_once("-ERR no"),
        });
        let serves = serves.await;
        let view = View {
            ranges: vec![(0, 16_383, serves.address.clone())],
            ..View::default()
        };
        let router = router(Arc::<Moves>::default());
        let ping = command(&["PING"]);
        for _ in 0..3 {
            router.adopt(&view, &view);
            let pings = [&ping];
            let sent = router.exchange(Lane::Command, "x", &pings, BOUND);
            assert_eq!(sent.await.expect("a reply").as_slice(), [Value::Okay]);
        }
        assert_eq!(takes_over.connections(), 1);
        let moved = View {
            ranges: vec![(0, 16_383, takes_over.address.clone())],
            ..View::default()
        };
        let link = |node: &FakeServer| router.node(&node.address).server;
        router.adopt(&moved, &view);
        assert!(!link(&serves).link(Lane::Command).is_open());
        assert!(link(&takes_over).link(Lane::Command).is_open());
    }
}
