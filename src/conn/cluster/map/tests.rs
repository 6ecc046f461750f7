//! Tests of the slots, of the views that nodes have, of those that count, and of redirections.

mod slots {
    use proptest::prelude::*;

    use super::super::*;

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
        assert_eq!(CHECKSUM.checksum(b"123456789"), 0x31C3);
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
        CHECKSUM.checksum(key) % SLOTS
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

mod views {
    use proptest::prelude::*;

    use super::super::*;

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
            let Some(view) = seen(&slots, info.as_ref()) else {
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
        assert!(seen(&of(SLOTS.into()), None).is_some());
        assert_eq!(seen(&of(usize::from(SLOTS) + 1), None), None);
    }

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    /// Returns the view of a node at `seed:1`.
    fn seen(slots: &Value, info: Option<&Value>) -> Option<View> {
        View::of(slots, info, &at("seed", 1), &AddressMap::default())
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
        let view = seen(&slots, Some(&info("ok", 7))).unwrap();
        assert_eq!(
            view,
            View {
                ranges: vec![
                    (0, 5460, at("127.0.0.1", 7000)),
                    (5461, 16383, at("127.0.0.1", 7001)),
                ],
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
            let told = Told {
                address: at("h", 1),
                id: None,
                view: view(one),
            };
            assert_eq!(told.is_of_the_cluster_of(&view(other)), is_one);
        }
        // A proxy in front of a cluster may report no ids.
        for unnamed in [
            &["*2", "$1", "h", ":7000"][..],
            &["*3", "$1", "h", ":7000", "$0", ""],
        ] {
            let mut lines = vec!["*1", "*3", ":0", ":16383"];
            lines.extend(unnamed);
            let view = seen(&reply(&lines), None).unwrap();
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
            let view = seen(&reply(&lines), None).unwrap();
            assert_eq!(view.ranges, [(0, 16383, at(expected, 7000))]);
            assert!(view.is_ok, "a node that does not say how the cluster is");
        }
        let unnamed = reply(&[
            "*1", "*3", ":0", ":16383", "*3", "$1", "?", ":7000", "$2", "aa",
        ]);
        let view = seen(&unnamed, None).unwrap();
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
        let slots = reply(&[
            "*2", "*4", ":0", ":5460", "*3", "$1", "a", ":1", "$1", "x", "*3", "$1", "b", ":3",
            "$1", "y", "*4", ":5461", ":16383", "*2", "$1", "b", ":2", "*3", "$1", "a", ":4", "$1",
            "z",
        ]);
        let outside = AddressMap::of(|_, port| Some(("outside".to_owned(), 9000 - port)));
        let expected = View {
            ranges: vec![
                (0, 5460, at("outside", 8999)),
                (5461, 16383, at("outside", 8998)),
            ],
            ids: [("x", 8999), ("y", 8997), ("z", 8996)]
                .map(|(id, port)| (id.to_owned(), at("outside", port)))
                .into(),
            is_ok: true,
            epoch: 7,
        };
        let view = View::of(&slots, Some(&info("ok", 7)), &at("seed", 1), &outside);
        assert_eq!(view, Some(expected));
    }

    #[test]
    fn the_best_view_is_of_a_working_cluster_and_then_the_newest() {
        let slots = reply(&[
            "*1", "*3", ":0", ":16383", "*3", "$1", "h", ":7000", "$2", "aa",
        ]);
        let view = |state, epoch| {
            let info = info(state, epoch);
            seen(&slots, Some(&info)).unwrap()
        };
        assert!(view("ok", 3).rank() > view("ok", 2).rank());
        assert!(view("ok", 1).rank() > view("fail", 9).rank());
        let nothing = seen(&reply(&["*0"]), Some(&info("ok", 9))).unwrap();
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
            assert_eq!(seen(&reply(odd), None), None, "{odd:?}");
        }
    }
}

mod membership {
    use super::super::*;

    fn at(port: u16) -> Address {
        Address {
            host: "h".into(),
            port,
        }
    }

