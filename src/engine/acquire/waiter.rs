//! A waiter for one lock and its subscription.
//!
//! All waiters of a client share one subscription. Where the lock queues at the server, each waiter has its own. The
//! subscription is made when the head of the queue was refused, and ended when the last waiter has left. Messages and
//! gaps are hints. Silence proves nothing.
//!
//! Invariant: a subscription is recorded before it is sent. When the last listener leaves, the watchdog task ends it,
//! even if the call that subscribed was dropped.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{OptionFuture, join};

use super::attempt::Attempt;
use super::local::wait_for_owner;
use super::request::{Attempted, LockRequest};
use crate::api::error::Result;
use crate::api::holder::HolderId;
use crate::conn::{Lane, sent};
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark, OwnersWaiter};
use crate::engine::hold::bound::Silence;
use crate::engine::hold::core::Core;
use crate::engine::hold::followers::{Follower, Handed, KeptPlace};
use crate::engine::hold::handoff::HandoffRequest;
use crate::engine::hold::local::QueuePlace;
use crate::engine::hold::protocol::Queue;
use crate::engine::hold::subscription::{GrantMessage, Heard, Subscription, SubscriptionState};
use crate::engine::listen::{LINGER, end_later, subscribe, unsubscribe};
use crate::script::CallBudget;

/// For how many reply times a waiter with a place at the server asks on a connection that has fallen silent. After that
/// the place is as good as lost.
const REPLIES_FOR_A_PLACE: u32 = 3;

/// Counts as a waiter until dropped.
pub(crate) struct Waiter<'a> {
    request: &'a LockRequest,
    /// The waiter's own subscription, if the lock queues at the server.
    own: Option<Arc<Subscription>>,
    /// For a call with an owner.
    owner_waiters: Option<OwnersWaiter<'a>>,
}

/// Taken before a check. An event after the mark ends the wait.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    messages: Mark,
    owner_waiters: Option<Mark>,
    closing: Mark,
}

/// The event that ended a wait.
pub(crate) enum Woken {
    /// Another task of this client handed it the lock.
    HandedOff,
    /// The lock may be free: ask the server.
    Hint,
    /// There may be a hold to enter, or the client is being closed.
    Gained,
    Timer,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(request: &'a LockRequest) -> Self {
        request.local.subscription.add_waiter();
        let own = match request.protocol.queue() {
            Queue::Local | Queue::LocalWithPlace => None,
            Queue::Server => {
                let own = Arc::<Subscription>::default();
                own.add_waiter();
                Some(own)
            }
        };
        Self {
            request,
            own,
            owner_waiters: wait_for_owner(request),
        }
    }

    fn subscription(&self) -> &Arc<Subscription> {
        self.own
            .as_ref()
            .unwrap_or(&self.request.local.subscription)
    }

    /// How long the waiters that share its subscription have had no answer.
    pub(super) fn silence(&self) -> &Silence {
        &self.subscription().silence
    }

    fn owner_waiters(&self) -> Option<&Hint> {
        self.owner_waiters.as_ref().map(OwnersWaiter::hint)
    }

    /// Describes this waiter for the list of waiters that may be handed the lock. `None` if it queues in its client.
    pub(super) fn follower(
        &self,
        place: HolderId,
        kept_until: Tick,
        request: HandoffRequest,
        channel: &str,
    ) -> Option<Follower> {
        let waiter = Arc::clone(self.own.as_ref()?);
        Some(Follower {
            place,
            kept_until,
            request,
            is_listening: self.is_listening(channel),
            waiter,
            handed: Handed::Nothing,
        })
    }

