//! What sentinels say of one primary, and which of them to believe. Pure.
//!
//! Invariant: what was believed once is not given up for an older view, unless most sentinels share
//! that: a sentinel that was cut off has an old one, sentinels that were set up anew all have.

use std::collections::HashMap;

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
    pub(super) others: Vec<Address>,
}

impl Answer {
    pub(super) fn silent(why: impl ToString) -> Self {
        Self {
            said: Said::Silent(why.to_string()),
            others: Vec::new(),
        }
    }

    /// The same, with the addresses to be used for those that were told.
    pub(super) fn led(mut self, lead: impl Fn(Address) -> Address) -> Self {
        if let Said::Names(view) = &mut self.said {
            view.primary = lead(view.primary.clone());
        }
        self.others = self.others.into_iter().map(lead).collect();
        self
    }

    /// Of the replies to `SENTINEL MASTER`, `GET-MASTER-ADDR-BY-NAME` and `SENTINELS`.
    ///
    /// The address is that of the second, which changes as soon as a replica was promoted; the first
    /// tells it when all others follow that. The epoch is asked for before the address, so that an
    /// address is never taken to be newer than it is.
    pub(super) fn of_replies(replies: Vec<Value>) -> Self {
        let Ok([primary, address, others]) = <[Value; 3]>::try_from(replies) else {
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
            others: addresses(others),
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

/// The addresses in a list of descriptions; those without one are left out.
fn addresses(list: Value) -> Vec<Address> {
    let list: Vec<HashMap<String, Value>> = from_redis_value(list).unwrap_or_default();
    list.into_iter()
        .filter_map(|mut one| {
            let host: String = from_redis_value(one.remove("ip")?).ok()?;
            let port: u16 = from_redis_value(one.remove("port")?).ok()?;
            (!host.is_empty() && port != 0).then(|| Address {
                host: host.into(),
                port,
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
        let answer = Answer::of_replies(vec![primary, address_now, others]);
        assert!(matches!(answer.said, Said::Names(said) if said == view(2, 7)));
        assert_eq!(answer.others, [address(26379)]);
    }

    #[test]
    fn an_answer_may_be_that_there_is_none_or_that_it_is_not_told() {
        let no = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let unknown = no("ERR No such master with that name");
        let replies = vec![unknown.clone(), Value::Nil, unknown];
        assert!(matches!(Answer::of_replies(replies).said, Said::Nobody));
        let denied = no("NOAUTH Authentication required.");
        let replies = vec![denied.clone(), denied.clone(), denied];
        assert!(matches!(Answer::of_replies(replies).said, Said::Refused(_)));
        for nonsense in [
            vec![],
            vec![Value::Okay; 3],
            vec![
                map(&[("config-epoch", "x")]),
                Value::Array(vec![text("h"), text("1")]),
                Value::Nil,
            ],
        ] {
            let answer = Answer::of_replies(nonsense);
            assert!(matches!(answer.said, Said::Silent(_)), "{answer:?}");
        }
    }
}
