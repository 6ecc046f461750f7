//! The life of the holds of one client, explored to its end.
//!
//! The states are the engine's own [`HoldState`]s, not a model of them. Around them: the lock at the server, a rival of
//! another client, the guards, the requests that are under way, and faults: a connection that breaks before or after a
//! command is executed, an operator who takes a hold away, a doubt whether the server still has it. A step is one event
//! of a hold, one command at the server, one reply, one fault, or some time. All orders of steps are tried, within bounds
//! on their number. The steps of callers follow `settle.rs`, `settling.rs`, `transfer.rs` and `join.rs`.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use stateright::{Checker, Expectation, Model, Property};

use super::*;
use crate::engine::hold::event::{DeferredDowngrade, NextOwner, ReleaseStep, ServerChange};

const LEASE: Duration = Duration::from_secs(6);
/// Time goes in steps of a third of a lease: when renewals are due.
const STEP: Duration = Duration::from_secs(2);
const GIVE_UP: Duration = Duration::from_secs(1);
/// More readers may join until then after a grant, and nothing takes any time within a step.
const BEGIN: Tick = Tick::ZERO;

/// Bounds on what is tried.
#[derive(Clone, Debug)]
struct Limits {
    first: Mode,
    policy: LeasePolicy,
    /// Holds that are granted, guards at a time, steps of time, requests without a reply.
    grants: u8,
    guards: usize,
    steps: u8,
    breaks: u8,
    evictions: u8,
    doubts: u8,
    /// The number of steps of callers that are no releases.
    calls: u8,
    kept_for: Duration,
    sticky: Duration,
    tried: &'static [Tried],
}

/// A step of a caller that is no release.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tried {
    Enter,
    HandOff,
    Stay,
    Recall,
    Downgrade,
    Forget,
    Join,
    PassToReaders,
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
    /// Under another holder id, for the rest of its minimum time.
    is_kept: bool,
}

#[derive(Clone, Debug, Hash)]
struct Guard {
    owner: Owner,
    mode: Mode,
    lease: ShareLease,
    kept_until: Tick,
    /// Whether its task has taken it.
    is_taken: bool,
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
    state: HoldState,
    guards: Vec<Guard>,
    /// The share that stays with the client, and until when.
    stays: Option<(ShareLease, Tick)>,
    /// How many callers wait until the server has what the shares need.
    settling: u8,
    change: Option<Request<ServerChange>>,
    renewal: Option<Request<Duration>>,
    /// The request in the background that ends a lost hold.
    undo: Option<ServerChange>,
    /// Releases that were decided on and not sent.
    unsent: i8,
    is_evicted: bool,
    has_broken: bool,
}

#[expect(
    clippy::derived_hash_with_manual_eq,
    reason = "states that are equal have equal texts"
)]
#[derive(Clone, Debug, Hash)]
struct World {
    now: Tick,
    server: Vec<AtServer>,
    held: Vec<Held>,
    breaks: u8,
    evictions: u8,
    doubts: u8,
    calls: u8,
    /// The promise that was broken.
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Time,
    Grant,
    RivalTakes,
    RivalLeaves,
    Evict(usize),
    Doubt(usize),
    ClockRead(usize),
    Take(usize, usize),
    Release(usize, usize),
    Caller(Tried, usize, usize),
    EndStay(usize),
    EndDeferral(usize),
    Ask(usize),
    ChangeDone(usize),
    ChangeAnswered(usize),
    /// No reply comes, and the call sends it again, or ends.
    ChangeBroken(usize, bool),
    Renew(usize),
    RenewalDone(usize),
    RenewalAnswered(usize),
    RenewalBroken(usize),
    Undo(usize),
}

impl Hash for Readers {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        format!("{self:?}").hash(hasher);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Held {
    fn apply(&mut self, now: Tick, event: Event) -> Effects {
        let effects = self.state.apply(now, event);
        match effects.release {
            Some(ReleaseStep::Decided(_)) => self.unsent += 1,
            Some(ReleaseStep::Sent) => self.unsent -= 1,
            None => {}
        }
        if let Some(reason) = effects.lost() {
            self.undo = match self.state.kept_for(now) {
                Some(remaining) => Some(ServerChange::Keep(remaining)),
                None => (reason == LostReason::MaxHold).then_some(ServerChange::Release),
            };
            if self.stays.is_some() {
                self.end_stay(now);
            }
        }
        effects
    }

