//! One node's view of its cluster: the slots and the nodes that serve them. Pure.

use std::collections::BTreeMap;

use redis::Value;

use super::slots::SLOTS;
use crate::conn::address::Address;
use crate::conn::value::text;

/// Slots, with both ends included, and the primary that serves them.
pub(super) type Range = (u16, u16, Address);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct View {
    pub(super) ranges: Vec<Range>,
    /// Asked for the map if no primary replies. Nothing else is read from replicas.
    pub(super) replicas: Vec<Address>,
    /// The nodes by their ids, which stay when addresses change. Empty if the nodes do not report them.
    pub(super) ids: BTreeMap<String, Address>,
    /// Whether the node considers the cluster to be working.
    pub(super) is_ok: bool,
    /// Grows with each failover. The node with the greater epoch knows more.
    pub(super) epoch: u64,
}

impl View {
    /// Parses the replies to `CLUSTER SLOTS` and, unless the node refused it, `CLUSTER INFO`.
    pub(super) fn of(slots: &Value, info: Option<&Value>, asked: &Address) -> Option<Self> {
        let mut view = Self {
            is_ok: true,
            ..Self::default()
        };
        let Value::Array(ranges) = slots else {
            return None;
        };
        if ranges.len() > SLOTS.into() {
            return None;
        }
        for range in ranges {
            let Value::Array(range) = range else {
                return None;
            };
            let [first, last, primary, replicas @ ..] = range.as_slice() else {
                return None;
            };
            let named = [primary].into_iter().chain(replicas);
            let named = named.filter_map(|named| Some((id(named)?, node(named, asked)?)));
            view.ids.extend(named);
            let primary = node(primary, asked)?;
            view.ranges.push((slot(first)?, slot(last)?, primary));
            let replicas = replicas.iter().filter_map(|replica| node(replica, asked));
            view.replicas.extend(replicas);
        }
        // Nodes may list equal maps in different orders.
        view.ranges.sort_unstable();
        view.replicas.sort_unstable();
        view.replicas.dedup();
        if let Some(info) = info.and_then(text) {
            let field = |name: &str| {
                let mut lines = info.lines();
                lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            };
            view.is_ok = field("cluster_state").is_none_or(|state| state.trim() == "ok");
            let epoch = field("cluster_current_epoch").and_then(|epoch| epoch.trim().parse().ok());
            view.epoch = epoch.unwrap_or(0);
        }
        view.is_ok &= !view.ranges.is_empty();
        Some(view)
    }

    /// Replaces announced addresses by the ones to use.
    pub(super) fn with_addresses(mut self, resolve: impl Fn(Address) -> Address) -> Self {
        let ranges = self.ranges.into_iter();
        self.ranges = ranges.map(|(a, b, node)| (a, b, resolve(node))).collect();
        self.replicas = self.replicas.into_iter().map(&resolve).collect();
        self.replicas.sort_unstable();
        for address in self.ids.values_mut() {
            *address = resolve(address.clone());
        }
        self
    }

    /// The ids of the nodes at this address: several where one proxy stands for several nodes.
    pub(super) fn ids_at(&self, address: &Address) -> Vec<String> {
        let here = self.ids.iter().filter(|(_, at)| *at == address);
        here.map(|(id, _)| id.clone()).collect()
    }

    /// Whether two views have a node in common, and so belong to one cluster. A view without ids contradicts nothing.
    pub(super) fn is_of_the_cluster_of(&self, other: &Self) -> bool {
        let is_silent = self.ids.is_empty() || other.ids.is_empty();
        is_silent || self.ids.keys().any(|id| other.ids.contains_key(id))
    }

    /// The rank among views of one cluster; the greater is the better.
    pub(super) fn rank(&self) -> (bool, u64) {
        (self.is_ok, self.epoch)
    }
}

fn slot(value: &Value) -> Option<u16> {
    match value {
        Value::Int(slot) => u16::try_from(*slot).ok(),
        _ => None,
    }
}

/// The id of a node, if it is given.
fn id(node: &Value) -> Option<String> {
    let Value::Array(fields) = node else {
        return None;
    };
    let id = fields.get(2).and_then(text)?;
    (!id.is_empty()).then(|| id.to_owned())
}

/// Parses `[host, port, id, more]`.
fn node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = value else {
        return None;
    };
    let [host, port, rest @ ..] = fields.as_slice() else {
        return None;
    };
    let Value::Int(port) = port else {
        return None;
    };
    let more = rest.get(1);
    let host = match text(host) {
        // The node should be announced by name, and has none.
        Some("?") => more.and_then(ip).unwrap_or(&asked.host),
        Some(host) if !host.is_empty() => host,
        // The node does not know its own address, so it is at the address that was asked.
        _ => &asked.host,
    };
    Some(Address {
        host: host.into(),
        port: u16::try_from(*port).ok()?,
    })
}

