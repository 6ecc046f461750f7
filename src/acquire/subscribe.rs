//! Subscribing to the channel of a lock, and ending that when nobody needs it any more.
//!
//! Invariant: whoever makes a subscription says so before it is sent, and the last one who needs it has it
//! ended by the watchdog task, whatever became of whoever made it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::request::LockRequest;
use crate::conn::Lane;
use crate::hold::core::Core;
use crate::hold::local::LocalLock;
use crate::hold::subscription::{Subscription, SubscriptionState};

/// A subscription that waiters share is kept for this long after the last of them: a lock that several
/// processes fight over would otherwise be subscribed to anew for each grant.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// The command that subscribes to this channel, which is to be sent next. Whoever gives up from here on
/// leaves the subscription to be ended.
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

/// Has the subscription ended by the watchdog task after `linger`, if that is for the caller to do.
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
        // Whoever comes meanwhile is to find what it listens with.
        let local = Arc::clone(local);
        let work = work.map(|()| drop(local));
        request.core.watchdog.drive(work.boxed());
    }
}

/// Ends the subscription, unless somebody waits again by then.
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

/// Has the watchdog task end the subscription to a channel that its waiter has no use for any more. The answer
/// would be a round trip before the waiter can ask again.
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

/// Ends the subscription to this channel, unless another waiter listens to it by now.
async fn unsubscribe(core: &Core, route: &str, channel: &str, subscription: &Arc<Subscription>) {
    if !core.locals.ignore(channel, subscription) {
        return;
    }
    let command = push_command(core.channels().unsubscribe(), channel);
    let transport = &core.scripts.transport;
    // If it is not answered the connection is replaced, and with it all subscriptions.
    let _ = transport
        .send(Lane::Push, route, &command, core.timing.reply)
        .await;
}

fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
