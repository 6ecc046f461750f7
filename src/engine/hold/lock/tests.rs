//! The life of one lock in one client, explored to its end.
//!
//! The states are the engine's own [`LockState`]: its holds, its queue and its turns, not a model of them. Around it:
//! the lock at the server, a rival of another client, the guards and the tasks that wait, the requests that are under
//! way, and faults: a connection that breaks before or after a command is executed, an operator who takes a hold away,
//! a doubt whether the server still has it. A step is one call of a task, one command at the server, one reply, one
//! fault, or some time. All orders of steps are tried, within bounds on their number. The steps follow `settle.rs`,
//! `settling.rs` and `transfer.rs`.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stateright::{Checker, Expectation, Model, Property};

use super::*;
use crate::api::options::{LeasePolicy, Options};
use crate::engine::hold::effects::{Answered, Phase, ServerChange, Tokens};
use crate::engine::hold::queue::Wants;
use crate::engine::hold::state::tests::new_hold;
use crate::watchdog::Due;

const LEASE: Duration = Duration::from_secs(6);
/// The steps of time: a third of a lease, after which renewals are due.
const STEP: Duration = Duration::from_secs(2);
const GIVE_UP: Duration = Duration::from_secs(1);
/// The time of the first grant. Readers can join a hold in the step of its grant, because nothing takes time within a
/// step.
const BEGIN: Tick = Tick::ZERO;

/// Bounds on the steps that are tried.
#[derive(Clone, Debug)]
struct Limits {
    first: Mode,
    policy: LeasePolicy,
    /// The most holds that are granted, guards at a time, steps of time, and requests without a reply.
    grants: u8,
    guards: usize,
    steps: u8,
    breaks: u8,
    evictions: u8,
    doubts: u8,
    /// The most steps of callers that are no releases, and the most callers that wait at a time.
    calls: u8,
    places: usize,
    kept_for: Duration,
    sticky: Duration,
    /// Whether a call may learn of its grant later.
    is_late: bool,
    tried: &'static [Tried],
}

/// A step of a caller that is no release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tried {
    Enter,
    /// A task begins to wait that wants the lock alone.
    Wait,
    /// A reader begins to wait that would join others.
    WaitToRead,
    Recall,
    Downgrade,
    Forget,
    Join,
    /// Another client takes the lock when it can.
    Rival,
}

/// A hold in a mode, as the server has it.
#[derive(Clone, Debug, Hash)]
struct AtServer {
    /// The number of the hold. `None` for the rival.
    id: Option<u8>,
    mode: Mode,
    end: Tick,
    /// Whether it is kept under another holder id, for the rest of its minimum time.
    is_kept: bool,
}

#[derive(Clone, Debug, Hash)]
struct Guard {
    owner: Owner,
    mode: Mode,
    lease: ShareLease,
    kept_until: Tick,
}

/// A request on its way.
#[derive(Clone, Debug, Hash)]
struct Request<T> {
    what: T,
    sent: Tick,
    is_repeated: bool,
    /// Whether the server had the hold, once the request is executed.
    found: Option<bool>,
}

#[derive(Clone, Debug, Hash)]
struct Held {
    id: u8,
    slot: Slot,
    guards: Vec<Guard>,
    /// How many callers wait until the server has what the shares need.
    settling: u8,
    change: Option<Request<ServerChange>>,
    renewal: Option<Request<Duration>>,
    /// The request in the background that ends a lost hold.
    undo: Option<ServerChange>,
    /// Releases that were decided on and not sent.
    unsent: i8,
    /// Whether the call that it was granted to has learned of it, or has left.
    is_known: bool,
    is_evicted: bool,
    has_broken: bool,
}

impl Hash for LockState {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            queue,
            turns,
            grants,
            joinable,
            sticky,
            unsent_releases,
            recall_after,
        } = self;
        (queue, turns, grants, joinable).hash(hasher);
        (sticky, unsent_releases, recall_after).hash(hasher);
    }
}

/// The number of a place. Not hashed: only the order of the places makes a difference.
#[derive(Clone, Copy, Debug)]
struct PlaceNumber(u64);

