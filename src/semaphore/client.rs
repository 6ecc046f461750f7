//! The state of one semaphore in one client: its waiting calls, the requests it makes for them, and permits on their
//! way back to the next call or to the server.
//!
//! One mutex protects the pure [`Queue`]. The client's background task drives the requests to the server and applies
//! the replies, so a caller that is dropped, or is never polled, stops no other. Invariants: permits in hand reach a
//! caller, or are handed off or released when they are dropped. No command is sent and no caller is woken while the
//! mutex is held, but requests go to the background task in the order of the queue's decisions.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use super::permits::{Origin, Permits};
use super::queue::{Action, Event, Queue, Request, Terms};
use crate::api::error::{Error, Kind, Result};
use crate::api::holder::HolderId;
use crate::api::loss::{Losable, LostReason};
use crate::api::options::Backoff;
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, set_waker};
use crate::engine::hold::bound::Bound;
use crate::engine::hold::core::{AtClose, ClosedWith, Core};
use crate::engine::keys::LockName;
use crate::observe::counts::GrantedBy;
use crate::observe::group::Group;
use crate::watchdog::{Watchdog, Work};

/// A request for permits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) operation: &'static str,
    pub(super) terms: Terms,
    /// How long the call waits, and how long a request goes on without an answer.
    pub(super) bound: Bound,
    pub(super) group: Group,
    pub(super) give_up: Duration,
    pub(super) polled: Option<Backoff>,
}

impl Wanted {
    pub(super) fn waits(&self) -> bool {
        self.bound.waits_until() > self.bound.start()
    }

    /// Whether the call has a place in the server's queue while it waits.
    pub(super) fn takes_place(&self) -> bool {
        self.terms.is_fair && self.waits()
    }
}

#[derive(Debug)]
pub(super) struct ClientSemaphore {
    pub(super) origin: Arc<Origin>,
    pub(super) state: Mutex<State>,
    /// Signalled when the watch has to plan again.
    pub(super) changed: Hint,
    /// The number of releases without a caller that the background task has yet to send.
    pub(super) unsent: AtomicUsize,
    _closed_with: ClosedWith,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queue: Queue,
    /// The calls that wait in the queue.
    pub(super) callers: FxHashMap<u64, Caller>,
    /// The results of calls that have not taken them yet.
    outcomes: FxHashMap<u64, Outcome>,
    last_request: u64,
    /// When the watch wakes next, and whether it listens to messages; `None` if no watch runs.
    pub(super) planned: Option<(Tick, bool)>,
    /// Whether the waiting calls were told that they wait for other clients.
    is_contended: bool,
}

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) wanted: Wanted,
    /// The id of the call in the server's queue, and whether it may have a place there.
    pub(super) waiter: HolderId,
    pub(super) has_place: bool,
    /// How often the call has asked the server.
    pub(super) attempts: u32,
    waker: Option<Waker>,
}

/// The result of a call, and when the watch first found that the call had not taken it.
type Outcome = (InHand, Option<Tick>);

impl State {
    /// Returns when the queue has to be woken, and whether a caller needs messages, because other clients have the
    /// permits and the caller does not poll.
    pub(super) fn plan(&self) -> Option<(Tick, bool)> {
        let wake_at = self.queue.wake_at()?;
        let mut callers = self.callers.values();
        let listens =
            self.queue.is_contended() && callers.any(|caller| caller.wanted.polled.is_none());
        Some((wake_at, listens))
    }

    /// Returns since when the server has not answered, or the watch has not woken the queue, if this call waits.
    pub(super) fn silent_since(&self, id: u64) -> Option<Tick> {
        let due = self.planned.map(|(at, _)| at);
        let silent = self.queue.silent_since().into_iter().chain(due).min();
        silent.filter(|_| self.callers.contains_key(&id))
    }
}

/// The permits or the error that come with an event, if any. Also the result of a call.
pub(super) type InHand = Result<Option<Held>>;

/// How requests to the server begin: by [`Watchdog::begin`] if their caller waits for the server, otherwise by
/// [`Watchdog::drive`], because an event may come from a drop, or from the end of another request.
type Begin = fn(&Watchdog, Work);

/// The steps to take after the mutex is unlocked.
#[derive(Default)]
struct Effects {
    /// Requests to the server, in this order.
    works: Vec<Work>,
    /// Guards that wait for the release of permits which went to the next call.
    released: Vec<oneshot::Sender<Result<()>>>,
    woken: Vec<Waker>,
}

impl ClientSemaphore {
    /// Returns the client's state of the semaphore, made if necessary.
    pub(super) fn of(core: &Arc<Core>, name: &LockName) -> Arc<Self> {
        core.shared.get_or_insert("semaphore", name.key(), || {
            Arc::new_cyclic(|this: &Weak<Self>| Self {
                _closed_with: core.close_with(this.clone()),
                origin: Arc::new(Origin {
                    core: Arc::clone(core),
                    name: name.clone(),
                    timeouts: name.semaphore_timeouts_key().into(),
                }),
                state: Mutex::default(),
                changed: Hint::default(),
                unsent: AtomicUsize::new(0),
            })
        })
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.origin.core
    }

