//! A listener to the releases of a lock, and the end of a subscription.
//!
//! [`Subscriber`] is for a caller that asks several servers at once and so waits at none of them. It shares the
//! subscription of the waiters for this lock at this server. Messages and gaps are hints. Silence proves nothing.
//!
//! Invariant: a subscription is recorded before it is sent. When the last listener leaves, the watchdog task ends it,
//! even if the call that subscribed was dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::recall::recall;
use super::request::LockRequest;
use crate::engine::hint::Hint;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscribing::{self, unsubscribe};
use crate::engine::hold::subscription::Subscription;

/// The number of poll caps between two checks of the subscription.
const POLLS: u32 = 4;

/// Counts as a listener until dropped: a subscription of its client to the lock does not end.
pub(crate) struct Subscriber<'a> {
    request: &'a LockRequest,
    local: &'a Arc<LocalLock>,
}

impl<'a> Subscriber<'a> {
    pub(crate) fn new(request: &'a LockRequest) -> Self {
        let local = &request.local;
        local.subscription.add_listener();
        Self { request, local }
    }

    /// Gives `released` each time the lock may have become free. Never ends.
    pub(crate) async fn listen(&self, released: &Hint) {
        let (core, local) = (&self.request.core, self.local);
        loop {
            let mark = local.hint().mark();
            if !core.is_closed() {
                recall(self.request, local);
            }
            if !core.is_closed() && self.subscribe().await {
                // A message sent before the subscription began was missed.
                released.notify();
            }
            let until = core.clock.now().after(core.timing.poll_cap * POLLS);
            tokio::select! {
                biased;
                () = local.hint().changed_since(mark) => released.notify(),
                () = core.clock.sleep_until(until) => {}
            }
        }
    }

    /// Subscribes if it is necessary. Returns whether it made a new subscription.
    async fn subscribe(&self) -> bool {
        let (core, subscription) = (&self.request.core, &self.local.subscription);
        let reply = core.timing.reply;
        if !subscription.may_subscribe(core.clock.now()) {
            return false;
        }
        if subscription.state.lock().since == Some(core.locals.gaps()) {
            return false;
        }
        let (route, channel) = (self.request.name.key(), self.request.name.lock_channel());
        let is_subscribed =
            subscribing::subscribe(core, subscription, route, &channel, reply).await;
        if !is_subscribed {
            subscription.retry_after(core.clock.now().after(core.timing.poll_cap * POLLS));
        }
        is_subscribed
    }
}

impl Drop for Subscriber<'_> {
    fn drop(&mut self) {
        let subscription = &self.local.subscription;
        if subscription.remove_listener() {
            unsubscribe_later(self.request, self.local, subscription, LINGER);
        }
    }
}

/// How long a shared subscription outlives its last waiter. Without this, a lock that several processes fight over
/// would be subscribed to for each grant.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// Makes the watchdog task end the subscription after `linger`, if the caller was the last listener.
pub(super) fn unsubscribe_later(
    request: &LockRequest,
    local: &Arc<LocalLock>,
    subscription: &Arc<Subscription>,
    linger: Duration,
) {
    if subscription.take_subscribed() {
        let core = Arc::clone(&request.core);
        let route = Arc::clone(request.name.key());
        let work = unsubscribe_unused(core, Arc::clone(subscription), route, linger);
        // Keeps the local state for waiters that come in the pause, so that they find the subscription.
        let local = Arc::clone(local);
        let work = work.map(|()| drop(local));
        request.core.watchdog.drive(work.boxed());
    }
}

/// Ends the subscription, unless it has a listener again after the pause.
async fn unsubscribe_unused(
    core: Arc<Core>,
    subscription: Arc<Subscription>,
    route: Arc<str>,
    linger: Duration,
) {
    if !linger.is_zero() {
        tokio::time::sleep(linger).await;
    }
    let is_ours = |channel: &str| core.locals.ignore(channel, &subscription);
    subscribing::unsubscribe_unused(&core, &subscription, &route, is_ours).await;
}

/// Makes the watchdog task end a subscription that its waiter no longer needs. Waiting for the answer here would delay
/// the waiter's next attempt by a round trip.
pub(super) fn unsubscribe_meanwhile(
    core: &Arc<Core>,
    route: &Arc<str>,
    channel: String,
    subscription: &Arc<Subscription>,
) {
    let subscription = Arc::clone(subscription);
    let (own, route) = (Arc::clone(core), Arc::clone(route));
    let work = async move { unsubscribe_unheard(&own, &route, &channel, &subscription).await };
    core.watchdog.drive(work.boxed());
}

/// Ends the subscription to this channel, unless another waiter listens to it.
async fn unsubscribe_unheard(
    core: &Core,
    route: &str,
    channel: &str,
    subscription: &Arc<Subscription>,
) {
    if core.locals.ignore(channel, subscription) {
        unsubscribe(core, route, channel).await;
    }
}