impl Hash for PlaceNumber {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A hold, as the lock refers to it.
#[derive(Debug)]
struct Numbered(u8);

impl LocalHold for Numbered {
    /// Does nothing: the steps release such shares.
    fn give_back(self: Arc<Self>, _: Owner, _: Mode, _: ShareLease) {}
}

#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "states that are equal have equal texts"
)]
#[derive(Clone, Debug, Hash)]
struct World {
    now: Tick,
    lock: LockState,
    server: Vec<AtServer>,
    held: Vec<Held>,
    /// The places of the tasks that wait.
    places: Vec<PlaceNumber>,
    breaks: u8,
    evictions: u8,
    doubts: u8,
    calls: u8,
    /// The promise that was broken, if any.
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Time,
    Grant,
    /// A call learns of its grant.
    Learn(usize),
    RivalTakes,
    RivalLeaves,
    Evict(usize),
    Doubt(usize),
    ClockRead(usize),
    /// A waiting task comes for its turn, or leaves.
    Come(usize),
    Leave(usize),
    Release(usize, usize),
    Caller(Tried, usize, usize),
    /// The next task takes the hold that stays with the client, or the stay ends.
    TakeStay,
    EndStay,
    EndDeferral(usize),
    Ask(usize),
    ChangeDone(usize),
    ChangeAnswered(usize),
    /// No reply comes, and the call sends the request again, or ends.
    ChangeBroken(usize, bool),
    Renew(usize),
    RenewalDone(usize),
    RenewalAnswered(usize),
    RenewalBroken(usize),
    Undo(usize),
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Held {
    fn is_idle(&self) -> bool {
        self.settling == 0 && self.change.is_none() && self.undo.is_none()
    }
}

/// No other client listens.
const NOBODY: Seen = Seen {
    ends: 0,
    waiters: 1,
};

impl World {
    fn state(&self, at: usize) -> &HoldState {
        &self.lock.grants[self.held[at].slot].state
    }

    fn is_valid(&self, at: usize) -> bool {
        self.state(at).is_valid(self.now)
    }

    fn state_mut(&mut self, at: usize) -> &mut HoldState {
        &mut self.lock.grants[self.held[at].slot].state
    }

    fn change(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut HoldState, Tick) -> Effects,
    ) -> Effects {
        let slot = self.held[at].slot;
        let effects = self.lock.change(slot, self.now, NOBODY, change);
        self.carry_out(at, effects);
        effects
    }

    fn carry_out(&mut self, at: usize, effects: Effects) {
        match effects.release {
            Some(ReleaseStep::Decided(_)) => self.held[at].unsent += 1,
            Some(ReleaseStep::Sent) => self.held[at].unsent -= 1,
            None => {}
        }
        if let Some(reason) = effects.lost() {
            let is_kept = self.state(at).kept_for(self.now).is_some();
            self.held[at].settling += u8::from(is_kept);
            let is_released = !is_kept && reason == LostReason::MaxHold;
            self.held[at].undo = is_released.then_some(ServerChange::Release);
            self.end_stay();
        }
    }

    /// Applies the server's answer that it does not have the hold. Returns whether this reports a false loss.
    fn is_revoked_falsely(&mut self, at: usize) -> bool {
        let lost = self
            .change(at, |state, now| state.lose(now, LostReason::Revoked))
            .lost();
        lost == Some(LostReason::Revoked) && !self.held[at].is_evicted
    }

    fn passing(&self, at: usize, mode: Mode, lease: ShareLease) -> Passing {
        Passing {
            slot: self.held[at].slot,
            mode,
            lease,
            is_alone: true,
            is_open: true,
            give_up: GIVE_UP,
        }
    }

    /// Ends a share, as `RawShare::end` and `end_all` do.
    fn end(&mut self, at: usize, guard: Guard) {
        let Guard {
            owner,
            mode,
            lease,
            kept_until,
        } = guard;
        if self.state(at).is_held() && !self.is_valid(at) {
            self.change(at, HoldState::expire_if_due);
        }
        let passing = self.passing(at, mode, lease);
        if self.now >= kept_until {
            match self.lock.pass_on(self.now, &passing) {
                None => {}
                Some(Passed::Stays(before)) => {
                    assert!(before.is_none(), "two holds of one lock");
                    return;
                }
                Some(Passed::On(_) | Passed::ToReaders) => return,
            }
        }
        let lost = self.state(at).loss();
        let effects = self.change(at, |state, now| {
            state.release_share(now, &owner, mode, lease, kept_until)
        });
        let must_settle = match lost {
            Some(_) => self.state(at).counts().is_none(),
            None => !effects.is_local,
        };
        self.held[at].settling += u8::from(must_settle);
    }

    /// As `Share::guarded` does.
    fn make_guard(&mut self, at: usize, sticky: Duration) {
        self.lock.grants.taken(self.held[at].slot);
        self.change(at, |state, now| state.make_guard(now, sticky));
    }

    /// Releases a share that no task has taken.
    fn give_back(&mut self, mut handoff: Handoff) {
        let (at, guard) = taken(&mut handoff, Tick::ZERO);
        if guard.mode == Mode::Shared {
            self.change(at, |state, now| state.accept_handoff(now, guard.mode));
        }
        self.end(at, guard);
    }

    fn end_stay(&mut self) {
        if let Some(handoff) = self.lock.sticky.take() {
            self.give_back(*handoff);
        }
    }

    fn end_deferral(&mut self, at: usize) {
        if self.state(at).is_downgrade_deferred() {
            self.change(at, |state, _| state.end_deferral());
            self.held[at].settling += 1;
        }
    }
}

