//! Waiters of one queue that would share what one of them gets: one is at the head, the others follow it.
//!
//! Invariants: a party has one who is at its head; who has other terms is in another party; nobody is in two.

use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Party<J> {
    pub(super) terms: J,
    /// By the numbers of their places.
    pub(super) head: u64,
    pub(super) followers: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct Parties<J>(Vec<Party<J>>);

impl<J> Default for Parties<J> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<J: Copy + PartialEq> Parties<J> {
    /// Those whose head came first are first.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Party<J>> {
        self.0.iter_mut()
    }

    /// Follows whoever is at the head on these terms. False if nobody is.
    pub(super) fn follow(&mut self, terms: J, number: u64) -> bool {
        let party = self.0.iter_mut().find(|party| party.terms == terms);
        party.map(|party| party.followers.insert(number)).is_some()
    }

    /// It is at the head, and others may follow.
    pub(super) fn begin(&mut self, terms: J, head: u64) {
        let followers = BTreeSet::new();
        self.0.push(Party {
            terms,
            head,
            followers,
        });
    }

    /// It is in no party any more. The one that is at the head in its place, if there is one.
    pub(super) fn leave(&mut self, terms: J, number: u64) -> Option<u64> {
        let at = self.0.iter().position(|party| party.terms == terms)?;
        let party = &mut self.0[at];
        if party.head != number {
            party.followers.remove(&number);
            return None;
        }
        match party.followers.pop_first() {
            Some(next) => party.head = next,
            None => {
                self.0.remove(at);
                return None;
            }
        }
        Some(self.0[at].head)
    }
}
