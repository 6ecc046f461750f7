//! Asking nodes for the map of their cluster.
//!
//! A few are asked at once, each on a connection of its own that ends with the answer, so that a
//! survey delays nothing else and leaves nothing behind. The first answer that is good is not simply
//! taken: a node that is alone on its side of a split believes in an old map for a while. Others are
//! waited for a moment longer, and the answer of a node that thinks the cluster works counts more,
//! then that of the one that has seen more failovers (`cluster_current_epoch`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;

use super::view::View;
use crate::conn::error_reply::is_temporary;
use crate::conn::link::Link;
use crate::conn::nodes::{Address, Nodes};
use crate::conn::single::connected_with;
use crate::conn::{Channels, Fault, Setup};

/// So many nodes are asked at once.
const ASKED_AT_ONCE: usize = 3;

/// And so many in all.
pub(super) const ASKED_MAX: usize = 15;

/// Without a good answer, some more are asked after this long.
const STAGGER: Duration = Duration::from_millis(200);

/// After one good answer the others that were asked are waited for this long.
const GRACE: Duration = Duration::from_millis(30);

/// Asks these nodes, first ones first, until one has a map of a working cluster that has seen `epoch`.
/// If none has, the best there is. With who said it.
pub(super) async fn survey(
    nodes: &Nodes,
    addresses: &[Address],
    epoch: u64,
) -> Result<(Address, View), Vec<(Address, Fault)>> {
    let clock = nodes.setup().clock;
    let addresses = &addresses[..addresses.len().min(ASKED_MAX)];
    let mut rounds = addresses.chunks(ASKED_AT_ONCE);
    let first = rounds.next().unwrap_or_default().iter();
    let mut asked: FuturesUnordered<_> = first.map(|address| look(nodes, address)).collect();
    let mut best: Option<(Address, View)> = None;
    let mut faults = Vec::new();
    let mut is_good = false;
    loop {
        let wait = if is_good { GRACE } else { STAGGER };
        let answer = match asked.is_empty() {
            true => None,
            false => clock.within(wait, asked.next()).await.flatten(),
        };
        match answer {
            Some((address, Ok(view))) => {
                is_good |= view.is_ok && view.epoch >= epoch;
                let so_far = best.as_ref().map(|(_, best)| best.rank());
                if so_far < Some(view.rank()) {
                    best = Some((address.clone(), view));
                }
            }
            Some((address, Err(fault))) => faults.push((address.clone(), fault)),
            None if is_good => break,
            // Those asked so far are slow, or have nothing good to say.
            None => match rounds.next() {
                Some(more) => asked.extend(more.iter().map(|address| look(nodes, address))),
                None if asked.is_empty() => break,
                None => {}
            },
        }
    }
    best.ok_or(faults)
}

async fn look<'a>(nodes: &Nodes, address: &'a Address) -> (&'a Address, Result<View, Fault>) {
    let link = visit(nodes, address);
    let limit = visit_limit(nodes);
    let mut info = redis::cmd("CLUSTER");
    info.arg("INFO");
    let (shown, info) = join(slots(&link, limit), link.send(&info, limit)).await;
    let view = shown.and_then(|shown| {
        let view = View::of(&shown, info.ok().as_ref(), address)
            .ok_or("it says nothing that is a map of slots")
            // One that was taken out of its cluster.
            .and_then(|view| match view.ranges.is_empty() {
                true => Err("it knows nobody who serves a slot: is the cluster created?"),
                false => Ok(view),
            });
        let view = view.map(|view| view.led(|told| nodes.lead(told)));
        view.map_err(|why| Fault::Unsent(format!("{address}: {why}").into()))
    });
    (address, view)
}

/// Asks one node for its map alone.
pub(super) async fn slots(link: &Link, limit: Duration) -> Result<Value, Fault> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    link.send(&ask, limit).await
}

/// Redisson's rule: sharded where a node that is asked at first knows of sharded channels.
pub(super) async fn channels(nodes: &Nodes, address: &Address) -> Result<Channels, Fault> {
    let mut ask = redis::cmd("PUBSUB");
    ask.arg("SHARDNUMSUB");
    let link = visit(nodes, address);
    match link.send(&ask, visit_limit(nodes)).await {
        Ok(_) => Ok(Channels::Sharded),
        Err(Fault::Answered(no)) if !is_temporary(&no) => Ok(Channels::Plain),
        // Not known; and the wrong ones would reach nobody.
        Err(fault) => Err(fault),
    }
}

/// The steps of a connection, and one more.
fn visit_limit(nodes: &Nodes) -> Duration {
    nodes.setup().step_timeout * 4
}

/// A connection for one visit.
fn visit(nodes: &Nodes, address: &Address) -> Link {
    let setup = nodes.setup();
    let label = format!("lockset-map-{}", setup.client_id);
    let setup = Setup {
        preload: Arc::default(),
        // The end of a visit says nothing.
        disconnected: Arc::default(),
        ..setup.clone()
    };
    let info = connected_with(nodes.info(address));
    Link::new(info, label, &setup, nodes.at(address).reach(), None)
}