/// Takes a share that was handed on. Returns its hold and the guard.
fn taken(handoff: &mut Handoff, kept_until: Tick) -> (usize, Guard) {
    let hold: Arc<dyn Any + Send + Sync> = handoff.take().expect("it is taken once");
    let hold = hold.downcast::<Numbered>().expect("no other hold is here");
    let guard = Guard {
        owner: handoff.owner.clone(),
        mode: handoff.mode,
        lease: handoff.lease,
        kept_until,
    };
    (usize::from(hold.0), guard)
}

impl World {
    fn at_server(&mut self, id: u8) -> Option<&mut AtServer> {
        self.server
            .iter_mut()
            .find(|one| one.id == Some(id) && !one.is_kept)
    }

    fn is_free_for(&self, mode: Mode) -> bool {
        let mut all = self.server.iter();
        all.all(|one| mode == Mode::Shared && one.mode == Mode::Shared)
    }

    /// Executes a change at the server. Returns whether the server had the hold.
    fn execute(&mut self, id: u8, change: ServerChange) -> bool {
        let now = self.now;
        let Some(one) = self.at_server(id) else {
            let mut all = self.server.iter();
            return matches!(change, ServerChange::Keep(_)) && all.any(|one| one.id == Some(id));
        };
        match change {
            ServerChange::Nothing => {}
            ServerChange::Downgrade => one.mode = Mode::Shared,
            ServerChange::Keep(remaining) => (one.is_kept, one.end) = (true, now.after(remaining)),
            ServerChange::Release => self.server.retain(|one| one.id != Some(id) || one.is_kept),
        }
        true
    }

    fn end_operation(&mut self, at: usize) {
        self.lock.grants[self.held[at].slot].state.end_change();
    }

    fn break_promise(&mut self, promise: &'static str, is_broken: bool) {
        if is_broken {
            self.broken.get_or_insert(promise);
        }
    }
}

/// The names of the promises, which are checked in each state.
const FALSE_LOSS: &str = "nothing is lost that the server has";
const SILENT_LOSS: &str = "a release of a hold that was lost says so";
const VALID: &str = "the server has what a guard is valid for";
const SETTLED: &str = "the server has what it is known to have";
const LEFT: &str = "nothing is left of a hold without shares";
const KEPT: &str = "the lock is not free before the minimum time of a hold is over";
const UNSENT: &str = "each release that is decided on is sent once";
const SOMEBODY: &str = "each hold has somebody who ends it";
const ALONE: &str = "nobody shares a hold with a call that does not know of it";

struct Explored {
    limits: Limits,
    owners: Vec<Owner>,
    holds: Vec<Arc<Numbered>>,
}

const JOINING: ReaderClass = ReaderClass {
    lease: LEASE,
    replication: None,
    give_up: GIVE_UP,
};

impl Explored {
    fn new(limits: Limits) -> Self {
        let owners = (0..16).map(Owner::numbered).collect();
        let holds = (0..limits.grants).map(|id| Arc::new(Numbered(id)));
        Self {
            holds: holds.collect(),
            limits,
            owners,
        }
    }

    /// Until when a hold is kept if a guard that is made now releases it early.
    fn kept_until(&self, now: Tick, mode: Mode) -> Tick {
        match self.limits.kept_for.is_zero() || mode == Mode::Shared {
            true => Tick::ZERO,
            false => now.after(self.limits.kept_for),
        }
    }

    fn grant(&self, world: &mut World) {
        let (now, mode) = (world.now, self.limits.first);
        let id = world.held.len() as u8;
        let owner = Owner::new();
        let new = NewHold {
            owner: owner.clone(),
            sent: now,
            policy: self.limits.policy,
            give_up: GIVE_UP,
            tokens: Tokens::granted(None, 0),
            is_joinable: mode == Mode::Shared,
            call: None,
            ..new_hold(self.limits.policy, mode)
        };
        let hold: Weak<Numbered> = Arc::downgrade(&self.holds[usize::from(id)]);
        let (slot, lease) = world.lock.grant(now, &new, hold);
        let guard = Guard {
            owner,
            mode,
            lease,
            kept_until: self.kept_until(now, mode),
        };
        world.held.push(Held {
            id,
            slot,
            guards: vec![guard],
            settling: 0,
            change: None,
            renewal: None,
            undo: None,
            unsent: 0,
            is_known: false,
            is_evicted: false,
            has_broken: false,
        });
        // Holds that this one contradicts were lost.
        let contradictions = world.lock.contradict(slot, mode, now, NOBODY);
        for (hold, effects) in contradictions.ended {
            let hold: Arc<dyn Any + Send + Sync> = hold;
            let other = usize::from(hold.downcast::<Numbered>().expect("a hold").0);
            world.carry_out(other, effects);
            let is_false = effects.lost() == Some(LostReason::Revoked);
            let is_false = is_false && !world.held[other].is_evicted;
            world.break_promise(FALSE_LOSS, is_false);
        }
        if !self.limits.is_late {
            let _learned = self.learn(world, usize::from(id));
        }
        let end = now.after(self.limits.policy.lease());
        world.server.push(AtServer {
            id: Some(id),
            mode,
            end,
            is_kept: false,
        });
    }

