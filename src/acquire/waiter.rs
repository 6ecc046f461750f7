//! A place in the queue of one lock, and the subscription that goes with it.
//!
//! One subscription serves all waiters of a client, or each has its own where the lock queues at the
//! server. It is made when the head was refused, and given up by the watchdog task when the last
//! waiter has left.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join;

use super::attempt::{Attempt, Outcome};
use super::{LockRequest, Woken};
use crate::clock::Tick;
use crate::conn::Lane;
use crate::error::Result;
use crate::hint::Mark;
use crate::hold::core::Core;
use crate::hold::grant_message::GrantMessage;
use crate::hold::local::LocalLock;
use crate::hold::local::QueuePlace;
use crate::hold::protocol::Queue;
use crate::hold::subscription::{Subscription, SubscriptionState};
use crate::script::CallBudget;

/// A subscription that waiters share is kept this long without one: a lock that several processes
/// fight over would else be subscribed to anew for each grant.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// A place at the server is worth asking again on a connection that has fallen silent, for the time
/// of so many replies; then it is as good as lost.
const REPLIES_FOR_A_PLACE: u32 = 3;

/// One waiter; leaves the queue when dropped.
pub(super) struct Waiter<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
    /// Its own, if it queues at the server.
    own: Option<Arc<Subscription>>,
}

/// Taken before a look; what happens after it ends the wait.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    told: Mark,
    entered: Mark,
    closing: Mark,
}