    /// The server says that it does not have the hold. Returns whether a false loss is reported.
    fn is_revoked_falsely(&mut self, now: Tick) -> bool {
        let lost = self.apply(now, Event::Lost(LostReason::Revoked)).lost();
        lost == Some(LostReason::Revoked) && !self.is_evicted
    }

    fn is_valid(&self, now: Tick) -> bool {
        self.state.is_held() && now < self.state.deadline()
    }

    fn is_idle(&self) -> bool {
        self.settling == 0 && self.change.is_none() && self.undo.is_none()
    }

    /// Ends a share, as `end_all` does.
    fn end_share(&mut self, now: Tick, guard: Guard) {
        self.apply(now, Event::ClockRead);
        let Guard {
            owner,
            mode,
            lease,
            kept_until,
            ..
        } = guard;
        let released = Event::ShareReleased {
            owner,
            mode,
            lease,
            kept_until,
        };
        let effects = self.apply(now, released);
        let must_settle = match effects.refused {
            Some(_) => self.state.counts().is_none(),
            None => !effects.is_local && !effects.is_in_doubt,
        };
        self.settling += u8::from(must_settle);
    }

    fn end_stay(&mut self, now: Tick) {
        if let Some((lease, _)) = self.stays.take() {
            let owner = self.state.owner().clone();
            let (mode, kept_until, is_taken) = (Mode::Exclusive, Tick::ZERO, true);
            self.end_share(
                now,
                Guard {
                    owner,
                    mode,
                    lease,
                    kept_until,
                    is_taken,
                },
            );
        }
    }

    fn end_deferral(&mut self, now: Tick) {
        if self.state.is_downgrade_deferred() {
            self.apply(now, Event::DowngradeDue);
            self.settling += 1;
        }
    }
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

    /// Executes a change, and says whether the server had the hold.
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

    fn break_promise(&mut self, promise: &'static str, is_broken: bool) {
        if is_broken {
            self.broken.get_or_insert(promise);
        }
    }
}

/// The names of the promises, which are the properties that are checked in each state.
const FALSE_LOSS: &str = "nothing is lost that the server has";
const SILENT_LOSS: &str = "a release of a hold that was lost says so";
const VALID: &str = "the server has what a guard is valid for";
const SETTLED: &str = "the server has what it is known to have";
const LEFT: &str = "nothing is left of a hold without shares";
const KEPT: &str = "the lock is not free before the minimum time of a hold is over";
const UNSENT: &str = "each release that is decided on is sent once";

struct Explored {
    limits: Limits,
    owners: Vec<Owner>,
}

impl Explored {
    fn new(limits: Limits) -> Self {
        let owners = (0..16).map(Owner::numbered).collect();
        Self { limits, owners }
    }

    /// An owner that has no guard now. The numbers of owners do not multiply the states.
    fn new_owner(&self, world: &World) -> Owner {
        let is_used = |owner: &Owner| {
            let mut held = world.held.iter();
            held.any(|held| {
                held.state.is_of(owner) || held.guards.iter().any(|guard| guard.owner == *owner)
            })
        };
        let mut free = self.owners.iter().filter(|owner| !is_used(owner));
        free.next()
            .expect("there are more owners than guards")
            .clone()
    }

    fn new_guard(
        &self,
        now: Tick,
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
        is_taken: bool,
    ) -> Guard {
        let kept_until = match self.limits.kept_for.is_zero() || mode == Mode::Shared {
            true => Tick::ZERO,
            false => now.after(self.limits.kept_for),
        };
        Guard {
            owner,
            mode,
            lease,
            kept_until,
            is_taken,
        }
    }

    fn grant(&self, world: &mut World) {
        let (now, id, mode) = (world.now, world.held.len() as u8, self.limits.first);
        let owner = self.new_owner(world);
        let new = NewHold {
            owner: owner.clone(),
            sent: now,
            policy: self.limits.policy,
            give_up: GIVE_UP,
            tokens: Tokens::granted(None, 0),
            is_joinable: mode == Mode::Shared,
            ..new_hold(self.limits.policy, mode)
        };
        let (state, lease) = HoldState::new(now, &new);
        let mut held = Held {
            id,
            state,
            guards: vec![self.new_guard(now, owner, mode, lease, true)],
            stays: None,
            settling: 0,
            change: None,
            renewal: None,
            undo: None,
            unsent: 0,
            is_evicted: false,
            has_broken: false,
        };
        held.apply(
            now,
            Event::GuardMade {
                sticky: self.limits.sticky,
            },
        );
        // Holds that this one contradicts were lost.
        for other in &mut world.held {
            let is_contradicted = mode == Mode::Exclusive || other.state.is_exclusive();
            if is_contradicted && other.is_revoked_falsely(now) {
                world.broken.get_or_insert(FALSE_LOSS);
            }
        }
        world.held.push(held);
        let end = now.after(self.limits.policy.lease());
        world.server.push(AtServer {
            id: Some(id),
            mode,
            end,
            is_kept: false,
        });
    }

