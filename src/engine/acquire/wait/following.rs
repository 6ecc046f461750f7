//! Waiters of one client in one queue at the server: the waiter directly behind another may be handed the lock in
//! memory, and one script keeps the places of all.
//!
//! Only a plain request follows another: its hold is renewed and may end at any time, without a fencing token,
//! replicas, a minimum hold time or a stay with the client. Invariant: the client's task sends the heartbeats, so a
//! waiter that is not polled delays no other.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{Step, WaitLoop};
use crate::api::error::Result;
use crate::api::holder::HolderId;
use crate::conn::Lane;
use crate::engine::acquire::local::handoff_request;
use crate::engine::acquire::request::LockRequest;
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::engine::hold::followers::{Followers, Handed, PLACES_MAX};
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::protocol::{HolderRef, Protocol};
use crate::engine::hold::queue::place::RestingPlace;
use crate::script::{CallBudget, reply};

/// The longest time without an attempt, even if heartbeats keep the place. Only an attempt renews the place's score for
/// Redisson.
const ASKS_EVERY: Duration = Duration::from_secs(60);

impl<'a> WaitLoop<'a> {
    /// Lists this waiter, which now rests with its place at the server.
    pub(super) fn rest_in_queue(&self) -> Option<RestingPlace<'a>> {
        let [request] = self.requests().all else {
            return None;
        };
        let (place, ahead, kept_until) = self.attempt.place()?;
        let follows = ahead.filter(|_| self.may_follow(request));
        let follows = follows.map(|ahead| (ahead, handoff_request(request)));
        let channel = self.attempt.channel(self.at);
        let waiter = self.waiter.resting(&channel, follows, kept_until)?;
        let resting = RestingPlace::take(&request.local, place, waiter);
        send_heartbeats(request);
        Some(resting)
    }

    fn may_follow(&self, request: &LockRequest) -> bool {
        let options = &request.options;
        self.requests().alone().is_some()
            && request.policy.is_renewed()
            && !options.fenced
            && options.replication.is_none()
            && options.at_least.is_none()
            && request.sticky().is_zero()
    }

    /// Takes the last heartbeat that kept the place. Returns until when the waiter need not ask. `None` if it has to
    /// ask when its timer fires.
    pub(super) fn rest_longer(&mut self, resting: Option<&RestingPlace<'_>>) -> Option<Tick> {
        let heartbeat = self.requests().core().timing.heartbeat;
        let kept = resting?.with(|followers, place| followers.take_kept(place, heartbeat))?;
        self.attempt.place_kept(kept);
        let now = self.clock().now();
        let deadline = self.deadline();
        if now >= deadline || self.attempt.asked_at.after(ASKS_EVERY) <= now {
            return None;
        }
        // A waiter that does not ask does not notice a task of this client that does not take its grant.
        self.requests().core().watch_heads(self.local());
        // The place is kept for longer than this, so one heartbeat may go unanswered.
        Some(kept.sent.after(self.poll_cap() * 2).min(deadline))
    }

    /// Takes the lock that the task ahead handed on, if any. If the hold is lost by now, or was withdrawn because this
    /// task did not come, the place is lost too.
    pub(super) fn end_rest(
        &mut self,
        resting: Option<Box<RestingPlace<'_>>>,
    ) -> Result<Option<Step>> {
        let resting = resting.and_then(|resting| resting.with(Followers::end_rest));
        let outcome = match resting.map(|resting| resting.handed) {
            None | Some(Handed::Nothing) => return Ok(None),
            Some(Handed::Lock { handoff, .. }) => self.take_over(handoff)?,
            Some(Handed::Withdrawn) => None,
        };
        let Some(outcome) = outcome else {
            self.attempt.start_over();
            return Ok(Some(Step::Continue(())));
        };
        self.attempt.place_used();
        Ok(Some(Step::Break(outcome)))
    }
}

/// Has the client's task send the heartbeats of this queue, if there are enough waiters and it does not do so yet.
fn send_heartbeats(request: &LockRequest) {
    let begins = (request.local.lock()).with_followers(|followers, _| followers.begin_heartbeats());
    if !begins {
        return;
    }
    let (protocol, name, fenced) = (
        request.protocol,
        request.name.clone(),
        request.options.fenced,
    );
    let (core, local) = (
        Arc::downgrade(&request.core),
        Arc::downgrade(&request.local),
    );
    // Two heartbeats in the time that a place is kept. A waiter without an answer asks by itself in time.
    let (clock, every) = (request.core.clock, request.core.timing.poll_cap * 3 / 2);
    let sending = async move {
        loop {
            clock.sleep_until(clock.now().after(every)).await;
            let (Some(core), Some(local)) = (core.upgrade(), local.upgrade()) else {
                return;
            };
            let places = local
                .lock()
                .with_followers(|followers, _| followers.places());
            let Some(places) = places else { return };
            for places in places.chunks(PLACES_MAX) {
                let any = core.holder_ref(&name, "", fenced);
                send_heartbeat(&core, &local, protocol, &any, places).await;
            }
        }
    };
    request.core.watchdog.drive_while_needed(sending.boxed());
}

/// Sends one heartbeat for all these places, and notes the answer for each.
async fn send_heartbeat(
    core: &Core,
    local: &LocalLock,
    protocol: &dyn Protocol,
    any: &HolderRef<'_>,
    places: &[HolderId],
) {
    let Some(call) = protocol.heartbeat(any, core.timing.heartbeat, places) else {
        return;
    };
    let moved = core.locals.moved.mark();
    let budget = CallBudget::once(core.timing.reply);
    // Without an answer, the waiters ask by themselves.
    let Ok(answer) = core.scripts.run(Lane::Command, &call, budget).await else {
        return;
    };
    if let Ok(answers) = reply::heartbeats(&answer.value, places.len()) {
        let (state, sent) = (&mut local.lock(), (answer.sent, moved));
        state.with_followers(|followers, woken| followers.answered(places, &answers, sent, woken));
    }
}