    /// Returns how many calls wait for permits.
    pub(super) fn waiters(&self) -> usize {
        self.state.lock().callers.len()
    }

    /// Returns the place of this request in the queue, from 1.
    pub(super) fn place_of(&self, id: u64) -> Option<usize> {
        let before = self.state.lock().queue.position(id)?;
        Some(before + 1)
    }

    /// Begins a call, whose result [`poll`](Self::poll) returns.
    pub(super) fn call(self: &Arc<Self>, wanted: Wanted) -> u64 {
        let now = self.core().clock.now();
        let mut state = self.state.lock();
        state.last_request += 1;
        let id = state.last_request;
        if self.core().is_closed() {
            return id;
        }
        let request = Request {
            id,
            terms: wanted.terms,
            deadline: wanted.bound.waits_until(),
            give_up: wanted.give_up,
        };
        let caller = Caller {
            wanted,
            waiter: self.core().new_holder().1,
            has_place: false,
            attempts: 0,
            waker: None,
        };
        state.callers.insert(id, caller);
        let mut actions = Vec::new();
        state.queue.call(now, request, &mut actions);
        // Goes behind the releases of guards that were dropped before, if they are not sent yet.
        let begin: Begin = match self.unsent.load(Ordering::Relaxed) {
            0 => Watchdog::begin,
            _ => Watchdog::drive,
        };
        self.carry_out(state, actions, Ok(None), begin);
        id
    }

    /// Returns the result of this call, and whether the calls wait for other clients. The result is `None` if the
    /// client is closed, or if the permits of the call were taken back.
    pub(super) fn poll(&self, id: u64, context: &Context<'_>) -> (Poll<Option<InHand>>, bool) {
        let mut state = self.state.lock();
        let polled = match (state.outcomes.remove(&id), state.callers.get_mut(&id)) {
            (None, Some(caller)) => {
                set_waker(&mut caller.waker, context);
                Poll::Pending
            }
            (outcome, _) => Poll::Ready(outcome.map(|(in_hand, _)| in_hand)),
        };
        (polled, state.is_contended)
    }

    /// Takes permits back from calls that have not taken them in time, because their futures are kept and not polled.
    pub(super) fn take_back_missed(&self) {
        let (now, reply) = (self.core().clock.now(), self.core().timing.reply);
        let is_missed = |_: &u64, (in_hand, missed_at): &mut Outcome| {
            let missed_at = *missed_at.get_or_insert(now);
            matches!(in_hand, Ok(Some(_))) && missed_at.after(reply) <= now
        };
        let missed: Vec<_> = self.state.lock().outcomes.extract_if(is_missed).collect();
        // Dropped without the mutex, because the permits go to the next calls, or back to the server.
        drop(missed);
    }

    pub(super) fn on(self: &Arc<Self>, event: Event, in_hand: InHand) {
        self.on_by(event, in_hand, Watchdog::drive);
    }

    fn on_by(self: &Arc<Self>, event: Event, in_hand: InHand, begin: Begin) {
        let now = self.core().clock.now();
        let mut state = self.state.lock();
        if let Event::Left(id) = event
            && !state.callers.contains_key(&id)
        {
            let untaken = state.outcomes.remove(&id);
            drop(state);
            drop(untaken);
            return;
        }
        let mut actions = Vec::new();
        state.queue.on(now, event, &mut actions);
        if let Event::Left(id) = event
            && let Some(caller) = state.callers.remove(&id)
        {
            self.leave(&caller);
        }
        self.carry_out(state, actions, in_hand, begin);
    }

    /// Keeps the results for their calls, and returns the steps to take without the mutex.
    fn settle(
        self: &Arc<Self>,
        state: &mut State,
        actions: Vec<Action>,
        mut in_hand: InHand,
    ) -> Effects {
        let mut effects = Effects::default();
        let error = in_hand.as_ref().err().cloned();
        let mut take = || in_hand.as_mut().ok().and_then(Option::take);
        for action in actions {
            let (request, outcome) = match action {
                Action::Ask { request } => {
                    effects.works.extend(self.asking(state, request));
                    continue;
                }
                Action::Release => {
                    effects.works.extend(take().and_then(Held::releasing));
                    continue;
                }
                Action::Give { request } => {
                    let mut held = take();
                    if let Some(held) = &mut held {
                        held.permits().unclaim();
                        if let Some(caller) = state.callers.get(&request) {
                            held.give_up = caller.wanted.give_up;
                        }
                        effects.released.extend(held.done.take());
                    }
                    (request, Ok(held))
                }
                Action::Refuse { request } => (request, Ok(None)),
                Action::Fail { request } => (request, error.clone().map_or(Ok(None), Err)),
            };
            if let Some(caller) = state.callers.remove(&request) {
                self.leave(&caller);
                let outcome = outcome.map_err(|error| error.during(caller.wanted.operation));
                state.outcomes.insert(request, (outcome, None));
                effects.woken.extend(caller.waker);
            }
        }
        effects
    }