/// The IP address among the additional fields, which are a map or a flat list.
fn ip(more: &Value) -> Option<&str> {
    let is_ip = |key: &Value| text(key) == Some("ip");
    let ip = match more {
        Value::Array(flat) => {
            let mut pairs = flat.chunks_exact(2);
            pairs.find(|pair| is_ip(&pair[0])).map(|pair| &pair[1])
        }
        Value::Map(pairs) => {
            let pair = pairs.iter().find(|(key, _)| is_ip(key));
            pair.map(|(_, ip)| ip)
        }
        _ => None,
    };
    ip.and_then(text).filter(|ip| !ip.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::slots::SlotMap;
    use super::*;

    /// Replies as a node writes them, with some parts replaced by other values.
    fn replies() -> impl Strategy<Value = Value> {
        let odd = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            any::<Vec<u8>>().prop_map(Value::BulkString),
            Just(Value::Nil),
            Just(Value::Array(Vec::new())),
        ];
        let port = prop_oneof![4 => (1..9000_i64).prop_map(Value::Int), 1 => odd.clone()];
        let host = prop_oneof![4 => "[a-z?]{0,2}".prop_map(|host| Value::BulkString(host.into())), 1 => odd.clone()];
        let node = (host, port).prop_map(|(host, port)| Value::Array(vec![host, port]));
        let node = prop_oneof![8 => node, 1 => odd.clone()];
        let slot = prop_oneof![8 => (0..70_000_i64).prop_map(Value::Int), 1 => odd.clone()];
        let range = (slot.clone(), slot, proptest::collection::vec(node, 0..4));
        let range = range.prop_map(|(first, last, nodes)| {
            Value::Array([first, last].into_iter().chain(nodes).collect())
        });
        let range = prop_oneof![20 => range, 1 => odd];
        proptest::collection::vec(range, 0..6).prop_map(Value::Array)
    }

    proptest! {
        #[test]
        fn whatever_a_node_says_is_a_map_or_none(slots in replies(), info in any::<Option<String>>()) {
            let info = info.map(Value::SimpleString);
            let Some(view) = View::of(&slots, info.as_ref(), &at("seed", 1)) else {
                return Ok(());
            };
            let Value::Array(said) = &slots else { unreachable!() };
            prop_assert_eq!(view.ranges.len(), said.len());
            let map = SlotMap::of(view.ranges.iter().cloned());
            for slot in (0..SLOTS).step_by(97) {
                let serves = |(first, last, node): &&Range| {
                    (*first..=*last).contains(&slot) && Some(node) == map.owner(slot)
                };
                let owner = view.ranges.iter().find(serves).map(|(_, _, node)| node);
                prop_assert_eq!(map.owner(slot), owner);
            }
        }
    }

    #[test]
    fn no_map_has_more_ranges_than_there_are_slots() {
        let range = reply(&["*3", ":0", ":1", "*2", "$1", "h", ":7000"]);
        let of = |ranges| Value::Array(vec![range.clone(); ranges]);
        let seed = at("seed", 1);
        assert!(View::of(&of(SLOTS.into()), None, &seed).is_some());
        assert_eq!(View::of(&of(usize::from(SLOTS) + 1), None, &seed), None);
    }

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    fn reply(lines: &[&str]) -> Value {
        let text = lines.join("\r\n") + "\r\n";
        redis::parse_redis_value(text.as_bytes()).expect("a reply")
    }

    fn info(state: &str, epoch: u64) -> Value {
        let text = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
        Value::BulkString(text.into_bytes())
    }

    #[test]
    fn primaries_serve_and_replicas_are_known() {
        let slots = reply(&[
            "*2", // Two ranges, the second without a replica.
            "*4",
            ":0",
            ":5460", //
            "*4",
            "$9",
            "127.0.0.1",
            ":7000",
            "$2",
            "aa",
            "*0", //
            "*4",
            "$9",
            "127.0.0.1",
            ":7003",
            "$2",
            "bb",
            "*0", //
            "*3",
            ":5461",
            ":16383", //
            "*3",
            "$9",
            "127.0.0.1",
            ":7001",
            "$2",
            "cc",
        ]);
        let view = View::of(&slots, Some(&info("ok", 7)), &at("seed", 1)).unwrap();
        assert_eq!(
            view,
            View {
                ranges: vec![
                    (0, 5460, at("127.0.0.1", 7000)),
                    (5461, 16383, at("127.0.0.1", 7001)),
                ],
                replicas: vec![at("127.0.0.1", 7003)],
                ids: [("aa", 7000), ("bb", 7003), ("cc", 7001)]
                    .map(|(id, port)| (id.to_owned(), at("127.0.0.1", port)))
                    .into(),
                is_ok: true,
                epoch: 7,
            }
        );
    }

    #[test]
    fn a_cluster_is_known_by_the_ids_of_its_nodes() {
        let view = |ids: &[&str]| View {
            ids: ids
                .iter()
                .map(|id| ((*id).to_owned(), at("h", 1)))
                .collect(),
            ..View::default()
        };
        for (one, other, is_one) in [
            (&["a", "b"][..], &["b", "c"][..], true),
            (&["a", "b"], &["c", "d"], false),
            (&[], &["c"], true),
            (&["a"], &[], true),
        ] {
            assert_eq!(view(one).is_of_the_cluster_of(&view(other)), is_one);
        }
        // A proxy in front of a cluster may report no ids.
        for unnamed in [
            &["*2", "$1", "h", ":7000"][..],
            &["*3", "$1", "h", ":7000", "$0", ""],
        ] {
            let mut lines = vec!["*1", "*3", ":0", ":16383"];
            lines.extend(unnamed);
            let view = View::of(&reply(&lines), None, &at("seed", 1)).unwrap();
            assert_eq!(view.ids, BTreeMap::new());
        }
    }

    #[test]
    fn a_node_without_an_address_is_where_it_was_asked() {
        for (host, expected) in [
            (&["$-1"][..], "seed"),
            (&["$0", ""], "seed"),
            (&["$4", "node"], "node"),
            (&["$1", "?"], "10.0.0.1"),
        ] {
            let mut lines = vec!["*1", "*3", ":0", ":16383", "*4"];
            lines.extend(host);
            lines.extend([":7000", "$2", "aa", "*2", "$2", "ip", "$8", "10.0.0.1"]);
            let view = View::of(&reply(&lines), None, &at("seed", 1)).unwrap();
            assert_eq!(view.ranges, [(0, 16383, at(expected, 7000))]);
            assert!(view.is_ok, "a node that does not say how the cluster is");
        }
        let unnamed = reply(&[
            "*1", "*3", ":0", ":16383", "*3", "$1", "?", ":7000", "$2", "aa",
        ]);
        let view = View::of(&unnamed, None, &at("seed", 1)).unwrap();
        assert_eq!(view.ranges, [(0, 16383, at("seed", 7000))]);
        // In RESP3 the additional fields are a map.
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let more = |ip| Value::Map(vec![(text("name"), text("n")), (text("ip"), text(ip))]);
        for (ip, expected) in [("10.0.0.1", "10.0.0.1"), ("", "seed")] {
            let fields = vec![text("?"), Value::Int(7000), text("aa"), more(ip)];
            let address = node(&Value::Array(fields), &at("seed", 1));
            assert_eq!(address, Some(at(expected, 7000)));
        }
    }

    #[test]
    fn primaries_and_replicas_are_used_at_the_addresses_that_they_are_given() {
        let view = View {
            ranges: vec![(0, 5460, at("a", 1)), (5461, 16383, at("b", 2))],
            replicas: vec![at("b", 3), at("a", 4)],
            ids: [("x".to_owned(), at("a", 1))].into(),
            is_ok: true,
            epoch: 7,
        };
        let outside = |inside: Address| at("outside", 9000 - inside.port);
        let expected = View {
            ranges: vec![
                (0, 5460, at("outside", 8999)),
                (5461, 16383, at("outside", 8998)),
            ],
            replicas: vec![at("outside", 8996), at("outside", 8997)],
            ids: [("x".to_owned(), at("outside", 8999))].into(),
            ..view.clone()
        };
        assert_eq!(view.with_addresses(outside), expected);
    }

    #[test]
    fn the_best_view_is_of_a_working_cluster_and_then_the_newest() {
        let slots = reply(&[
            "*1", "*3", ":0", ":16383", "*3", "$1", "h", ":7000", "$2", "aa",
        ]);
        let view = |state, epoch| {
            let info = info(state, epoch);
            View::of(&slots, Some(&info), &at("seed", 1)).unwrap()
        };
        assert!(view("ok", 3).rank() > view("ok", 2).rank());
        assert!(view("ok", 1).rank() > view("fail", 9).rank());
        let nothing = View::of(&reply(&["*0"]), Some(&info("ok", 9)), &at("seed", 1)).unwrap();
        assert!(!nothing.is_ok, "nobody serves any slot");
    }

    #[test]
    fn a_reply_to_another_question_is_no_view() {
        for odd in [
            &["+OK"][..],
            &["*1", ":1"],
            &["*1", "*2", ":0", ":1"],
            &["*1", "*3", ":0", ":1", "+x"],
            &["*1", "*3", ":0", ":70000", "*3", "$1", "h", ":1", "$1", "a"],
        ] {
            assert_eq!(View::of(&reply(odd), None, &at("seed", 1)), None, "{odd:?}");
        }
    }
}
