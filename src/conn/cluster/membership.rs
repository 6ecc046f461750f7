//! Selects the views that count. Pure.
//!
//! Invariant: once there is a view, a node of another cluster changes nothing, for example at an address that was
//! reassigned. Its view has no node in common with the last one. Its epoch does not matter, because each cluster
//! counts its own.

use super::view::View;
use crate::conn::address::Address;

/// A node that replied, and its view.
pub(super) type Told = (Address, View);

/// Whether this view belongs to the cluster of the last one. The first view always does.
pub(super) fn is_ours(view: &View, last: Option<&View>) -> bool {
    last.is_none_or(|last| view.is_of_the_cluster_of(last))
}

/// The best view that counts. Without a last view, the views of the largest group that agrees count. If no view
/// belongs to the cluster of the last one, all nodes may have been replaced, and the seeds decide.
pub(super) fn best(told: Vec<Told>, last: Option<&View>, seeds: &[Address]) -> Option<Told> {
    let (ours, others): (Vec<_>, Vec<_>) =
        told.into_iter().partition(|(_, view)| is_ours(view, last));
    let counted = match last {
        None => of_the_largest_cluster(ours),
        Some(_) if ours.is_empty() => of_seeds_that_agree(others, seeds),
        Some(_) => ours,
    };
    // The first of several equal views wins.
    let counted = counted.into_iter().rev();
    counted.max_by_key(|(_, view)| view.rank())
}

fn of_the_largest_cluster(told: Vec<Told>) -> Vec<Told> {
    let company = |(_, view): &Told| {
        let others = told.iter();
        others
            .filter(|(_, other)| view.is_of_the_cluster_of(other))
            .count()
    };
    let most = told.iter().map(company).max();
    let counts: Vec<bool> = told.iter().map(|one| Some(company(one)) == most).collect();
    let counted = told.into_iter().zip(counts).filter(|(_, counts)| *counts);
    counted.map(|(one, _)| one).collect()
}

/// The views of the seeds, unless they belong to different clusters.
fn of_seeds_that_agree(mut told: Vec<Told>, seeds: &[Address]) -> Vec<Told> {
    told.retain(|(address, _)| seeds.contains(address));
    let mut pairs = told.windows(2);
    if pairs.all(|pair| pair[0].1.is_of_the_cluster_of(&pair[1].1)) {
        told
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// The node with the view that counts.
    fn best_of(told: &[(u16, View)], last: Option<&View>, seeds: &[u16]) -> Option<u16> {
        let told = told.iter().map(|(port, view)| (at(*port), view.clone()));
        let seeds: Vec<Address> = seeds.iter().map(|port| at(*port)).collect();
        best(told.collect(), last, &seeds).map(|(address, _)| address.port)
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
        assert_eq!(best_of(&[], None, &[]), None);
    }
}
