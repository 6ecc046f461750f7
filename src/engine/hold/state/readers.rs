//! The readers of one client that have one hold together: pure.
//!
//! Readers join the hold of a reader of their client in memory while it is open. Invariants: a closed hold opens again
//! only when it passes from a writer to readers. Joining is limited in time and in number, for the sake of waiters
//! elsewhere.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::engine::clock::Tick;

/// A hold accepts more readers for this long after its grant. Readers that join would otherwise keep out a writer
/// elsewhere without a bound.
const JOINED_FOR: Duration = Duration::from_millis(5);

/// The most readers that may join one hold.
pub(super) const JOINS_MAX: u32 = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Readers {
    /// Until when more readers may join. [`Tick::ZERO`] if the hold is closed to them.
    open: Tick,
    /// Set from the first reader that joins.
    joined: Option<Box<Joined>>,
}

#[derive(Clone, Debug, Default)]
struct Joined {
    /// How many readers have ever joined.
    joins: u32,
    /// How many shares have not been taken by their tasks yet.
    unclaimed: u32,
    owners: FxHashMap<Owner, Has>,
}

/// An owner's part of the hold.
#[derive(Clone, Copy, Debug, Default)]
struct Has {
    shares: u32,
    /// The token that came with one of its shares.
    token: Option<FencingToken>,
}

impl Joined {
    fn has(&self, owner: &Owner) -> Has {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    fn enter(&mut self, owner: Owner, shares: u32) -> &mut Has {
        let has = self.owners.entry(owner).or_default();
        has.shares += shares;
        has
    }
}

impl Readers {
    /// The readers of a hold that was granted to a reader. Others may join.
    pub(super) fn open(now: Tick) -> Self {
        Self {
            open: now.after(JOINED_FOR),
            joined: None,
        }
    }

    /// Counts the time for joining from `now`, when the call that the hold was granted to has its guard.
    pub(super) fn opened(&mut self, now: Tick) {
        if self.are_open() {
            self.open = now.after(JOINED_FOR);
        }
    }

    /// The readers of a hold that a writer has passed on to the reader `first`, whose task has not taken it yet. Others
    /// may join until `until`.
    pub(super) fn after_writer(first: Owner, until: Tick) -> Self {
        let mut joined = Joined {
            unclaimed: 1,
            ..Joined::default()
        };
        joined.enter(first, 1);
        Self {
            open: until,
            joined: Some(Box::new(joined)),
        }
    }

    /// Whether a reader may join.
    pub(super) fn may_join(&self, now: Tick) -> bool {
        let joins = self.joined.as_ref().map_or(0, |joined| joined.joins);
        now < self.open && joins < JOINS_MAX
    }

    pub(super) fn are_open(&self) -> bool {
        self.open != Tick::ZERO
    }

    /// No reader may join from now on.
    pub(super) fn close(&mut self) {
        self.open = Tick::ZERO;
    }

    /// Adds a reader. If it is the first to join, the hold had one owner so far: `first`, with `shares` shares. A
    /// reader that is not `is_claimed` has yet to take its share.
    pub(super) fn join(&mut self, owner: Owner, is_claimed: bool, first: &Owner, shares: u32) {
        let joined = self.joined.get_or_insert_with(|| {
            let mut joined = Joined::default();
            joined.enter(first.clone(), shares);
            Box::new(joined)
        });
        joined.joins += 1;
        joined.unclaimed += u32::from(!is_claimed);
        joined.enter(owner, 1);
    }

    /// Notes that a reader has taken the share that it was handed.
    pub(super) fn claim(&mut self) {
        if let Some(joined) = &mut self.joined {
            joined.unclaimed -= 1;
        }
    }

    /// Whether none of the hold's `shares` has been taken by its task yet.
    pub(super) fn are_unclaimed(&self, shares: u32) -> bool {
        let unclaimed = self.joined.as_ref().map_or(0, |joined| joined.unclaimed);
        unclaimed > 0 && unclaimed == shares
    }

    /// Adds a share of an owner that has one, perhaps with a token.
    pub(super) fn enter(&mut self, owner: &Owner, token: Option<FencingToken>) {
        if let Some(joined) = &mut self.joined {
            let has = joined.enter(owner.clone(), 1);
            has.token = token.or(has.token);
        }
    }

    /// Removes a share of an owner.
    pub(super) fn leave(&mut self, owner: &Owner) {
        if let Some(joined) = &mut self.joined
            && let Some(has) = joined.owners.get_mut(owner)
        {
            has.shares -= 1;
            if has.shares == 0 {
                joined.owners.remove(owner);
            }
        }
    }

