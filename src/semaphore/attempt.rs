//! The background work for the calls of a client: the watch that wakes their queue, and their requests to the server.
//!
//! The watch wakes the queue at messages and at its times. A request asks for the permits of a call, or undoes an
//! attempt. Invariants: an attempt names ids that no other attempt has, so it may run twice. A possible grant without a
//! guard is undone behind the attempt, on the same lane.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::client::{Caller, ClientSemaphore, Held, InHand, State, Wanted};
use super::permits::{Permit, Permits};
use super::queue::{Event, PLACES_MAX};
use crate::api::error::{Error, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::api::options::{Backoff, LeasePolicy};
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::listen::Listener;
use crate::observe::counts::GrantedBy;
use crate::script::reply::{self, Permitted};
use crate::script::{Answer, Call, CallBudget, Executed, Script, catalog, millis};
use crate::watchdog::Work;

const MS: Duration = Duration::from_millis(1);

impl ClientSemaphore {
    /// Wakes the queue at messages and at its times, for as long as a request waits.
    pub(super) async fn watch(semaphore: Weak<Self>, polled: Option<Backoff>) {
        let mut listening: Option<(Listener, Mark)> = None;
        while let Some(this) = semaphore.upgrade() {
            let changed = this.changed.mark();
            let Some((wake_at, is_contended)) = this.plan() else {
                return;
            };
            let mut event = Event::Timer;
            if is_contended && polled.is_none() {
                let is_first = listening.is_none();
                let (listener, seen) = listening.get_or_insert_with(|| this.listen());
                let heard = async {
                    // A new subscription has missed earlier messages. One that was there may have delivered a message
                    // before the refusal arrived.
                    if listener.subscribe().await || is_first {
                        return Event::Woken;
                    }
                    listener.wait(*seen, wake_at).await;
                    Event::Timer
                };
                event = tokio::select! {
                    biased;
                    event = heard => event,
                    () = this.changed.changed_since(changed) => Event::Timer,
                    () = this.core.clock.sleep_until(wake_at) => Event::Timer,
                };
                // A message that comes after this look ends the next wait at once.
                let now_seen = listener.mark();
                if now_seen != *seen {
                    (*seen, event) = (now_seen, Event::Woken);
                }
            } else {
                tokio::select! {
                    biased;
                    () = this.core.clock.sleep_until(wake_at) => {}
                    () = this.changed.changed_since(changed) => {}
                }
            }
            this.on(event, InHand::Nothing);
        }
    }

    /// When the queue has to be woken, and whether it needs messages. `None` ends the watch.
    fn plan(&self) -> Option<(Tick, bool)> {
        let mut state = self.state.lock();
        let wake_at = state.queue.wake_at();
        state.is_watched = wake_at.is_some() && !self.core.is_closed();
        state.wakes_at = wake_at.unwrap_or(Tick::NEVER);
        state.listens = state.queue.is_contended();
        state.is_watched.then_some((state.wakes_at, state.listens))
    }

    fn listen(&self) -> (Listener, Mark) {
        let channel = self.origin.name.semaphore_channel();
        let listener = Listener::new(&self.core, self.origin.name.key(), &channel);
        let seen = listener.mark();
        (listener, seen)
    }
}

/// One request to the server.
struct Attempt {
    ask: u64,
    wanted: Wanted,
    ids: Vec<(u64, HolderId)>,
    /// The request that asks, and other requests whose places it keeps, with their waiters.
    places: Vec<(u64, HolderId)>,
}

impl ClientSemaphore {
    /// The work that asks the server for the permits of a request.
    pub(super) fn asking(&self, state: &mut State, ask: u64, request: u64) -> Option<Work> {
        let places = Self::places(state, request);
        let caller = state.callers.get(&request)?;
        let (wanted, waiter) = (caller.wanted.clone(), caller.waiter);
        let now = self.core.clock.now();
        let give_up = now.after(wanted.give_up);
        let patience = caller.deadline.max(now.after(self.core.timing.reply));
        let budget = CallBudget::until(give_up.min(patience), self.core.timing.reply);
        let ids = (0..wanted.permits)
            .map(|_| self.core.new_holder())
            .collect();
        let this = self.this.upgrade()?;
        let attempt = Attempt {
            ask,
            wanted,
            ids,
            places: std::iter::once((request, waiter)).chain(places).collect(),
        };
        let work = async move { this.attempt(attempt, budget).await };
        Some(work.boxed())
    }

    /// The waiters for which an attempt of this request takes or keeps places in the server's queue, besides itself.
    fn places(state: &mut State, request: u64) -> Vec<(u64, HolderId)> {
        let takes_place = |caller: &&mut Caller| caller.wanted.is_fair && caller.wanted.waits;
        let asks = state.callers.get_mut(&request).filter(takes_place);
        let Some(asks) = asks else {
            return Vec::new();
        };
        asks.has_place = true;
        // A request that asks takes its own place, and has left it again if the server has granted it.
        let others = state.queue.unasked();
        let mut places = Vec::new();
        for id in others.take(PLACES_MAX) {
            if let Some(other) = state.callers.get_mut(&id).filter(takes_place) {
                other.has_place = true;
                places.push((id, other.waiter));
            }
        }
        places
    }

    async fn attempt(self: Arc<Self>, attempt: Attempt, budget: CallBudget) {
        let core = &self.core;
        let moved = core.locals.moved.mark();
        let Attempt {
            ask, ref wanted, ..
        } = attempt;
        let call = self.acquire_call(&attempt);
        let answer = core.scripts.run(Lane::Command, &call, budget).await;
        self.leave_gone(&attempt);
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                if failure.executed == Executed::Maybe {
                    self.undo(attempt.ids.iter().map(|(_, id)| *id), wanted.policy);
                }
                let error = self.of_this(failure.into_error(wanted.operation));
                let all = error.is_io();
                self.on(Event::Failed { ask, all }, InHand::Error(error));
                return;
            }
        };
        let error = match reply::permitted(&answer.value) {
            Ok(Permitted::Taken) => {
                let granted = |id: &(u64, HolderId)| {
                    Permit::granted(core, &self.origin, *id, wanted.policy, answer.sent, moved)
                };
                let permits = attempt.ids.iter().map(granted);
                let held = Held {
                    semaphore: Arc::clone(&self),
                    permits: Some(Permits(permits.collect())),
                    policy: wanted.policy,
                    is_fair: wanted.is_fair,
                    by: GrantedBy::Server,
                    done: None,
                };
                self.on(
                    Event::Granted { ask },
                    InHand::Granted(held, attempt.places[0].1),
                );
                return;
            }
            Ok(Permitted::Refused { first_end }) => {
                let cap = core.timing.poll_cap;
                let retry_in = first_end.map_or(cap, |end| end.saturating_add(MS)).min(cap);
                let retry_in = match wanted.polled {
                    Some(polled) => retry_in.min(polled.pause(0, fastrand::f64())),
                    None => retry_in,
                };
                self.on(Event::Refused { ask, retry_in }, InHand::Nothing);
                return;
            }
            Ok(Permitted::NotDeclared) => Error::invalid(
                wanted.operation,
                "nobody has declared how many permits the semaphore has; say it with `permits`",
            ),
            Ok(Permitted::Otherwise { total }) => otherwise(wanted, total),
            Err(error) => error,
        };
        let error = self.of_this(error);
        self.on(Event::Failed { ask, all: false }, InHand::Error(error));
    }

    fn acquire_call(&self, attempt: &Attempt) -> Call {
        let wanted = &attempt.wanted;
        let heartbeat = match (wanted.is_fair, wanted.waits) {
            (false, _) => 0,
            (true, false) => -1,
            (true, true) => i64::try_from(millis(self.core.timing.heartbeat)).unwrap_or(i64::MAX),
        };
        let mut call = self
            .script(&catalog::SEMAPHORE_ACQUIRE, heartbeat != 0)
            .arg(millis(wanted.policy.lease()))
            .arg(wanted.permits)
            .arg(wanted.declared)
            .arg(self.origin.name.semaphore_channel())
            .arg(self.core.channels().publish())
            .arg(heartbeat);
        for (_, id) in &attempt.ids {
            call = call.arg(&**id);
        }
        if heartbeat != 0 {
            for (_, place) in &attempt.places {
                call = call.arg(&**place);
            }
        }
        call
    }

    fn release_call(&self, waiter: &str, ids: impl Iterator<Item = HolderId>) -> Call {
        let call = self
            .script(&catalog::SEMAPHORE_RELEASE, !waiter.is_empty())
            .arg(self.origin.name.semaphore_channel())
            .arg(self.core.channels().publish())
            .arg(waiter);
        ids.fold(call, |call, id| call.arg(&*id))
    }

    /// Names the keys of the queue only if the call uses them: each key costs the server time.
    fn script(&self, script: &'static Script, with_queue: bool) -> Call {
        let (name, timeouts) = (&self.origin.name, &*self.origin.timeouts);
        if !with_queue {
            return Call::new(script, name.key(), &[name.key(), timeouts]);
        }
        let [queue, alive] = [name.semaphore_queue_key(), name.semaphore_alive_key()];
        Call::new(script, name.key(), &[name.key(), timeouts, &queue, &alive])
    }

    /// Removes a place in the server's queue in the background, behind the attempts that may have made it.
    pub(super) fn leave(&self, caller: &Caller) {
        if caller.has_place {
            self.remove_place(&caller.waiter, caller.wanted.policy);
        }
    }

    fn remove_place(&self, waiter: &str, policy: LeasePolicy) {
        let call = self.release_call(waiter, std::iter::empty());
        self.undo_by(call, policy.lease());
    }

    /// Removes the places that an attempt has kept for callers which left during it: the commands that removed them
    /// then may have overtaken it.
    fn leave_gone(&self, attempt: &Attempt) {
        let wanted = &attempt.wanted;
        if !(wanted.is_fair && wanted.waits) {
            return;
        }
        let gone: Vec<HolderId> = {
            let state = self.state.lock();
            let gone = attempt.places.iter();
            let gone = gone.filter(|(request, _)| !state.callers.contains_key(request));
            gone.map(|(_, waiter)| *waiter).collect()
        };
        for waiter in gone {
            self.remove_place(&waiter, wanted.policy);
        }
    }

    /// Releases permits that the server may have granted.
    fn undo(&self, ids: impl Iterator<Item = HolderId>, policy: LeasePolicy) {
        let call = self.release_call("", ids);
        self.undo_by(call, policy.lease());
    }

    fn undo_by(&self, call: Call, lease: Duration) {
        self.core.undo_later(call, Lane::Command, lease, None);
    }

    /// The work that releases permits which have no holder.
    pub(super) fn releasing(&self, mut held: Held) -> Option<Work> {
        let permits = held.permits.take()?;
        let (done, policy) = (held.done.take(), held.policy);
        let this = self.this.upgrade()?;
        let work = async move {
            let core = &this.core;
            let deadline = permits.0.iter().map(|permit| permit.deadline()).min();
            let loss = permits.release();
            let call = this.release_call("", permits.0.iter().map(|permit| *permit.id()));
            let budget = core.call_budget(core.timing.give_up);
            let outcome = match core.scripts.run(Lane::Command, &call, budget).await {
                Ok(answer) => this.released(&answer, permits.len(), deadline, loss),
                Err(failure) => {
                    this.undo_by(call, policy.lease());
                    Err(this.of_this(failure.into_error("release")))
                }
            };
            if let Some(done) = done {
                drop(done.send(outcome));
            }
        };
        Some(work.boxed())
    }

    fn released(
        &self,
        answer: &Answer,
        count: u32,
        deadline: Option<Tick>,
        loss: Option<LostReason>,
    ) -> Result<()> {
        let removed =
            reply::permits_released(&answer.value).map_err(|error| self.of_this(error))?;
        let was_in_time = deadline.is_some_and(|deadline| answer.first_sent < deadline);
        match loss {
            Some(reason) => Err(self.not_held(reason)),
            None if removed == u64::from(count) || (answer.repeated && was_in_time) => Ok(()),
            None if was_in_time => Err(self.not_held(LostReason::Revoked)),
            None => Err(self.not_held(LostReason::Expired)),
        }
    }
}

/// The error of a call that declares, or asks for, what a semaphore with this number of permits does not have.
fn otherwise(wanted: &Wanted, total: i64) -> Error {
    let Wanted {
        declared, permits, ..
    } = wanted;
    let message = match declared {
        0 => format!("{permits} of {total} permits are never free; acquire fewer"),
        _ => format!(
            "the semaphore was declared with {total} permits, not with {declared}; declare the same number \
             everywhere, or `resize` it"
        ),
    };
    Error::invalid(wanted.operation, message)
}