    /// Takes a step of a caller that has a guard.
    fn call(&self, world: &mut World, what: Tried, at: usize, guard: usize) -> Option<()> {
        let now = world.now;
        let owner = self.new_owner(world);
        let held = &mut world.held[at];
        let Guard { mode, lease, .. } = held.guards[guard];
        let is_quiet = held.change.is_none();
        match what {
            Tried::Enter => {
                let owner = held.guards[guard].owner.clone();
                let can_enter = held.is_valid(now)
                    && (mode == Mode::Shared || held.state.is_written())
                    && held.state.is_of(&owner)
                    && held.state.can_be_entered(now, LEASE, lease);
                can_enter.then_some(())?;
                let entered = Entered {
                    owner: owner.clone(),
                    mode,
                    share: lease,
                    granted: None,
                    token: None,
                };
                held.apply(now, Event::Entered(entered));
                let again = self.new_guard(now, owner, mode, lease, true);
                world.held[at].guards.push(again);
            }
            Tried::HandOff => {
                let is_last = mode == Mode::Exclusive || held.state.is_last_of_deferred();
                let can_pass = held
                    .state
                    .can_hand_off(now, lease, self.limits.policy, false);
                (is_quiet && is_last && can_pass).then_some(())?;
                held.guards.remove(guard);
                self.hand_off(held, now, owner, lease);
            }
            Tried::Stay => {
                (is_quiet && held.state.is_sticky()).then_some(())?;
                let (end, after) = held.state.can_be_left(now, lease)?;
                held.guards.remove(guard);
                held.apply(
                    now,
                    Event::LeftToClient {
                        before: lease,
                        after,
                        end,
                    },
                );
                held.stays = Some((after, end));
            }
            Tried::Downgrade => {
                (mode == Mode::Exclusive).then_some(())?;
                held.apply(now, Event::ClockRead);
                if held.apply(now, Event::ShareDowngraded).refused.is_some() {
                    held.guards.remove(guard);
                    held.settling += u8::from(held.state.counts().is_none());
                } else {
                    held.guards[guard].mode = Mode::Shared;
                    held.settling += 1;
                }
            }
            Tried::Forget => {
                let Guard { owner, .. } = held.guards.remove(guard);
                if mode == Mode::Shared {
                    held.end_deferral(now);
                }
                held.apply(now, Event::ShareForgotten { owner, mode, lease });
            }
            Tried::Join => {
                held.state
                    .can_be_joined(now, LEASE, GIVE_UP)
                    .then_some(())?;
                let joined = Event::Joined {
                    owner: owner.clone(),
                    is_claimed: true,
                };
                held.apply(now, joined);
                let renewed = ShareLease::Renewed(LEASE);
                let reader = self.new_guard(now, owner, Mode::Shared, renewed, true);
                world.held[at].guards.push(reader);
            }
            Tried::PassToReaders => {
                let can_pass = held.state.can_pass_to_readers(now, lease, LEASE);
                (is_quiet && mode == Mode::Exclusive && can_pass).then_some(())?;
                held.guards.remove(guard);
                let first = owner.clone();
                let (lease, give_up, until) = (LEASE, GIVE_UP, now.after(STEP));
                let deferred = DeferredDowngrade {
                    first,
                    lease,
                    give_up,
                    until,
                };
                held.apply(now, Event::DowngradeDeferred(deferred));
                let renewed = ShareLease::Renewed(LEASE);
                let reader = self.new_guard(now, owner, Mode::Shared, renewed, false);
                world.held[at].guards.push(reader);
            }
            Tried::Recall => {
                held.apply(now, Event::Recalled);
                held.end_deferral(now);
                held.end_stay(now);
            }
            Tried::Rival => return None,
        }
        Some(())
    }

