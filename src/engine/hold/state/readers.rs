//! The readers of one client that have one hold together: pure.
//!
//! The server counts the reader that it granted the hold to, or the writer that had it before its readers. Other
//! readers of the client join it in memory while it is open, and the last to leave releases it. Invariants: joining
//! readers have the same lease as a reader that the server counts, so it does not matter which of them leaves last. A
//! closed hold opens again only when it passes from a writer to readers. Joining is limited in time and in number,
//! for the sake of waiters elsewhere.

use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::engine::clock::Tick;
use crate::engine::hold::share_lease::ShareLease;

/// A hold accepts more readers for this long after its grant, since a writer elsewhere cannot see that readers join.
const JOINED_FOR: Duration = Duration::from_millis(5);

/// The most readers that may join one hold.
pub(super) const JOINS_MAX: u32 = 1024;

#[derive(Clone, Debug, Default)]
pub(super) struct Readers {
    /// Until when more may join, and their lease; `None` if it is closed.
    open: Option<(Tick, Duration)>,
    /// Whether the server counts a writer in the place of the readers.
    is_counted_as_writer: bool,
    /// Set from the first reader that joins.
    joined: Option<Box<Joined>>,
}

#[derive(Clone, Debug, Default)]
struct Joined {
    /// The lease of every reader that joins.
    lease: Duration,
    /// How many have ever joined.
    joins: u32,
    /// The number of shares, and how many of them the server does not count.
    shares: u32,
    uncounted: u32,
    /// How many of the shares their tasks have not taken yet.
    unclaimed: u32,
    owners: FxHashMap<Owner, Has>,
    /// A reader that the server does not count was forgotten: one share is left at the server in its place.
    is_one_left: bool,
}

/// An owner's part of the hold.
#[derive(Clone, Copy, Debug, Default)]
struct Has {
    shares: u32,
    /// The token that came with one of its shares.
    token: Option<FencingToken>,
}

/// How the end of a share concerns the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// The server counts it.
    Counted,
    /// The server counts other shares, and need not hear of its end.
    Uncounted,
}

impl Joined {
    fn has(&self, owner: &Owner) -> Has {
        self.owners.get(owner).copied().unwrap_or_default()
    }

    fn enter(&mut self, owner: Owner, shares: u32) -> &mut Has {
        let has = self.owners.entry(owner).or_default();
        has.shares += shares;
        self.shares += shares;
        has
    }
}

impl Readers {
    /// A hold that was granted to a reader with this lease: others may join.
    pub(super) fn open(now: Tick, lease: Duration) -> Self {
        Self {
            open: Some((now.after(JOINED_FOR), lease)),
            ..Self::default()
        }
    }

    /// A hold that a writer has passed on to a reader, whose task has not taken it yet: others may join until
    /// `until`.
    pub(super) fn after_writer(first: Owner, until: Tick, lease: Duration) -> Self {
        let mut joined = Joined {
            lease,
            unclaimed: 1,
            ..Joined::default()
        };
        joined.enter(first, 1);
        Self {
            open: Some((until, lease)),
            is_counted_as_writer: true,
            joined: Some(Box::new(joined)),
        }
    }

    /// Whether the server counts a writer in their place.
    pub(super) fn is_counted_as_writer(&self) -> bool {
        self.is_counted_as_writer
    }

    /// The server counts a reader in their place from now on.
    pub(super) fn count_as_reader(&mut self) {
        self.is_counted_as_writer = false;
    }

    /// Whether a reader that wants this lease may join.
    pub(super) fn takes(&self, now: Tick, lease: Duration) -> bool {
        let joins = self.joined.as_ref().map_or(0, |joined| joined.joins);
        self.open
            .is_some_and(|(until, open)| now < until && open == lease)
            && joins < JOINS_MAX
    }

    /// No reader may join from now on.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// Adds a reader. The first to join stands beside `first`, the owner with `shares` shares. A reader that is not
    /// `is_claimed` has yet to take its share.
    pub(super) fn join(&mut self, owner: Owner, is_claimed: bool, first: &Owner, shares: u32) {
        let Some((_, lease)) = self.open else { return };
        let joined = self.joined.get_or_insert_with(|| {
            let mut joined = Joined {
                lease,
                ..Joined::default()
            };
            joined.enter(first.clone(), shares);
            Box::new(joined)
        });
        joined.joins += 1;
        joined.uncounted += 1;
        joined.unclaimed += u32::from(!is_claimed);
        joined.enter(owner, 1);
    }

    /// Notes that a reader has taken the share that it was handed.
    pub(super) fn claim(&mut self) {
        if let Some(joined) = &mut self.joined {
            joined.unclaimed -= 1;
        }
    }

    /// Whether no task has taken a share yet.
    pub(super) fn are_unclaimed(&self) -> bool {
        let joined = self.joined.as_ref();
        joined.is_some_and(|joined| joined.unclaimed > 0 && joined.unclaimed == joined.shares)
    }

