//! The grants that one client has of one lock: the state of each hold, and which of them are live.
//!
//! Invariants: a hold keeps its slot for as long as anything refers to the hold, so two holds never share a slot. A
//! search looks only at the states of the readers that may matter, because a client may have thousands of readers of
//! one lock.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};
use std::sync::{Arc, Weak};

use slab::Slab;

use super::effects::NewHold;
use super::handoff::{GrantedCall, LocalHold};
use super::state::HoldState;
use crate::api::holder::Owner;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

/// Room for this many grants is kept.
const KEPT_MAX: usize = 4;

/// The index of a hold's grant in [`Grants`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    fn new(key: usize) -> Self {
        let number = u32::try_from(key + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a client has fewer holds of a lock than that"))
    }

    fn key(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Grants(Slab<Grant>);

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Grant {
    pub(super) state: HoldState,
    hold: Weak<dyn LocalHold>,
    to: GrantedTo,
    /// The call that the hold was granted to, until the call has its guard.
    call: Option<Weak<dyn GrantedCall>>,
    /// When the granted request was sent.
    pub(super) requested: Tick,
}

/// The facts about a grant that need no look at its state.
#[derive(Debug, PartialEq)]
#[cfg_attr(test, derive(Clone, Hash))]
enum GrantedTo {
    /// It was granted to a writer. It may exclude others, and its owner changes at a hand-off.
    Writer,
    /// It was granted to this reader, and no other reader has joined.
    Reader(Owner),
    Readers,
}

impl GrantedTo {
    fn may_be_of(&self, owner: &Owner) -> bool {
        match self {
            Self::Reader(reader) => reader == owner,
            Self::Writer | Self::Readers => true,
        }
    }
}

/// The grants that contradict a new grant, because both cannot be valid at once.
#[derive(Default)]
pub(super) struct Contradicted {
    /// Older grants, which must have ended before the new grant.
    pub(super) older: Few<Slot>,
    /// Whether the new grant must have ended before another one.
    pub(super) is_older: bool,
    /// Whether the server has to be asked which of the holds it has.
    pub(super) is_in_doubt: bool,
}

impl Index<Slot> for Grants {
    type Output = Grant;

    fn index(&self, slot: Slot) -> &Grant {
        &self.0[slot.key()]
    }
}

impl IndexMut<Slot> for Grants {
    fn index_mut(&mut self, slot: Slot) -> &mut Grant {
        &mut self.0[slot.key()]
    }
}

impl Grant {
    pub(super) fn new(state: HoldState, hold: Weak<dyn LocalHold>, new: &NewHold) -> Self {
        let to = match new.mode {
            Mode::Exclusive => GrantedTo::Writer,
            Mode::Shared => GrantedTo::Reader(new.owner.clone()),
        };
        Self {
            state,
            hold,
            to,
            call: new.call.clone(),
            requested: new.sent,
        }
    }

    pub(super) fn hold(&self) -> Option<Arc<dyn LocalHold>> {
        self.hold.upgrade()
    }
}

impl Grants {
    pub(super) fn add(&mut self, grant: Grant) -> Slot {
        if self.0.capacity() == 0 {
            // Most locks have one.
            self.0.reserve_exact(1);
        }
        Slot::new(self.0.insert(grant))
    }

    /// Forgets the call of a grant, because the call has a guard or the grant has ended.
    pub(super) fn taken(&mut self, slot: Slot) {
        self[slot].call = None;
    }

    /// Whether the call of any grant has no guard yet.
    pub(super) fn are_any_untaken(&self) -> bool {
        self.0.iter().any(|(_, grant)| grant.call.is_some())
    }

    /// The calls that may not have taken the locks that they were granted.
    pub(super) fn untaken(&self) -> Vec<Arc<dyn GrantedCall>> {
        let calls = self.0.iter().filter_map(|(_, grant)| grant.call.as_ref());
        calls.filter_map(Weak::upgrade).collect()
    }

    /// Removes a grant that nothing refers to any longer.
    pub(super) fn remove(&mut self, slot: Slot) -> Grant {
        let grant = self.0.remove(slot.key());
        if self.0.capacity() > KEPT_MAX.max(4 * self.0.len()) {
            // Frees the memory of a peak, and shortens the searches.
            self.0.shrink_to_fit();
        }
        grant
    }

    /// Notes that another reader joins this grant.
    pub(super) fn joined(&mut self, slot: Slot) {
        if let to @ GrantedTo::Reader(_) = &mut self[slot].to {
            *to = GrantedTo::Readers;
        }
    }

    /// Whether no grant is live.
    pub(super) fn is_empty(&self) -> bool {
        self.live().next().is_none()
    }

    /// Whether any grant is live, or has ended and is still referred to.
    pub(super) fn are_any_kept(&self) -> bool {
        !self.0.is_empty()
    }

    /// A valid grant of `owner`, preferably an exclusive one.
    pub(super) fn of_owner(&self, owner: &Owner, now: Tick) -> Option<&Grant> {
        let theirs = self
            .live_to(|to| to.may_be_of(owner))
            .map(|(_, grant)| grant);
        let theirs = theirs.filter(|Grant { state, .. }| {
            state.is_taken() && state.is_valid(now) && state.is_of(owner)
        });
        theirs.max_by_key(|grant| grant.state.is_exclusive())
    }

    /// The latest local deadline of the valid exclusive grants.
    pub(crate) fn exclusive_until(&self, now: Tick) -> Option<Tick> {
        let states = self.writers().map(|grant| &grant.state);
        let exclusive = states.filter(|state| state.is_valid(now) && state.is_exclusive());
        exclusive.map(HoldState::deadline).max()
    }

    /// Whether a valid grant excludes only writers.
    pub(crate) fn is_read(&self, now: Tick) -> bool {
        let mut states = self.live().map(|grant| &grant.state);
        states.any(|state| state.is_valid(now) && !state.is_exclusive())
    }

    /// The live grants that were made to writers.
    pub(super) fn writers(&self) -> impl Iterator<Item = &Grant> {
        self.live_to(|to| *to == GrantedTo::Writer)
            .map(|(_, grant)| grant)
    }

    /// The grants that have not ended.
    pub(super) fn live(&self) -> impl Iterator<Item = &Grant> {
        self.live_to(|_| true).map(|(_, grant)| grant)
    }

    /// Returns the grants that contradict this new one, in this mode. The grant that was requested later was also
    /// granted later, although the answers may arrive in either order. If one of the two was handed over, their order
    /// is unknown. In that case the new grant counts, and the server is asked.
    pub(super) fn contradicted(&self, this: Slot, mode: Mode) -> Contradicted {
        let new = &self[this];
        let others = self.live_to(|to| mode == Mode::Exclusive || *to == GrantedTo::Writer);
        let others = others.filter(|(slot, grant)| {
            *slot != this && (mode == Mode::Exclusive || grant.state.is_exclusive())
        });
        let mut contradicted = Contradicted::default();
        for (slot, other) in others {
            let is_known = !new.state.is_handover() && !other.state.is_handover();
            contradicted.is_in_doubt |= !is_known;
            if is_known && other.requested > new.requested {
                contradicted.is_older = true;
            } else {
                contradicted.older.push(slot);
            }
        }
        contradicted
    }

    /// The live grants to the callers that `which` selects.
    fn live_to(&self, which: impl Fn(&GrantedTo) -> bool) -> impl Iterator<Item = (Slot, &Grant)> {
        let grants = (self.0.iter()).filter(move |(_, grant)| which(&grant.to));
        let live = grants.filter(|(_, grant)| grant.state.is_held());
        live.map(|(key, grant)| (Slot::new(key), grant))
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{Hash, Hasher};
    use std::time::Duration;

    use super::*;
    use crate::api::loss::LostReason;
    use crate::api::options::LeasePolicy;
    use crate::engine::hold::ShareLease;
    use crate::engine::hold::state::tests::new_hold;

    const LEASE: LeasePolicy = LeasePolicy::Renewed(Duration::from_secs(30));
    const NOW: Tick = Tick::ZERO;

    impl Hash for Grants {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            for (key, grant) in &self.0 {
                (key, &grant.state, &grant.to, grant.requested).hash(hasher);
            }
        }
    }

    #[derive(Debug)]
    struct Nobody;

    impl LocalHold for Nobody {
        fn give_back(self: Arc<Self>, _: Owner, _: Mode, _: ShareLease) {}
    }

    fn grant_of(now: Tick, new: &NewHold) -> Grant {
        let (state, _) = HoldState::new(now, new);
        Grant::new(state, Weak::<Nobody>::new(), new)
    }

    fn at(secs: u64) -> Tick {
        NOW.after(Duration::from_secs(secs))
    }

    /// This many grants in this mode, each to an owner of its own.
    fn add(grants: &mut Grants, count: u64, mode: Mode) -> Vec<(Slot, Owner)> {
        let add_one = |nth| {
            let new = NewHold {
                owner: Owner::new(),
                sent: at(nth),
                ..new_hold(LEASE, mode)
            };
            (grants.add(grant_of(at(nth), &new)), new.owner)
        };
        (0..count).map(add_one).collect()
    }

    /// The calls have guards of them.
    fn taken(grants: &mut Grants, all: &[(Slot, Owner)]) {
        let sticky = Duration::ZERO;
        for (slot, _) in all {
            let state = &mut grants[*slot].state;
            state.make_guard(at(0), sticky);
        }
    }

    fn end(grants: &mut Grants, slot: Slot) {
        grants[slot].state.lose(at(1), LostReason::Revoked);
    }

    fn has(grants: &Grants, owner: &Owner, now: Tick) -> bool {
        grants.of_owner(owner, now).is_some()
    }

    fn count(contradicted: &Contradicted) -> usize {
        contradicted.older.len() + usize::from(contradicted.is_older)
    }

    fn seen(grants: &Grants, owner: &Owner) -> usize {
        grants.live_to(|to| to.may_be_of(owner)).count()
    }

    /// Each acquire asks for these: with thousands of readers they must not cost a look at each.
    #[test]
    fn of_the_readers_only_those_are_looked_at_that_may_matter() {
        let mut grants = Grants::default();
        let readers = add(&mut grants, 20, Mode::Shared);
        assert_eq!(seen(&grants, &Owner::new()), 0);
        assert_eq!(grants.exclusive_until(at(20)), None);
        assert_eq!(grants.writers().count(), 0);
        let among_readers = grants.contradicted(readers[0].0, Mode::Shared);
        assert_eq!(count(&among_readers), 0);
        assert_eq!(seen(&grants, &readers[5].1), 1);
        assert!(!has(&grants, &readers[5].1, at(20)), "not taken yet");
        taken(&mut grants, &readers);
        assert!(has(&grants, &readers[5].1, at(20)));
        // A hold that others have joined may be of any owner.
        grants.joined(readers[1].0);
        assert_eq!(seen(&grants, &Owner::new()), 1);
        assert!(!has(&grants, &Owner::new(), at(20)));
        assert!(grants.is_read(at(20)) && !grants.is_read(at(60)));
    }

    #[test]
    fn a_writer_may_be_of_any_owner_and_contradicts_all() {
        let mut grants = Grants::default();
        let writers = add(&mut grants, 1, Mode::Exclusive);
        taken(&mut grants, &writers);
        let (writer, owner) = &writers[0];
        grants.joined(*writer);
        assert!(grants.exclusive_until(at(1)).is_some());
        assert!(has(&grants, owner, at(1)));
        let readers = add(&mut grants, 2, Mode::Shared);
        let ended = |this: Slot, mode| count(&grants.contradicted(this, mode));
        assert_eq!(ended(readers[0].0, Mode::Exclusive), 2, "all but itself");
        assert_eq!(ended(readers[0].0, Mode::Shared), 1, "the writer");
        // A grant that has ended contradicts nothing.
        end(&mut grants, *writer);
        assert_eq!(count(&grants.contradicted(readers[0].0, Mode::Shared)), 0);
        assert_eq!(grants.live().count(), 2);
    }

    #[test]
    fn of_two_that_contradict_each_other_the_later_request_counts() {
        for (is_handover, sent, is_older) in [(false, 5, true), (false, 0, false), (true, 0, true)]
        {
            let mut grants = Grants::default();
            let [first] = <[_; 1]>::try_from(add(&mut grants, 1, Mode::Exclusive)).unwrap();
            grants[first.0].requested = at(3);
            let new = NewHold {
                sent: at(sent),
                handover: is_handover.then_some(Duration::from_secs(3)),
                ..new_hold(LEASE, Mode::Exclusive)
            };
            let second = grants.add(grant_of(at(5), &new));
            let contradicted = grants.contradicted(second, Mode::Exclusive);
            assert_eq!(contradicted.older.contains(&first.0), is_older, "{sent}");
            assert_eq!(contradicted.is_older, !is_older, "{sent}");
            assert_eq!(contradicted.is_in_doubt, is_handover, "{sent}");
        }
    }

    #[test]
    fn a_slot_is_used_again_only_when_nothing_refers_to_it() {
        let mut grants = Grants::default();
        let all = add(&mut grants, 9, Mode::Shared);
        end(&mut grants, all[0].0);
        let other = add(&mut grants, 1, Mode::Shared)[0].0;
        assert_ne!(other, all[0].0);
        grants.remove(all[0].0);
        let again = add(&mut grants, 1, Mode::Shared)[0].0;
        assert_eq!(again, all[0].0);
        for slot in all.iter().skip(1).map(|(slot, _)| *slot).chain([again]) {
            assert!(!grants.is_empty());
            grants.remove(slot);
        }
        grants.remove(other);
        assert!(grants.is_empty() && grants.0.capacity() == 0);
    }
}
