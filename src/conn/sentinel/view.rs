//! Selects the view of the primary to believe. Pure.
//!
//! Invariant: an accepted view is not replaced by an older one unless most sentinels share the older one. A single
//! sentinel with an old view was cut off; if most have one, they were set up again.

use crate::conn::address::Address;

/// The primary and its epoch, as one sentinel sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    pub(super) primary: Address,
    /// Grows with every failover.
    pub(super) epoch: u64,
}

/// The view to act on, given the views of some of the `sentinels` and the `last` view that was acted on.
///
/// The most common of the newest views wins. They can differ only during a failover, when the last primary is being
/// replaced.
pub(super) fn believed(views: &[&View], sentinels: usize, last: Option<&View>) -> Option<View> {
    let newest = views.iter().map(|view| view.epoch).max()?;
    let is_old = last.is_some_and(|last| newest < last.epoch);
    if is_old && !is_shared_by_most(views, sentinels) {
        return None;
    }
    let votes = |view: &View| views.iter().filter(|other| **other == view).count();
    let newest = views.iter().filter(|view| view.epoch == newest);
    let best = newest.max_by_key(|view| {
        // An equally new view never displaces the last one. Otherwise two sentinels that were set up again and
        // disagree would take turns.
        let is_better =
            last.is_none_or(|last| (last.primary != view.primary) == (view.epoch > last.epoch));
        (votes(view), is_better)
    });
    best.map(|view| View::clone(view))
}

/// Whether a majority of all sentinels, including those without a reply, share one view.
pub(super) fn is_shared_by_most(views: &[&View], sentinels: usize) -> bool {
    shared_by_most(views, sentinels).is_some()
}

/// The view that deposes the primary of the `last` one, if there is any: it is later, names another primary, and is
/// shared by most sentinels. A single sentinel may be wrong, and older views depose no primary.
pub(super) fn deposing(views: &[&View], sentinels: usize, last: &View) -> Option<View> {
    let shared = shared_by_most(views, sentinels)?;
    let deposes = shared.epoch > last.epoch && shared.primary != last.primary;
    deposes.then(|| shared.clone())
}

fn shared_by_most<'a>(views: &[&'a View], sentinels: usize) -> Option<&'a View> {
    views.iter().copied().find(|view| {
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

    /// Two sentinels that were set up again and disagree do not take turns.
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
    fn a_majority_is_more_than_half_with_one_view() {
        let (one, other) = (view(1, 5), view(2, 5));
        assert!(is_shared_by_most(&[&one, &one], 3));
        assert!(!is_shared_by_most(&[&one, &other], 3));
        assert!(!is_shared_by_most(&[&one, &one], 4));
        assert!(!is_shared_by_most(&[], 0));
        assert!(is_shared_by_most(&[&one; 3], 5) && !is_shared_by_most(&[&one], 2));
    }

    #[test]
    fn a_primary_is_deposed_by_a_later_view_that_most_share() {
        let (last, old, new, newer) = (view(1, 4), view(2, 3), view(2, 5), view(3, 6));
        let by = |views: &[&View]| deposing(views, 3, &last);
        assert_eq!(by(&[&new, &last, &new]), Some(new.clone()));
        assert_eq!(by(&[&newer, &new, &new]), Some(new.clone()));
        assert_eq!(by(&[&new, &last, &last]), None, "one may be wrong");
        assert_eq!(by(&[&newer, &new]), None, "they disagree");
        assert_eq!(by(&[&old, &old, &old]), None, "that was before");
        assert_eq!(by(&[&view(2, 4), &view(2, 4)]), None, "that is no later");
        assert_eq!(by(&[&view(1, 5), &view(1, 5)]), None, "it is the same one");
    }
}