    /// Adds a share of an owner that the server counts, perhaps with a token.
    pub(super) fn enter(&mut self, owner: &Owner, token: Option<FencingToken>) {
        if let Some(joined) = &mut self.joined {
            let has = joined.enter(owner.clone(), 1);
            has.token = token.or(has.token);
        }
    }

    /// Removes a share of an owner, with this lease. If the server counted it, no counted share with this lease may
    /// be left, so the hold is closed to others.
    pub(super) fn leave(&mut self, owner: &Owner, lease: ShareLease) -> Leave {
        let leave = self.take_out(owner, lease);
        let is_like_others = |(_, open)| lease == ShareLease::Renewed(open);
        if leave == Leave::Counted && self.open.is_some_and(is_like_others) {
            self.close();
        }
        leave
    }

    fn take_out(&mut self, owner: &Owner, lease: ShareLease) -> Leave {
        let Some(joined) = &mut self.joined else {
            return Leave::Counted;
        };
        if let Some(has) = joined.owners.get_mut(owner) {
            has.shares -= 1;
            if has.shares == 0 {
                joined.owners.remove(owner);
            }
        }
        joined.shares -= 1;
        if joined.uncounted == 0 || lease != ShareLease::Renewed(joined.lease) {
            return Leave::Counted;
        }
        joined.uncounted -= 1;
        Leave::Uncounted
    }

    /// As [`leave`](Self::leave), for a share that is forgotten. No reader joins the rest.
    pub(super) fn forget(&mut self, owner: &Owner, lease: ShareLease) -> Leave {
        self.close();
        let leave = self.leave(owner, lease);
        if let (Leave::Uncounted, Some(joined)) = (leave, &mut self.joined) {
            joined.is_one_left = true;
        }
        leave
    }

    /// Whether the last reader to leave has to leave one share at the server.
    pub(super) fn is_one_left(&self) -> bool {
        self.joined
            .as_ref()
            .is_some_and(|joined| joined.is_one_left)
    }

    /// The number of shares that the server does not count.
    pub(super) fn uncounted(&self) -> u32 {
        self.joined.as_ref().map_or(0, |joined| joined.uncounted)
    }

    /// The number of shares of an owner. `None` if no reader has ever joined: there is only one owner.
    pub(super) fn shares_of(&self, owner: &Owner) -> Option<u32> {
        Some(self.joined.as_ref()?.has(owner).shares)
    }

