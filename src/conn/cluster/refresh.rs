//! How the map of a cluster stays up to date: the task that refreshes it, the questions to nodes, and the polls between
//! refreshes.
//!
//! The task refreshes the map after a hint that it is old: a redirection, a node that cannot be reached or does not
//! reply, a connection that ends by itself, or an error that the cluster is down. Refreshes keep a distance, which
//! grows while they find nothing new, so that a thousand clients do not overload a cluster in trouble. A refresh
//! without a reply is repeated. A client that sends nothing gets no hint that a node hangs, or that another has taken
//! over later. So one node is polled in between, over an open connection. Invariant: a node that always disagrees with
//! the others, for example because it announces other addresses, does not cause endless refreshes.
//!
//! A new map has three consequences. A node that no longer serves any slot was taken over by another, which may lack
//! some of its writes: every hold is checked, once for each refresh. A slot that migrates takes its keys along, so no
//! hold is checked for it, and the move of a thousand slots causes no renewals. Connections to a node that no longer
//! serves any slot are closed. So is a connection with a sharded channel in a slot that its node no longer serves;
//! closing it reports the gap. Messages on plain channels reach every node, so a subscription to one goes on where it
//! was made, and is ended at all nodes.
//!
//! A refresh asks a few nodes at once, each on its own connection that ends with the reply, so this delays no other
//! command and leaves nothing behind. The first good reply is not enough, because a node that is alone on its side of a
//! partition keeps an old map for a while. The other nodes get a moment longer. A node that considers the cluster to be
//! working wins, then the one with more failovers (`cluster_current_epoch`). A view that is
//! older than the one in use counts only if most nodes have older ones. Views of another cluster do not count (see
//! `map.rs`).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;
use tokio::task::JoinSet;

use super::map::{Range, SlotMap, Told, View, are_most, best, is_ours, slot_of};
use super::route::Router;
use crate::conn::address::{Address, distinct};
use crate::conn::error_reply::is_temporary;
use crate::conn::link::Link;
use crate::conn::setup::Setup;
use crate::conn::single::Nodes;
use crate::conn::transport::{Channels, Fault, Lane, command};
use crate::conn::value::text;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;

/// The least pause between two refreshes. It doubles from the first to the longest while they find nothing new.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs until it is dropped. `last` is the view in use, and was asked for after `mark`.
pub(super) async fn run(router: Arc<Router>, mut last: View, mut mark: Mark) {
    let clock = router.nodes.setup.clock;
    let mut pause = PAUSE_FIRST;
    let mut refreshed = Tick::ZERO;
    let mut poller = MapPoller::default();
    // Its tasks end with this function.
    let mut opening = JoinSet::new();
    open(&router, &mut opening);
    loop {
        poller.until_refresh_wanted(&router, &last, mark).await;
        if refreshed.until(clock.now()) > PAUSE_MAX * 2 {
            pause = PAUSE_FIRST;
        }
        // A hint during the refresh may be newer than the replies.
        mark = router.refresh_wanted.mark();
        let candidates = candidates(&router, &last);
        let view = discover(&router.nodes, &candidates, Some(&last), &router.seeds).await;
        refreshed = clock.now();
        pause = match view {
            Ok(Told { view, .. }) if view != last => {
                router.adopt(&view, &last);
                open(&router, &mut opening);
                last = view;
                PAUSE_FIRST
            }
            unchanged => {
                match unchanged {
                    // Redirections may have changed the map in the meantime. They may be newer or older than this view.
                    Ok(told) => router.adopt(&told.view, &last),
                    Err(_) => router.refresh_wanted.notify(),
                }
                PAUSE_MAX.min(pause * 2)
            }
        };
        // Spread, so that clients do not refresh at the same moment.
        tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
    }
}

/// Opens the connections that each serving node will need, so that the first renewal of a short lease does not wait
/// for one.
fn open(router: &Router, opening: &mut JoinSet<()>) {
    while opening.try_join_next().is_some() {}
    for node in router.map.read().nodes() {
        let open = async move {
            // The next command that needs this connection tries again.
            let _ = node.server.open().await;
        };
        opening.spawn(router.nodes.setup.network.task(open));
    }
}

/// Returns the nodes to ask, in this order: nodes from redirections since the last refresh, which know more; other
/// serving nodes; replicas, which may have taken over; the seeds of the user.
fn candidates(router: &Router, last: &View) -> Vec<Address> {
    let serving = router.map.read().nodes().into_iter();
    let mut serving: Vec<Address> = serving.map(|node| node.address).collect();
    let mut others: Vec<Address> = last.ids.values().cloned().collect();
    fastrand::shuffle(&mut serving);
    fastrand::shuffle(&mut others);
    serving.sort_by_key(|address| last.ranges.iter().any(|(.., known)| known == address));
    let mut seeds = router.seeds.clone();
    fastrand::shuffle(&mut seeds);
    // Seeds always get a share, because all other nodes may have new addresses.
    seeds.truncate(ASKED_MAX / 3);
    let mut candidates = distinct([serving, others].concat());
    candidates.retain(|address| !seeds.contains(address));
    candidates.truncate(ASKED_MAX - seeds.len());
    candidates.extend(seeds);
    candidates
}