    fn hand_off(&self, held: &mut Held, now: Tick, owner: Owner, before: ShareLease) {
        let after = ShareLease::of(self.limits.policy, now, now);
        let next = NextOwner {
            owner: owner.clone(),
            fenced: false,
            give_up: GIVE_UP,
            before,
            after,
            place: None,
        };
        held.apply(now, Event::HandedOff(next));
        held.guards
            .push(self.new_guard(now, owner, Mode::Exclusive, after, false));
    }

    fn change_answered(&self, world: &mut World, at: usize) -> Option<()> {
        let now = world.now;
        let held = &mut world.held[at];
        let change = held.change.take_if(|change| change.found.is_some())?;
        let is_found = change.found == Some(true);
        let (is_evicted, has_broken) = (held.is_evicted, held.has_broken);
        let counts = change.what.counts();
        let (first_sent, is_repeated) = (change.sent, change.is_repeated);
        let answered = Answered {
            counts,
            is_found,
            first_sent,
            is_repeated,
        };
        let missing = held.apply(now, Event::Answered(answered)).missing;
        held.settling -= 1;
        // A request that is executed after the end of the lease finds nothing, either.
        let is_false =
            missing == Some(LostReason::Revoked) && !is_evicted && now < held.state.deadline();
        world.break_promise(FALSE_LOSS, is_false);
        world.break_promise(
            SILENT_LOSS,
            is_evicted && !has_broken && !is_found && missing.is_none(),
        );
        Some(())
    }

    fn renewal_answered(world: &mut World, at: usize) -> Option<()> {
        let now = world.now;
        let held = &mut world.held[at];
        let renewal = held.renewal.take_if(|renewal| renewal.found.is_some())?;
        if renewal.found == Some(true) {
            held.apply(
                now,
                Event::Renewed {
                    sent: renewal.sent,
                    lease: renewal.what,
                },
            );
        } else {
            let is_false = held.is_revoked_falsely(now);
            world.break_promise(FALSE_LOSS, is_false);
        }
        Some(())
    }

    fn time(world: &mut World) {
        world.now = world.now.after(STEP);
        let now = world.now;
        world.server.retain(|one| now < one.end);
        for held in &mut world.held {
            if held.state.is_held() && held.state.is_downgrade_due(now) {
                let is_deferred = held.state.is_downgrade_deferred();
                held.apply(now, Event::DowngradeDue);
                held.settling += u8::from(is_deferred);
            }
            if held.stays.is_some_and(|(_, end)| end <= now) {
                held.end_stay(now);
            }
        }
    }