    /// A call learns of its grant, as `Share::guarded` does.
    fn learn(&self, world: &mut World, at: usize) -> Option<()> {
        let held = &mut world.held[at];
        (!std::mem::replace(&mut held.is_known, true) && !held.guards.is_empty()).then_some(())?;
        let (slot, mode) = (held.slot, held.guards[0].mode);
        let sticky = self.limits.sticky;
        world.make_guard(at, sticky);
        if mode == Mode::Shared {
            world.lock.admit_waiting(world.now, slot);
        }
        Some(())
    }

    /// A task takes a share that was handed on.
    fn take_over(&self, world: &mut World, mut handoff: Handoff) {
        let kept_until = self.kept_until(world.now, handoff.mode);
        let (at, guard) = taken(&mut handoff, kept_until);
        world.change(at, |state, now| state.accept_handoff(now, guard.mode));
        let sticky = self.limits.sticky;
        world.make_guard(at, sticky);
        world.held[at].guards.push(guard);
    }

    fn request(&self) -> HandoffRequest {
        HandoffRequest {
            options: Options::default().into(),
            policy: self.limits.policy,
        }
    }

    /// Takes a step of a caller that has a guard.
    fn call(&self, world: &mut World, what: Tried, at: usize, guard: usize) -> Option<()> {
        let now = world.now;
        let Guard { mode, lease, .. } = world.held[at].guards[guard];
        let needs_guard = matches!(what, Tried::Enter | Tried::Downgrade | Tried::Forget);
        (world.held[at].is_known || !needs_guard).then_some(())?;
        match what {
            Tried::Enter => {
                let owner = world.held[at].guards[guard].owner.clone();
                let state = world.state(at);
                let can_enter = world.is_valid(at)
                    && (mode == Mode::Shared || state.is_written())
                    && state.is_of(&owner)
                    && state.can_be_entered(now, LEASE, lease);
                can_enter.then_some(())?;
                world.change(at, |state, now| {
                    state.add_share(now, &owner, mode, lease, None)
                });
                let kept_until = self.kept_until(now, mode);
                world.held[at].guards.push(Guard {
                    owner,
                    mode,
                    lease,
                    kept_until,
                });
            }
            Tried::Wait | Tried::WaitToRead => {
                (world.places.len() < self.limits.places).then_some(())?;
                let place = world.lock.with_queue(|queue| match what {
                    Tried::Wait => queue.push(Wants::Alone(Some(self.request()))),
                    _ => queue.push(Wants::Together(Some(JOINING))),
                });
                world.places.push(PlaceNumber(place));
            }
            Tried::Downgrade => {
                (mode == Mode::Exclusive).then_some(())?;
                if world.state(at).is_held() && !world.is_valid(at) {
                    world.change(at, HoldState::expire_if_due);
                }
                let is_lost = world.state(at).loss().is_some();
                world.change(at, HoldState::downgrade_share);
                if is_lost {
                    world.held[at].guards.remove(guard);
                    let must_settle = world.state(at).counts().is_none();
                    world.held[at].settling += u8::from(must_settle);
                } else {
                    world.held[at].guards[guard].mode = Mode::Shared;
                    world.held[at].settling += 1;
                }
            }
            Tried::Forget => {
                let Guard { owner, .. } = world.held[at].guards.remove(guard);
                if mode == Mode::Shared {
                    world.end_deferral(at);
                }
                world.change(at, |state, _| state.forget_share(&owner, mode, lease));
            }
            Tried::Join => {
                let (hold, owner, _, effects) = world.lock.join(now, &JOINING)?;
                let (mode, lease) = (Mode::Shared, ShareLease::renewed(LEASE));
                let mut joined = Handoff::new(hold, owner, mode, lease);
                let (at, guard) = taken(&mut joined, Tick::ZERO);
                world.carry_out(at, effects);
                world.held[at].guards.push(guard);
            }
            Tried::Recall => {
                world.state_mut(at).recall();
                world.end_deferral(at);
                world.end_stay();
            }
            Tried::Rival => return None,
        }
        Some(())
    }

    fn change_answered(world: &mut World, at: usize) -> Option<()> {
        let held = &mut world.held[at];
        let change = held.change.take_if(|change| change.found.is_some())?;
        let is_found = change.found == Some(true);
        let (is_evicted, has_broken) = (held.is_evicted, held.has_broken);
        let answered = Answered {
            mode: change.what.mode(),
            is_found,
            first_sent: change.sent,
            is_repeated: change.is_repeated,
        };
        let missing = world
            .change(at, |state, now| state.answered(now, answered))
            .missing;
        world.end_operation(at);
        // A request that is executed after the end of the lease finds nothing either.
        let is_false = missing == Some(LostReason::Revoked)
            && !is_evicted
            && world.now < world.state(at).deadline();
        world.break_promise(FALSE_LOSS, is_false);
        world.break_promise(
            SILENT_LOSS,
            is_evicted && !has_broken && !is_found && missing.is_none(),
        );
        let is_next = change.what == ServerChange::Downgrade && world.state(at).is_kept();
        let goes_on = is_next && missing.is_none();
        world.held[at].settling -= u8::from(!goes_on);
        Some(())
    }