    /// The number of shares of an owner. `None` if no reader has ever joined, so that there is only one owner.
    pub(super) fn shares_of(&self, owner: &Owner) -> Option<u32> {
        Some(self.joined.as_ref()?.has(owner).shares)
    }

    /// The token of an owner, if one came with a share of this owner. `None` as for [`shares_of`](Self::shares_of).
    pub(super) fn token_of(&self, owner: &Owner) -> Option<Option<FencingToken>> {
        Some(self.joined.as_ref()?.has(owner).token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Tick {
        Tick::ZERO.after(Duration::from_micros(micros))
    }

    /// The readers of a hold granted at [`Tick::ZERO`], and its first owner.
    fn opened() -> (Readers, Owner) {
        (Readers::open(Tick::ZERO), Owner::new())
    }

    /// The readers of a hold that another owner has joined, and both owners.
    fn joined() -> (Readers, Owner, Owner) {
        let (mut readers, first) = opened();
        let other = Owner::new();
        readers.join(other.clone(), true, &first, 1);
        (readers, first, other)
    }

    #[test]
    fn readers_join_while_it_is_open() {
        let (mut readers, _) = opened();
        assert!(readers.may_join(at(0)) && readers.may_join(at(4_999)));
        for late in [5_000, 5_001, 60_000_000] {
            assert!(!readers.may_join(at(late)), "5 ms after its grant");
        }
        readers.close();
        assert!(!readers.may_join(at(1)));
        assert!(!Readers::default().may_join(at(0)), "it was never open");
    }

    #[test]
    fn only_so_many_join_in_all() {
        let (mut readers, first) = opened();
        let mut joins = 0;
        while readers.may_join(at(1)) && joins < 2_000 {
            let owner = Owner::new();
            readers.join(owner.clone(), true, &first, 1);
            readers.leave(&owner);
            joins += 1;
        }
        assert_eq!(joins, 1024);
    }

    #[test]
    fn each_owner_has_its_own_shares() {
        let (mut readers, first) = opened();
        assert_eq!(readers.shares_of(&first), None, "it is the only owner");
        let (other, stranger) = (Owner::new(), Owner::new());
        readers.join(other.clone(), true, &first, 3);
        readers.enter(&other, None);
        assert_eq!(readers.shares_of(&first), Some(3));
        assert_eq!(readers.shares_of(&other), Some(2));
        assert_eq!(readers.shares_of(&stranger), Some(0));
        readers.leave(&other);
        assert_eq!(readers.shares_of(&other), Some(1));
        readers.leave(&other);
        assert_eq!(readers.shares_of(&other), Some(0));
        assert_eq!(readers.shares_of(&first), Some(3));
    }

    #[test]
    fn a_token_is_of_the_owner_whose_share_it_came_with() {
        let token = FencingToken::from;
        let (mut alone, first) = opened();
        alone.enter(&first, Some(token(7)));
        assert_eq!(alone.token_of(&first), None, "there is but one owner");
        let (mut readers, first, other) = joined();
        assert_eq!(readers.token_of(&other), Some(None));
        readers.enter(&other, Some(token(8)));
        readers.enter(&other, None);
        assert_eq!(readers.token_of(&other), Some(Some(token(8))));
        assert_eq!(readers.token_of(&first), Some(None));
        readers.enter(&first, Some(token(9)));
        assert_eq!(readers.token_of(&other), Some(Some(token(8))));
        assert_eq!(readers.token_of(&first), Some(Some(token(9))));
    }

    #[test]
    fn others_join_who_has_it_from_a_writer() {
        let first = Owner::new();
        let readers = Readers::after_writer(first.clone(), at(700));
        assert!(readers.may_join(at(699)) && !readers.may_join(at(700)));
        assert_eq!(readers.shares_of(&first), Some(1));
    }

    /// A hold whose shares were handed to tasks counts as unclaimed until the first of them takes its share.
    #[test]
    fn it_is_somebodys_while_one_of_them_has_taken_it() {
        let first = Owner::new();
        let mut readers = Readers::after_writer(first.clone(), at(700));
        readers.join(Owner::new(), false, &first, 1);
        assert!(readers.are_unclaimed(2));
        readers.claim();
        assert!(!readers.are_unclaimed(2));
        assert!(readers.are_unclaimed(1), "the one that came has left");
        readers.claim();
        assert!(!readers.are_unclaimed(1));
        assert!(!readers.are_unclaimed(0), "there is none");
        let (readers, ..) = joined();
        assert!(!readers.are_unclaimed(2));
        assert!(!Readers::default().are_unclaimed(1));
    }
}
