//! Subscribes to a channel and ends that, for waiters and for callers that wait for a condition at the server.
//!
//! All listeners of a client to one channel share one subscription, and one command makes it. Invariants: a command is
//! sent under the mutex under which the state of the subscription changes. So the server ends with the state that the
//! client has, and no caller waits for another: a future that is not polled delays no other. A message is a hint and
//! never a fact; the caller asks the server again after each subscription, because messages before it were missed. For a
//! [`Listener`] the watchdog task subscribes. When the last listener leaves, the subscription ends in the background.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;

use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::core::Core;
use crate::engine::hold::subscription::{Subscription, SubscriptionState};

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

/// Counts as a listener of one channel until dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    core: Arc<Core>,
    /// The key whose server sends the messages.
    route: Arc<str>,
    channel: Box<str>,
    subscription: Arc<Subscription>,
}

impl Listener {
    pub(crate) fn new(core: &Arc<Core>, route: &Arc<str>, channel: &str) -> Self {
        Self {
            core: Arc::clone(core),
            route: Arc::clone(route),
            channel: channel.into(),
            subscription: core.locals.add_listener(channel),
        }
    }

    fn hint(&self) -> &Hint {
        &self.subscription.hint
    }

    /// Returns the mark for a wait. Take it before asking the server, so that a message after the question ends the
    /// wait.
    pub(crate) fn mark(&self) -> Mark {
        self.hint().mark()
    }

    /// Resolves at a message or a gap in the subscription after `mark`, when the client is closed, or at `at`.
    pub(crate) async fn wait(&self, mark: Mark, at: Tick) {
        let closing = self.core.closing.mark();
        if self.core.is_closed() {
            return;
        }
        tokio::select! {
            biased;
            () = self.hint().changed_since(mark) => {}
            () = self.core.closing.changed_since(closing) => {}
            () = self.core.clock.sleep_until(at) => {}
        }
    }

    /// Subscribes unless messages already reach this client. Returns true if the subscription is new: the caller asks
    /// the server again.
    pub(crate) async fn subscribe(&self) -> bool {
        let (core, subscription) = (&self.core, &self.subscription);
        if core.is_closed() || !subscription.may_subscribe(core.clock.now()) || self.is_heard() {
            return false;
        }
        if let Some(subscribing) = subscription.begin_subscribing() {
            let (core, subscription) = (Arc::clone(core), Arc::clone(subscription));
            let (route, channel) = (Arc::clone(&self.route), self.channel.clone());
            let work = async move {
                make(&core, &subscription, &route, &channel).await;
                drop(subscribing);
            };
            self.core.watchdog.begin(work.boxed());
        }
        loop {
            let seen = self.mark();
            if !subscription.is_subscribing() {
                return self.is_heard();
            }
            self.hint().changed_since(seen).await;
        }
    }

    /// Whether the server sends the messages of the channel.
    fn is_heard(&self) -> bool {
        self.subscription.state.lock().since == Some(self.core.locals.gaps())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let subscription = &self.subscription;
        if !subscription.remove_listener() {
            return;
        }
        if !subscription.take_subscribed() {
            // With a channel, its end is under way, and forgets it.
            if subscription.state.lock().channel.is_none() {
                let locals = &self.core.locals;
                locals.forget_listener(&self.channel, subscription);
            }
            return;
        }
        let end = end(
            Arc::clone(&self.core),
            Arc::clone(&self.route),
            self.channel.clone(),
            Arc::clone(subscription),
        );
        self.core.watchdog.drive(end.boxed());
    }
}

/// Subscribes, or sets the time of the next try. Ends with the client.
async fn make(core: &Core, subscription: &Arc<Subscription>, route: &str, channel: &str) {
    let closing = core.closing.mark();
    if core.is_closed() {
        return;
    }
    let is_subscribed = tokio::select! {
        biased;
        is_subscribed = subscribe(core, subscription, route, channel, core.timing.reply) => is_subscribed,
        () = core.closing.changed_since(closing) => return,
    };
    if !is_subscribed {
        let pause = core.timing.poll_cap * POLLS_BETWEEN_TRIES;
        subscription.retry_after(core.clock.now().after(pause));
    }
}

/// Ends the subscription after a while, unless there is a listener again.
async fn end(core: Arc<Core>, route: Arc<str>, channel: Box<str>, subscription: Arc<Subscription>) {
    if !core.is_closed() {
        core.clock.sleep_until(core.clock.now().after(LINGER)).await;
    }
    unsubscribe_unused(&core, &subscription, &route, |_| true).await;
    core.locals.forget_listener(&channel, &subscription);
}
