//! A waiter for one lock, and the subscription that goes with it.
//!
//! One subscription serves all waiters of a client, or each has its own where the lock queues at the
//! server. It is made when the head was refused, and ended when the last waiter has left.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;

use super::attempt::Attempt;
use super::local::gained;
use super::request::{LockRequest, Outcome};
use super::subscribe::{LINGER, subscribing, unsubscribe_later, unsubscribe_meanwhile};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::Result;
use crate::hint::{Hint, Mark};
use crate::hold::grant_message::GrantMessage;
use crate::hold::local::{LocalLock, QueuePlace};
use crate::hold::protocol::Queue;
use crate::hold::subscription::{Subscription, SubscriptionState};
use crate::script::CallBudget;

/// A place at the server is worth asking again on a connection that has fallen silent, for the time
/// of so many replies; then it is as good as lost.
const REPLIES_FOR_A_PLACE: u32 = 3;

/// Counts as waiting until dropped.
pub(crate) struct Waiter<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
    /// Its own, if it queues at the server.
    own: Option<Arc<Subscription>>,
}

/// Taken before a check; what happens after it ends the wait.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    messages: Mark,
    gained: Option<Mark>,
    closing: Mark,
}

/// What ended a wait.
pub(crate) enum Woken {
    /// Another task of this client handed it the lock.
    HandedOff,
    /// It is worth asking the server.
    Hint,
    /// There may be something to enter or to join, or the client is being closed.
    Gained,
    Timer,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(request: &'a LockRequest, local: &'a Arc<LocalLock>) -> Self {
        local.subscription.add_waiter();
        let own = match request.protocol.queue() {
            Queue::Local => None,
            Queue::Server => {
                let own = Arc::<Subscription>::default();
                own.add_waiter();
                Some(own)
            }
        };
        Self {
            request,
            local,
            own,
        }
    }

    fn subscription(&self) -> &Arc<Subscription> {
        self.own.as_ref().unwrap_or(&self.local.subscription)
    }

    fn gained(&self) -> Option<&'a Hint> {
        gained(self.request, self.local)
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            gained: self.gained().map(Hint::mark),
            closing: self.request.core.closing.mark(),
        }
    }

    /// Marks as of now, but for messages: those of `before`.
    pub(super) fn marks_but_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: before.messages,
            ..self.marks()
        }
    }

    /// It need not come before that, and may be handed the lock in its place.
    pub(crate) fn rest(&self, marks: Marks, place: Option<&QueuePlace<'_>>, until: Tick) {
        if let Some(place) = place {
            place.rest(marks.messages, until);
        }
    }

    /// Marks of `before`, but messages as of now.
    pub(super) fn marks_after_messages(&self, before: Marks) -> Marks {
        Marks {
            messages: self.subscription().hint.mark(),
            ..before
        }
    }

    /// Resolves when something happens that `marks` does not know of, when it is handed the lock in its
    /// place, or at a time.
    pub(crate) async fn wait(
        &self,
        marks: Marks,
        place: Option<&QueuePlace<'_>>,
        at: Tick,
    ) -> Woken {
        let handoff = async {
            match place {
                Some(place) => place.handed_off().await,
                None => std::future::pending().await,
            }
        };
        let gained = async {
            match (self.gained(), marks.gained) {
                (Some(gained), Some(mark)) => gained.past(mark).await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = handoff => Woken::HandedOff,
            () = self.subscription().hint.past(marks.messages) => Woken::Hint,
            () = gained => Woken::Gained,
            () = self.request.core.closing.past(marks.closing) => Woken::Gained,
            () = self.request.core.clock.sleep_until(at) => Woken::Timer,
        }
    }

    /// The message by which the server handed the lock over, if one came on this channel.
    pub(super) fn take_grant_message(&self, channel: &str) -> Option<GrantMessage> {
        self.subscription().take_grant_message(channel)
    }

    pub(super) fn subscribe_after(&self, at: Tick) {
        self.subscription().retry_after(at);
    }

    /// Whether messages on this channel reach us, as far as we know.
    pub(super) fn is_listening(&self, channel: &str) -> bool {
        // While it is being changed, it is nothing to rely on.
        let state = self.subscription().state.try_lock();
        state.is_ok_and(|state| self.serves(&state, channel))
    }

    fn serves(&self, state: &SubscriptionState, channel: &str) -> bool {
        let gaps = self.request.core.locals.gaps();
        state.since == Some(gaps) && state.channel.as_deref() == Some(channel)
    }

    /// Whether to listen at all: not right after it failed, nor when the time left is so short that
    /// a slow answer would pass for a dead connection.
    pub(super) fn may_subscribe(&self, deadline: Option<Tick>) -> bool {
        if self.request.options.polled.is_some() {
            return false;
        }
        let core = &self.request.core;
        let now = core.clock.now();
        let enough = now.after(core.timing.reply / 8);
        self.subscription().may_subscribe(now) && deadline.is_none_or(|deadline| enough <= deadline)
    }

    /// Subscribes if need be, and asks the server behind that on the same connection: a release after
    /// the answer gives a message. One attempt, as a connection that does not work is no reason to wait;
    /// unless it would cost the place in a queue at the server.
    pub(super) async fn subscribe_and_ask(
        &self,
        attempt: &mut Attempt<'_>,
        at: usize,
        end: Tick,
    ) -> Result<Outcome> {
        let core = &self.request.core;
        let (reply, budget) = self.budget(end);
        let subscription = self.subscription();
        let locking = core.clock.within(reply, subscription.state.lock());
        let Some(mut state) = locking.await else {
            // It is being ended, on a connection that does not answer.
            return attempt.ask(at, Lane::Push, budget).await;
        };
        let channel = attempt.channel(at);
        if self.serves(&state, &channel) {
            drop(state);
            return attempt.ask(at, Lane::Push, budget).await;
        }
        let (route, transport) = (self.request.name.key(), &core.scripts.transport);
        if let Some(old) = state.channel.take_if(|old| *old != channel) {
            // The holder id of this attempt is a new one, and so nobody listens to the old channel again.
            unsubscribe_meanwhile(core, route, old, subscription);
        }
        let command = subscribing(core, subscription, &mut state, channel);
        let mut again = true;
        loop {
            let gaps = core.locals.gaps();
            let subscribe = transport.send(Lane::Push, route, &command, reply);
            // The first is polled first, and so sent first.
            let (subscribed, outcome) = join(subscribe, attempt.ask(at, Lane::Push, budget)).await;
            match (&subscribed, &outcome) {
                (Ok(_), _) => state.since = Some(gaps),
                // The first found the connection dead and the second made a new one: once more.
                (Err(_), Ok(Outcome::Refused { .. })) if again => {
                    again = false;
                    continue;
                }
                _ => {}
            }
            return outcome;
        }
    }

    /// How long one reply may take, and the attempt, before `end`. The other lane is to have as much if
    /// this one is dead.
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
            unsubscribe_later(self.request, self.local, subscription, linger);
        }
        if self.own.is_some() {
            self.local.subscription.remove_waiter();
        }
        if core.is_closed() {
            core.locals.waiter_left.give();
        }
    }
}
