//! Tests of the replies of sentinels, of the deployment that counts, and of the view that is believed.

mod replies {
    use super::super::*;

    fn outcome(replies: Vec<Value>) -> SentinelAnswer {
        Reply::of(address(1), replies, &AddressMap::default()).outcome
    }

    fn address(port: u16) -> Address {
        Address {
            host: "10.0.0.1".into(),
            port,
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn map(fields: &[(&str, &str)]) -> Value {
        let fields = fields.iter().map(|(name, value)| (text(name), text(value)));
        Value::Map(fields.collect())
    }

    #[test]
    fn a_reply_has_the_address_of_the_promoted_replica() {
        // The first reply keeps the old address until the other replicas follow.
        let primary = map(&[("ip", "10.0.0.1"), ("port", "1"), ("config-epoch", "7")]);
        let address_now = Value::Array(vec![text("10.0.0.1"), text("2")]);
        let peers = Value::Array(vec![
            map(&[("ip", "10.0.0.1"), ("port", "26379"), ("runid", "a")]),
            map(&[("ip", ""), ("port", "26379")]),
            map(&[("ip", "10.0.0.1"), ("port", "0")]),
            map(&[("name", "x")]),
        ]);
        let reply = Reply::of(
            address(1),
            vec![primary, address_now, peers, text("me")],
            &AddressMap::default(),
        );
        let expected = View {
            primary: address(2),
            epoch: 7,
        };
        assert_eq!(reply.view(), Some(&expected));
        assert_eq!(reply.id.as_deref(), Some("me"));
        let peer = Peer {
            address: address(26379),
            id: Some("a".to_owned()),
        };
        assert_eq!(reply.peers, Some(vec![peer]));
    }

    #[test]
    fn a_reply_may_be_an_unknown_name_an_error_or_nonsense() {
        let no = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let unknown = no("ERR No such master with that name");
        let replies = vec![unknown.clone(), Value::Nil, unknown, text("me")];
        let reply = Reply::of(address(1), replies, &AddressMap::default());
        assert!(reply.view().is_none() && matches!(reply.outcome, SentinelAnswer::UnknownName));
        let denied = no("NOAUTH Authentication required.");
        let replies = vec![denied; 4];
        assert!(matches!(outcome(replies), SentinelAnswer::Refused(_)));
        for nonsense in [
            vec![],
            vec![Value::Okay; 4],
            vec![
                map(&[("config-epoch", "x")]),
                Value::Array(vec![text("h"), text("1")]),
                Value::Nil,
                Value::Nil,
            ],
        ] {
            let outcome = outcome(nonsense);
            assert!(matches!(outcome, SentinelAnswer::NoReply(_)), "{outcome:?}");
        }
    }
}

mod deployments {
    use super::super::*;

    fn address(port: u16) -> Address {
        Address {
            host: "10.0.0.1".into(),
            port,
        }
    }

    fn view(port: u16, epoch: u64) -> View {
        View {
            primary: address(port),
            epoch,
        }
    }

    /// A reply from the sentinel at this port, with its view. It names peers by their ids.
    fn reply(port: u16, id: &str, peers: Option<&[&str]>, view: &View) -> Reply {
        let peers = peers.map(|ids| {
            let peers = ids.iter().zip(1000..).map(|(id, inner)| Peer {
                // An address that does not lead to the peer from here.
                address: Address {
                    host: format!("inner-of-{port}").into(),
                    port: inner,
                },
                id: Some((*id).to_owned()),
            });
            peers.collect()
        });
        Reply {
            from: address(port),
            outcome: SentinelAnswer::Names(view.clone()),
            id: (!id.is_empty()).then(|| id.to_owned()),
            peers,
        }
    }

    fn at(port: u16, id: &str) -> Peer {
        Peer {
            address: address(port),
            id: Some(id.to_owned()),
        }
    }

    fn ports(replies: Option<Vec<&Reply>>) -> Option<Vec<u16>> {
        let mut ports: Vec<u16> = replies?.iter().map(|one| one.from.port).collect();
        ports.sort_unstable();
        Some(ports)
    }

    fn known(replies: &[&Reply]) -> KnownSentinels {
        let mut known = KnownSentinels::default();
        known.record(replies);
        known
    }

    #[test]
    fn a_foreign_sentinel_with_a_higher_epoch_does_not_count() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let all = [
            reply(19, "z", Some(&["y", "x"]), &theirs),
            reply(11, "a", Some(&["b", "c"]), &ours),
            reply(12, "b", Some(&["a", "c"]), &ours),
        ];
        let first = of_one_deployment(&all, &KnownSentinels::default(), None);
        assert_eq!(ports(first), Some(vec![11, 12]));
        let known = known(&[&all[1], &all[2]]);
        let later = |replies| ports(of_one_deployment(replies, &known, Some(&ours)));
        assert_eq!(later(&all), Some(vec![11, 12]));
        // This holds even if only one of our sentinels replies, or none.
        assert_eq!(later(&all[..2]), Some(vec![11]));
        assert_eq!(later(&all[..1]), Some(vec![]));
    }

    /// One of our sentinels is gone, and its address now belongs to a sentinel of another deployment.
    #[test]
    fn a_foreign_sentinel_at_an_address_of_ours_does_not_count() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let mut one = reply(11, "a", None, &ours);
        one.peers = Some(vec![at(12, "b"), at(13, "c")]);
        let mut other = reply(12, "b", None, &ours);
        other.peers = Some(vec![at(11, "a"), at(13, "c")]);
        let known = known(&[&one, &other]);
        let mut foreign = reply(13, "z", None, &theirs);
        foreign.peers = Some(vec![at(22, "y")]);
        let all = [foreign, one, other];
        let counted = of_one_deployment(&all, &known, Some(&ours));
        assert_eq!(ports(counted), Some(vec![11, 12]));
        // A sentinel that may not report its id is known by its address and by its peers.
        let mut silent = reply(11, "", None, &view(3, 5));
        silent.peers = Some(vec![at(12, "b")]);
        let all = [silent, reply(12, "b", Some(&[]), &ours)];
        let counted = of_one_deployment(&all, &known, Some(&ours));
        assert_eq!(ports(counted), Some(vec![11, 12]));
    }