    /// Begins requests to the server, and then wakes callers.
    fn carry_out(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        actions: Vec<Action>,
        in_hand: InHand,
        begin: Begin,
    ) {
        let mut effects = self.settle(&mut state, actions, in_hand);
        let (plan, is_contended) = (state.plan(), state.queue.is_contended());
        if is_contended && !state.is_contended {
            // Calls that still wait are woken, so that they count their waits.
            let waiting = state.callers.values_mut();
            let woken = waiting.filter_map(|caller| caller.waker.take());
            effects.woken.extend(woken);
        }
        state.is_contended = is_contended;
        let replans = state.planned.is_some_and(|(at, listens)| {
            // Without a plan, the watch has nothing left to wait for.
            plan.is_none_or(|(sooner, hears)| sooner < at || hears && !listens)
        });
        let begins_watch = plan.is_some() && state.planned.is_none();
        if begins_watch {
            state.planned = plan;
        }
        drop(state);
        for work in effects.works {
            begin(&self.core().watchdog, work);
        }
        if replans {
            self.changed.notify();
        }
        if begins_watch {
            let watch = Self::watch(Arc::downgrade(self));
            self.core().watchdog.drive_while_needed(watch.boxed());
        }
        for done in effects.released {
            // The guard's caller may be gone.
            let _ = done.send(Ok(()));
        }
        effects.woken.into_iter().for_each(Waker::wake);
    }

    pub(super) fn of_this(&self, error: Error) -> Error {
        error.about("semaphore", self.origin.name.as_str())
    }

    pub(super) fn name(&self) -> &str {
        self.origin.name.as_str()
    }

    /// Returns the error of a release of permits that were lost.
    pub(super) fn not_held(&self, reason: LostReason) -> Error {
        let message = format!(
            "the permits were lost before: {reason}; what was done under them may have overlapped with other holders"
        );
        self.of_this(Error::new(Kind::NotHeld, "release", message))
    }
}

impl AtClose for ClientSemaphore {
    /// Releases permits that no guard has, and leaves the places of all calls. An attempt under way finds no call.
    fn close(self: Arc<Self>) {
        let state = mem::take(&mut *self.state.lock());
        for caller in state.callers.values() {
            self.leave(caller);
        }
        // The outcomes are released when they are dropped.
        drop(state);
        // Ends the watch.
        self.changed.notify();
    }
}

/// Permits that are handed off or released when dropped.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) semaphore: Arc<ClientSemaphore>,
    /// `None` once the permits are on their way back, or forgotten.
    pub(super) permits: Option<Permits>,
    pub(super) terms: Terms,
    /// How long their release may take without an answer.
    pub(super) give_up: Duration,
    /// How the next caller gets the permits.
    pub(super) by: GrantedBy,
    /// Receives the outcome of a release.
    pub(super) done: Option<oneshot::Sender<Result<()>>>,
}

impl Held {
    pub(super) fn permits(&self) -> &Permits {
        self.permits.as_ref().expect("permits that are held")
    }

    pub(super) fn loss(&self) -> Option<LostReason> {
        self.permits.as_ref()?.loss()
    }

    /// Stops the renewals and leaves the permits taken until their leases end.
    pub(super) fn forget(&mut self) {
        if let Some(permits) = self.permits.take() {
            permits.release();
        }
    }

    /// Splits off a part of the same grant.
    pub(super) fn part(&self, permits: Permits) -> Self {
        Self {
            semaphore: Arc::clone(&self.semaphore),
            terms: Terms {
                permits: permits.len(),
                ..self.terms
            },
            permits: Some(permits),
            give_up: self.give_up,
            by: GrantedBy::Handoff,
            done: None,
        }
    }
}

/// Hands the permits off to the next caller with equal terms, or releases them in the background.
impl Drop for Held {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else {
            return;
        };
        // A guard that outlives its client leaves its permits to their leases.
        if self.semaphore.core().is_shut() {
            if let (Some(done), Some(reason)) = (self.done.take(), permits.loss()) {
                // The guard's caller may be gone.
                let _ = done.send(Err(self.semaphore.not_held(reason)));
            }
            return;
        }
        // Permits that are lost or have little time left are not handed off.
        let is_whole = permits.0.iter().all(|permit| permit.is_fresh());
        let mut held = self.part(permits);
        held.done = self.done.take();
        let semaphore = Arc::clone(&self.semaphore);
        let begin = match held.done {
            Some(_) => Watchdog::begin,
            None => Watchdog::drive,
        };
        if is_whole {
            semaphore.on_by(Event::Returned(held.terms), Ok(Some(held)), begin);
        } else if let Some(work) = held.releasing() {
            begin(&semaphore.core().watchdog, work);
        }
    }
}
