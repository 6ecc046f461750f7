//! The state of one lock in one client: its grants, the tasks that wait for it, and the turn of the client. A plain
//! value, without a clock, a server or a mutex of its own.
//!
//! A share that ends goes to the next task of this client if possible, stays with the client, or ends at the server as
//! well. Invariants: only the methods of its state change a hold. A hand-off changes nothing at the server, never uses
//! a token twice, and stays within the turn of this client, for the sake of others. A hold passes on only while no
//! operation on it is under way. No reader joins a hold that is being released, and no owner writes under a hold that
//! readers took over. A hold stays with its client only if no task of the client waits at that moment.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Duration;

use super::effects::{Effects, NewHold, NextOwner, ReleaseStep};
use super::followers::Followers;
use super::grants::{Grant, Grants, Slot};
use super::handoff::{Handoff, HandoffRequest, LocalHold, ReaderClass};
use super::queue::Queue;
use super::share_lease::ShareLease;
use super::state::HoldState;
use super::turns::Turns;
use crate::api::holder::{HolderId, Owner};
use crate::api::loss::LostReason;
use crate::engine::Few;
use crate::engine::clock::{Now, Tick};
use crate::engine::counts::Mode;

/// A thread keeps at most this many idle queues, because that many calls may begin before the first of them is
/// answered.
const SPARES_MAX: usize = 64;

thread_local! {
    /// The last queues that became idle on this thread, so that the next places need no allocation.
    #[expect(clippy::vec_box, reason = "a queue moves from here to its lock and back")]
    static SPARES: RefCell<Vec<Box<Queue>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct LockState {
    /// `None` while no task waits, which is the usual case.
    queue: Option<Box<Queue>>,
    pub(crate) turns: Turns,
    pub(crate) grants: Grants,
    /// The grant that the next readers may join. It is the latest, because that one stays open for longest.
    pub(crate) joinable: Option<Slot>,
    /// The hold that stays with the client without a guard. Boxed: most locks never have one.
    pub(crate) sticky: Option<Box<Handoff>>,
    /// Releases and cancellations that were decided on and not sent yet.
    pub(super) unsent_releases: u32,
    /// No recall is sent to the holder elsewhere before this time.
    pub(super) recall_after: Tick,
}

/// Facts that a change of the state needs, and that are kept outside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// How many messages reported the end of a hold that kept out all others, or of a wait for one.
    pub(super) ends: u64,
    /// How many tasks of this client wait for the lock, here and at the server.
    pub(super) waiters: usize,
}

/// A share that may pass to another task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passing {
    pub(super) slot: Slot,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
    /// Whether no group has to be notified of a loss of the hold.
    pub(super) is_alone: bool,
    /// Whether the client is open.
    pub(super) is_open: bool,
    /// A call ends after this time without an answer, unless its handle says otherwise.
    pub(super) give_up: Duration,
}

/// Where a share went.
#[derive(Debug)]
pub(super) enum Passed {
    /// To the next task. Contains the owner of that task, if it has one.
    On(Option<Owner>),
    /// To readers. The watchdog has to check the hold when its downgrade is due.
    ToReaders,
    /// It stays with the client. The caller has to drop the hold that stayed before, if any.
    Stays(Option<Box<Handoff>>),
}

/// The consequences of a new grant.
#[derive(Debug)]
pub(super) struct Contradictions {
    /// The older holds that the grant ended.
    pub(super) ended: Few<(Arc<dyn LocalHold>, Effects)>,
    /// The effects on the new hold of holds that were requested later.
    pub(super) own: Effects,
    /// Whether the server has to be asked which of the holds it has.
    pub(super) is_in_doubt: bool,
}

impl LockState {
    /// The tasks to wake once the mutex is free. `None` if there are none.
    #[inline]
    pub(super) fn woken(&mut self) -> Option<&mut Few<Waker>> {
        Some(&mut self.queue.as_mut()?.woken)
    }

    pub(crate) fn queue(&self) -> &Queue {
        const EMPTY: &Queue = &Queue::EMPTY;
        self.queue.as_deref().unwrap_or(EMPTY)
    }