    fn renewal_answered(world: &mut World, at: usize) -> Option<()> {
        let held = &mut world.held[at];
        let renewal = held.renewal.take_if(|renewal| renewal.found.is_some())?;
        if renewal.found == Some(true) {
            let (sent, lease) = (renewal.sent, renewal.what);
            let now = world.now;
            world.state_mut(at).renewed(now, sent, lease);
        } else {
            let is_false = world.is_revoked_falsely(at);
            world.break_promise(FALSE_LOSS, is_false);
        }
        Some(())
    }

    fn time(world: &mut World) {
        world.now = world.now.after(STEP);
        let now = world.now;
        world.server.retain(|one| now < one.end);
        for at in 0..world.held.len() {
            let state = world.state(at);
            if state.downgrade_due() <= now {
                world.end_deferral(at);
            }
            if world.state(at).stays_until() <= now {
                world.state_mut(at).end_stay();
                world.end_stay();
            }
        }
    }

    /// Whether this step may be possible. Saves copies of the world for steps that are not.
    fn may_be_possible(&self, world: &World, step: Step) -> bool {
        let (now, limits) = (world.now, &self.limits);
        let is_done = |found: Option<bool>| found.is_some();
        match step {
            Step::Time => now < BEGIN.after(STEP * u32::from(limits.steps)),
            // A request of this client goes behind its releases.
            Step::Grant => {
                let is_executed =
                    |held: &Held| held.change.as_ref().is_none_or(|one| is_done(one.found));
                world.held.len() < usize::from(limits.grants)
                    && world.is_free_for(limits.first)
                    && world
                        .held
                        .iter()
                        .all(|held| held.unsent == 0 && is_executed(held))
            }
            Step::RivalTakes => {
                limits.tried.contains(&Tried::Rival) && world.is_free_for(Mode::Exclusive)
            }
            Step::RivalLeaves => world.server.iter().any(|one| one.id.is_none()),
            Step::Evict(at) => world.evictions > 0 && at_server(world, at).is_some(),
            Step::Doubt(_) => world.doubts > 0,
            Step::ClockRead(at) => world.state(at).is_held() && !world.is_valid(at),
            Step::Learn(at) => !world.held[at].is_known,
            Step::Caller(..) => world.calls > 0,
            Step::TakeStay | Step::EndStay => world.lock.sticky.is_some(),
            Step::EndDeferral(at) => world.state(at).is_downgrade_deferred(),
            Step::Ask(at) => world.held[at].settling > 0 && world.held[at].change.is_none(),
            Step::ChangeDone(at) | Step::ChangeAnswered(at) => {
                let change = world.held[at].change.as_ref();
                let is_answer = matches!(step, Step::ChangeAnswered(_));
                change.is_some_and(|change| is_done(change.found) == is_answer)
            }
            Step::ChangeBroken(at, _) => world.breaks > 0 && world.held[at].change.is_some(),
            Step::Renew(at) => world.held[at].renewal.is_none(),
            Step::RenewalDone(at) | Step::RenewalAnswered(at) => {
                let renewal = world.held[at].renewal.as_ref();
                let is_answer = matches!(step, Step::RenewalAnswered(_));
                renewal.is_some_and(|renewal| is_done(renewal.found) == is_answer)
            }
            Step::RenewalBroken(at) => world.breaks > 0 && world.held[at].renewal.is_some(),
            Step::Undo(at) => world.held[at].undo.is_some(),
            Step::Come(_) | Step::Leave(_) | Step::Release(..) => true,
        }
    }

