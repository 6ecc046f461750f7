//! What sentinels say of one primary, and which of them to believe. Pure.
//!
//! Invariants: what was believed once is not given up for an older view, unless most sentinels share
//! that: a sentinel that was cut off has an old one, sentinels that were set up anew all have. Of
//! sentinels that do not know each other and name different primaries, only those of one deployment are
//! heard, whatever epochs the others have: two deployments count on their own.

use std::collections::{BTreeSet, HashMap};

use redis::{RedisError, Value, from_redis_value};

use crate::conn::nodes::Address;

/// One opinion of where the primary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) primary: Address,
    /// Raised by every failover.
    pub(super) epoch: u64,
}

/// What came of asking one sentinel.
#[derive(Debug)]
pub(super) enum Said {
    Names(View),
    /// It watches no primary of that name.
    Nobody,
    /// It answered with an error.
    Refused(RedisError),
    /// No answer, for this reason.
    Silent(String),
}

/// An answer of a sentinel, and the others it knows.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) said: Said,
    /// Its own id, if it tells.
    pub(super) id: Option<String>,
    /// `None` if it does not tell.
    pub(super) others: Option<Vec<Other>>,
}

/// A sentinel that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    pub(super) address: Address,
    pub(super) id: Option<String>,
}

/// An answer and where it came from.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) address: Address,
    pub(super) answer: Answer,
}

impl Heard {
    fn view(&self) -> Option<&View> {
        match &self.answer.said {
            Said::Names(view) => Some(view),
            _ => None,
        }
    }

    /// By what it and those it names can be told.
    fn names(&self) -> BTreeSet<String> {
        let others = self.answer.others.iter().flatten();
        let others = others.flat_map(|other| {
            other
                .id
                .clone()
                .into_iter()
                .chain([other.address.to_string()])
        });
        let own = self
            .answer
            .id
            .clone()
            .into_iter()
            .chain([self.address.to_string()]);
        own.chain(others).collect()
    }
}

/// The sentinels that were heard so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    names: BTreeSet<String>,
    /// How many of them answered at once, at most.
    count: usize,
}

impl Known {
    /// These were heard.
    pub(super) fn note(&mut self, counted: &[&Heard]) {
        let names: BTreeSet<String> = counted.iter().flat_map(|one| one.names()).collect();
        if self.names.is_disjoint(&names) {
            *self = Self::default();
        }
        self.names.extend(names);
        self.count = self.count.max(counted.len());
    }
}

/// Those that know each other, directly or through others.
#[derive(Default)]
struct Circle<'a> {
    names: BTreeSet<String>,
    members: Vec<&'a Heard>,
}

/// Who knows whom among those that name a primary, and those that do not say whom they know.
fn circles(heard: &[Heard]) -> (Vec<Circle<'_>>, Vec<&Heard>) {
    let naming = heard.iter().filter(|one| one.view().is_some());
    let (telling, silent): (Vec<_>, Vec<_>) = naming.partition(|one| one.answer.others.is_some());
    let mut circles: Vec<Circle<'_>> = Vec::new();
    for one in telling {
        let mut joined = Circle {
            names: one.names(),
            members: vec![one],
        };
        circles.retain_mut(|circle| {
            let is_the_same = !circle.names.is_disjoint(&joined.names);
            if is_the_same {
                joined.names.append(&mut circle.names);
                joined.members.append(&mut circle.members);
            }
            !is_the_same
        });
        circles.push(joined);
    }
    (circles, silent)
}

/// Those whose views count. All, while they name the `last` primary, or one and the same at first. Else
/// those that know somebody who was heard before, unless more sentinels than ever of those belong to
/// another deployment; at first the largest circle. `None` if there is none such.
pub(super) fn of_one_deployment<'a>(
    heard: &'a [Heard],
    known: &Known,
    last: Option<&View>,
) -> Option<Vec<&'a Heard>> {
    let (circles, silent) = circles(heard);
    let members = circles.iter().flat_map(|circle| &circle.members);
    let mut primaries = members.filter_map(|one| Some(&one.view()?.primary));
    let first = last
        .map(|last| &last.primary)
        .or_else(|| primaries.clone().next());
    if primaries.all(|primary| Some(primary) == first) {
        return Some(heard.iter().filter(|one| one.view().is_some()).collect());
    }
    let (ours, strangers): (Vec<_>, Vec<_>) = circles
        .into_iter()
        .partition(|circle| !circle.names.is_disjoint(&known.names));
    let ours: Vec<&Heard> = ours.into_iter().flat_map(|circle| circle.members).collect();
    let most = strangers.iter().map(|circle| circle.members.len()).max();
    let mut counted = match most.filter(|most| *most > known.count.max(ours.len())) {
        None => ours,
        Some(most) => {
            let largest = strangers
                .into_iter()
                .filter(|circle| circle.members.len() == most);
            match <[Circle<'_>; 1]>::try_from(largest.collect::<Vec<_>>()) {
                Ok([largest]) => largest.members,
                Err(_) => return None,
            }
        }
    };
    counted.extend(silent);
    Some(counted)
}