    /// The token of an owner, if it came with a share of its own. `None` as for [`shares_of`](Self::shares_of).
    pub(super) fn token_of(&self, owner: &Owner) -> Option<Option<FencingToken>> {
        Some(self.joined.as_ref()?.has(owner).token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(micros: u64) -> Tick {
        Tick::ZERO.after(Duration::from_micros(micros))
    }

    fn renewed() -> ShareLease {
        ShareLease::Renewed(LEASE)
    }

    /// A hold granted at [`Tick::ZERO`], with its first owner.
    fn opened() -> (Readers, Owner) {
        (Readers::open(Tick::ZERO, LEASE), Owner::new())
    }

    /// A hold that `N` other owners have joined.
    fn joined<const N: usize>() -> (Readers, Owner, [Owner; N]) {
        let (mut readers, first) = opened();
        let others = [(); N].map(|()| Owner::new());
        for owner in &others {
            readers.join(owner.clone(), true, &first, 1);
        }
        (readers, first, others)
    }

    #[test]
    fn it_takes_those_with_its_lease_while_it_is_open() {
        let (readers, _) = opened();
        assert!(readers.takes(at(0), LEASE) && readers.takes(at(4_999), LEASE));
        for late in [5_000, 5_001, 60_000_000] {
            assert!(!readers.takes(at(late), LEASE), "5 ms after its grant");
        }
        assert!(!readers.takes(at(1), LEASE / 2) && !readers.takes(at(1), LEASE * 2));
        assert!(!Readers::default().takes(at(0), LEASE), "it was never open");
    }

    #[test]
    fn it_takes_so_many_in_all() {
        let (mut readers, first) = opened();
        let mut taken = 0;
        while readers.takes(at(1), LEASE) && taken < 2_000 {
            let owner = Owner::new();
            readers.join(owner.clone(), true, &first, 1);
            assert_eq!(readers.leave(&owner, renewed()), Leave::Uncounted);
            taken += 1;
        }
        assert_eq!((taken, readers.uncounted()), (1024, 0));
    }

    #[test]
    fn what_was_closed_takes_nobody() {
        let (mut readers, first) = opened();
        readers.close();
        assert!(!readers.takes(at(1), LEASE));
        readers.join(Owner::new(), true, &first, 1);
        assert_eq!(readers.uncounted(), 0);
        let (mut readers, first, [other]) = joined();
        readers.close();
        assert!(!readers.takes(at(1), LEASE));
        assert_eq!(readers.leave(&first, renewed()), Leave::Uncounted);
        assert_eq!(readers.leave(&other, renewed()), Leave::Counted);
    }

    /// The server counts the reader that stays.
    #[test]
    fn the_last_to_leave_is_the_one_that_the_server_counts() {
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let (mut readers, first, [a, b]) = joined();
            assert_eq!(readers.uncounted(), 2);
            let all = [first, a, b];
            let left = order.map(|index| {
                assert_eq!(readers.shares_of(&all[index]), Some(1));
                let left = readers.leave(&all[index], renewed());
                assert_eq!(readers.shares_of(&all[index]), Some(0));
                left
            });
            let last = [Leave::Uncounted, Leave::Uncounted, Leave::Counted];
            assert_eq!(left, last, "{order:?}");
        }
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
        // The server counts the re-entered share. Of the two, the joined share ends first.
        assert_eq!(readers.leave(&other, renewed()), Leave::Uncounted);
        assert_eq!(readers.leave(&other, renewed()), Leave::Counted);
        assert_eq!(readers.shares_of(&other), Some(0));
    }

    /// The server counts it, and has its lease.
    #[test]
    fn a_share_with_another_lease_is_counted() {
        let (mut readers, first, [other]) = joined();
        readers.enter(&other, None);
        let fixed = ShareLease::Until(at(9));
        assert_eq!(readers.leave(&other, fixed), Leave::Counted);
        assert_eq!(readers.leave(&other, renewed()), Leave::Uncounted);
        assert_eq!(readers.leave(&first, renewed()), Leave::Counted);
    }

    /// A re-entered share with another lease cannot carry joined readers: they would end or be released with it.
    #[test]
    fn nobody_joins_when_none_with_its_lease_is_counted() {
        let other_lease = ShareLease::Renewed(LEASE * 2);
        let (mut readers, first) = opened();
        readers.enter(&first, None);
        assert_eq!(readers.leave(&first, renewed()), Leave::Counted);
        assert!(!readers.takes(at(1), LEASE));
        // A share with another lease changes nothing when it ends.
        let (mut readers, first) = opened();
        readers.enter(&first, None);
        assert_eq!(readers.leave(&first, other_lease), Leave::Counted);
        assert!(readers.takes(at(1), LEASE));
        // Another reader had joined, and has left.
        let (mut readers, first, [other]) = joined();
        readers.enter(&first, None);
        assert_eq!(readers.leave(&other, renewed()), Leave::Uncounted);
        assert!(readers.takes(at(1), LEASE));
        assert_eq!(readers.leave(&first, renewed()), Leave::Counted);
        assert!(!readers.takes(at(1), LEASE));
    }

    #[test]
    fn one_that_is_forgotten_closes_it_and_is_left() {
        let (mut readers, first, [other]) = joined();
        assert!(!readers.is_one_left());
        assert_eq!(readers.forget(&first, renewed()), Leave::Uncounted);
        assert!(readers.is_one_left() && !readers.takes(at(1), LEASE));
        assert_eq!(readers.leave(&other, renewed()), Leave::Counted);
        let (mut readers, first, []) = joined();
        assert_eq!(readers.forget(&first, renewed()), Leave::Counted);
        assert!(!readers.is_one_left() && !readers.takes(at(1), LEASE));
    }

    #[test]
    fn a_token_is_of_the_owner_whose_share_it_came_with() {
        let token = FencingToken::from;
        let (mut alone, first) = opened();
        alone.enter(&first, Some(token(7)));
        assert_eq!(alone.token_of(&first), None, "there is but one owner");
        let (mut readers, first, [other]) = joined();
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
    fn who_has_it_from_a_writer_joins_as_who_was_granted_to_read() {
        let first = Owner::new();
        let mut readers = Readers::after_writer(first.clone(), at(700), LEASE);
        assert!(readers.is_counted_as_writer() && readers.takes(at(699), LEASE));
        assert!(!readers.takes(at(700), LEASE) && !readers.takes(at(1), LEASE / 2));
        assert_eq!(
            (readers.shares_of(&first), readers.uncounted()),
            (Some(1), 0)
        );
        let other = Owner::new();
        readers.join(other.clone(), true, &first, 1);
        assert_eq!(readers.leave(&first, renewed()), Leave::Uncounted);
        readers.count_as_reader();
        assert!(!readers.is_counted_as_writer() && readers.takes(at(1), LEASE));
        assert_eq!(readers.leave(&other, renewed()), Leave::Counted);
    }

    /// A hold handed to tasks that have not come belongs to no task.
    #[test]
    fn it_is_somebodys_while_one_of_them_has_taken_it() {
        let first = Owner::new();
        let mut readers = Readers::after_writer(first.clone(), at(700), LEASE);
        let other = Owner::new();
        readers.join(other.clone(), false, &first, 1);
        assert!(readers.are_unclaimed());
        readers.claim();
        assert!(!readers.are_unclaimed());
        assert_eq!(readers.leave(&first, renewed()), Leave::Uncounted);
        assert!(readers.are_unclaimed(), "the other has not come");
        readers.claim();
        assert!(!readers.are_unclaimed());
        assert_eq!(readers.leave(&other, renewed()), Leave::Counted);
        assert!(!readers.are_unclaimed(), "there is none");
        let (readers, _, [_other]) = joined();
        assert!(!readers.are_unclaimed());
        assert!(!Readers::default().are_unclaimed());
    }
}
