//! Asks nodes for the map of their cluster.
//!
//! Asks a few nodes at once, each on its own connection that ends with the reply, so this delays no other command and
//! leaves nothing behind. The first good reply is not enough, because a node that is alone on its side of a partition
//! keeps an old map for a while. The other nodes get a moment longer. A node that considers the cluster to be working
//! wins, then the one with more failovers (`cluster_current_epoch`). Views of another cluster do not count
//! ([`membership`](super::membership)).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::Value;

use super::membership::{Told, best, is_ours};
use super::view::View;
use crate::conn::address::Address;
use crate::conn::error_reply::is_temporary;
use crate::conn::link::{Link, Purpose};
use crate::conn::nodes::Nodes;
use crate::conn::setup::{Setup, tcp_settings};
use crate::conn::transport::{Channels, Fault};

/// Nodes asked at once.
const ASKED_AT_ONCE: usize = 3;

/// Nodes asked in total.
pub(super) const ASKED_MAX: usize = 15;

/// More nodes are asked after this long without a good reply.
const STAGGER: Duration = Duration::from_millis(200);

/// The time that other nodes have after the first good reply.
const GRACE: Duration = Duration::from_millis(30);

/// Asks these nodes in order until one has a map of a working cluster that is no older than `last`. Returns the best
/// map otherwise, with the node that has it.
pub(super) async fn discover(
    nodes: &Nodes,
    addresses: &[Address],
    last: Option<&View>,
    seeds: &[Address],
) -> Result<Told, Vec<(Address, Fault)>> {
    let clock = nodes.setup().clock;
    let addresses = &addresses[..addresses.len().min(ASKED_MAX)];
    let mut rounds = addresses.chunks(ASKED_AT_ONCE);
    let first = rounds.next().unwrap_or_default().iter();
    let mut asked: FuturesUnordered<_> = first.map(|address| ask(nodes, address)).collect();
    let epoch = last.map_or(0, |last| last.epoch);
    let mut told: Vec<Told> = Vec::new();
    let mut faults = Vec::new();
    let mut is_good = false;
    loop {
        let wait = if is_good { GRACE } else { STAGGER };
        let reply = if asked.is_empty() {
            None
        } else {
            clock.within(wait, asked.next()).await.flatten()
        };
        match reply {
            Some((address, Ok(view))) => {
                is_good |= is_ours(&view, last) && view.is_ok && view.epoch >= epoch;
                told.push((address.clone(), view));
            }
            Some((address, Err(fault))) => faults.push((address.clone(), fault)),
            None if is_good => break,
            // The nodes asked so far are slow, or have no good map.
            None => match rounds.next() {
                Some(more) => asked.extend(more.iter().map(|address| ask(nodes, address))),
                None if asked.is_empty() => break,
                None => {}
            },
        }
    }
    best(told, last, seeds).ok_or(faults)
}

async fn ask<'a>(nodes: &Nodes, address: &'a Address) -> (&'a Address, Result<View, Fault>) {
    let link = temporary_link(nodes, address);
    let limit = limit(nodes);
    let mut info = redis::cmd("CLUSTER");
    info.arg("INFO");
    let (slots, info) = join(slots(&link, limit), link.send(&info, limit)).await;
    let view = slots.and_then(|slots| {
        let view = View::of(&slots, info.ok().as_ref(), address)
            .ok_or("its reply to CLUSTER SLOTS is not a map of slots")
            // The node may have been removed from its cluster.
            .and_then(|view| {
                if view.ranges.is_empty() {
                    return Err("it knows no node that serves a slot: is the cluster created?");
                }
                Ok(view)
            });
        let view = view.map(|view| view.with_addresses(|announced| nodes.resolve(announced)));
        view.map_err(|why| Fault::Unsent(format!("{address}: {why}").into()))
    });
    (address, view)
}

/// Asks one node only for its map.
pub(super) async fn slots(link: &Link, limit: Duration) -> Result<Value, Fault> {
    let mut ask = redis::cmd("CLUSTER");
    ask.arg("SLOTS");
    link.send(&ask, limit).await
}

/// Decides as Redisson does: channels are sharded if the first node that is asked supports it.
pub(super) async fn channels(nodes: &Nodes, address: &Address) -> Result<Channels, Fault> {
    let mut ask = redis::cmd("PUBSUB");
    ask.arg("SHARDNUMSUB");
    let link = temporary_link(nodes, address);
    match link.send(&ask, limit(nodes)).await {
        Ok(_) => Ok(Channels::Sharded),
        Err(Fault::Answered(no)) if !is_temporary(&no) => Ok(Channels::Plain),
        // The answer is unknown, and messages on the wrong kind of channel would reach no subscriber.
        Err(fault) => Err(fault),
    }
}

/// The time for the steps of a connection, and one more.
fn limit(nodes: &Nodes) -> Duration {
    nodes.setup().step_timeout.saturating_mul(4)
}

/// A link for one question.
fn temporary_link(nodes: &Nodes, address: &Address) -> Link {
    let setup = nodes.setup();
    let label = format!("lockset-map-{}", setup.client_id);
    let setup = Setup {
        // The end of this connection says nothing about the server.
        disconnected: Arc::default(),
        ..setup.clone()
    };
    let info = nodes.info(address).set_tcp_settings(tcp_settings());
    Link::new(
        info,
        label,
        &setup,
        nodes.at(address).reachability(),
        &Arc::default(),
        Purpose::Calls,
    )
}