impl Router {
    /// Installs this map in place of the last one. Closes connections and checks holds as needed.
    pub(super) fn adopt(&self, view: &View, last: &View) {
        let ranges = view.ranges.iter();
        let map =
            SlotMap::of(ranges.map(|(first, last, address)| (*first, *last, self.node(address))));
        let serving = map.nodes().into_iter().map(|node| node.address);
        let serving: HashSet<Address> = serving.collect();
        let before = std::mem::replace(&mut *self.map.write(), map).nodes();
        let mut met_stranger = false;
        for (address, server) in self.nodes.known() {
            met_stranger |= server.process.expect_node(view.ids_at(&address));
            if !serving.contains(&address) {
                // A node that takes over its first slot is asked before it serves any slot.
                if before.iter().any(|node| node.address == address) {
                    server.close();
                }
                continue;
            }
            let push = server.link(Lane::Push);
            let went_away = |channel: &[u8]| {
                let map = self.map.read();
                let owner = map.owner(slot_of(channel));
                owner.is_none_or(|owner| owner.address != address)
            };
            if push.has_sharded(went_away) {
                push.close();
            }
        }
        let mut served = last.ranges.iter().map(|(.., address)| address);
        let was_taken_over = served.any(|address| !serving.contains(address));
        if was_taken_over || met_stranger {
            self.nodes.setup.events.moved();
        }
    }
}

/// The number of nodes asked at once.
const ASKED_AT_ONCE: usize = 3;

/// The number of nodes asked in total.
const ASKED_MAX: usize = 15;

/// More nodes are asked after this long without a good reply.
const STAGGER: Duration = Duration::from_millis(200);

/// The time that other nodes have after the first good reply.
const GRACE: Duration = Duration::from_millis(30);

/// Asks these nodes in order until one has a map of a working cluster that is no older than `last`, or until most have
/// maps of a broken cluster and no other node answers. Returns the best map, with the node that has it; or the faults,
/// which are none if the nodes that replied are of different clusters.
pub(super) async fn discover(
    nodes: &Nodes,
    addresses: &[Address],
    last: Option<&View>,
    seeds: &[Address],
) -> Result<Told, Vec<(Address, Fault)>> {
    let clock = nodes.setup.clock;
    let addresses = &addresses[..addresses.len().min(ASKED_MAX)];
    let mut rounds = addresses.chunks(ASKED_AT_ONCE);
    let first = rounds.next().unwrap_or_default().iter();
    let mut asked: FuturesUnordered<_> = first.map(|address| ask(nodes, address)).collect();
    let epoch = last.map_or(0, |last| last.epoch);
    let mut told: Vec<Told> = Vec::new();
    let mut faults = Vec::new();
    let mut is_good = false;
    let is_current = |told: &Told| is_ours(told, last) && told.view.epoch >= epoch;
    loop {
        let wait = if is_good { GRACE } else { STAGGER };
        match clock.within(wait, asked.next()).await.flatten() {
            Some((_, Ok(one))) => {
                is_good |= is_current(&one) && one.view.is_ok;
                told.push(one);
            }
            Some((address, Err(fault))) => faults.push((address.clone(), fault)),
            None if is_good => break,
            // The nodes asked so far are slow, or have no good map.
            None => match rounds.next() {
                Some(more) => asked.extend(more.iter().map(|address| ask(nodes, address))),
                None if asked.is_empty() => break,
                // Most agree that the cluster does not work. Soon they may know which node takes over from a silent
                // node, and the next refresh learns that before the silent node's time-out.
                None if last.is_some() && are_most(&told, addresses.len(), is_current) => break,
                None => {}
            },
        }
    }
    if !told.is_empty() {
        faults.clear();
    }
    let is_older = |told: &Told| is_ours(told, last) && told.view.epoch < epoch;
    // Older views are left out, because a few nodes may not know yet that they were replaced. If most views are older,
    // the epoch was reset.
    if !are_most(&told, addresses.len(), is_older) {
        told.retain(|told| !is_older(told));
    }
    best(told, last, seeds).ok_or(faults)
}