    fn view(ids: &[&str], epoch: u64) -> View {
        View {
            ids: ids.iter().map(|id| ((*id).to_owned(), at(1))).collect(),
            is_ok: true,
            epoch,
            ..View::default()
        }
    }

    fn told(port: u16, id: Option<&str>, view: &View) -> Told {
        Told {
            address: at(port),
            id: id.map(str::to_owned),
            view: view.clone(),
        }
    }

    /// Returns the node with the view that counts. The nodes do not report their own ids.
    fn best_of(views: &[(u16, View)], last: Option<&View>, seeds: &[u16]) -> Option<u16> {
        let all = views.iter().map(|(port, view)| told(*port, None, view));
        let seeds: Vec<Address> = seeds.iter().map(|port| at(*port)).collect();
        best(all.collect(), last, &seeds).map(|told| told.address.port)
    }

    /// Returns the view of a node. The nodes in `primaries` serve the slots.
    fn shard(primaries: &[&str], replicas: &[&str], epoch: u64) -> View {
        let all = primaries.iter().chain(replicas).zip(1..);
        let ranges = primaries.iter().zip(1..).map(|(_, port)| (0, 9, at(port)));
        View {
            ranges: ranges.collect(),
            ids: all.map(|(id, port)| ((*id).to_owned(), at(port))).collect(),
            is_ok: true,
            epoch,
        }
    }

    /// A replica that was removed (`CLUSTER FORGET`, `CLUSTER RESET SOFT`) and joined another cluster keeps its id.
    #[test]
    fn a_node_that_joined_another_cluster_with_its_id_does_not_count() {
        for (last, ours, theirs) in [
            (
                shard(&["p"], &["n"], 7),
                shard(&["p"], &[], 7),
                shard(&["x"], &["n"], 50),
            ),
            (
                shard(&["p"], &["n"], 7),
                shard(&["p"], &["n"], 7),
                shard(&["x", "n"], &[], 50),
            ),
            (
                shard(&["p", "q"], &["n"], 7),
                shard(&["p", "q"], &[], 8),
                shard(&["x", "y"], &["z", "n"], 50),
            ),
        ] {
            let (one, other) = (told(1, Some("p"), &ours), told(2, Some("n"), &theirs));
            let seeds = [at(1), at(2)];
            let best = |last| best(vec![other.clone(), one.clone()], last, &seeds);
            assert_eq!(best(Some(&last)).map(|told| told.address.port), Some(1));
            assert!(best(None).is_none(), "one against one");
        }
    }

    #[test]
    fn the_own_id_of_a_node_counts_where_others_cannot() {
        for (asked, last, now) in [
            // The primary has failed.
            ("r", shard(&["p"], &["r"], 7), shard(&["r"], &[], 8)),
            ("r", shard(&["r"], &[], 8), shard(&["r"], &["s"], 8)),
            // The replica was replaced.
            ("p", shard(&["p"], &["r"], 7), shard(&["p"], &["s"], 7)),
            // An orderly failover.
            ("r", shard(&["p"], &["r"], 7), shard(&["r"], &["p"], 8)),
        ] {
            assert!(is_ours(&told(1, Some(asked), &now), Some(&last)), "{now:?}");
        }
    }

    #[test]
    fn a_node_of_another_cluster_does_not_count_whatever_its_epoch() {
        let last = view(&["a", "b", "c"], 7);
        let ours = view(&["b", "c", "d"], 8);
        let theirs = view(&["x", "y"], 50);
        let told = [(1, theirs), (2, last.clone()), (3, ours)];
        assert_eq!(best_of(&told, Some(&last), &[1, 2, 3]), Some(3));
        assert_eq!(best_of(&told[..2], Some(&last), &[1]), Some(2));
        // Our cluster is in trouble, and still counts.
        let mut down = last.clone();
        down.is_ok = false;
        let told = [told[0].clone(), (2, down)];
        assert_eq!(best_of(&told, Some(&last), &[1, 2]), Some(2));
    }