impl Answer {
    pub(super) fn silent(why: impl ToString) -> Self {
        Self {
            said: Said::Silent(why.to_string()),
            id: None,
            others: None,
        }
    }

    /// The same, with the addresses to be used for those that were told.
    pub(super) fn led(mut self, lead: impl Fn(Address) -> Address) -> Self {
        if let Said::Names(view) = &mut self.said {
            view.primary = lead(view.primary.clone());
        }
        for other in self.others.iter_mut().flatten() {
            other.address = lead(other.address.clone());
        }
        self
    }

    /// Of the replies to `SENTINEL MASTER`, `GET-MASTER-ADDR-BY-NAME`, `SENTINELS` and `MYID`.
    ///
    /// The address is that of the second, which changes as soon as a replica was promoted; the first
    /// tells it when all others follow that. The epoch is asked for before the address, so that an
    /// address is never taken to be newer than it is.
    pub(super) fn of_replies(replies: Vec<Value>) -> Self {
        let Ok([primary, address, others, id]) = <[Value; 4]>::try_from(replies) else {
            return Self::silent("it answered less than it was asked");
        };
        let said = match (address.extract_error(), primary.extract_error()) {
            (Ok(Value::Nil), _) => Said::Nobody,
            (Err(no), _) | (_, Err(no)) => Said::Refused(no),
            (Ok(address), Ok(primary)) => view(address, primary).map_or_else(
                || Said::Silent("its answer makes no sense".to_owned()),
                Said::Names,
            ),
        };
        Self {
            said,
            id: from_redis_value(id)
                .ok()
                .filter(|id: &String| !id.is_empty()),
            others: others.extract_error().ok().map(named),
        }
    }
}

fn view(address: Value, primary: Value) -> Option<View> {
    let (host, port): (String, u16) = from_redis_value(address).ok()?;
    let primary: HashMap<String, Value> = from_redis_value(primary).ok()?;
    let epoch = primary.get("config-epoch")?.clone();
    Some(View {
        primary: Address {
            host: host.into(),
            port,
        },
        epoch: from_redis_value(epoch).ok()?,
    })
}

/// Those in a list of descriptions; those without an address are left out.
fn named(list: Value) -> Vec<Other> {
    let list: Vec<HashMap<String, Value>> = from_redis_value(list).unwrap_or_default();
    list.into_iter()
        .filter_map(|mut one| {
            let host: String = from_redis_value(one.remove("ip")?).ok()?;
            let port: u16 = from_redis_value(one.remove("port")?).ok()?;
            let id = one.remove("runid").and_then(|id| from_redis_value(id).ok());
            (!host.is_empty() && port != 0).then(|| Other {
                address: Address {
                    host: host.into(),
                    port,
                },
                id: id.filter(|id: &String| !id.is_empty()),
            })
        })
        .collect()
}

/// The view to act on, of those that this many sentinels have; `last` was the one before.
///
/// Of several equally new ones it is the most common. Only while a failover is under way can they
/// differ, and then the last one is on its way out.
pub(super) fn believed(views: &[&View], sentinels: usize, last: Option<&View>) -> Option<View> {
    let newest = views.iter().map(|view| view.epoch).max()?;
    let is_old = last.is_some_and(|last| newest < last.epoch);
    if is_old && !is_shared_by_most(views, sentinels) {
        return None;
    }
    let votes = |view: &View| views.iter().filter(|other| **other == view).count();
    let newest = views.iter().filter(|view| view.epoch == newest);
    let best = newest.max_by_key(|view| {
        // One that is no newer never takes the place of the one there is: two that were set up anew
        // and disagree would take turns.
        let is_better =
            last.is_none_or(|last| (last.primary != view.primary) == (view.epoch > last.epoch));
        (votes(view), is_better)
    });
    best.map(|view| View::clone(view))
}

