//! Listening to one channel, for a caller that waits for a condition at the server.
//!
//! All listeners of a client to one channel share one subscription, and one command makes it. Invariants: a message is
//! a hint and never a fact; the caller asks the server again after each subscription, because messages before it were
//! missed; the watchdog task subscribes, so that a caller whose future is not polled delays no other; when the last
//! listener leaves, the subscription ends in the background.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::core::Core;
use crate::engine::hold::subscribing::{
    LINGER, POLLS_BETWEEN_TRIES, subscribe, unsubscribe_unused,
};
use crate::engine::hold::subscription::Subscription;

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
