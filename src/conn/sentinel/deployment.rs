//! Groups sentinels by deployment. Pure.
//!
//! Invariant: of sentinels that do not know each other and name different primaries, only those of one deployment
//! count. Epochs do not matter, because each deployment counts its own.

use std::collections::BTreeSet;

use super::reply::Reply;
use super::view::View;

/// The sentinels that have replied so far.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownSentinels {
    names: BTreeSet<String>,
    /// The addresses of their replies.
    addresses: BTreeSet<String>,
    /// The largest number of them that replied at once.
    count: usize,
}

impl KnownSentinels {
    /// Records the sentinels that have replied.
    pub(super) fn record(&mut self, counted: &[&Reply]) {
        let names: BTreeSet<String> = counted.iter().flat_map(|one| names(one)).collect();
        if self.names.is_disjoint(&names) {
            *self = Self::default();
        }
        self.names.extend(names);
        self.addresses
            .extend(counted.iter().map(|one| one.from.to_string()));
        self.count = self.count.max(counted.len());
    }
}

/// The id of a sentinel, with the ids and addresses of its peers. Its own address is used only if it reports no id,
/// because another deployment may have taken over that address.
fn names(reply: &Reply) -> BTreeSet<String> {
    let own = match &reply.id {
        Some(id) => id.clone(),
        None => reply.from.to_string(),
    };
    let peers = reply.peers.iter().flatten();
    let peers = peers.flat_map(|peer| {
        peer.id
            .clone()
            .into_iter()
            .chain([peer.address.to_string()])
    });
    peers.chain([own]).collect()
}

/// Sentinels that know each other, directly or through others.
#[derive(Default)]
struct Deployment<'a> {
    names: BTreeSet<String>,
    members: Vec<&'a Reply>,
}

/// Groups the sentinels that name a primary. The second list has those that do not report their peers.
fn deployments(replies: &[Reply]) -> (Vec<Deployment<'_>>, Vec<&Reply>) {
    let naming = replies.iter().filter(|one| one.view().is_some());
    let (telling, silent): (Vec<_>, Vec<_>) = naming.partition(|one| one.peers.is_some());
    let mut deployments: Vec<Deployment<'_>> = Vec::new();
    for one in telling {
        let mut joined = Deployment {
            names: names(one),
            members: vec![one],
        };
        deployments.retain_mut(|deployment| {
            let is_the_same = !deployment.names.is_disjoint(&joined.names);
            if is_the_same {
                joined.names.append(&mut deployment.names);
                joined.members.append(&mut deployment.members);
            }
            !is_the_same
        });
        deployments.push(joined);
    }
    (deployments, silent)
}

/// The replies that count. All count while they name the `last` primary, or at first a single one. Otherwise only the
/// deployment of known sentinels counts, unless another one has more sentinels than ever replied from the known ones.
/// At first the largest deployment counts. `None` if there is no largest one.
pub(super) fn of_one_deployment<'a>(
    replies: &'a [Reply],
    known: &KnownSentinels,
    last: Option<&View>,
) -> Option<Vec<&'a Reply>> {
    let (deployments, silent) = deployments(replies);
    let members = deployments.iter().flat_map(|one| &one.members);
    let mut primaries = members.filter_map(|one| Some(&one.view()?.primary));
    let first = last
        .map(|last| &last.primary)
        .or_else(|| primaries.clone().next());
    if primaries.all(|primary| Some(primary) == first) {
        return Some(replies.iter().filter(|one| one.view().is_some()).collect());
    }
    let (mut ours, mut foreign): (Vec<_>, Vec<_>) = deployments
        .into_iter()
        .partition(|one| !one.names.is_disjoint(&known.names));
    if ours.is_empty() {
        // All may have been set up again at their addresses, with new ids.
        let was_there = |one: &&Reply| known.addresses.contains(&one.from.to_string());
        (ours, foreign) = foreign
            .into_iter()
            .partition(|one| one.members.iter().any(was_there));
    }
    let ours: Vec<&Reply> = ours.into_iter().flat_map(|one| one.members).collect();
    let most = foreign.iter().map(|one| one.members.len()).max();
    let mut counted = match most.filter(|most| *most > known.count.max(ours.len())) {
        None => ours,
        Some(most) => {
            let largest = foreign.into_iter().filter(|one| one.members.len() == most);
            match <[Deployment<'_>; 1]>::try_from(largest.collect::<Vec<_>>()) {
                Ok([largest]) => largest.members,
                Err(_) => return None,
            }
        }
    };
    counted.extend(silent);
    Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::address::Address;
    use crate::conn::sentinel::reply::{Peer, SentinelAnswer};

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
        // Even if only one of ours replies, or none.
        assert_eq!(later(&all[..2]), Some(vec![11]));
        assert_eq!(later(&all[..1]), Some(vec![]));
    }

    /// One of ours is gone, and its address now belongs to a sentinel of another deployment.
    #[test]
    fn a_foreign_sentinel_at_an_address_of_ours_does_not_count() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let at = |port, id: &str| Peer {
            address: address(port),
            id: Some(id.to_owned()),
        };
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

    /// Containers without storage come back like this.
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
            // They may not report their peers.
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