    /// Changes the queue. Makes the queue first if there is none, and drops it afterwards if it is idle.
    #[inline]
    pub(crate) fn with_queue<X>(&mut self, work: impl FnOnce(&mut Queue) -> X) -> X {
        let queue = self.queue.get_or_insert_with(|| {
            // Fails while the thread ends.
            let spare = SPARES.try_with(|spares| spares.borrow_mut().pop());
            let spare = spare.ok().flatten();
            spare.unwrap_or_else(|| Box::new(Queue::EMPTY))
        });
        let done = work(queue);
        if let Some(idle) = self.queue.take_if(|queue| queue.is_idle()) {
            let _are_there = SPARES.try_with(|spares| {
                let mut spares = spares.borrow_mut();
                if spares.len() < SPARES_MAX {
                    spares.push(idle);
                }
            });
        }
        done
    }

    /// As [`with_queue`](Self::with_queue), for the waiters in the queue at the server. `work` also gets the list of
    /// wakers to wake.
    pub(crate) fn with_followers<X>(
        &mut self,
        work: impl FnOnce(&mut Followers, &mut Few<Waker>) -> X,
    ) -> X {
        self.with_queue(|queue| {
            let followers = queue.followers.get_or_insert_default();
            let done = work(followers, &mut queue.woken);
            queue.followers.take_if(|followers| followers.is_idle());
            done
        })
    }

    /// Adds a hold that was just granted, and its first share. Returns the lease of that share.
    pub(super) fn grant(
        &mut self,
        now: Tick,
        new: &NewHold,
        hold: Weak<dyn LocalHold>,
    ) -> (Slot, ShareLease) {
        let (state, lease) = HoldState::new(now, new);
        let slot = self.grants.add(Grant::new(state, hold, new));
        if new.is_joinable {
            self.joinable = Some(slot);
        }
        (slot, lease)
    }

    /// Ends the older of two holds that exclude each other.
    pub(super) fn contradict(
        &mut self,
        slot: Slot,
        mode: Mode,
        now: Tick,
        seen: Seen,
    ) -> Contradictions {
        let contradicted = self.grants.contradicted(slot, mode);
        let revoke = |state: &mut HoldState, now| state.lose(now, LostReason::Revoked);
        let mut contradictions = Contradictions {
            ended: Few::new(),
            own: Effects::default(),
            is_in_doubt: contradicted.is_in_doubt,
        };
        for other in contradicted.older {
            let effects = self.change(other, now, seen, revoke);
            let hold = self.grants[other].hold();
            (contradictions.ended).extend(hold.map(|hold| (hold, effects)));
        }
        if contradicted.is_older {
            contradictions.own = self.change(slot, now, seen, revoke);
        }
        contradictions
    }

    /// Changes a hold, and carries out the effects that concern its lock.
    #[inline]
    pub(super) fn change<N: Now>(
        &mut self,
        slot: Slot,
        now: N,
        seen: Seen,
        change: impl FnOnce(&mut HoldState, N) -> Effects,
    ) -> Effects {
        let effects = change(&mut self.grants[slot].state, now);
        match effects.release {
            Some(ReleaseStep::Decided(mode)) => {
                self.unsent_releases += 1;
                if mode == Mode::Exclusive {
                    self.turns.note_release(now.tick(), seen.ends);
                }
            }
            Some(ReleaseStep::Sent) => self.unsent_releases -= 1,
            None => {}
        }
        if effects.ended.is_some() {
            self.joinable.take_if(|joinable| *joinable == slot);
            self.grants.taken(slot);
            if seen.waiters == 0 && self.grants.is_empty() {
                self.turns.nobody_waits_here();
            }
        }
        effects
    }

    /// Removes a hold that nothing refers to any longer.
    pub(super) fn remove(&mut self, slot: Slot) -> Grant {
        self.joinable.take_if(|joinable| *joinable == slot);
        self.grants.remove(slot)
    }

    /// Whether anything refers to a hold of this client, or a release has not been sent yet.
    pub(super) fn is_in_use(&self) -> bool {
        self.grants.are_any_kept() || self.unsent_releases > 0
    }

