//! The state of one semaphore in one client: its waiting calls, the requests it makes for them, and permits on their
//! way back to the next call or to the server.
//!
//! One mutex protects the pure [`Queue`]. The client's background task drives the requests to the server and applies
//! the replies, so a caller that is dropped, or is never polled, stops no other. Invariants: permits in hand reach a
//! caller, or are handed off or released when they are dropped. No command is sent and no caller is woken while the
//! mutex is held, but requests go to the background task in the order of the queue's decisions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::permits::{Origin, Permits};
use super::queue::{Action, Event, Queue, Request, Terms};
use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::api::options::{Backoff, LeasePolicy};
use crate::engine::clock::Tick;
use crate::engine::hint::Hint;
use crate::engine::hold::core::Core;
use crate::engine::keys::LockName;
use crate::observe::counts::GrantedBy;
use crate::observe::group::Group;
use crate::watchdog::Work;

/// A request for permits.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) operation: &'static str,
    pub(super) permits: u32,
    pub(super) policy: LeasePolicy,
    /// The declared number of permits; 0 if the handle does not declare it.
    pub(super) declared: u32,
    pub(super) is_fair: bool,
    pub(super) waits: bool,
    pub(super) group: Group,
    pub(super) give_up: Duration,
    pub(super) polled: Option<Backoff>,
}

#[derive(Debug)]
pub(super) struct ClientSemaphore {
    pub(super) core: Arc<Core>,
    pub(super) origin: Arc<Origin>,
    /// For tasks that outlive a call.
    pub(super) this: Weak<Self>,
    pub(super) state: Mutex<State>,
    /// Given when the task that wakes the queue has to plan again.
    pub(super) changed: Hint,
    /// Given when calls begin to wait for others.
    pub(super) contended: Hint,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) callers: FxHashMap<u64, Caller>,
    last_request: u64,
    /// The watch task: whether it runs, when it wakes next, and whether it listens to messages.
    pub(super) is_watched: bool,
    pub(super) wakes_at: Tick,
    pub(super) listens: bool,
    /// Whether the waiting calls have heard that they wait for others.
    is_contended: bool,
}

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) wanted: Wanted,
    pub(super) deadline: Tick,
    /// The id of the call in the server's queue, and whether it may have a place there.
    pub(super) waiter: HolderId,
    pub(super) has_place: bool,
    outcome: oneshot::Sender<Result<Option<Held>>>,
}

/// A caller and its result.
type Outcome = (Caller, Result<Option<Held>>);

/// The payload of an event.
pub(super) enum InHand {
    Nothing,
    Permits(Held),
    /// Permits that the server granted, and the waiter that asked: it has left the server's queue.
    Granted(Held, HolderId),
    Error(Error),
}