    /// The sentinel was told to watch the primary of another deployment under the same name (`SENTINEL REMOVE`,
    /// `MONITOR`). The others still list it, but cannot reach it. Otherwise all of them would follow the greater epoch.
    #[test]
    fn one_of_ours_that_joined_another_deployment_does_not_count() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let before = [
            reply(11, "a", Some(&["b", "c"]), &ours),
            reply(12, "b", Some(&["a", "c"]), &ours),
            reply(13, "c", Some(&["a", "b"]), &ours),
        ];
        let known = known(&before.iter().collect::<Vec<_>>());
        let [a, b, _] = before;
        let mut now = [reply(13, "c", Some(&["y", "z"]), &theirs), a, b];
        let nobody = KnownSentinels::default();
        let counted = |now: &[Reply], known: &KnownSentinels| {
            let last = Some(&ours);
            ports(of_one_deployment(now, known, last))
        };
        assert_eq!(counted(&now[..1], &known), Some(vec![]), "alone");
        for _ in 0..now.len() {
            now.rotate_left(1);
            assert_eq!(counted(&now, &known), Some(vec![11, 12]));
            assert_eq!(counted(&now, &nobody), Some(vec![11, 12]), "at first");
        }
    }

    /// Two of our sentinels are gone, and the remaining one remembers them. Their addresses belong to another
    /// deployment.
    #[test]
    fn foreign_sentinels_at_two_addresses_of_ours_do_not_count() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let mut one = reply(11, "a", None, &ours);
        one.peers = Some(vec![at(12, "b"), at(13, "c")]);
        let [b, c] = [(12, "b"), (13, "c")].map(|(port, id)| reply(port, id, Some(&["a"]), &ours));
        let known = known(&[&one, &b, &c]);
        let mut all = [
            reply(12, "y", None, &theirs),
            reply(13, "z", None, &theirs),
            one,
        ];
        all[0].peers = Some(vec![at(13, "z")]);
        all[1].peers = Some(vec![at(12, "y")]);
        let counted = of_one_deployment(&all, &known, Some(&ours));
        assert_eq!(ports(counted), Some(vec![11]));
    }

    /// Two sentinels that may not report their ids know each other by their addresses.
    #[test]
    fn sentinels_without_ids_are_one_deployment() {
        let (old, new) = (view(1, 4), view(2, 5));
        let mut all = [reply(11, "", None, &new), reply(12, "", None, &old)];
        all[0].peers = Some(vec![at(12, "b")]);
        all[1].peers = Some(vec![at(11, "a")]);
        let counted = of_one_deployment(&all, &known(&[&all[1]]), Some(&old));
        assert_eq!(ports(counted), Some(vec![11, 12]));
    }

    /// Containers without storage come back in this way.
    #[test]
    fn sentinels_that_were_set_up_anew_where_they_were_count() {
        let (old, new) = (view(1, 4), view(2, 0));
        let before = [
            reply(11, "a", Some(&["b"]), &old),
            reply(12, "b", Some(&["a"]), &old),
        ];
        let known = known(&[&before[0], &before[1]]);
        let mut after = [reply(11, "p", None, &new), reply(12, "q", None, &new)];
        for (one, other, id) in [(0, 90, "q"), (1, 91, "p")] {
            let id = Some(id.to_owned());
            let address = address(other);
            after[one].peers = Some(vec![Peer { address, id }]);
        }
        let counted = of_one_deployment(&after, &known, Some(&old));
        assert_eq!(ports(counted), Some(vec![11, 12]));
        let alone = of_one_deployment(&after[..1], &known, Some(&old));
        assert_eq!(ports(alone), Some(vec![11]));
    }

    #[test]
    fn one_against_one_counts_for_nothing_at_first_and_the_many_win_later() {
        let (one, many) = (view(1, 4), view(2, 3));
        let all = [
            reply(11, "a", Some(&["b", "c"]), &one),
            reply(21, "x", Some(&["y", "z"]), &many),
            reply(22, "y", Some(&["x", "z"]), &many),
        ];
        let at_first = of_one_deployment(&all[..2], &KnownSentinels::default(), None);
        assert_eq!(ports(at_first), None);
        // The only sentinel that replied before was the foreign one.
        let known = known(&[&all[0]]);
        let as_many = of_one_deployment(&all[..2], &known, Some(&one));
        assert_eq!(ports(as_many), Some(vec![11]), "no more than of ours");
        let later = of_one_deployment(&all, &known, Some(&one));
        assert_eq!(ports(later), Some(vec![21, 22]));
    }

    #[test]
    fn the_first_of_a_deployment_to_know_of_a_failover_counts() {
        let (old, new) = (view(1, 4), view(2, 5));
        for peers in [
            [Some(&["b", "c"][..]), Some(&["a", "c"]), Some(&["a", "b"])],
            // One sentinel was set up again and knows no others, but the others know it.
            [Some(&[]), Some(&["a", "c"]), Some(&["a", "b"])],
            // The sentinels may not report their peers.
            [None, None, None],
        ] {
            let all = [
                reply(11, "a", peers[0], &new),
                reply(12, "b", peers[1], &old),
                reply(13, "c", peers[2], &old),
            ];
            for known in [KnownSentinels::default(), known(&[&all[2]])] {
                let counted = of_one_deployment(&all, &known, Some(&old));
                assert_eq!(ports(counted), Some(vec![11, 12, 13]));
            }
            // None of the sentinels that replied before replies now.
            let known = known(&[&all[1], &all[2]]);
            let alone = of_one_deployment(&all[..1], &known, Some(&old));
            assert_eq!(ports(alone), Some(vec![11]));
        }
        // Without ids of their own, they name a common third sentinel.
        let all = [
            reply(11, "", Some(&["b", "c"]), &new),
            reply(12, "", Some(&["a", "c"]), &old),
        ];
        let counted = of_one_deployment(&all, &KnownSentinels::default(), Some(&old));
        assert_eq!(ports(counted), Some(vec![11, 12]));
    }

    #[test]
    fn sentinels_that_do_not_know_each_other_and_agree_all_count() {
        let ours = view(1, 4);
        let all = [
            reply(11, "a", Some(&[]), &ours),
            reply(12, "b", Some(&[]), &ours),
        ];
        let nobody = KnownSentinels::default();
        let counted = of_one_deployment(&all, &nobody, None);
        assert_eq!(ports(counted), Some(vec![11, 12]));
        assert_eq!(ports(of_one_deployment(&[], &nobody, None)), Some(vec![]));
    }
}