impl<'a> Waiter<'a> {
    pub(super) fn enter(request: &'a LockRequest, local: &'a Arc<LocalLock>) -> Self {
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

    fn listening(&self) -> &Arc<Subscription> {
        self.own.as_ref().unwrap_or(&self.local.subscription)
    }

    pub(super) fn marks(&self) -> Marks {
        Marks {
            told: self.listening().hint.mark(),
            entered: self.local.gained.mark(),
            closing: self.request.core.closing.mark(),
        }
    }

    /// Marks as of now, but for messages: those of `before`.
    pub(super) fn marks_but_told(&self, before: Marks) -> Marks {
        Marks {
            told: before.told,
            ..self.marks()
        }
    }

    /// It need not come before that, and may be given the lock in its place.
    pub(super) fn rest(&self, marks: Marks, place: Option<&QueuePlace<'_>>, until: Tick) {
        if let Some(place) = place {
            place.rest(marks.told, until);
        }
    }

    /// Resolves when it is told to look again, or given the lock in its place, or at a time.
    pub(super) async fn wait(
        &self,
        marks: Marks,
        place: Option<&QueuePlace<'_>>,
        at: Tick,
    ) -> Woken {
        let given = async {
            match place {
                Some(place) => place.handed_off().await,
                None => std::future::pending().await,
            }
        };
        let has_owner = self.request.options.owner.is_some();
        tokio::select! {
            biased;
            () = given => Woken::Given,
            () = self.listening().hint.past(marks.told) => Woken::Hint,
            () = self.local.gained.past(marks.entered), if has_owner => Woken::Entry,
            () = self.request.core.closing.past(marks.closing) => Woken::Entry,
            () = self.request.core.clock.sleep_until(at) => Woken::Timer,
        }
    }

    /// The letter that this attempt was sent, if it was.
    pub(super) fn letter(&self, attempt: &Attempt<'_>, at: usize) -> Option<GrantMessage> {
        self.listening().take_grant_message(&attempt.channel(at))
    }

    pub(super) fn listen_after(&self, at: Tick) {
        self.listening().retry_after(at);
    }

    /// Whether messages about this lock reach us, as far as we know.
    pub(super) fn is_listening(&self, attempt: &Attempt<'_>, at: usize) -> bool {
        // While it is being changed, it is nothing to rely on.
        let subscription = self.listening().state.try_lock();
        subscription.is_ok_and(|subscription| self.serves(&subscription, &attempt.channel(at)))
    }

    fn serves(&self, subscription: &SubscriptionState, channel: &str) -> bool {
        let gaps = self.request.core.locals.gaps();
        subscription.since == Some(gaps) && subscription.channel.as_deref() == Some(channel)
    }

    /// Whether to listen at all: not right after it failed, nor when the time left is so short that
    /// a slow answer would pass for a dead connection.
    pub(super) fn may_listen(&self, deadline: Option<Tick>) -> bool {
        let core = &self.request.core;
        let now = core.clock.now();
        let enough = now.after(core.timing.reply / 8);
        self.listening().may_subscribe(now) && deadline.is_none_or(|deadline| enough <= deadline)
    }

    /// Subscribes if need be, and asks the server behind it on the same connection: a release after
    /// the answer is heard. One attempt, as a connection that does not work is no reason to wait;
    /// unless it would cost the place in a queue at the server.
    pub(super) async fn attempt_listening(
        &self,
        attempt: &mut Attempt<'_>,
        at: usize,
        end: Tick,
    ) -> Result<Outcome> {
        let core = &self.request.core;
        let now = core.clock.now();
        // The other lane is to have as much if this one is dead.
        let half = now.until(end) / 2;
        let reply = core.timing.reply.min(half);
        let budget = match self.own {
            None => CallBudget::once(reply),
            Some(_) => {
                let enough = half.min(reply * REPLIES_FOR_A_PLACE);
                CallBudget::until(now.after(enough), reply)
            }
        };
        let listening = self.listening();
        let subscription = core.clock.within(reply, listening.state.lock());
        let Some(mut subscription) = subscription.await else {
            // It is being given up, on a connection that does not answer.
            return attempt.ask(at, Lane::Push, budget).await;
        };
        let channel = attempt.channel(at);
        if self.serves(&subscription, &channel) {
            drop(subscription);
            return attempt.ask(at, Lane::Push, budget).await;
        }
        if let Some(old) = subscription.channel.take_if(|old| *old != channel) {
            // The holder id of this attempt is a new one.
            ignore(core, self.request.name.key(), &old, listening).await;
        }
        // Before the next await: whoever gives up from here on leaves it to be taken back.
        listening.mark_subscribed();
        core.locals.listen(&channel, listening);
        let command = push_command(core.channels().subscribe(), &channel);
        *subscription = SubscriptionState {
            channel: Some(channel),
            since: None,
        };
        let mut again = true;
        loop {
            let gaps = core.locals.gaps();
            let route = self.request.name.key();
            let transport = &core.scripts.transport;
            let subscribe = transport.send(Lane::Push, route, &command, reply);
            // The first is polled first, and so sent first.
            let (subscribed, outcome) = join(subscribe, attempt.ask(at, Lane::Push, budget)).await;
            match (&subscribed, &outcome) {
                (Ok(_), _) => subscription.since = Some(gaps),
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
}

/// Has the subscription taken back by the watchdog task, if that is for the caller to do, after
/// `linger`.
pub(super) fn stop_listening(
    request: &LockRequest,
    local: &Arc<LocalLock>,
    listening: &Arc<Subscription>,
    linger: Duration,
) {
    if listening.take_subscribed() {
        let core = Arc::clone(&request.core);
        let route = Arc::clone(request.name.key());
        let work = unsubscribe(core, Arc::clone(listening), route, linger);
        // Whoever comes meanwhile is to find what it listens with.
        let local = Arc::clone(local);
        let work = work.map(|()| drop(local));
        request.core.watchdog.drive(work.boxed());
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let core = &self.request.core;
        let listening = self.listening();
        if listening.remove_waiter() {
            let linger = match self.own {
                None => LINGER,
                Some(_) => Duration::ZERO,
            };
            stop_listening(self.request, self.local, listening, linger);
        }
        if self.own.is_some() {
            self.local.subscription.remove_waiter();
        }
        if core.is_closed() {
            core.locals.waiter_left.give();
        }
    }
}

/// Takes the subscription back, unless somebody waits again by then.
async fn unsubscribe(
    core: Arc<Core>,
    listening: Arc<Subscription>,
    route: Arc<str>,
    linger: Duration,
) {
    if !linger.is_zero() {
        tokio::time::sleep(linger).await;
    }
    loop {
        let locking = listening.state.lock();
        let locked = core.clock.within(core.timing.reply, locking).await;
        // In this order: whoever leaves after the look at the waiters finds it to be taken back.
        listening.mark_subscribed();
        if listening.is_used() || !listening.take_subscribed() {
            return;
        }
        let Some(mut subscription) = locked else {
            continue;
        };
        let old = std::mem::take(&mut *subscription);
        if let Some(channel) = old.channel {
            ignore(&core, &route, &channel, &listening).await;
        }
        return;
    }
}

pub(super) async fn ignore(core: &Core, route: &str, channel: &str, listening: &Arc<Subscription>) {
    if !core.locals.ignore(channel, listening) {
        // Another waiter listens to it by now.
        return;
    }
    let command = push_command(core.channels().unsubscribe(), channel);
    let transport = &core.scripts.transport;
    // If it is not answered the connection is replaced, and with it all subscriptions.
    let _ = transport
        .send(Lane::Push, route, &command, core.timing.reply)
        .await;
}

pub(super) fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