impl InHand {
    fn take(&mut self) -> Option<(Held, Option<HolderId>)> {
        match std::mem::replace(self, Self::Nothing) {
            Self::Permits(held) => Some((held, None)),
            Self::Granted(held, waiter) => Some((held, Some(waiter))),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// When requests to the server begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// In the call that made them, which waits for the server.
    AtOnce,
    /// In the background task. An event may come from a drop, or from the end of another request.
    Later,
}

impl Start {
    /// For permits that a guard has returned.
    fn of(held: &Held) -> Self {
        match held.done {
            Some(_) => Self::AtOnce,
            None => Self::Later,
        }
    }
}

impl ClientSemaphore {
    /// The client's state of the semaphore, made if necessary.
    pub(super) fn of(core: &Arc<Core>, name: &LockName) -> Arc<Self> {
        core.shared.get_or_insert("semaphore", name.key(), || {
            Arc::new_cyclic(|this| Self {
                core: Arc::clone(core),
                origin: Arc::new(Origin {
                    name: name.clone(),
                    timeouts: name.semaphore_timeouts_key().into(),
                }),
                this: Weak::clone(this),
                state: Mutex::default(),
                changed: Hint::default(),
                contended: Hint::default(),
            })
        })
    }

    /// How many calls wait for permits.
    pub(super) fn waiters(&self) -> usize {
        self.state.lock().callers.len()
    }

    /// The place of this request in the queue, from 1.
    pub(super) fn place_of(&self, id: u64) -> Option<usize> {
        let state = self.state.lock();
        let place = state.queue.requests().position(|request| request == id)?;
        Some(place + 1)
    }

    pub(super) fn call(
        &self,
        wanted: Wanted,
        deadline: Tick,
    ) -> (u64, oneshot::Receiver<Result<Option<Held>>>) {
        let (sender, receiver) = oneshot::channel();
        let now = self.core.clock.now();
        let mut state = self.state.lock();
        state.last_request += 1;
        let id = state.last_request;
        let request = Request {
            id,
            terms: Terms::of(wanted.permits, wanted.policy, wanted.is_fair),
            deadline: if wanted.waits { deadline } else { now },
        };
        let caller = Caller {
            wanted,
            deadline,
            waiter: self.core.new_holder().1,
            has_place: false,
            outcome: sender,
        };
        state.callers.insert(id, caller);
        let mut actions = Vec::new();
        state.queue.call(now, request, &mut actions);
        self.carry_out(state, actions, InHand::Nothing, Start::AtOnce);
        (id, receiver)
    }

    pub(super) fn on(&self, event: Event, in_hand: InHand) {
        self.on_by(event, in_hand, Start::Later);
    }

    fn on_by(&self, event: Event, in_hand: InHand, by: Start) {
        let now = self.core.clock.now();
        let mut state = self.state.lock();
        if let Event::Left(id) = event
            && !state.callers.contains_key(&id)
        {
            return;
        }
        let mut actions = Vec::new();
        state.queue.on(now, event, &mut actions);
        if let Event::Left(id) = event
            && let Some(caller) = state.callers.remove(&id)
        {
            self.leave(&caller);
        }
        self.carry_out(state, actions, in_hand, by);
    }

    /// Returns the work to begin, in this order, and the results for callers.
    fn settle(
        &self,
        state: &mut State,
        actions: Vec<Action>,
        mut in_hand: InHand,
    ) -> (Vec<Work>, Vec<Outcome>) {
        let (mut works, mut outcomes) = (Vec::new(), Vec::new());
        let error = match &in_hand {
            InHand::Error(error) => Some(error.clone()),
            _ => None,
        };
        for action in actions {
            let (request, outcome) = match action {
                Action::Ask { ask, request } => {
                    works.extend(self.asking(state, ask, request));
                    continue;
                }
                Action::Release => {
                    let held = in_hand.take().map(|(held, _)| held);
                    works.extend(held.and_then(|held| self.releasing(held)));
                    continue;
                }
                Action::Give { request } => {
                    let (held, asked) = in_hand.take().unzip();
                    if let Some(Held {
                        permits: Some(permits),
                        ..
                    }) = &held
                    {
                        permits.unclaim();
                    }
                    if let Some(caller) = state.callers.get(&request)
                        && asked.flatten() != Some(caller.waiter)
                    {
                        self.leave(caller);
                    }
                    (request, Ok(held))
                }
                Action::Refuse { request } => (request, Ok(None)),
                Action::Fail { request } => match &error {
                    Some(error) => (request, Err(error.clone())),
                    None => (request, Ok(None)),
                },
            };
            if let Some(caller) = state.callers.remove(&request) {
                if !matches!(outcome, Ok(Some(_))) {
                    self.leave(&caller);
                }
                outcomes.push((caller, outcome));
            }
        }
        (works, outcomes)
    }

    /// Begins requests to the server, and then wakes callers.
    fn carry_out(
        &self,
        mut state: MutexGuard<'_, State>,
        actions: Vec<Action>,
        in_hand: InHand,
        by: Start,
    ) {
        let (works, outcomes) = self.settle(&mut state, actions, in_hand);
        let wake_at = state.queue.wake_at();
        let begins_watch = wake_at.is_some() && !state.is_watched;
        state.is_watched |= begins_watch;
        let is_sooner = wake_at.is_some_and(|at| at < state.wakes_at)
            || state.queue.is_contended() && !state.listens;
        let is_contended = state.queue.is_contended();
        let was_contended = std::mem::replace(&mut state.is_contended, is_contended);
        let replans = state.is_watched && !begins_watch && is_sooner;
        let polled = begins_watch.then(|| {
            let mut callers = state.callers.values();
            callers.find_map(|caller| caller.wanted.polled)
        });
        drop(state);
        works.into_iter().for_each(|work| self.begin(work, by));
        if replans {
            self.changed.notify();
        }
        if is_contended && !was_contended {
            self.contended.notify();
        }
        if let Some(polled) = polled
            && let Some(this) = self.this.upgrade()
        {
            let watch = Self::watch(Arc::downgrade(&this), polled);
            self.core.watchdog.drive_while_needed(watch.boxed());
        }
        for (caller, outcome) in outcomes {
            let outcome = outcome.map(|held| {
                held.map(|mut held| {
                    // The guard that returned these permits may wait for its release.
                    if let Some(done) = held.done.take() {
                        drop(done.send(Ok(())));
                    }
                    held
                })
            });
            let outcome = outcome.map_err(|error| error.during(caller.wanted.operation));
            // If the caller is gone, its permits are dropped here, and go to the next caller.
            drop(caller.outcome.send(outcome));
        }
    }

    fn begin(&self, work: Work, by: Start) {
        match by {
            Start::AtOnce => self.core.watchdog.begin(work),
            Start::Later => self.core.watchdog.drive(work),
        }
    }

    pub(super) fn of_this(&self, error: Error) -> Error {
        error.of_lock(self.origin.name.as_str())
    }

    pub(super) fn name(&self) -> &str {
        self.origin.name.as_str()
    }

    /// Hands permits off to the next caller with equal terms, or releases them.
    fn returned(&self, terms: Terms, held: Held) {
        let by = Start::of(&held);
        self.on_by(Event::Returned(terms), InHand::Permits(held), by);
    }

    /// Releases permits in the background.
    fn release(&self, held: Held) {
        let by = Start::of(&held);
        if let Some(work) = self.releasing(held) {
            self.begin(work, by);
        }
    }

    /// The error of a release of permits that were lost.
    pub(super) fn not_held(&self, reason: LostReason) -> Error {
        let message = format!(
            "the permits were lost before: {reason}; what was done under them may have overlapped with other holders"
        );
        self.of_this(Error::new(Kind::NotHeld, "release", message))
    }

    /// The error of a release that has no task to drive it.
    fn closed(&self) -> Error {
        self.of_this(self.core.closed("release"))
    }
}

/// Permits that are handed off or released when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) semaphore: Arc<ClientSemaphore>,
    pub(super) permits: Option<Permits>,
    pub(super) policy: LeasePolicy,
    pub(super) is_fair: bool,
    /// How the next caller gets them.
    pub(super) by: GrantedBy,
    /// Receives the outcome of a release.
    pub(super) done: Option<oneshot::Sender<Result<()>>>,
}

impl Held {
    /// Returns the permits, to the next caller of this client or to the server, and waits for the outcome.
    pub(super) async fn release(mut self) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.done = Some(sender);
        let semaphore = Arc::clone(&self.semaphore);
        drop(self);
        receiver.await.map_err(|_| semaphore.closed())?
    }

    /// Stops the renewals and leaves the permits taken until their leases end.
    pub(super) fn forget(mut self) {
        if let Some(permits) = self.permits.take() {
            permits.release();
        }
    }

    /// Splits off a part of the same grant.
    pub(super) fn part(&self, permits: Permits) -> Self {
        Self {
            semaphore: Arc::clone(&self.semaphore),
            permits: Some(permits),
            policy: self.policy,
            is_fair: self.is_fair,
            by: GrantedBy::Handoff,
            done: None,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else {
            return;
        };
        let semaphore = Arc::clone(&self.semaphore);
        let done = self.done.take();
        if !is_whole(&permits) {
            // Permits that are lost or have little time left are not handed off.
            let mut held = self.part(permits);
            held.done = done;
            semaphore.release(held);
            return;
        }
        let terms = Terms::of(permits.len(), self.policy, self.is_fair);
        let mut held = self.part(permits);
        held.done = done;
        semaphore.returned(terms, held);
    }
}

/// Whether all of these permits are held, with at least half of their leases left.
fn is_whole(permits: &Permits) -> bool {
    permits.0.iter().all(|permit| permit.is_fresh())
}
