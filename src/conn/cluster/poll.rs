//! Polls the map between refreshes, so that a client that sends nothing notices a failover. Asks one node over an
//! open connection, soon after a refresh and then every two seconds.
//!
//! Invariant: a node that always disagrees with the others, for example because it announces other addresses, does
//! not cause endless refreshes.

use std::collections::HashMap;
use std::time::Duration;

use super::discover::slots;
use super::route::Router;
use super::view::{Range, View};
use crate::conn::address::Address;
use crate::conn::transport::{Fault, Lane};
use crate::engine::hint::Mark;

/// Pauses between two polls: doubled from the first to the last, plus up to a half.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The time that a node has to reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// The most refreshes that one dissenting map causes.
const REFRESHES_MAX: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct MapPoller {
    /// Maps of single nodes that differ from the map in use, with the number of times that each was seen.
    dissenting: HashMap<Address, (Vec<Range>, u32)>,
}

impl MapPoller {
    /// Resolves on a hint after `mark`, or when a node has a map other than `last`.
    pub(super) async fn until_refresh_wanted(&mut self, router: &Router, last: &View, mark: Mark) {
        let mut pause = PAUSE_FIRST;
        let polls = async {
            loop {
                // Spread, so that clients do not poll at the same moment.
                tokio::time::sleep(pause.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
                pause = PAUSE_MAX.min(pause * 2);
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
            Ok(reply) => View::of(&reply, None, &node.address)
                .map(|view| view.with_addresses(|announced| router.nodes.resolve(announced)))
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
    use super::*;

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
