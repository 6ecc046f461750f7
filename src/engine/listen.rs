//! Listening to one channel, for a caller that waits for a condition at the server.
//!
//! All listeners of a client to one channel share one subscription. Invariants: a message is a hint and never a fact;
//! the caller asks the server again after each subscription, because messages before it were missed; when the last
//! listener leaves, the subscription ends in the background.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::core::Core;
use crate::engine::hold::subscription::{Subscription, SubscriptionState};

/// Keeps a subscription for this long after its last listener: a caller that waits in a loop subscribes once.
const LINGER: Duration = Duration::from_millis(100);

/// After a subscription failed, waits for this many polls before the next try.
const POLLS_BETWEEN_TRIES: u32 = 4;

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
            () = self.hint().past(mark) => {}
            () = self.core.closing.past(closing) => {}
            () = self.core.clock.sleep_until(at) => {}
        }
    }

    /// Subscribes unless messages already reach this client. Returns true if the subscription is new: the caller asks
    /// the server again. Driven in the background, so a caller that is not polled keeps no other from subscribing. If
    /// the future is dropped, a new subscription gives the hint.
    pub(crate) async fn subscribe(&self) -> bool {
        let (core, subscription) = (&self.core, &self.subscription);
        if core.is_closed() || !subscription.may_subscribe(core.clock.now()) {
            return false;
        }
        let gaps = Some(core.locals.gaps());
        let state = subscription.state.try_lock();
        if state.is_ok_and(|state| state.since == gaps) {
            return false;
        }
        let (sender, receiver) = oneshot::channel();
        // It stays until the end, so that the subscription ends if the caller is gone by then.
        let own = Self::new(core, &self.route, &self.channel);
        let work = async move {
            let is_new = own.subscribe_now().await;
            if sender.send(is_new).is_err() && is_new {
                own.hint().give();
            }
        };
        core.watchdog.drive(work.boxed());
        receiver.await.unwrap_or(false)
    }

    async fn subscribe_now(&self) -> bool {
        let (core, subscription) = (&self.core, &self.subscription);
        let reply = core.timing.reply;
        let locked = core.clock.within(reply, subscription.state.lock());
        let Some(mut state) = locked.await else {
            return false;
        };
        let gaps = core.locals.gaps();
        if state.since == Some(gaps) {
            return false;
        }
        subscription.mark_subscribed();
        *state = SubscriptionState {
            channel: Some(self.channel.to_string()),
            since: None,
        };
        let command = redis::Cmd::new()
            .arg(core.channels().subscribe())
            .arg(&*self.channel)
            .to_owned();
        let sent = (core.scripts.transport).send(Lane::Push, &self.route, &command, reply);
        let is_subscribed = sent.await.is_ok();
        if is_subscribed {
            state.since = Some(gaps);
        } else {
            let pause = core.timing.poll_cap * POLLS_BETWEEN_TRIES;
            subscription.retry_after(core.clock.now().after(pause));
        }
        is_subscribed
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let subscription = &self.subscription;
        if !subscription.remove_listener() {
            return;
        }
        if !subscription.take_subscribed() {
            // If the state is locked or has a channel, its end is under way and forgets the listener.
            let state = subscription.state.try_lock();
            if state.is_ok_and(|state| state.channel.is_none()) {
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

/// Ends the subscription after a while, unless there is a listener again. A listener that comes in between waits for
/// the state's mutex, and subscribes after the end.
async fn end(core: Arc<Core>, route: Arc<str>, channel: Box<str>, subscription: Arc<Subscription>) {
    if !core.is_closed() {
        core.clock.sleep_until(core.clock.now().after(LINGER)).await;
    }
    let reply = core.timing.reply;
    let locked = core.clock.within(reply, subscription.state.lock()).await;
    // In this order: a listener that leaves after the look finds the mark, and ends the subscription.
    subscription.mark_subscribed();
    if subscription.is_used() {
        return;
    }
    let Some(mut state) = locked else {
        return;
    };
    subscription.take_subscribed();
    if std::mem::take(&mut *state).channel.is_some() {
        let command = redis::Cmd::new()
            .arg(core.channels().unsubscribe())
            .arg(&*channel)
            .to_owned();
        // Without an answer the connection is replaced, and its subscriptions end with it.
        let transport = &core.scripts.transport;
        let _ = transport.send(Lane::Push, &route, &command, reply).await;
    }
    drop(state);
    core.locals.forget_listener(&channel, &subscription);
}