    #[test]
    fn when_all_nodes_were_replaced_the_seeds_decide() {
        let last = view(&["a", "b"], 7);
        let (new, newer) = (view(&["x", "y"], 1), view(&["y", "z"], 2));
        let another = view(&["p", "q"], 9);
        let told = [(1, new), (2, newer), (3, another)];
        assert_eq!(best_of(&told, Some(&last), &[1, 2]), Some(2));
        assert_eq!(
            best_of(&told, Some(&last), &[1, 2, 3]),
            None,
            "two clusters"
        );
        assert_eq!(best_of(&told, Some(&last), &[4]), None, "no seed replied");
    }

    #[test]
    fn nodes_without_ids_count_as_they_always_did() {
        let last = view(&[], 7);
        let told = [(1, view(&[], 8)), (2, view(&["x"], 9)), (3, view(&[], 9))];
        assert_eq!(
            best_of(&told, Some(&last), &[]),
            Some(2),
            "the first of two"
        );
        let last = view(&["a"], 7);
        assert_eq!(best_of(&told, Some(&last), &[]), Some(3));
    }

    #[test]
    fn at_first_those_count_that_most_agree_with() {
        let ours = [view(&["a", "b"], 2), view(&["a", "b"], 3)];
        let theirs = view(&["x", "y"], 50);
        let [old, new] = ours;
        let told = [(1, theirs), (2, old), (3, new)];
        assert_eq!(best_of(&told, None, &[]), Some(3));
        assert_eq!(best_of(&told[..1], None, &[]), Some(1));
        assert_eq!(best_of(&told[..2], None, &[]), None, "one against one");
        let unmade = told.clone().map(|(node, view)| {
            (
                node,
                View {
                    is_ok: false,
                    ..view
                },
            )
        });
        assert_eq!(
            best_of(&unmade[..2], None, &[]),
            Some(1),
            "they have not met yet"
        );
        assert_eq!(best_of(&[], None, &[]), None);
    }
}

mod redirections {
    use super::super::*;

    fn at(host: &str, port: u16) -> Address {
        Address {
            host: host.into(),
            port,
        }
    }

    /// The `HDEL` of a release succeeded. If it were repeated at the other node, it would find no hold.
    #[test]
    fn what_was_released_is_not_released_again_elsewhere() {
        let error = |line: &[u8]| redis::parse_redis_value(line).unwrap();
        let moved = error(b"-MOVED 3999 127.0.0.1:6381\r\n");
        assert!(is_half_done(&[Value::Int(1), moved.clone()]));
        for replies in [
            vec![Value::Int(0), moved.clone()],
            vec![moved.clone(), moved.clone()],
            vec![Value::Int(1), Value::Int(0)],
            vec![moved],
        ] {
            assert!(!is_half_done(&replies), "{replies:?}");
        }
    }

    #[test]
    fn redirections_are_read() {
        let (slot, asks) = (3999, false);
        let moved = |host, port| {
            let to = at(host, port);
            Some(Redirect { asks, slot, to })
        };
        for (line, expected) in [
            ("MOVED 3999 127.0.0.1:6381", moved("127.0.0.1", 6381)),
            ("MOVED 3999 ::1:6381", moved("::1", 6381)),
            ("MOVED 3999 node.example:6381", moved("node.example", 6381)),
            ("MOVED 3999 :6381", moved("asked", 6381)),
            ("MOVED 3999 ?:6381", moved("asked", 6381)),
            (
                "ASK 3999 127.0.0.1:6381",
                Some(Redirect {
                    asks: true,
                    slot,
                    to: at("127.0.0.1", 6381),
                }),
            ),
            ("MOVED 3999", None),
            ("MOVED x 127.0.0.1:6381", None),
            ("MOVED 3999 127.0.0.1", None),
            ("TRYAGAIN Multiple keys request", None),
            ("CLUSTERDOWN The cluster is down", None),
        ] {
            let error = crate::testing::error(line);
            assert_eq!(Redirect::of(&error, &at("asked", 1)), expected, "{line}");
        }
    }
}
