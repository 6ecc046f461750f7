//! Waiters of one queue that would share one hold: their leader stands at the head and asks the server, the others
//! follow it.
//!
//! Invariants: a cohort has one leader. Waiters with other terms are in other cohorts. No waiter is in two.

use std::collections::BTreeSet;

#[derive(Debug)]
pub(super) struct Cohort<J> {
    pub(super) terms: J,
    /// The numbers of their places.
    pub(super) leader: u64,
    pub(super) followers: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct Cohorts<J>(Vec<Cohort<J>>);

impl<J> Default for Cohorts<J> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<J: Copy + PartialEq> Cohorts<J> {
    /// All cohorts, in order of the arrival of their leaders.
    pub(super) fn all(&mut self) -> impl Iterator<Item = &mut Cohort<J>> {
        self.0.iter_mut()
    }

    /// Follows the leader with these terms. False if there is none.
    pub(super) fn follow(&mut self, terms: J, number: u64) -> bool {
        let cohort = self.0.iter_mut().find(|cohort| cohort.terms == terms);
        cohort
            .map(|cohort| cohort.followers.insert(number))
            .is_some()
    }

    /// Begins a cohort with a leader at the head.
    pub(super) fn begin(&mut self, terms: J, leader: u64) {
        let followers = BTreeSet::new();
        self.0.push(Cohort {
            terms,
            leader,
            followers,
        });
    }

    /// Leaves the cohort. Returns the new leader if the old one left and another waiter succeeds it.
    pub(super) fn leave(&mut self, terms: J, number: u64) -> Option<u64> {
        let at = self.0.iter().position(|cohort| cohort.terms == terms)?;
        let cohort = &mut self.0[at];
        if cohort.leader != number {
            cohort.followers.remove(&number);
            return None;
        }
        match cohort.followers.pop_first() {
            Some(next) => cohort.leader = next,
            None => {
                self.0.remove(at);
                return None;
            }
        }
        Some(self.0[at].leader)
    }
}