    /// `None` if this step is not possible now.
    fn take(&self, world: &mut World, step: Step) -> Option<()> {
        let now = world.now;
        let is_free = |owner: &&Owner| {
            let mut all = 0..world.held.len();
            let mut guards = world.held.iter().flat_map(|held| &held.guards);
            !all.any(|at| world.state(at).is_of(owner))
                && !guards.any(|guard| guard.owner == **owner)
        };
        Owner::number_next(self.owners.iter().filter(is_free).cloned());
        match step {
            Step::Time => Self::time(world),
            Step::Grant => self.grant(world),
            Step::Learn(at) => self.learn(world, at)?,
            Step::RivalTakes => world.server.push(AtServer {
                id: None,
                mode: Mode::Exclusive,
                end: now.after(LEASE),
                is_kept: false,
            }),
            Step::RivalLeaves => world.server.retain(|one| one.id.is_some()),
            Step::Evict(at) => {
                world.evictions -= 1;
                let id = world.held[at].id;
                world.server.retain(|one| one.id != Some(id));
                world.held[at].is_evicted = true;
            }
            Step::Doubt(at) => {
                world.doubts -= 1;
                world.state_mut(at).doubt(now);
            }
            Step::ClockRead(at) => _ = world.change(at, HoldState::expire_if_due),
            Step::Come(place) => {
                let number = world.places.get(place)?.0;
                let handoff = world.lock.with_queue(|queue| queue.taken(number))?;
                world.places.remove(place);
                let left = world.lock.with_queue(|queue| queue.left(number));
                assert!(left.is_none(), "it was taken");
                self.take_over(world, handoff);
            }
            Step::Leave(place) => {
                world.places.get(place)?;
                let number = world.places.remove(place).0;
                let left = world.lock.with_queue(|queue| queue.left(number));
                if let Some(handoff) = left {
                    world.give_back(handoff);
                }
            }
            Step::Release(at, guard) => {
                let guard = world.held[at].guards.remove(guard);
                world.held[at].is_known = true;
                world.end(at, guard);
            }
            Step::Caller(what, at, guard) => {
                world.calls -= 1;
                return self.call(world, what, at, guard);
            }
            Step::TakeStay => {
                let mut stays = *world.lock.sticky.take()?;
                let (mode, lease) = (stays.mode, stays.lease);
                let (at, guard) = taken(&mut stays, Tick::ZERO);
                let passing = world.passing(at, mode, lease);
                match world.lock.hand_to(now, &passing, &self.request()) {
                    Some(handoff) => self.take_over(world, handoff),
                    None => world.end(at, guard),
                }
            }
            Step::EndStay => world.end_stay(),
            Step::EndDeferral(at) => world.end_deferral(at),
            Step::Ask(at) => {
                let what = world.state(at).needed_change(now);
                if what == ServerChange::Nothing {
                    world.held[at].settling -= 1;
                } else {
                    let slot = world.held[at].slot;
                    assert!(world.lock.grants[slot].state.begin_change());
                    world.change(at, |state, _| state.change_sent(what.mode()));
                    world.held[at].change = Some(Request {
                        what,
                        sent: now,
                        is_repeated: false,
                        found: None,
                    });
                }
            }
            Step::ChangeDone(at) => {
                let (id, change) = (world.held[at].id, world.held[at].change.as_ref()?);
                let what = change.what;
                let found = world.execute(id, what);
                if let Some(change) = &mut world.held[at].change {
                    change.found = Some(found);
                }
            }
            Step::ChangeAnswered(at) => return Self::change_answered(world, at),
            Step::ChangeBroken(at, is_sent_again) => {
                world.breaks -= 1;
                let held = &mut world.held[at];
                let change = held.change.as_mut()?;
                held.has_broken = true;
                (change.found, change.is_repeated) = (None, true);
                if !is_sent_again {
                    let (sent, mode) = (change.sent, change.what.mode());
                    held.change = None;
                    if mode.is_none() {
                        world.state_mut(at).may_be_released(sent);
                    }
                    world.end_operation(at);
                }
            }
            Step::Renew(at) => {
                let Due::Renew { lease, .. } = world.state(at).next_step(now) else {
                    return None;
                };
                world.state_mut(at).lease_sent(now, lease);
                world.held[at].renewal = Some(Request {
                    what: lease,
                    sent: now,
                    is_repeated: false,
                    found: None,
                });
            }
            Step::RenewalDone(at) => {
                let (id, renewal) = (world.held[at].id, world.held[at].renewal.as_ref()?);
                let end = now.after(renewal.what);
                let found = world
                    .at_server(id)
                    .map(|one| one.end = one.end.max(end))
                    .is_some();
                if let Some(renewal) = &mut world.held[at].renewal {
                    renewal.found = Some(found);
                }
            }
            Step::RenewalAnswered(at) => return Self::renewal_answered(world, at),
            Step::RenewalBroken(at) => {
                world.breaks -= 1;
                world.held[at].renewal.take()?;
            }
            Step::Undo(at) => {
                let (id, undo) = (world.held[at].id, world.held[at].undo.take()?);
                world.execute(id, undo);
            }
        }
        Some(())
    }
}