async fn ask<'a>(nodes: &Nodes, address: &'a Address) -> (&'a Address, Result<Told, Fault>) {
    let link = temporary_link(nodes, address);
    let limit = limit(nodes);
    let [info, id] = ["INFO", "MYID"].map(|what| command(&["CLUSTER", what]));
    let (info, id) = (link.send(&info, limit), link.send(&id, limit));
    let (slots, info, id) = join3(slots(&link, limit), info, id).await;
    let id = id.ok().as_ref().and_then(text).map(str::to_owned);
    let told = slots.and_then(|slots| {
        let map = &nodes.setup.address_map;
        let view = match View::of(&slots, info.ok().as_ref(), address, map) {
            None => Err("its reply to CLUSTER SLOTS is not a map of slots"),
            // The node may have been removed from its cluster.
            Some(view) if view.ranges.is_empty() => {
                Err("it knows no node that serves a slot: is the cluster created?")
            }
            Some(view) => Ok(Told {
                address: address.clone(),
                id,
                view,
            }),
        };
        view.map_err(|why| Fault::Unsent(format!("{address}: {why}").into()))
    });
    (address, told)
}

/// Asks one node only for its map.
async fn slots(link: &Arc<Link>, limit: Duration) -> Result<Value, Fault> {
    link.send(&command(&["CLUSTER", "SLOTS"]), limit).await
}

/// Decides as Redisson does: channels are sharded if the first node that is asked supports it.
pub(super) async fn channels(nodes: &Nodes, address: &Address) -> Result<Channels, Fault> {
    let link = temporary_link(nodes, address);
    let ask = command(&["PUBSUB", "SHARDNUMSUB"]);
    match link.send(&ask, limit(nodes)).await {
        Ok(_) => Ok(Channels::Sharded),
        Err(Fault::Answered(no)) if !is_temporary(&no) => Ok(Channels::Plain),
        // The answer is unknown, and messages on the wrong kind of channel would reach no subscriber.
        Err(fault) => Err(fault),
    }
}

/// Returns the time for the steps of a connection, and one more.
fn limit(nodes: &Nodes) -> Duration {
    nodes.setup.step_timeout.saturating_mul(4)
}

/// Makes a link for one question.
fn temporary_link(nodes: &Nodes, address: &Address) -> Arc<Link> {
    let setup = Setup {
        // The end of this connection says nothing about the server.
        disconnected: Arc::default(),
        ..nodes.setup.clone()
    };
    let (info, server) = (nodes.info(address), nodes.at(address));
    let process = Arc::default();
    Link::new(info, None, &setup, &server.reachability, &process)
}

/// The longest pause between two polls: doubled from [`PAUSE_FIRST`], plus up to a half.
const POLL_PAUSE_MAX: Duration = Duration::from_secs(2);

/// The time that a node has to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The most refreshes that one dissenting map causes.
const REFRESHES_MAX: u32 = 3;

/// Polls the map between refreshes.
#[derive(Debug, Default)]
struct MapPoller {
    /// Maps of single nodes that differ from the map in use, with the number of times that each was seen.
    dissenting: HashMap<Address, (Vec<Range>, u32)>,
}