mod views {
    use super::super::*;

    fn address(port: u16) -> Address {
        Address {
            host: "10.0.0.1".into(),
            port,
        }
    }

    fn view(port: u16, epoch: u64) -> View {
        View {
            primary: address(port),
            epoch,
        }
    }

    fn owned(views: &[&View]) -> Vec<View> {
        views.iter().copied().cloned().collect()
    }

    #[test]
    fn the_newest_view_wins_however_few_share_it() {
        let (old, new) = (view(1, 4), view(2, 5));
        let views = [old.clone(), new.clone(), old.clone()];
        assert_eq!(believed(&views, 3, None), Some(new.clone()));
        assert_eq!(believed(&views, 3, Some(&old)), Some(new.clone()));
        assert_eq!(believed(&views, 3, Some(&new)), Some(new));
        assert_eq!(believed(&[], 3, Some(&old)), None);
    }

    #[test]
    fn an_older_view_than_the_last_one_needs_most_of_all_sentinels() {
        let (old, last) = (view(1, 4), view(2, 5));
        assert_eq!(believed(std::slice::from_ref(&old), 3, Some(&last)), None);
        let two = [old.clone(), old.clone()];
        assert_eq!(believed(&two, 3, Some(&last)), Some(old.clone()));
        assert_eq!(believed(&two, 4, Some(&last)), None);
        let two_minds = [old, view(3, 4)];
        assert_eq!(believed(&two_minds, 3, Some(&last)), None);
    }

