//! The places of a queue by number, in order.
//!
//! Invariants: nothing is kept of a place that was left. A single place needs no allocation.

use std::collections::BTreeMap;

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Places<E> {
    /// The entry of a single place. If there are several, all of them are in `all`.
    only: Option<(u64, E)>,
    /// Boxed, because a map has room for more than it holds.
    all: BTreeMap<u64, Box<E>>,
}

impl<E> Places<E> {
    pub(super) const EMPTY: Self = Self {
        only: None,
        all: BTreeMap::new(),
    };

    pub(super) fn len(&self) -> usize {
        usize::from(self.only.is_some()) + self.all.len()
    }

    pub(super) fn insert(&mut self, number: u64, entry: E) {
        if self.len() == 0 {
            self.only = Some((number, entry));
            return;
        }
        for (number, entry) in self.only.take().into_iter().chain([(number, entry)]) {
            self.all.insert(number, Box::new(entry));
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<E> {
        if let Some((_, entry)) = self.only.take_if(|(only, _)| *only == number) {
            return Some(entry);
        }
        let entry = self.all.remove(&number)?;
        if self.all.is_empty() {
            // An emptied map keeps its last node.
            self.all = BTreeMap::new();
        }
        Some(*entry)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut E> {
        match &mut self.only {
            Some((only, entry)) => (*only == number).then_some(entry),
            None => self.all.get_mut(&number).map(Box::as_mut),
        }
    }

    pub(super) fn first(&self) -> Option<u64> {
        let only = self.only.as_ref().map(|(number, _)| *number);
        only.or_else(|| self.all.keys().next().copied())
    }

    /// The number of places with a lower number, but at most `most`.
    pub(super) fn before(&self, number: u64, most: usize) -> usize {
        let only = self.only.iter().filter(|(only, _)| *only < number);
        only.count() + self.all.range(..number).take(most).count()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &E> {
        let only = self.only.iter().map(|(_, entry)| entry);
        only.chain(self.all.values().map(Box::as_ref))
    }

    /// The places from this number on, in order.
    pub(super) fn from(&mut self, first: u64) -> impl Iterator<Item = (u64, &mut E)> {
        let only = self.only.iter_mut();
        let only = only.map(|(number, entry)| (*number, entry));
        let all = self.all.range_mut(first..);
        only.filter(move |(number, _)| *number >= first)
            .chain(all.map(|(number, entry)| (*number, &mut **entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl<E> Places<E> {
        pub(in super::super) fn iter(&self) -> impl Iterator<Item = (&u64, &E)> {
            let only = self.only.iter().map(|(number, entry)| (number, entry));
            only.chain(self.all.iter().map(|(number, entry)| (number, &**entry)))
        }
    }

    proptest! {
        #[test]
        fn they_are_what_a_map_of_them_is(steps in proptest::collection::vec((0..6_u64, any::<bool>()), 0..40)) {
            let (mut places, mut map) = (Places::EMPTY, BTreeMap::new());
            for (number, is_new) in steps {
                // No number is taken twice.
                if is_new && !map.contains_key(&number) {
                    places.insert(number, number);
                    map.insert(number, number);
                } else {
                    prop_assert_eq!(places.remove(number), map.remove(&number));
                }
                prop_assert_eq!(places.len(), map.len());
                prop_assert_eq!(places.first(), map.keys().next().copied());
                prop_assert!(places.values().eq(map.values()));
                for number in 0..6 {
                    prop_assert_eq!(places.before(number, usize::MAX), map.range(..number).count());
                    prop_assert_eq!(places.get_mut(number), map.get_mut(&number));
                    let behind: Vec<_> = places.from(number).map(|(at, _)| at).collect();
                    prop_assert_eq!(behind, map.range(number..).map(|(at, _)| *at).collect::<Vec<_>>());
                }
            }
        }
    }
}
