//! The task that keeps the map of a cluster up to date.
//!
//! It looks when something hints that the map is old: a redirection, a node that cannot be reached or
//! does not answer, a connection that ends by itself, a cluster that says that it is down. Looks are
//! some time apart, more if they show nothing new, so that a thousand clients do not fall upon a cluster
//! that has enough to do. A look that nobody answered is repeated. A client that sends nothing gets no
//! hint from a node that stands still, and none when another takes over later: so between the looks
//! one node is asked for its map, over a connection there is, soon after a hint and then every two
//! seconds; if it has changed, that is a hint.
//!
//! Who is told what. A node that serves no slot any more was taken over by one that may not have all
//! it had: all holds are looked at again, once for each look. A slot that goes from one node to
//! another takes its keys along, and concerns nobody who holds; so the move of a thousand slots is no
//! reason for a thousand renewals. Connections to a node that serves nothing are closed, and so is a
//! connection with a subscription in a slot that its node does not serve: closing it tells the gap.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::glance::Glances;
use super::route::Router;
use super::slots::{SlotMap, slot_of};
use super::survey::{ASKED_MAX, survey};
use super::view::View;
use crate::clock::Tick;
use crate::conn::Lane;
use crate::conn::nodes::Address;
use crate::hint::Mark;

/// Looks are at least so far apart: doubled from the first to the last while they show nothing new.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Runs until it is dropped. `last` is the view in use, and was asked for after `mark`.
pub(super) async fn keep(router: Arc<Router>, mut last: View, mut mark: Mark) {
    let clock = router.nodes.setup().clock;
    let mut pause = PAUSE_FIRST;
    let mut looked = Tick::ZERO;
    let mut glances = Glances::default();
    // Ends with this.
    let mut opening = JoinSet::new();
    open(&router, &mut opening);
    loop {
        glances.until_wanted(&router, &last, mark).await;
        if looked.until(clock.now()) > PAUSE_MAX * 2 {
            pause = PAUSE_FIRST;
        }
        // What is found out during the look may not be in it.
        mark = router.wanted.mark();
        let view = survey(&router.nodes, &candidates(&router, &last), last.epoch).await;
        looked = clock.now();
        pause = match view {
            Ok((_, view)) if view != last => {
                router.adopt(&view);
                open(&router, &mut opening);
                last = view;
                PAUSE_FIRST
            }
            answer => {
                match answer {
                    // What redirections told meanwhile may be newer or older than this.
                    Ok((_, view)) => router.adopt(&view),
                    Err(_) => router.wanted.give(),
                }
                PAUSE_MAX.min(pause * 2)
            }
        };
        // Not all clients at the same moment.
        tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
    }
}

/// Has the connections made that will be needed at each node that serves, so that the first renewal of
/// a short lease does not have to wait for one.
fn open(router: &Router, opening: &mut JoinSet<()>) {
    while opening.try_join_next().is_some() {}
    for node in router.map.read().nodes() {
        opening.spawn(async move {
            // Who needs one that could not be made tries again.
            let _ = node.server.open().await;
        });
    }
}

/// Whom to ask: those that serve by what redirections told, and so know more; those that serve; those
/// that may come to serve; those that were named by the user.
fn candidates(router: &Router, last: &View) -> Vec<Address> {
    let serving = router.map.read().nodes().into_iter();
    let mut serving: Vec<Address> = serving.map(|node| node.address).collect();
    let mut replicas = last.replicas.clone();
    fastrand::shuffle(&mut serving);
    fastrand::shuffle(&mut replicas);
    serving.sort_by_key(|address| last.ranges.iter().any(|(.., known)| known == address));
    let mut seeds = router.seeds.clone();
    fastrand::shuffle(&mut seeds);
    // However many nodes there are: all of them may have got other addresses since the last look.
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
    /// Uses this map from now on, and tells whom it concerns.
    pub(super) fn adopt(&self, view: &View) {
        let ranges = view.ranges.iter();
        let map =
            SlotMap::of(ranges.map(|(first, last, address)| (*first, *last, self.node(address))));
        let serving = map.nodes();
        *self.map.write() = map;
        for (address, server) in self.nodes.known() {
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
            if push.has_channel(went_away) {
                push.close();
            }
        }
        let mut served = self.served.lock();
        let now: Vec<Address> = serving.into_iter().map(|node| node.address).collect();
        let is_taken_over = served.iter().any(|address| !now.contains(address));
        *served = now;
        drop(served);
        if is_taken_over {
            self.nodes.setup().events.moved();
        }
    }
}
