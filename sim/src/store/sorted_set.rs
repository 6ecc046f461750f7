//! Members with scores, in the order of scores and then of names.

use std::cmp::Ordering;

/// A key, a member, or what one of them holds.
pub(crate) type Bytes = Box<[u8]>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SortedSet(Vec<(f64, Bytes)>);

fn order(a: (f64, &[u8]), b: (f64, &[u8])) -> Ordering {
    a.0.partial_cmp(&b.0)
        .unwrap_or(Ordering::Equal)
        .then_with(|| a.1.cmp(b.1))
}

impl SortedSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (f64, &[u8])> + ExactSizeIterator {
        self.0.iter().map(|(score, member)| (*score, &**member))
    }

    fn position(&self, member: &[u8]) -> Option<usize> {
        self.0.iter().position(|(_, known)| **known == *member)
    }

    pub(crate) fn score(&self, member: &[u8]) -> Option<f64> {
        Some(self.0[self.position(member)?].0)
    }

    pub(crate) fn insert(&mut self, score: f64, member: &[u8]) {
        self.remove(member);
        let before = |(known, name): &(f64, Bytes)| {
            order((*known, &**name), (score, member)) == Ordering::Less
        };
        let at = self.0.partition_point(before);
        self.0.insert(at, (score, member.into()));
    }

    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let at = self.position(member);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes out what has such a score; how many that were.
    pub(crate) fn remove_if(&mut self, is_meant: impl Fn(f64) -> bool) -> usize {
        let before = self.0.len();
        self.0.retain(|(score, _)| !is_meant(*score));
        before - self.0.len()
    }
}