impl MapPoller {
    /// Resolves on a hint after `mark`, or when a node has a map other than `last`.
    async fn until_refresh_wanted(&mut self, router: &Router, last: &View, mark: Mark) {
        let mut pause = PAUSE_FIRST;
        let polls = async {
            loop {
                // Spread, so that clients do not poll at the same moment.
                tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
                pause = POLL_PAUSE_MAX.min(pause * 2);
                if self.poll(router, last).await {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = router.refresh_wanted.changed_since(mark) => {}
            () = polls => {}
        }
    }

    /// Asks a random node. Returns whether it has another map or does not reply.
    async fn poll(&mut self, router: &Router, last: &View) -> bool {
        let mut nodes = router.map.read().nodes();
        nodes.retain(|node| node.server.link(Lane::Command).is_open());
        let Some(node) = fastrand::choice(nodes) else {
            // The next command finds out.
            return false;
        };
        match slots(node.server.link(Lane::Command), REPLY_TIMEOUT).await {
            Ok(reply) => View::of(&reply, None, &node.address, &router.nodes.setup.address_map)
                .is_some_and(|view| self.is_new(node.address, view.ranges, &last.ranges)),
            Err(Fault::Answered(_)) => false,
            Err(_) => true,
        }
    }

    fn is_new(&mut self, node: Address, shown: Vec<Range>, known: &[Range]) -> bool {
        if shown == known {
            self.dissenting.remove(&node);
            return false;
        }
        let (before, times) = self.dissenting.entry(node).or_default();
        if *before != shown {
            (*before, *times) = (shown, 0);
        }
        *times += 1;
        *times <= REFRESHES_MAX
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::conn::tests::{BOUND, FakeServer, at_once, bulk};

    /// Refuses all other commands.
    async fn node(slots: Duration, state: &'static str, epoch: u64) -> FakeServer {
        node_with_id("-ERR no".to_owned(), slots, state, epoch).await
    }

    async fn node_with_id(
        id: String,
        slots: Duration,
        state: &'static str,
        epoch: u64,
    ) -> FakeServer {
        let map = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{}\r\n:7\r\n", bulk("h"));
        FakeServer::start(move |asked| match asked {
            "CLUSTER SLOTS" => Some((slots, map.clone())),
            "CLUSTER INFO" => {
                let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
                at_once(&bulk(&info))
            }
            "CLUSTER MYID" => at_once(&id),
            _ => at_once("-ERR no"),
        })
        .await
    }

    async fn discovered(nodes: &[&FakeServer]) -> Result<Told, Vec<(Address, Fault)>> {
        let model = "redis://h".into_connection_info().unwrap();
        let addresses: Vec<Address> = nodes.iter().map(|node| node.address.clone()).collect();
        let nodes = Nodes::new(model, Setup::sample(BOUND * 2));
        let last = View {
            is_ok: true,
            epoch: 3,
            ..View::default()
        };
        let found = discover(&nodes, &addresses, Some(&last), &[]);
        let found = tokio::time::timeout(BOUND, found).await;
        found.expect("it ends")
    }

    /// Soon after, the others may say which node has taken over from it.
    #[tokio::test]
    async fn a_silent_node_does_not_delay_what_most_nodes_say() {
        let silent = FakeServer::start(|_| None).await;
        let others = [(); 2].map(|()| node(Duration::ZERO, "fail", 3));
        let [one, two] = futures_util::future::join_all(others)
            .await
            .try_into()
            .unwrap();
        let Told { view, .. } = discovered(&[&silent, &one, &two]).await.expect("a view");
        assert_eq!((view.is_ok, view.epoch), (false, 3));
    }

    /// That node may be alone on its side of a partition.
    #[tokio::test]
    async fn a_single_node_without_a_good_map_is_not_all_that_is_heard() {
        let alone = node(Duration::ZERO, "fail", 3).await;
        let silent = FakeServer::start(|_| None).await;
        let far = node(STAGGER * 4, "ok", 4).await;
        let Told { view, .. } = discovered(&[&alone, &silent, &far]).await.expect("a view");
        assert_eq!((view.is_ok, view.epoch), (true, 4));
    }

    /// The node may have been deposed without knowing it yet.
    #[tokio::test]
    async fn a_single_node_that_knows_less_is_not_believed() {
        for (older, is_believed) in [(1, false), (2, true)] {
            let mut nodes = Vec::new();
            for _ in 0..older {
                nodes.push(node(Duration::ZERO, "ok", 2).await);
            }
            while nodes.len() < 3 {
                nodes.push(FakeServer::start(|_| at_once("-ERR no")).await);
            }
            let nodes: Vec<&FakeServer> = nodes.iter().collect();
            let told = discovered(&nodes).await;
            let epoch = told.ok().map(|told| told.view.epoch);
            assert_eq!(epoch, is_believed.then_some(2), "{older} of three");
        }
    }

    /// For example, a seed is named by its host, and the nodes announce its IP.
    #[tokio::test]
    async fn a_node_that_is_asked_at_two_addresses_is_believed_as_one() {
        for (other, is_believed) in [("p", false), ("n", true)] {
            let ids = ["p", other].map(|id| node_with_id(bulk(id), Duration::ZERO, "ok", 2));
            let [one, two] = futures_util::future::join_all(ids)
                .await
                .try_into()
                .unwrap();
            let gone = FakeServer::start(|_| at_once("-ERR no")).await;
            let told = discovered(&[&one, &two, &gone]).await;
            assert_eq!(told.is_ok(), is_believed, "{told:?}");
        }
    }

    #[test]
    fn a_node_that_never_agrees_stops_causing_refreshes() {
        let at = |port| Address {
            host: "h".into(),
            port,
        };
        let map = |port| vec![(0, 16_383, at(port))];
        let mut poller = MapPoller::default();
        assert!(!poller.is_new(at(1), map(1), &map(1)));
        for round in 1..10 {
            let is_new = poller.is_new(at(1), map(2), &map(1));
            assert_eq!(is_new, round <= REFRESHES_MAX, "{round}");
        }
        assert!(poller.is_new(at(2), map(2), &map(1)), "another node");
        assert!(poller.is_new(at(1), map(3), &map(1)), "another map");
        assert!(!poller.is_new(at(1), map(1), &map(1)));
        assert!(
            poller.is_new(at(1), map(3), &map(1)),
            "it had agreed in between"
        );
    }
}