impl Model for Explored {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            now: BEGIN,
            lock: LockState::default(),
            server: Vec::new(),
            held: Vec::new(),
            places: Vec::new(),
            breaks: self.limits.breaks,
            evictions: self.limits.evictions,
            doubts: self.limits.doubts,
            calls: self.limits.calls,
            broken: None,
        };
        Owner::number_next(self.owners.iter().cloned());
        self.grant(&mut world);
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend([Step::Time, Step::Grant, Step::RivalTakes, Step::RivalLeaves]);
        steps.extend([Step::TakeStay, Step::EndStay]);
        let places = 0..world.places.len();
        steps.extend(places.flat_map(|place| [Step::Come(place), Step::Leave(place)]));
        for (at, held) in world.held.iter().enumerate() {
            steps.extend([Step::Evict(at), Step::Doubt(at), Step::ClockRead(at)]);
            steps.push(Step::Learn(at));
            steps.extend([Step::EndDeferral(at), Step::Ask(at), Step::Undo(at)]);
            steps.extend([Step::ChangeDone(at), Step::ChangeAnswered(at)]);
            steps.extend([false, true].map(|again| Step::ChangeBroken(at, again)));
            steps.extend([Step::Renew(at), Step::RenewalDone(at)]);
            steps.extend([Step::RenewalAnswered(at), Step::RenewalBroken(at)]);
            for guard in 0..held.guards.len() {
                steps.push(Step::Release(at, guard));
                let has_room = held.guards.len() < self.limits.guards;
                let adds = |what: &Tried| matches!(what, Tried::Enter | Tried::Join);
                let tried = self
                    .limits
                    .tried
                    .iter()
                    .filter(|what| has_room || !adds(what));
                steps.extend(tried.map(|what| Step::Caller(*what, at, guard)));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        self.may_be_possible(world, step).then_some(())?;
        let mut next = world.clone();
        self.take(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = |name, holds: fn(&Self, &World) -> bool| Property::always(name, holds);
        vec![
            always(FALSE_LOSS, |_, world| world.broken != Some(FALSE_LOSS)),
            always(SILENT_LOSS, |_, world| world.broken != Some(SILENT_LOSS)),
            always(VALID, |_, world| all(world, is_backed)),
            always(SETTLED, |_, world| all(world, is_known)),
            always(LEFT, |_, world| all(world, is_nothing_left)),
            always(KEPT, |_, world| all(world, is_kept)),
            always(UNSENT, |_, world| world.held.iter().all(is_sent_once)),
            always(SOMEBODY, |_, world| all(world, is_somebodys)),
            always(ALONE, |_, world| all(world, is_alone_until_known)),
        ]
    }
}

fn all(world: &World, has_it: fn(&World, usize) -> bool) -> bool {
    (0..world.held.len()).all(|at| has_it(world, at))
}

fn at_server(world: &World, at: usize) -> Option<&AtServer> {
    let id = Some(world.held[at].id);
    world.server.iter().find(|one| one.id == id && !one.is_kept)
}

/// Each valid guard has the lock at the server, in its mode.
fn is_backed(world: &World, at: usize) -> bool {
    let held = &world.held[at];
    let valid = held
        .guards
        .iter()
        .filter(|guard| world.is_valid(at) && world.now < guard.lease.end);
    let mode = valid.map(|guard| guard.mode).min();
    let Some(mode) = mode.filter(|_| !held.is_evicted) else {
        return true;
    };
    at_server(world, at).is_some_and(|one| one.mode <= mode)
}

/// While no request is under way, the server has the hold in the mode that the client knows.
fn is_known(world: &World, at: usize) -> bool {
    let (held, state) = (&world.held[at], world.state(at));
    if !state.is_settled() || !held.is_idle() || held.is_evicted {
        return true;
    }
    match at_server(world, at) {
        Some(one) => state.target() == Some(one.mode),
        // Its lease may have ended.
        None => state.target().is_none() || !world.is_valid(at),
    }
}

/// The number of shares of this hold that are on their way to a task, or stay with the client.
fn untaken(world: &World, at: usize) -> usize {
    let (handed, stays) = (world.lock.queue().handed(), world.lock.sticky.as_deref());
    let state = world.state(at);
    let all = handed.chain(stays);
    all.filter(|handoff| state.is_of(&handoff.owner)).count()
}

fn is_nothing_left(world: &World, at: usize) -> bool {
    let held = &world.held[at];
    let is_over = held.guards.is_empty() && untaken(world, at) == 0 && held.is_idle();
    !is_over || world.state(at).phase() == Phase::Forgotten || at_server(world, at).is_none()
}

fn is_kept(world: &World, at: usize) -> bool {
    let held = &world.held[at];
    let is_to_be_kept = world.state(at).kept_for(world.now).is_some() && !held.is_evicted;
    !is_to_be_kept || world.server.iter().any(|one| one.id == Some(held.id))
}

/// A hold that is held has a guard, or a share on its way to one.
fn is_somebodys(world: &World, at: usize) -> bool {
    let has_nobody = world.held[at].guards.is_empty() && untaken(world, at) == 0;
    !has_nobody || !world.state(at).is_held()
}

fn is_alone_until_known(world: &World, at: usize) -> bool {
    let held = &world.held[at];
    held.is_known || held.guards.len() + untaken(world, at) <= 1
}

fn is_sent_once(held: &Held) -> bool {
    (0..=1).contains(&held.unsent) && (held.unsent == 0 || !held.is_idle())
}

/// The effects of its loss are returned once.
#[test]
fn a_grant_that_several_later_ones_exclude_is_lost() {
    let mut lock = LockState::default();
    let holds = [0, 1, 2].map(|id| Arc::new(Numbered(id)));
    let secs = |secs| BEGIN.after(Duration::from_secs(secs));
    let grant = |lock: &mut LockState, at: usize, sent, mode| {
        let policy = LeasePolicy::Renewed(LEASE);
        let new = NewHold {
            sent,
            ..new_hold(policy, mode)
        };
        let hold: Weak<Numbered> = Arc::downgrade(&holds[at]);
        let (slot, _) = lock.grant(secs(3), &new, hold);
        lock.contradict(slot, mode, secs(3), NOBODY)
    };
    for at in [1, 2] {
        let contradictions = grant(&mut lock, at, secs(2), Mode::Shared);
        assert!(contradictions.ended.is_empty() && contradictions.own == Effects::default());
    }
    // The reply to the earliest request was read last.
    let late = grant(&mut lock, 0, secs(1), Mode::Exclusive);
    assert_eq!(late.own.lost(), Some(LostReason::Revoked));
    assert!(late.ended.is_empty() && !late.is_in_doubt);
}

/// The limits for a renewed lock of one holder. Each test adds the steps that it tries.
const WRITER: Limits = Limits {
    first: Mode::Exclusive,
    policy: LeasePolicy::Renewed(LEASE),
    grants: 1,
    guards: 2,
    steps: 4,
    breaks: 1,
    evictions: 0,
    doubts: 0,
    calls: 4,
    places: 1,
    kept_for: Duration::ZERO,
    sticky: Duration::ZERO,
    is_late: false,
    tried: &[],
};

/// Explores all states. Fails unless their number is `states`.
fn explore(states: usize, limits: Limits) {
    let checker = Explored::new(limits).checker().spawn_bfs().join();
    for property in checker.model().properties() {
        assert_eq!(property.expectation, Expectation::Always);
        if let Some(path) = checker.discovery(property.name) {
            let (name, last) = (property.name, path.last_state().clone());
            panic!("not so: {name}: {:?}: {last:#?}", path.into_actions());
        }
    }
    assert_eq!(checker.unique_state_count(), states);
}

#[test]
fn a_writer_that_enters_again() {
    let (tried, steps) = (&[Tried::Enter], 3);
    explore(
        14_642,
        Limits {
            tried,
            steps,
            ..WRITER
        },
    );
}

#[test]
fn a_writer_with_a_rival() {
    let (tried, grants, guards, steps) = (&[Tried::Rival], 2, 1, 3);
    let limits = Limits {
        tried,
        grants,
        guards,
        ..WRITER
    };
    explore(121_717, Limits { steps, ..limits });
}

#[test]
fn a_writer_whose_lock_is_taken_away() {
    let (evictions, steps) = (1, 2);
    let limits = Limits {
        evictions,
        steps,
        ..WRITER
    };
    explore(
        57_265,
        Limits {
            grants: 2,
            ..limits.clone()
        },
    );
    let (tried, doubts) = (&[Tried::Enter], 1);
    explore(
        47_170,
        Limits {
            tried,
            doubts,
            ..limits
        },
    );
}

#[test]
fn a_hold_that_goes_from_task_to_task() {
    let tried = &[Tried::Wait, Tried::Recall];
    let limits = Limits {
        tried,
        sticky: STEP,
        ..WRITER
    };
    explore(
        84_624,
        Limits {
            guards: 1,
            steps: 2,
            calls: 3,
            ..limits
        },
    );
}

#[test]
fn a_hold_that_is_kept_for_a_minimum_time() {
    let (tried, kept_for) = (&[Tried::Enter], STEP * 2);
    let limits = Limits {
        tried,
        kept_for,
        ..WRITER
    };
    let (evictions, steps) = (1, 2);
    explore(
        16_836,
        Limits {
            evictions,
            steps,
            ..limits.clone()
        },
    );
    let (lease, max, steps) = (LEASE, STEP, 3);
    let policy = LeasePolicy::RenewedFor { lease, max };
    explore(
        416,
        Limits {
            policy,
            steps,
            ..limits
        },
    );
}

#[test]
fn readers_that_join() {
    let (first, tried) = (Mode::Shared, &[Tried::Join, Tried::Enter, Tried::Forget]);
    let limits = Limits {
        first,
        tried,
        calls: 5,
        ..WRITER
    };
    explore(
        38_715,
        Limits {
            steps: 2,
            evictions: 1,
            ..limits
        },
    );
}

/// Its grant may be taken back before that.
#[test]
fn a_call_that_learns_of_its_grant_late() {
    let tried = &[Tried::Wait, Tried::WaitToRead, Tried::Join];
    for (first, states) in [(Mode::Exclusive, 14_724), (Mode::Shared, 3_810)] {
        let limits = Limits {
            first,
            tried,
            is_late: true,
            ..WRITER
        };
        let (guards, steps, calls, places) = (3, 1, 3, 2);
        let breaks = 0;
        explore(
            states,
            Limits {
                guards,
                steps,
                calls,
                places,
                breaks,
                ..limits
            },
        );
    }
}

#[test]
fn a_writer_that_passes_its_hold_to_readers() {
    use Tried::{Downgrade, Join, Recall, Wait, WaitToRead};
    let tried = &[WaitToRead, Join, Downgrade, Wait, Recall];
    explore(
        72_250,
        Limits {
            tried,
            steps: 1,
            calls: 3,
            ..WRITER
        },
    );
}
