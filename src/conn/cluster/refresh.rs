//! The task that keeps the map of a cluster up to date.
//!
//! It refreshes the map after a hint that it is old: a redirection, a node that cannot be reached or does not reply,
//! a connection that ends by itself, or an error that the cluster is down. Refreshes keep a distance, which grows
//! while they find nothing new, so that a thousand clients do not overload a cluster in trouble. A refresh without a
//! reply is repeated. A client that sends nothing gets no hint from a node that hangs, nor when another takes over
//! later, so one node is polled in between ([`super::poll`]).
//!
//! A new map has three consequences. A node that no longer serves any slot was taken over by another, which may lack
//! some of its writes: every hold is checked, once for each refresh. A slot that migrates takes its keys along and
//! concerns no hold, so the move of a thousand slots causes no renewals. Connections to a node that serves nothing
//! are closed. So is a connection with a sharded channel in a slot that its node no longer serves; closing it reports
//! the gap. Messages on plain channels reach every node.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::discover::{ASKED_MAX, discover};
use super::poll::MapPoller;
use super::route::Router;
use super::slots::{SlotMap, slot_of};
use super::view::View;
use crate::conn::address::Address;
use crate::conn::transport::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;

/// Refreshes are at least this far apart: doubled from the first to the last while they find nothing new.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs until it is dropped. `last` is the view in use, and was asked for after `mark`.
pub(super) async fn run(router: Arc<Router>, mut last: View, mut mark: Mark) {
    let clock = router.nodes.setup().clock;
    let mut pause = PAUSE_FIRST;
    let mut refreshed = Tick::ZERO;
    let mut poller = MapPoller::default();
    // Ends with this function.
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
            Ok((_, view)) if view != last => {
                router.adopt(&view);
                open(&router, &mut opening);
                last = view;
                PAUSE_FIRST
            }
            unchanged => {
                match unchanged {
                    // Redirections may have changed the map since. They may be newer or older than this view.
                    Ok((_, view)) => router.adopt(&view),
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
        opening.spawn(router.nodes.setup().network.task(open));
    }
}

/// The nodes to ask, in this order: nodes from redirections since the last refresh, which know more; other serving
/// nodes; replicas, which may have taken over; the seeds of the user.
fn candidates(router: &Router, last: &View) -> Vec<Address> {
    let serving = router.map.read().nodes().into_iter();
    let mut serving: Vec<Address> = serving.map(|node| node.address).collect();
    let mut replicas = last.replicas.clone();
    fastrand::shuffle(&mut serving);
    fastrand::shuffle(&mut replicas);
    serving.sort_by_key(|address| last.ranges.iter().any(|(.., known)| known == address));
    let mut seeds = router.seeds.clone();
    fastrand::shuffle(&mut seeds);
    // Seeds always get a share, because all other nodes may have new addresses.
    seeds.truncate(ASKED_MAX / 3);
    let mut candidates: Vec<Address> = Vec::new();
    for address in serving.into_iter().chain(replicas) {
        if !candidates.contains(&address) && !seeds.contains(&address) {
            candidates.push(address);
        }
    }
    candidates.truncate(ASKED_MAX - seeds.len());
    candidates.extend(seeds);
    candidates
}

impl Router {
    /// Installs this map. Closes connections and checks holds as needed.
    pub(super) fn adopt(&self, view: &View) {
        let ranges = view.ranges.iter();
        let map =
            SlotMap::of(ranges.map(|(first, last, address)| (*first, *last, self.node(address))));
        let serving = map.nodes();
        *self.map.write() = map;
        for (address, server) in self.nodes.known() {
            server.expect_node(view.ids_at(&address));
            let serves = serving.iter().any(|node| node.address == address);
            if !serves {
                server.close();
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
        let mut served = self.served.lock();
        let now: Vec<Address> = serving.into_iter().map(|node| node.address).collect();
        let was_taken_over = served.iter().any(|address| !now.contains(address));
        *served = now;
        drop(served);
        if was_taken_over {
            self.nodes.setup().events.moved();
        }
    }
}