    /// Lists this waiter among those whose places are kept together. `None` if it queues in its client.
    pub(super) fn keep_place(&self, place: HolderId) -> Option<KeptPlace<'a>> {
        let waiter = Arc::clone(self.own.as_ref()?);
        Some(self.request.local.rare().heartbeats.rest(place, waiter))
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            owner_waiters: self.owner_waiters().map(Hint::mark),
            closing: self.request.core.closing.mark(),
        }
    }

    /// Marks as of now, except for messages, which keep the mark of `before`.
    pub(super) fn marks_but_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: before.messages,
            ..self.marks()
        }
    }

    /// Tells the local queue that this waiter need not come before `until`, and may get a hand-off in its place.
    pub(crate) fn rest(&self, marks: Marks, place: Option<&QueuePlace<'_>>, until: Tick) {
        if let Some(place) = place {
            place.rest(marks.messages, until);
        }
    }

    /// The marks of `before`, with messages as of now.
    pub(crate) fn marks_after_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            ..before
        }
    }

    /// Waits for an event after `marks`, for a hand-off to the waiter's place, or for the time `at`.
    pub(crate) async fn wait(
        &self,
        marks: Marks,
        place: Option<&QueuePlace<'_>>,
        at: Tick,
    ) -> Woken {
        let handoff = OptionFuture::from(place.map(QueuePlace::handed_off));
        let owner_waiters = self.owner_waiters().zip(marks.owner_waiters);
        // Boxed: most calls have no owner.
        let gained = owner_waiters.map(|(hint, mark)| Box::pin(hint.changed_since(mark)));
        let gained = OptionFuture::from(gained);
        // Boxed: most waiters wait for their turn instead.
        Box::pin(async {
            tokio::select! {
                biased;
                Some(()) = handoff => Woken::HandedOff,
                () = self.subscription().hint.changed_since(marks.messages) => Woken::Hint,
                Some(()) = gained => Woken::Gained,
                () = self.request.core.closing.changed_since(marks.closing) => Woken::Gained,
                () = self.request.core.clock.sleep_until(at) => Woken::Timer,
            }
        })
        .await
    }

    /// The message that handed the lock over, if one came on this channel.
    pub(super) fn take_grant_message(&self, channel: &str) -> Option<GrantMessage> {
        self.subscription().take_grant_message(channel)
    }

    pub(super) fn subscribe_after(&self, at: Tick) {
        self.subscription().retry_after(at);
    }

    /// Whether messages on this channel reach the client, as far as it knows.
    pub(super) fn is_listening(&self, channel: &str) -> bool {
        self.serves(&self.subscription().state(), channel)
    }

    fn serves(&self, state: &SubscriptionState, channel: &str) -> bool {
        let gaps = self.request.core.locals.gaps();
        state.heard == Heard::Since(gaps) && state.channel.as_deref() == Some(channel)
    }

    /// Whether to listen at all: not right after a failed subscription, nor if so little time is left that a slow
    /// answer would look like a dead connection.
    pub(super) fn may_subscribe(&self, deadline: Tick) -> bool {
        if self.request.options.polled.is_some() {
            return false;
        }
        let core = &self.request.core;
        let now = core.clock.now();
        let enough = now.after(core.timing.reply / 8);
        self.subscription().may_subscribe(now) && enough <= deadline
    }

    /// Subscribes if it is necessary, and asks the server on the same connection, behind the subscription: a release
    /// after the answer gives a message. It asks once, since there is no reason to wait for a broken connection, unless
    /// the waiter would lose its place in the server's queue.
    pub(super) async fn subscribe_and_ask(
        &self,
        attempt: &mut Attempt<'_>,
        at: usize,
        end: Tick,
    ) -> Result<Attempted> {
        let core = &self.request.core;
        let (reply, budget) = self.budget(end);
        let subscription = self.subscription();
        let (route, channel) = (self.request.name.key(), attempt.channel(at));
        let mut again = true;
        loop {
            if self.is_listening(&channel) {
                let now = core.clock.now();
                return attempt.ask(None, now, at, Lane::Push, budget).await;
            }
            let old = subscription.state().channel.clone();
            if let Some(old) = old.filter(|old| **old != *channel) {
                // The attempt has a new holder id, so no waiter listens to the old channel again.
                unsubscribe_meanwhile(core, route, old, subscription);
            }
            let is_sent = AtomicBool::new(false);
            let subscribed = async {
                let subscribing = pin!(subscribe(core, subscription, route, &channel, reply));
                let is_confirmed = sent::track(&is_sent, subscribing).await;
                is_sent.store(true, Ordering::Relaxed);
                is_confirmed
            };
            // `join` polls the subscription first. The attempt has to be behind it, or it has failed.
            let asking = async {
                let behind = |_: &mut Context<'_>| match is_sent.load(Ordering::Relaxed) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                };
                poll_fn(behind).await;
                let now = core.clock.now();
                attempt.ask(None, now, at, Lane::Push, budget).await
            };
            match join(subscribed, asking).await {
                // The subscription found the connection dead, and the attempt made a new connection: subscribe again.
                (false, Ok(Attempted::Refused { .. })) if again => again = false,
                (_, outcome) => return outcome,
            }
        }
    }

    /// How long one reply, and the whole attempt, may take before `end`. Leaves equal time for the other lane, in case
    /// this lane is dead.
    fn budget(&self, end: Tick) -> (Duration, CallBudget) {
        let core = &self.request.core;
        let now = core.clock.now();
        let half = now.until(end) / 2;
        let reply = core.timing.reply.min(half);
        let budget = match self.own {
            None => CallBudget::once(reply),
            Some(_) => {
                let enough = half.min(reply * REPLIES_FOR_A_PLACE);
                CallBudget::until(now.after(enough), reply)
            }
        };
        (reply, budget)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let core = &self.request.core;
        let subscription = self.subscription();
        if subscription.remove_waiter() {
            let linger = match self.own {
                None => LINGER,
                Some(_) => Duration::ZERO,
            };
            let local = Some(Arc::clone(&self.request.local));
            end_later(core, subscription, self.request.name.key(), local, linger);
        }
        if self.own.is_some() {
            self.request.local.subscription.remove_waiter();
        }
        if core.is_closed() {
            core.locals.waiter_left.notify();
        }
    }
}

/// Makes the watchdog task end a subscription that its waiter no longer needs, unless another waiter listens to the
/// channel. Waiting for the answer here would delay the waiter's next attempt by a round trip.
fn unsubscribe_meanwhile(
    core: &Arc<Core>,
    route: &Arc<str>,
    channel: Arc<str>,
    subscription: &Arc<Subscription>,
) {
    let subscription = Arc::clone(subscription);
    let (own, route) = (Arc::clone(core), Arc::clone(route));
    let work = async move {
        if own.locals.ignore(&channel, &subscription) {
            unsubscribe(&own, &route, &channel).await;
        }
    };
    core.watchdog.drive(work.boxed());
}