    /// Begins the attempt of a call if this client has no hold of the lock, no other waiter and no unsent release, and
    /// if no other clients are known to listen. False if not.
    pub(crate) fn begin_free(&mut self, place: u64, now: Tick) -> bool {
        self.grants.is_empty()
            && self.sticky.is_none()
            && (self.queue.as_mut()).is_some_and(|queue| queue.begin_alone(place))
            && self.unsent_releases == 0
            && self.turns.count_alone(now)
    }
}

impl LockState {
    /// Passes a share on to the next task or to waiting readers, or leaves it to the client. `None` if the share has to
    /// end.
    pub(super) fn pass_on(&mut self, now: Tick, passing: &Passing) -> Option<Passed> {
        if !self.queue().has_waiter_blocked_by(Mode::Exclusive) {
            return self.leave_to_client(now, passing);
        }
        let next = self.hand_to_head(now, passing);
        next.or_else(|| self.pass_to_readers(now, passing))
    }

    fn hand_to_head(&mut self, now: Tick, passing: &Passing) -> Option<Passed> {
        let Self {
            queue,
            turns,
            grants,
            ..
        } = self;
        let grant = &mut grants[passing.slot];
        let mut owner = None;
        let is_passed = queue.as_mut()?.hand_off(|request| {
            let may_go_on = |_: &mut HoldState| turns.try_spend_handoff(now);
            owner = request.options.owner.clone();
            hand_off(grant, now, passing, request, None, may_go_on)
        });
        is_passed.then_some(Passed::On(owner))
    }

    /// Hands a share to the waiter of this client that stands directly behind the hold in the queue at the server.
    /// `holder` is the holder id of the hold. No waiter is passed over. The release will remove the used places from
    /// the queue.
    pub(super) fn hand_to_follower(
        &mut self,
        now: Tick,
        passing: &Passing,
        holder: HolderId,
    ) -> Option<Passed> {
        let grant = &mut self.grants[passing.slot];
        if grant.state.token().is_some() {
            return None;
        }
        let ahead = grant.state.last_place(holder);
        let Queue {
            followers, woken, ..
        } = self.queue.as_deref_mut()?;
        let mut owner = None;
        let is_passed = (followers.as_mut()?).hand_off(&ahead, now, woken, |request, place| {
            let may_go_on = |state: &mut HoldState| state.try_spend_pass(now);
            owner = request.options.owner.clone();
            hand_off(grant, now, passing, request, Some(place), may_go_on)
        });
        is_passed.then_some(Passed::On(owner))
    }

    /// Hands a share to a task that came while the hold was without a guard. This spends no hand-off, because the
    /// sticky span is the bound for the sake of others.
    pub(super) fn hand_to(
        &mut self,
        now: Tick,
        passing: &Passing,
        request: &HandoffRequest,
    ) -> Option<Handoff> {
        let grant = &mut self.grants[passing.slot];
        hand_off(grant, now, passing, request, None, |_| true)
    }

    /// Joins the hold that readers of this client have, as a new owner. Returns the hold, that owner, and the time of
    /// joining.
    pub(super) fn join(
        &mut self,
        now: impl Now,
        terms: &ReaderClass,
    ) -> Option<(Arc<dyn LocalHold>, Owner, Tick, Effects)> {
        let slot = self.joinable?;
        // Read under the mutex, so that times do not go backwards from one change to the next.
        let now = now.tick();
        let (hold, owner, effects) = add_reader(&mut self.grants, now, slot, terms, true)?;
        Some((hold, owner, now, effects))
    }

    /// Hands a share of this hold to each reader that waits to join it.
    pub(super) fn admit_waiting(&mut self, now: Tick, slot: Slot) {
        let grants = &mut self.grants;
        if let Some(queue) = &mut self.queue {
            queue.hand_to_cohort(|terms| admit(grants, now, slot, terms));
        }
    }

