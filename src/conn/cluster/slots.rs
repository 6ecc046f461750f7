//! The slot of a key, and the node that serves a slot. Pure.

use crc16::{State, XMODEM};

/// The number of slots in every cluster.
pub(super) const SLOTS: u16 = 16384;

/// The slot of a key. Only the text between its first `{` and the next `}` counts, unless that is empty or missing.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(tag(key)) % SLOTS
}

fn tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else {
        return key;
    };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

/// A map from slots to nodes.
#[derive(Clone, Debug)]
pub(super) struct SlotMap<N> {
    /// The index of each slot's node, or [`NOBODY`].
    owners: Box<[u16]>,
    nodes: Vec<N>,
}

const NOBODY: u16 = u16::MAX;

impl<N: Clone + PartialEq> SlotMap<N> {
    pub(super) fn empty() -> Self {
        Self {
            owners: vec![NOBODY; SLOTS.into()].into(),
            nodes: Vec::new(),
        }
    }

    /// Builds a map from ranges that include both ends. Slots that do not exist are ignored.
    pub(super) fn of(ranges: impl IntoIterator<Item = (u16, u16, N)>) -> Self {
        let mut map = Self::empty();
        for (first, last, node) in ranges {
            let index = map.index(&node);
            let last = last.min(SLOTS - 1);
            if first <= last {
                map.owners[first.into()..=last.into()].fill(index);
            }
        }
        map
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&N> {
        let index = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(index))
    }

    /// Notes that this node now serves a slot.
    pub(super) fn learn(&mut self, slot: u16, node: &N) {
        let index = self.index(node);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = index;
        }
    }

    /// The nodes that serve at least one slot.
    pub(super) fn nodes(&self) -> Vec<N> {
        let mut serves = vec![false; self.nodes.len()];
        for index in &self.owners {
            if let Some(serves) = serves.get_mut(usize::from(*index)) {
                *serves = true;
            }
        }
        let nodes = self.nodes.iter().zip(serves);
        nodes
            .filter(|(_, serves)| *serves)
            .map(|(node, _)| node.clone())
            .collect()
    }

    /// A key for each of these nodes, in a slot that it serves.
    pub(super) fn routes(&self) -> Vec<String> {
        let mut has_route = vec![false; self.nodes.len()];
        let nodes = self.nodes().len();
        // The numbers below 200 000 reach all slots.
        let numbers = (0..200_000).map(|number: u32| number.to_string());
        let mut routes = Vec::new();
        for route in numbers {
            if routes.len() == nodes {
                break;
            }
            let owner = self.owners[usize::from(slot_of(route.as_bytes()))];
            if let Some(has_route) = has_route.get_mut(usize::from(owner))
                && !*has_route
            {
                *has_route = true;
                routes.push(route);
            }
        }
        routes
    }

    fn index(&mut self, node: &N) -> u16 {
        let known = self.nodes.iter().position(|known| known == node);
        let index = known.unwrap_or_else(|| {
            self.nodes.push(node.clone());
            self.nodes.len() - 1
        });
        // Each node serves a slot, or was learned from a redirection.
        u16::try_from(index).unwrap_or(NOBODY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_node_has_a_route_even_one_with_a_single_slot() {
        let slots = || (0..SLOTS).map(|slot| (slot, slot, slot));
        let map = SlotMap::of(slots());
        let mut served: Vec<u16> = map
            .routes()
            .iter()
            .map(|route| slot_of(route.as_bytes()))
            .collect();
        served.sort_unstable();
        assert_eq!(served, (0..SLOTS).collect::<Vec<_>>());
        assert!(SlotMap::<u8>::empty().routes().is_empty());
    }

    /// From the cluster specification, and from `CLUSTER KEYSLOT` of a server.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(State::<XMODEM>::calculate(b"123456789"), 0x31C3);
        for (key, slot) in [
            ("", 0),
            ("foo", 12182),
            ("bar", 5061),
            ("hello", 866),
            ("123456789", 0x31C3),
            ("{user1000}.following", slot_of(b"user1000")),
            ("foo{}{bar}", slot_of_all(b"foo{}{bar}")),
            ("foo{{bar}}zap", slot_of(b"{bar")),
            ("foo{bar}{zap}", 5061),
            ("foo{bar", slot_of_all(b"foo{bar")),
            ("foo}bar{", slot_of_all(b"foo}bar{")),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    fn slot_of_all(key: &[u8]) -> u16 {
        State::<XMODEM>::calculate(key) % SLOTS
    }

    proptest! {
        #[test]
        fn a_slot_is_one_of_those_there_are(key in any::<Vec<u8>>()) {
            prop_assert!(slot_of(&key) < SLOTS);
        }

        #[test]
        fn what_stands_around_a_tag_does_not_count(
            before in "[^{]*", tag in "[^}]+", after in ".*"
        ) {
            let key = format!("{before}{{{tag}}}{after}");
            prop_assert_eq!(slot_of(key.as_bytes()), slot_of_all(tag.as_bytes()));
        }

        #[test]
        fn a_map_says_what_it_was_made_of_and_learnt(
            cuts in proptest::collection::btree_set(1..SLOTS, 0..8),
            learnt in proptest::collection::vec((0..SLOTS, 0..20u8), 0..50),
        ) {
            let firsts: Vec<u16> = std::iter::once(0).chain(cuts.iter().copied()).collect();
            let lasts = cuts.iter().map(|cut| cut - 1).chain([SLOTS - 1]);
            let ranges = firsts.iter().copied().zip(lasts);
            let ranges = ranges.zip(0..).map(|((first, last), node)| (first, last, node));
            let mut expected = vec![0; SLOTS.into()];
            for (first, last, node) in ranges.clone() {
                expected[first.into()..=last.into()].fill(node);
            }
            let mut map = SlotMap::of(ranges);
            for (slot, node) in learnt {
                map.learn(slot, &node);
                expected[usize::from(slot)] = node;
            }
            for slot in 0..SLOTS {
                prop_assert_eq!(map.owner(slot), Some(&expected[usize::from(slot)]));
            }
            let mut nodes = map.nodes();
            nodes.sort_unstable();
            expected.sort_unstable();
            expected.dedup();
            prop_assert_eq!(nodes, expected);
        }
    }

    #[test]
    fn a_slot_outside_or_without_a_node_has_no_owner() {
        let mut map = SlotMap::of([(10, 20_000, "a"), (5, 4, "b")]);
        assert_eq!(map.owner(9), None);
        assert_eq!(map.owner(10), Some(&"a"));
        assert_eq!(map.owner(SLOTS - 1), Some(&"a"));
        map.learn(SLOTS, &"c");
        assert_eq!(map.owner(SLOTS), None);
        assert_eq!(map.nodes(), ["a"]);
        assert!(SlotMap::<&str>::empty().nodes().is_empty());
    }
}
