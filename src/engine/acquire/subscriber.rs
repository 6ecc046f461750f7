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
use crate::engine::hold::subscribing::{
    LINGER, POLLS_BETWEEN_TRIES, subscribe, unsubscribe, unsubscribe_unused,
};
use crate::engine::hold::subscription::Subscription;

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
            let until = core
                .clock
                .now()
                .after(core.timing.poll_cap * POLLS_BETWEEN_TRIES);
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
        let is_subscribed = subscribe(core, subscription, route, &channel, reply).await;
        if !is_subscribed {
            subscription.retry_after(
                core.clock
                    .now()
                    .after(core.timing.poll_cap * POLLS_BETWEEN_TRIES),
            );
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

/// Makes the watchdog task end the subscription after `linger`, if the caller was the last listener.
pub(super) fn unsubscribe_later(
    request: &LockRequest,
    local: &Arc<LocalLock>,
    subscription: &Arc<Subscription>,
    linger: Duration,
) {
    if !subscription.take_subscribed() {
        return;
    }
    let (core, local) = (Arc::clone(&request.core), Arc::clone(local));
    let (subscription, route) = (Arc::clone(subscription), Arc::clone(request.name.key()));
    let work = async move {
        if !linger.is_zero() {
            tokio::time::sleep(linger).await;
        }
        let is_ours = |channel: &str| core.locals.ignore(channel, &subscription);
        unsubscribe_unused(&core, &subscription, &route, is_ours).await;
        // Kept for waiters that come in the pause, so that they find the subscription.
        drop(local);
    };
    request.core.watchdog.drive(work.boxed());
}

/// Makes the watchdog task end a subscription that its waiter no longer needs, unless another waiter listens to the
/// channel. Waiting for the answer here would delay the waiter's next attempt by a round trip.
pub(super) fn unsubscribe_meanwhile(
    core: &Arc<Core>,
    route: &Arc<str>,
    channel: String,
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
