//! Subscribes to a channel, and ends that.
//!
//! Invariant: a command is sent under the mutex under which the state of the subscription changes. So the server ends
//! with the state that the client has, and no caller waits for another: a future that is not polled delays no other.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::core::Core;
use super::subscription::{Subscription, SubscriptionState};
use crate::conn::Lane;

/// How long a shared subscription outlives its last listener. Without this, a caller that waits in a loop would subscribe
/// each time, and a lock that several processes fight over would be subscribed to for each grant.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// A silent connection costs a reply time at each try, so after a failed subscription the next try comes after this many
/// polls.
pub(crate) const POLLS_BETWEEN_TRIES: u32 = 4;

/// Subscribes to this channel. Returns whether the server has confirmed it. If the caller gives up, the last listener
/// ends the subscription.
pub(crate) async fn subscribe(
    core: &Core,
    subscription: &Arc<Subscription>,
    route: &str,
    channel: &str,
    reply: Duration,
) -> bool {
    let command = push_command(core.channels().subscribe(), channel);
    let gaps = core.locals.gaps();
    let begin = |state: &mut SubscriptionState| {
        subscription.mark_subscribed();
        core.locals.listen(channel, subscription);
        *state = SubscriptionState {
            channel: Some(channel.to_owned()),
            since: None,
        };
        true
    };
    let transport = &core.scripts.transport;
    let send = transport.send(Lane::Push, route, &command, reply);
    let is_confirmed = matches!(in_order(subscription, begin, send).await, Some(Ok(_)));
    if is_confirmed {
        let mut state = subscription.state.lock();
        if state.channel.as_deref() == Some(channel) {
            state.since = Some(gaps);
        }
    }
    is_confirmed
}

/// Ends the subscription if it has no listener. Sends nothing if `is_needed` says so.
pub(crate) async fn unsubscribe_unused(
    core: &Core,
    subscription: &Arc<Subscription>,
    route: &str,
    is_needed: impl FnOnce(&str) -> bool,
) {
    let channel = subscription.state.lock().channel.clone();
    let channel = channel.unwrap_or_default();
    let end = |state: &mut SubscriptionState| {
        // In this order: a waiter that leaves after the check finds the mark, and ends the subscription.
        subscription.mark_subscribed();
        if subscription.is_used() || !subscription.take_subscribed() {
            return false;
        }
        let old = std::mem::take(state);
        old.channel.as_ref() == Some(&channel) && is_needed(&channel)
    };
    in_order(subscription, end, unsubscribe(core, route, &channel)).await;
}

/// Ends the subscription to this channel at the server.
pub(crate) async fn unsubscribe(core: &Core, route: &str, channel: &str) {
    let command = push_command(core.channels().unsubscribe(), channel);
    let transport = &core.scripts.transport;
    // Without an answer the connection is replaced, which ends all its subscriptions.
    let _ = transport
        .send(Lane::Push, route, &command, core.timing.reply)
        .await;
}

/// Changes the state and sends the command in one step, unless `change` returns false.
async fn in_order<F: Future>(
    subscription: &Subscription,
    change: impl FnOnce(&mut SubscriptionState) -> bool,
    send: F,
) -> Option<F::Output> {
    // Unconstrained, because channels with room are pending for a task that has used up its budget.
    let mut send = pin!(tokio::task::unconstrained(send));
    let mut change = Some(change);
    poll_fn(move |context| match change.take() {
        Some(change) => {
            let mut state = subscription.state.lock();
            if change(&mut state) {
                send.as_mut().poll(context).map(Some)
            } else {
                Poll::Ready(None)
            }
        }
        None => send.as_mut().poll(context).map(Some),
    })
    .await
}

fn push_command(verb: &str, channel: &str) -> redis::Cmd {
    let mut command = redis::cmd(verb);
    command.arg(channel);
    command
}