    #[test]
    fn of_equally_new_views_the_common_one_wins_and_then_the_one_that_is_news() {
        let (one, other) = (view(1, 5), view(2, 5));
        let views = [one.clone(), other.clone(), one.clone()];
        assert_eq!(believed(&views, 3, None), Some(one.clone()));
        for views in [[one.clone(), other.clone()], [other.clone(), one.clone()]] {
            let last = view(1, 4);
            assert_eq!(believed(&views, 3, Some(&last)), Some(other.clone()));
        }
    }

    /// Two sentinels that were set up again and disagree do not take turns.
    #[test]
    fn an_equally_new_view_does_not_displace_the_last_one() {
        let (one, other) = (view(1, 0), view(2, 0));
        for views in [[one.clone(), other.clone()], [other.clone(), one.clone()]] {
            for last in [&one, &other] {
                assert_eq!(believed(&views, 3, Some(last)).as_ref(), Some(last));
            }
        }
    }

    #[test]
    fn a_majority_is_more_than_half_with_one_view() {
        let (one, other) = (view(1, 5), view(2, 5));
        let is_shared = |views: &[&View], all| shared_by_most(&owned(views), all).is_some();
        assert!(is_shared(&[&one, &one], 3));
        assert!(!is_shared(&[&one, &other], 3));
        assert!(!is_shared(&[&one, &one], 4));
        assert!(!is_shared(&[], 0));
        assert!(is_shared(&[&one; 3], 5) && !is_shared(&[&one], 2));
    }

    #[test]
    fn a_primary_is_deposed_by_a_later_view_that_most_share() {
        let (last, old, new, newer) = (view(1, 4), view(2, 3), view(2, 5), view(3, 6));
        let by = |views: &[&View]| deposing(&owned(views), 3, &last);
        assert_eq!(by(&[&new, &last, &new]), Some(new.clone()));
        assert_eq!(by(&[&newer, &new, &new]), Some(new.clone()));
        assert_eq!(by(&[&new, &last, &last]), None, "one may be wrong");
        assert_eq!(by(&[&newer, &new]), None, "they disagree");
        assert_eq!(by(&[&old, &old, &old]), None, "that was before");
        assert_eq!(by(&[&view(2, 4), &view(2, 4)]), None, "that is no later");
        assert_eq!(by(&[&view(1, 5), &view(1, 5)]), None, "it is the same one");
    }
}
