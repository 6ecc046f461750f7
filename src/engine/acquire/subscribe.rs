//! Ends the subscription to the channel of a lock when its last listener leaves.
//!
//! Invariant: a subscription is recorded before it is sent. When the last listener leaves, the watchdog
//! task ends it, even if the call that subscribed was dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscribing::{self, unsubscribe};
use crate::engine::hold::subscription::Subscription;

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
