//! Glances at the map between looks: one node is asked over a connection there is, soon after a look and
//! then every two seconds, so that a client hears of a failover that sends nothing.
//!
//! Invariant: a node that never agrees with the others, as one that tells other addresses, does not have
//! the client look again and again.

use std::collections::HashMap;
use std::time::Duration;

use super::route::Router;
use super::survey::slots;
use super::view::{Range, View};
use crate::conn::nodes::Address;
use crate::conn::{Fault, Lane};
use crate::hint::Mark;

/// Between two glances: doubled from the first to the second, and up to a half more.
const REST_FIRST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(2);

/// So long a node is given.
const LIMIT: Duration = Duration::from_secs(1);

/// A map that a node shows and the others do not is looked after so many times.
const IN_VAIN_MAX: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Glances {
    /// What single nodes showed that was not in use, and how often.
    odd: HashMap<Address, (Vec<Range>, u32)>,
}

impl Glances {
    /// Resolves when there is a hint after `mark`, or a node shows another map than `last`.
    pub(super) async fn until_wanted(&mut self, router: &Router, last: &View, mark: Mark) {
        let mut rest = REST_FIRST;
        let glances = async {
            loop {
                // Not all clients at the same moment.
                tokio::time::sleep(rest.mul_f64(1.0 + fastrand::f64() / 2.0)).await;
                rest = REST_MAX.min(rest * 2);
                if self.glance(router, last).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = router.wanted.past(mark) => {}
            () = glances => {}
        }
    }

    /// Whether one of the nodes has another map by now, or does not answer.
    async fn glance(&mut self, router: &Router, last: &View) -> bool {
        let mut nodes = router.map.read().nodes();
        nodes.retain(|node| node.server.link(Lane::Command).is_open());
        let Some(node) = fastrand::choice(nodes) else {
            // Whoever needs one finds out.
            return false;
        };
        match slots(node.server.link(Lane::Command), LIMIT).await {
            Ok(shown) => View::of(&shown, None, &node.address)
                .is_some_and(|view| self.is_new(node.address, view.ranges, &last.ranges)),
            Err(Fault::Answered(_)) => false,
            Err(_) => true,
        }
    }

    fn is_new(&mut self, node: Address, shown: Vec<Range>, known: &[Range]) -> bool {
        if shown == known {
            self.odd.remove(&node);
            return false;
        }
        let (before, times) = self.odd.entry(node).or_default();
        if *before != shown {
            (*before, *times) = (shown, 0);
        }
        *times += 1;
        *times <= IN_VAIN_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_agrees_is_believed_to_be_odd() {
        let at = |port| Address {
            host: "h".into(),
            port,
        };
        let map = |port| vec![(0, 16_383, at(port))];
        let mut glances = Glances::default();
        assert!(!glances.is_new(at(1), map(1), &map(1)));
        for round in 1..10 {
            let is_new = glances.is_new(at(1), map(2), &map(1));
            assert_eq!(is_new, round <= IN_VAIN_MAX, "{round}");
        }
        assert!(glances.is_new(at(2), map(2), &map(1)), "another node");
        assert!(glances.is_new(at(1), map(3), &map(1)), "another map");
        assert!(!glances.is_new(at(1), map(1), &map(1)));
        assert!(glances.is_new(at(1), map(3), &map(1)), "it had come around");
    }
}
