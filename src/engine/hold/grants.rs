//! The grants that one client has of one lock: the state of each hold, and which of them are live.
//!
//! Invariants: a hold keeps its slot for as long as anything refers to it, so a slot is never used for two. The list
//! of live grants is in the order of the grants, and says what is known of each without a look at its state: a lock
//! may have thousands of readers in one client.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};
use std::sync::{Arc, Weak};

use slab::Slab;

use super::event::NewHold;
use super::handoff::{GrantedCall, LocalHold};
use super::state::HoldState;
use crate::api::holder::Owner;
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;

/// Room for this many grants is kept.
const KEPT_MAX: usize = 4;

/// Where the state of a hold is.
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

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Grants {
    all: Slab<Grant>,
    live: Few<Live>,
    /// How many have calls that have no guard yet.
    untaken: usize,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Grant {
    pub(super) state: HoldState,
    hold: Weak<dyn LocalHold>,
    /// The call that it was granted to, until that has a guard.
    call: Option<Weak<dyn GrantedCall>>,
    /// When the granted request was sent.
    pub(super) requested: Tick,
}

/// A grant that has not ended.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
struct Live {
    slot: Slot,
    has: Has,
}

#[derive(Debug, PartialEq)]
#[cfg_attr(test, derive(Clone, Hash))]
enum Has {
    /// It was granted to a writer: it may exclude others, and its owner changes when it is handed off.
    Writer,
    /// It was granted to this reader, and no other has joined.
    Reader(Owner),
    Readers,
}

impl Has {
    fn may_be_of(&self, owner: &Owner) -> bool {
        match self {
            Self::Reader(reader) => reader == owner,
            Self::Writer | Self::Readers => true,
        }
    }
}

/// How a new grant excludes an older one.
pub(super) enum Contradicted {
    /// The other one ended before this one began.
    Older(Slot),
    /// This one ended before the other one began.
    Newer,
}

impl Default for Grants {
    fn default() -> Self {
        Self {
            all: Slab::new(),
            live: Few::new(),
            untaken: 0,
        }
    }
}

impl Index<Slot> for Grants {
    type Output = Grant;

    fn index(&self, slot: Slot) -> &Grant {
        &self.all[slot.key()]
    }
}

impl IndexMut<Slot> for Grants {
    fn index_mut(&mut self, slot: Slot) -> &mut Grant {
        &mut self.all[slot.key()]
    }
}

impl Grant {
    pub(super) fn new(state: HoldState, hold: Weak<dyn LocalHold>, new: &NewHold) -> Self {
        Self {
            state,
            hold,
            call: new.call.clone(),
            requested: new.sent,
        }
    }

    pub(super) fn hold(&self) -> Option<Arc<dyn LocalHold>> {
        self.hold.upgrade()
    }
}

impl Grants {
    /// Adds a grant in this mode.
    pub(super) fn add(&mut self, grant: Grant, mode: Mode) -> Slot {
        let has = match mode {
            Mode::Exclusive => Has::Writer,
            Mode::Shared => Has::Reader(grant.state.owner().clone()),
        };
        if self.all.capacity() == 0 {
            // Most locks have one.
            self.all.reserve_exact(1);
        }
        self.untaken += usize::from(grant.call.is_some());
        let slot = Slot::new(self.all.insert(grant));
        self.live.push(Live { slot, has });
        slot
    }

    /// Takes a grant that has ended off the list. True if no other is left.
    pub(super) fn retire(&mut self, slot: Slot) -> bool {
        self.taken(slot);
        self.live.retain(|live| live.slot != slot);
        self.live.is_empty()
    }

    /// Its call has a guard, or the grant has ended.
    pub(super) fn taken(&mut self, slot: Slot) {
        let call = self[slot].call.take();
        self.untaken -= usize::from(call.is_some());
    }

    /// Whether some have calls that have no guard yet.
    pub(super) fn are_any_untaken(&self) -> bool {
        self.untaken > 0
    }

    /// The calls that may not have taken what they were granted.
    pub(super) fn untaken(&self) -> Vec<Arc<dyn GrantedCall>> {
        let live = self.live.iter().filter(|_| self.untaken > 0);
        let calls = live.filter_map(|live| self[live.slot].call.as_ref()?.upgrade());
        calls.collect()
    }

    /// Removes a grant. Nothing refers to it now.
    pub(super) fn remove(&mut self, slot: Slot) -> Grant {
        if self[slot].state.is_held() {
            // Otherwise it was taken off the list when it ended.
            self.retire(slot);
        }
        let grant = self.all.remove(slot.key());
        if self.all.is_empty() && self.all.capacity() > KEPT_MAX {
            // Frees the memory that a peak needed.
            *self = Self::default();
        }
        grant
    }

    /// Notes that another reader joins this one.
    pub(super) fn joined(&mut self, slot: Slot) {
        // Readers join the latest grant.
        let mut latest_first = self.live.iter_mut().rev();
        if let Some(joined) = latest_first.find(|live| live.slot == slot)
            && joined.has != Has::Writer
        {
            joined.has = Has::Readers;
        }
    }

    /// Whether none is live.
    pub(super) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether any is live, or ended and still referred to.
    pub(super) fn are_any_kept(&self) -> bool {
        !self.all.is_empty()
    }

    /// A valid grant of `owner`. An exclusive one if there is one.
    pub(super) fn of_owner(&self, owner: &Owner, now: Tick) -> Option<Slot> {
        let theirs = self.those(|has| has.may_be_of(owner));
        let theirs = theirs
            .filter(|(_, state)| state.is_taken() && state.is_valid(now) && state.is_of(owner));
        let found = theirs.max_by_key(|(_, state)| state.is_exclusive())?;
        Some(found.0)
    }

    /// The latest local deadline of the valid exclusive grants.
    pub(crate) fn exclusive_until(&self, now: Tick) -> Option<Tick> {
        let valid = self.writers().filter(|(_, state)| state.is_valid(now));
        let exclusive = valid.filter(|(_, state)| state.is_exclusive());
        exclusive.map(|(_, state)| state.deadline()).max()
    }

    /// Whether a valid grant excludes only writers.
    pub(crate) fn is_read(&self, now: Tick) -> bool {
        let mut all = self.those(|_| true);
        all.any(|(_, state)| state.is_valid(now) && !state.is_exclusive())
    }

    /// The grants that were made to writers.
    pub(super) fn writers(&self) -> impl Iterator<Item = (Slot, &HoldState)> {
        self.those(|has| *has == Has::Writer)
    }

    pub(super) fn live(&self) -> impl Iterator<Item = (Slot, &HoldState)> {
        self.those(|_| true)
    }

    /// The grants that exclude this one, in this mode. The one that was requested later was granted later, but the
    /// answers may arrive in either order. If either was handed over, the order is unknown: the one that was just
    /// learned of counts, provided that the server agrees. The flag says whether the server has to be asked.
    pub(super) fn contradicted(&self, this: Slot, mode: Mode) -> (Few<Contradicted>, bool) {
        let new = &self[this];
        let others = self.those(|has| mode == Mode::Exclusive || *has == Has::Writer);
        let others = others.filter(|(slot, state)| {
            *slot != this && (mode == Mode::Exclusive || state.is_exclusive())
        });
        let (mut contradicted, mut is_in_doubt) = (Few::new(), false);
        for (slot, _) in others {
            let other = &self[slot];
            let is_known = !new.state.is_handover() && !other.state.is_handover();
            is_in_doubt |= !is_known;
            contradicted.push(if !is_known || other.requested <= new.requested {
                Contradicted::Older(slot)
            } else {
                Contradicted::Newer
            });
        }
        (contradicted, is_in_doubt)
    }

    fn those(&self, which: impl Fn(&Has) -> bool) -> impl Iterator<Item = (Slot, &HoldState)> {
        let those = self.live.iter().filter(move |live| which(&live.has));
        those.map(|live| (live.slot, &self[live.slot].state))
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
    use crate::engine::hold::event::Event;
    use crate::engine::hold::state::tests::new_hold;

    const LEASE: LeasePolicy = LeasePolicy::Renewed(Duration::from_secs(30));
    const NOW: Tick = Tick::ZERO;

    impl Hash for Grants {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            for (key, grant) in &self.all {
                (key, &grant.state, grant.requested).hash(hasher);
            }
            self.live.hash(hasher);
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
            (grants.add(grant_of(at(nth), &new), mode), new.owner)
        };
        (0..count).map(add_one).collect()
    }

    /// The calls have guards of them.
    fn taken(grants: &mut Grants, all: &[(Slot, Owner)]) {
        let sticky = Duration::ZERO;
        for (slot, _) in all {
            let state = &mut grants[*slot].state;
            state.apply(at(0), Event::GuardMade { sticky });
        }
    }

    fn seen(grants: &Grants, owner: &Owner) -> usize {
        grants.those(|has| has.may_be_of(owner)).count()
    }

    /// Each acquire asks for these: with thousands of readers they must not cost a look at each.
    #[test]
    fn of_the_readers_only_those_are_looked_at_that_may_matter() {
        let mut grants = Grants::default();
        let readers = add(&mut grants, 20, Mode::Shared);
        assert_eq!(seen(&grants, &Owner::new()), 0);
        assert_eq!(grants.exclusive_until(at(20)), None);
        assert_eq!(grants.writers().count(), 0);
        assert!(grants.contradicted(readers[0].0, Mode::Shared).0.is_empty());
        assert_eq!(seen(&grants, &readers[5].1), 1);
        assert_eq!(
            grants.of_owner(&readers[5].1, at(20)),
            None,
            "not taken yet"
        );
        taken(&mut grants, &readers);
        assert_eq!(grants.of_owner(&readers[5].1, at(20)), Some(readers[5].0));
        // A hold that others have joined may be of any owner.
        grants.joined(readers[1].0);
        assert_eq!(seen(&grants, &Owner::new()), 1);
        assert_eq!(grants.of_owner(&Owner::new(), at(20)), None);
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
        assert_eq!(grants.of_owner(owner, at(1)), Some(*writer));
        let readers = add(&mut grants, 2, Mode::Shared);
        let ended = |this: Slot, mode| grants.contradicted(this, mode).0.len();
        assert_eq!(ended(readers[0].0, Mode::Exclusive), 2, "all but itself");
        assert_eq!(ended(readers[0].0, Mode::Shared), 1, "the writer");
        // A grant that has ended contradicts nothing.
        grants[*writer]
            .state
            .apply(at(1), Event::Lost(LostReason::Revoked));
        grants.retire(*writer);
        assert!(grants.contradicted(readers[0].0, Mode::Shared).0.is_empty());
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
            let second = grants.add(grant_of(at(5), &new), Mode::Exclusive);
            let (contradicted, is_in_doubt) = grants.contradicted(second, Mode::Exclusive);
            let ended = matches!(contradicted[..], [Contradicted::Older(slot)] if slot == first.0);
            assert_eq!((ended, is_in_doubt), (is_older, is_handover), "{sent}");
        }
    }

    #[test]
    fn a_slot_is_used_again_only_when_nothing_refers_to_it() {
        let mut grants = Grants::default();
        let all = add(&mut grants, 9, Mode::Shared);
        assert!(!grants.retire(all[0].0));
        assert_ne!(add(&mut grants, 1, Mode::Shared)[0].0, all[0].0);
        grants.remove(all[0].0);
        let again = add(&mut grants, 1, Mode::Shared)[0].0;
        assert_eq!(again, all[0].0);
        for (slot, _) in grants
            .live()
            .map(|(slot, _)| (slot, ()))
            .collect::<Vec<_>>()
        {
            grants.remove(slot);
        }
        assert!(grants.is_empty() && grants.all.capacity() == 0);
    }
}
