//! Subscribes to the channel of a lock, and ends the subscription when its last listener leaves.
//!
//! Invariant: a subscription is recorded before it is sent. When the last listener leaves, the watchdog
//! task ends it, even if the call that subscribed was dropped.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::conn::Lane;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscription::{Subscription, SubscriptionState};

/// How long a shared subscription outlives its last waiter. Without this, a lock that several processes fight over
/// would be subscribed to for each grant.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// Records the subscription and returns the command for this channel, to be sent next. A caller that is dropped after
/// this leaves the subscription to be ended.
pub(super) fn subscribing(
    core: &Core,
    subscription: &Arc<Subscription>,
    state: &mut SubscriptionState,
    channel: String,
) -> redis::Cmd {
    subscription.mark_subscribed();
    core.locals.listen(&channel, subscription);
    let command = push_command(core.channels().subscribe(), &channel);
    *state = SubscriptionState {
        channel: Some(channel),
        since: None,
    };
    command
}

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
    loop {
        let locking = subscription.state.lock();
        let locked = core.clock.within(core.timing.reply, locking).await;
        // In this order: a waiter that leaves after the check finds the mark, and ends the subscription.
        subscription.mark_subscribed();
        if subscription.is_used() || !subscription.take_subscribed() {
            return;
        }
        let Some(mut state) = locked else {
            continue;
        };
        let old = std::mem::take(&mut *state);
        if let Some(channel) = old.channel {
            unsubscribe(&core, &route, &channel, &subscription).await;
        }
        return;
    }
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
    let work = async move { unsubscribe(&own, &route, &channel, &subscription).await };
    core.watchdog.drive(work.boxed());
}

/// Ends the subscription to this channel, unless another waiter listens to it.
async fn unsubscribe(core: &Core, route: &str, channel: &str, subscription: &Arc<Subscription>) {
    if !core.locals.ignore(channel, subscription) {
        return;
    }
    let command = push_command(core.channels().unsubscribe(), channel);
    let transport = &core.scripts.transport;
    // Without an answer the connection is replaced, which ends all its subscriptions.
    let _ = transport
        .send(Lane::Push, route, &command, core.timing.reply)
        .await;
}

fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