/// Whether most of all sentinels, those that said nothing included, have one view.
pub(super) fn is_shared_by_most(views: &[&View], sentinels: usize) -> bool {
    views.iter().any(|view| {
        let votes = views.iter().filter(|other| *other == view).count();
        votes * 2 > sentinels
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn believe(views: &[View], sentinels: usize, last: Option<&View>) -> Option<View> {
        believed(&views.iter().collect::<Vec<_>>(), sentinels, last)
    }

    #[test]
    fn the_newest_view_wins_however_few_share_it() {
        let (old, new) = (view(1, 4), view(2, 5));
        let views = [old.clone(), new.clone(), old.clone()];
        assert_eq!(believe(&views, 3, None), Some(new.clone()));
        assert_eq!(believe(&views, 3, Some(&old)), Some(new.clone()));
        assert_eq!(believe(&views, 3, Some(&new)), Some(new));
        assert_eq!(believe(&[], 3, Some(&old)), None);
    }

    #[test]
    fn an_older_view_than_the_last_one_needs_most_of_all_sentinels() {
        let (old, last) = (view(1, 4), view(2, 5));
        assert_eq!(believe(std::slice::from_ref(&old), 3, Some(&last)), None);
        let two = [old.clone(), old.clone()];
        assert_eq!(believe(&two, 3, Some(&last)), Some(old.clone()));
        assert_eq!(believe(&two, 4, Some(&last)), None);
        let two_minds = [old, view(3, 4)];
        assert_eq!(believe(&two_minds, 3, Some(&last)), None);
    }

    #[test]
    fn of_equally_new_views_the_common_one_wins_and_then_the_one_that_is_news() {
        let (one, other) = (view(1, 5), view(2, 5));
        let views = [one.clone(), other.clone(), one.clone()];
        assert_eq!(believe(&views, 3, None), Some(one.clone()));
        for views in [[one.clone(), other.clone()], [other.clone(), one.clone()]] {
            let last = view(1, 4);
            assert_eq!(believe(&views, 3, Some(&last)), Some(other.clone()));
        }
    }

    /// Two that were set up anew and disagree do not take turns.
    #[test]
    fn an_equally_new_view_does_not_displace_the_last_one() {
        let (one, other) = (view(1, 0), view(2, 0));
        for views in [[one.clone(), other.clone()], [other.clone(), one.clone()]] {
            for last in [&one, &other] {
                assert_eq!(believe(&views, 3, Some(last)).as_ref(), Some(last));
            }
        }
    }

    #[test]
    fn most_is_more_than_half_of_one_mind() {
        let (one, other) = (view(1, 5), view(2, 5));
        assert!(is_shared_by_most(&[&one, &one], 3));
        assert!(!is_shared_by_most(&[&one, &other], 3));
        assert!(!is_shared_by_most(&[&one, &one], 4));
        assert!(!is_shared_by_most(&[], 0));
    }

    /// A sentinel at this port, that names others by their ids, and what it thinks.
    fn heard(port: u16, id: &str, others: Option<&[&str]>, view: &View) -> Heard {
        let others = others.map(|ids| {
            let others = ids.iter().zip(1000..).map(|(id, inner)| Other {
                // One that does not lead there from here.
                address: Address {
                    host: format!("inner-of-{port}").into(),
                    port: inner,
                },
                id: Some((*id).to_owned()),
            });
            others.collect()
        });
        Heard {
            address: address(port),
            answer: Answer {
                said: Said::Names(view.clone()),
                id: (!id.is_empty()).then(|| id.to_owned()),
                others,
            },
        }
    }

    fn ports(heard: Option<Vec<&Heard>>) -> Option<Vec<u16>> {
        let mut ports: Vec<u16> = heard?.iter().map(|one| one.address.port).collect();
        ports.sort_unstable();
        Some(ports)
    }

    fn known(heard: &[&Heard]) -> Known {
        let mut known = Known::default();
        known.note(heard);
        known
    }

    #[test]
    fn a_stranger_with_a_higher_epoch_is_not_heard() {
        let (ours, theirs) = (view(1, 4), view(2, 9));
        let all = [
            heard(19, "z", Some(&["y", "x"]), &theirs),
            heard(11, "a", Some(&["b", "c"]), &ours),
            heard(12, "b", Some(&["a", "c"]), &ours),
        ];
        let first = of_one_deployment(&all, &Known::default(), None);
        assert_eq!(ports(first), Some(vec![11, 12]));
        let known = known(&[&all[1], &all[2]]);
        let later = |heard| ports(of_one_deployment(heard, &known, Some(&ours)));
        assert_eq!(later(&all), Some(vec![11, 12]));
        // Also when only one of ours, or none, answers.
        assert_eq!(later(&all[..2]), Some(vec![11]));
        assert_eq!(later(&all[..1]), Some(vec![]));
    }

    #[test]
    fn one_against_one_is_nobody_at_first_and_the_many_win_later() {
        let (one, many) = (view(1, 4), view(2, 3));
        let all = [
            heard(11, "a", Some(&["b", "c"]), &one),
            heard(21, "x", Some(&["y", "z"]), &many),
            heard(22, "y", Some(&["x", "z"]), &many),
        ];
        let at_first = of_one_deployment(&all[..2], &Known::default(), None);
        assert_eq!(ports(at_first), None);
        // The one that answered when nobody else did was the stranger.
        let known = known(&[&all[0]]);
        let later = of_one_deployment(&all, &known, Some(&one));
        assert_eq!(ports(later), Some(vec![21, 22]));
    }

    #[test]
    fn the_first_of_a_deployment_to_know_of_a_failover_is_heard() {
        let (old, new) = (view(1, 4), view(2, 5));
        for others in [
            [Some(&["b", "c"][..]), Some(&["a", "c"]), Some(&["a", "b"])],
            // One was set up anew and knows nobody, but the others know it.
            [Some(&[]), Some(&["a", "c"]), Some(&["a", "b"])],
            // They may not say.
            [None, None, None],
        ] {
            let all = [
                heard(11, "a", others[0], &new),
                heard(12, "b", others[1], &old),
                heard(13, "c", others[2], &old),
            ];
            for known in [Known::default(), known(&[&all[2]])] {
                let counted = of_one_deployment(&all, &known, Some(&old));
                assert_eq!(ports(counted), Some(vec![11, 12, 13]));
            }
            // All that were heard before are silent.
            let known = known(&[&all[1], &all[2]]);
            let alone = of_one_deployment(&all[..1], &known, Some(&old));
            assert_eq!(ports(alone), Some(vec![11]));
        }
        // Without ids of their own: they name the same third one.
        let all = [
            heard(11, "", Some(&["b", "c"]), &new),
            heard(12, "", Some(&["a", "c"]), &old),
        ];
        let counted = of_one_deployment(&all, &Known::default(), Some(&old));
        assert_eq!(ports(counted), Some(vec![11, 12]));
    }

    #[test]
    fn strangers_of_one_mind_are_all_heard() {
        let ours = view(1, 4);
        let all = [
            heard(11, "a", Some(&[]), &ours),
            heard(12, "b", Some(&[]), &ours),
        ];
        let nobody = Known::default();
        let counted = of_one_deployment(&all, &nobody, None);
        assert_eq!(ports(counted), Some(vec![11, 12]));
        assert_eq!(ports(of_one_deployment(&[], &nobody, None)), Some(vec![]));
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn map(fields: &[(&str, &str)]) -> Value {
        let fields = fields.iter().map(|(name, value)| (text(name), text(value)));
        Value::Map(fields.collect())
    }

    #[test]
    fn an_answer_takes_the_address_of_the_promoted_one() {
        // While the other replicas are told to follow it, the first reply has the old address.
        let primary = map(&[("ip", "10.0.0.1"), ("port", "1"), ("config-epoch", "7")]);
        let address_now = Value::Array(vec![text("10.0.0.1"), text("2")]);
        let others = Value::Array(vec![
            map(&[("ip", "10.0.0.1"), ("port", "26379"), ("runid", "a")]),
            map(&[("ip", ""), ("port", "26379")]),
            map(&[("ip", "10.0.0.1"), ("port", "0")]),
            map(&[("name", "x")]),
        ]);
        let answer = Answer::of_replies(vec![primary, address_now, others, text("me")]);
        assert!(matches!(answer.said, Said::Names(said) if said == view(2, 7)));
        assert_eq!(answer.id.as_deref(), Some("me"));
        let other = Other {
            address: address(26379),
            id: Some("a".to_owned()),
        };
        assert_eq!(answer.others, Some(vec![other]));
    }

    #[test]
    fn an_answer_may_be_that_there_is_none_or_that_it_is_not_told() {
        let no = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let unknown = no("ERR No such master with that name");
        let replies = vec![unknown.clone(), Value::Nil, unknown, text("me")];
        assert!(matches!(Answer::of_replies(replies).said, Said::Nobody));
        let denied = no("NOAUTH Authentication required.");
        let replies = vec![denied; 4];
        assert!(matches!(Answer::of_replies(replies).said, Said::Refused(_)));
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
            let answer = Answer::of_replies(nonsense);
            assert!(matches!(answer.said, Said::Silent(_)), "{answer:?}");
        }
    }
}