    /// Passes a writer's share on to the readers at the head of the queue. At the server the hold remains a write hold
    /// for now. That is safe, because a write hold excludes more than readers need.
    fn pass_to_readers(&mut self, now: Tick, passing: &Passing) -> Option<Passed> {
        if passing.mode != Mode::Exclusive || !passing.is_open {
            return None;
        }
        let Self {
            queue,
            turns,
            grants,
            ..
        } = self;
        let slot = passing.slot;
        let mut is_passed = false;
        let is_any = queue.as_mut()?.hand_to_cohort(|terms| {
            if is_passed {
                return admit(grants, now, slot, terms);
            }
            let grant = &mut grants[slot];
            let hold = grant.hold()?;
            let state = &mut grant.state;
            let can_pass = passing.is_alone
                && state.replication() == terms.replication
                && state.can_pass_to_readers(now, passing.lease, terms.lease);
            let until = can_pass.then(|| turns.try_defer_downgrade(now))??;
            let first = Owner::new();
            let next = NextOwner {
                owner: first.clone(),
                fenced: false,
                give_up: terms.give_up,
                before: passing.lease,
                after: passing.lease,
                place: None,
                reads_until: Some(until),
            };
            state.hand_off(next);
            is_passed = true;
            Some(Handoff::new(hold, first, Mode::Shared, passing.lease))
        });
        if is_any {
            self.joinable = Some(slot);
        }
        is_passed.then_some(Passed::ToReaders)
    }

    /// Leaves a share to the client, so that its next task takes the hold without a round trip.
    fn leave_to_client(&mut self, now: Tick, passing: &Passing) -> Option<Passed> {
        let grant = &mut self.grants[passing.slot];
        let may_stay = passing.mode == Mode::Exclusive && passing.is_open && passing.is_alone;
        if !may_stay || !grant.state.is_sticky() {
            return None;
        }
        let hold = grant.hold()?;
        let state = &mut grant.state;
        let (end, after) = state.can_be_left(now, passing.lease)?;
        state.leave_to_client(passing.lease, after, end);
        let owner = state.owner().clone();
        let share = Handoff::new(hold, owner, passing.mode, after);
        let before = self.sticky.replace(Box::new(share));
        Some(Passed::Stays(before))
    }
}

fn hand_off(
    grant: &mut Grant,
    now: Tick,
    passing: &Passing,
    request: &HandoffRequest,
    place: Option<HolderId>,
    may_go_on: impl FnOnce(&mut HoldState) -> bool,
) -> Option<Handoff> {
    let options = &request.options;
    let can_pass = passing.is_alone
        && options.replication == grant.state.replication()
        && (grant.state).can_hand_off(now, passing.lease, request.policy, options.fenced)
        && may_go_on(&mut grant.state);
    if !can_pass {
        return None;
    }
    let hold = grant.hold()?;
    let owner = options.owner.clone().unwrap_or_else(Owner::new);
    let after = ShareLease::of(request.policy, now, now);
    let next = NextOwner {
        owner: owner.clone(),
        fenced: options.fenced,
        give_up: options.give_up.unwrap_or(passing.give_up),
        before: passing.lease,
        after,
        place,
        reads_until: None,
    };
    grant.state.hand_off(next);
    Some(Handoff::new(hold, owner, Mode::Exclusive, after))
}

/// Adds a share, for a new owner, to a hold that readers have.
fn add_reader(
    grants: &mut Grants,
    now: Tick,
    slot: Slot,
    terms: &ReaderClass,
    is_claimed: bool,
) -> Option<(Arc<dyn LocalHold>, Owner, Effects)> {
    let grant = &mut grants[slot];
    let can_join = grant.state.replication() == terms.replication
        && grant.state.can_be_joined(now, terms.lease, terms.give_up);
    if !can_join {
        return None;
    }
    let hold = grant.hold()?;
    let owner = Owner::new();
    let effects = grant.state.join(owner.clone(), terms.lease, is_claimed);
    grants.joined(slot);
    Some((hold, owner, effects))
}

/// Makes a share for a reader that waits to join.
fn admit(grants: &mut Grants, now: Tick, slot: Slot, terms: &ReaderClass) -> Option<Handoff> {
    let (hold, owner, _) = add_reader(grants, now, slot, terms, false)?;
    let lease = ShareLease::renewed(terms.lease);
    Some(Handoff::new(hold, owner, Mode::Shared, lease))
}