    /// `None` if this step is not possible now.
    fn take(&self, world: &mut World, step: Step) -> Option<()> {
        let now = world.now;
        match step {
            Step::Time => {
                (now < BEGIN.after(STEP * u32::from(self.limits.steps))).then_some(())?;
                Self::time(world);
            }
            Step::Grant => {
                // A request of this client goes behind its releases.
                let is_behind = |held: &Held| {
                    held.unsent == 0
                        && held
                            .change
                            .as_ref()
                            .is_none_or(|change| change.found.is_some())
                };
                let is_next = world.held.len() < usize::from(self.limits.grants)
                    && world.is_free_for(self.limits.first)
                    && world.held.iter().all(is_behind);
                is_next.then_some(())?;
                self.grant(world);
            }
            Step::RivalTakes => {
                let mode = Mode::Exclusive;
                (self.limits.tried.contains(&Tried::Rival) && world.is_free_for(mode))
                    .then_some(())?;
                world.server.push(AtServer {
                    id: None,
                    mode,
                    end: now.after(LEASE),
                    is_kept: false,
                });
            }
            Step::RivalLeaves => {
                world
                    .server
                    .iter()
                    .any(|one| one.id.is_none())
                    .then_some(())?;
                world.server.retain(|one| one.id.is_some());
            }
            Step::Evict(at) => {
                world.evictions = world.evictions.checked_sub(1)?;
                let id = world.held[at].id;
                world.at_server(id)?;
                world.server.retain(|one| one.id != Some(id));
                world.held[at].is_evicted = true;
            }
            Step::Doubt(at) => {
                world.doubts = world.doubts.checked_sub(1)?;
                world.held[at].apply(now, Event::Doubted);
            }
            Step::ClockRead(at) => {
                let held = &mut world.held[at];
                (held.state.is_held() && !held.is_valid(now)).then_some(())?;
                held.apply(now, Event::ClockRead);
            }
            Step::Take(at, guard) => {
                let held = &mut world.held[at];
                let taken = &mut held.guards[guard];
                let mode = taken.mode;
                (!std::mem::replace(&mut taken.is_taken, true)).then_some(())?;
                held.apply(now, Event::HandoffAccepted(mode));
                held.apply(
                    now,
                    Event::GuardMade {
                        sticky: self.limits.sticky,
                    },
                );
            }
            Step::Release(at, guard) => {
                let held = &mut world.held[at];
                let guard = held.guards.remove(guard);
                if !guard.is_taken && guard.mode == Mode::Shared {
                    held.apply(now, Event::HandoffAccepted(guard.mode));
                }
                held.end_share(now, guard);
            }
            Step::Caller(what, at, guard) => {
                world.calls = world.calls.checked_sub(1)?;
                return self.call(world, what, at, guard);
            }
            Step::EndStay(at) => {
                let held = &mut world.held[at];
                let (lease, _) = held.stays?;
                if held.change.is_none()
                    && held
                        .state
                        .can_hand_off(now, lease, self.limits.policy, false)
                {
                    // The next task of the client takes it.
                    held.stays = None;
                    let owner = self.new_owner(world);
                    self.hand_off(&mut world.held[at], now, owner, lease);
                } else {
                    held.end_stay(now);
                }
            }
            Step::EndDeferral(at) => {
                world.held[at].state.is_downgrade_deferred().then_some(())?;
                world.held[at].end_deferral(now);
            }
            Step::Ask(at) => {
                let held = &mut world.held[at];
                (held.settling > 0 && held.change.is_none()).then_some(())?;
                let what = held.state.needed_change(now);
                if what == ServerChange::Nothing {
                    held.settling -= 1;
                } else {
                    held.apply(now, Event::CountsSent(what.counts()));
                    held.change = Some(Request {
                        what,
                        sent: now,
                        is_repeated: false,
                        found: None,
                    });
                }
            }
            Step::ChangeDone(at) => {
                let (id, change) = (world.held[at].id, world.held[at].change.as_ref()?);
                change.found.is_none().then_some(())?;
                let what = change.what;
                let found = world.execute(id, what);
                if let Some(change) = &mut world.held[at].change {
                    change.found = Some(found);
                }
            }
            Step::ChangeAnswered(at) => return self.change_answered(world, at),
            Step::ChangeBroken(at, is_sent_again) => {
                world.breaks = world.breaks.checked_sub(1)?;
                let held = &mut world.held[at];
                let change = held.change.as_mut()?;
                held.has_broken = true;
                (change.found, change.is_repeated) = (None, true);
                if !is_sent_again {
                    let (sent, counts) = (change.sent, change.what.counts());
                    held.change = None;
                    if counts.is_none() {
                        held.apply(now, Event::MayBeReleased { sent });
                    }
                    held.apply(now, Event::CountsInDoubt);
                }
            }
            Step::Renew(at) => {
                let held = &mut world.held[at];
                held.renewal.is_none().then_some(())?;
                let NextStep::Renew { lease, .. } = held.state.next_step(now) else {
                    return None;
                };
                held.apply(now, Event::RenewalBegun { lease });
                held.renewal = Some(Request {
                    what: lease,
                    sent: now,
                    is_repeated: false,
                    found: None,
                });
            }
            Step::RenewalDone(at) => {
                let (id, renewal) = (world.held[at].id, world.held[at].renewal.as_ref()?);
                renewal.found.is_none().then_some(())?;
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
                world.breaks = world.breaks.checked_sub(1)?;
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
            server: Vec::new(),
            held: Vec::new(),
            breaks: self.limits.breaks,
            evictions: self.limits.evictions,
            doubts: self.limits.doubts,
            calls: self.limits.calls,
            broken: None,
        };
        self.grant(&mut world);
        vec![world]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend([Step::Time, Step::Grant, Step::RivalTakes, Step::RivalLeaves]);
        for (at, held) in world.held.iter().enumerate() {
            steps.extend([Step::Evict(at), Step::Doubt(at), Step::ClockRead(at)]);
            steps.extend([
                Step::EndStay(at),
                Step::EndDeferral(at),
                Step::Ask(at),
                Step::Undo(at),
            ]);
            steps.extend([Step::ChangeDone(at), Step::ChangeAnswered(at)]);
            steps.extend([false, true].map(|again| Step::ChangeBroken(at, again)));
            steps.extend([Step::Renew(at), Step::RenewalDone(at)]);
            steps.extend([Step::RenewalAnswered(at), Step::RenewalBroken(at)]);
            for guard in 0..held.guards.len() {
                steps.extend([Step::Take(at, guard), Step::Release(at, guard)]);
                if !held.guards[guard].is_taken {
                    continue;
                }
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
        let mut next = world.clone();
        self.take(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let always = |name, holds: fn(&Self, &World) -> bool| Property::always(name, holds);
        vec![
            always(FALSE_LOSS, |_, world| world.broken != Some(FALSE_LOSS)),
            always(SILENT_LOSS, |_, world| world.broken != Some(SILENT_LOSS)),
            always(VALID, |_, world| {
                world.held.iter().all(|held| is_backed(world, held))
            }),
            always(SETTLED, |_, world| {
                world.held.iter().all(|held| is_known(world, held))
            }),
            always(LEFT, |_, world| {
                world.held.iter().all(|held| is_nothing_left(world, held))
            }),
            always(KEPT, |_, world| {
                world.held.iter().all(|held| is_kept(world, held))
            }),
            always(UNSENT, |_, world| world.held.iter().all(is_sent_once)),
        ]
    }
}

fn at_server<'a>(world: &'a World, held: &Held) -> Option<&'a AtServer> {
    world
        .server
        .iter()
        .find(|one| one.id == Some(held.id) && !one.is_kept)
}

/// Each valid guard has the lock at the server, in its mode.
fn is_backed(world: &World, held: &Held) -> bool {
    let valid = held
        .guards
        .iter()
        .filter(|guard| held.is_valid(world.now) && world.now < guard.lease.end());
    let mode = valid.map(|guard| guard.mode).min();
    let Some(mode) = mode.filter(|_| !held.is_evicted) else {
        return true;
    };
    at_server(world, held).is_some_and(|one| one.mode <= mode)
}

/// While no request is under way, the server has the counts that are known.
fn is_known(world: &World, held: &Held) -> bool {
    if !held.state.is_settled() || !held.is_idle() || held.is_evicted {
        return true;
    }
    match at_server(world, held) {
        Some(one) => held.state.target_counts() == Counts::one(one.mode),
        // Its lease may have ended.
        None => held.state.target_counts().is_none() || !held.is_valid(world.now),
    }
}

fn is_nothing_left(world: &World, held: &Held) -> bool {
    let is_over = held.guards.is_empty() && held.stays.is_none() && held.is_idle();
    !is_over || held.state.phase == Phase::Forgotten || at_server(world, held).is_none()
}

fn is_kept(world: &World, held: &Held) -> bool {
    let is_to_be_kept = held.state.kept_for(world.now).is_some() && !held.is_evicted;
    !is_to_be_kept || world.server.iter().any(|one| one.id == Some(held.id))
}

fn is_sent_once(held: &Held) -> bool {
    (0..=1).contains(&held.unsent) && (held.unsent == 0 || !held.is_idle())
}

/// A renewed lock of one holder; each world adds what it tries.
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
    kept_for: Duration::ZERO,
    sticky: Duration::ZERO,
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
        11_517,
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
    explore(69_005, Limits { steps, ..limits });
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
        41_844,
        Limits {
            grants: 2,
            ..limits.clone()
        },
    );
    let (tried, doubts) = (&[Tried::Enter], 1);
    explore(
        36_759,
        Limits {
            tried,
            doubts,
            ..limits
        },
    );
}

#[test]
fn a_hold_that_goes_from_task_to_task() {
    let tried = &[Tried::HandOff, Tried::Stay, Tried::Recall];
    let limits = Limits {
        tried,
        sticky: STEP,
        ..WRITER
    };
    explore(
        178_892,
        Limits {
            guards: 1,
            steps: 3,
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
        15_587,
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
        42_898,
        Limits {
            steps: 2,
            evictions: 1,
            ..limits
        },
    );
}

#[test]
fn a_writer_that_passes_its_hold_to_readers() {
    use Tried::{Downgrade, HandOff, Join, PassToReaders, Recall};
    let tried = &[PassToReaders, Join, Downgrade, HandOff, Recall];
    explore(
        171_983,
        Limits {
            tried,
            steps: 2,
            ..WRITER
        },
    );
}
