//! Makes and ends subscriptions to channels, for waiters and for callers that wait for a condition at the server.
//!
//! All listeners of a client to one channel share one subscription, and one command makes it. Invariants: the task that
//! subscribes counts as a listener until it has ended, so no subscription is ended while it is being made. The command
//! that ends a subscription is handed over to the connection at once, under the mutex of the state. If there is no
//! connection, it is not needed. So it waits for no connection, and comes behind no later subscription. No caller waits
//! for another: a future that is not polled delays no other. A message is a hint and never a fact. After each
//! subscription the caller asks the server again, because earlier messages were missed. The watchdog's task subscribes,
//! and tries again for as long as there is a listener. When the last listener leaves, the subscription ends in the
//! background.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use crate::conn::{Fault, Lane, Recipient, Replies};
use crate::engine::clock::Tick;
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscription::Subscription;
use crate::engine::keys::LockName;

/// How long a shared subscription outlives its last listener. Otherwise a caller that waits in a loop would subscribe
/// each time, and clients that compete for a lock would subscribe for each grant.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// Has the watchdog's task subscribe to this channel, and try again until the server confirms it or there is no other
/// listener. Gives a hint, like a message, unless the subscription was there all along: the caller has to ask the
/// server again, because earlier messages were missed.
fn subscribe_later(listener: Listener) {
    let core = Arc::clone(&listener.core);
    // Without its task the client cannot subscribe.
    if core.is_closed()
        || core.watchdog.is_gone()
        || !listener.subscription.begin_subscribing(&listener.channel)
    {
        return;
    }
    let work = async move {
        let Listener {
            core, subscription, ..
        } = &listener;
        let (clock, cap) = (core.clock, core.timing.poll_cap);
        let mut pause = cap / 8;
        while let Some(channel) = subscription.to_subscribe() {
            let was_heard = subscription.is_heard(&channel, core.locals.gaps());
            let subscribing = subscribe(core, subscription, &listener.route, &channel);
            if core.until_closed(subscribing).await == Some(false) {
                // The reason of a refusal may pass quickly, for example if a slot is moving.
                let next = clock.now().after(pause);
                core.until_closed(clock.sleep_until(next)).await;
                pause = (pause * 2).min(cap);
                continue;
            }
            let is_heard = subscription.is_heard(&channel, core.locals.gaps());
            let is_done = subscription.end_subscribing(&channel);
            if !(was_heard && is_heard) {
                subscription.hint.notify();
            }
            if is_done {
                // Another task may have begun since.
                return;
            }
        }
    };
    core.watchdog.begin(work.boxed());
}

/// Subscribes to this channel. The calling task must count as a listener until this has ended. Returns whether the
/// server has confirmed the subscription. The last listener to leave ends it.
async fn subscribe(
    core: &Arc<Core>,
    subscription: &Arc<Subscription>,
    route: &Arc<str>,
    channel: &str,
) -> bool {
    let command = push_command(core.channels().subscribe(), channel);
    let gaps = core.locals.gaps();
    {
        // The mutex puts this command behind one that is ending the subscription.
        let mut state = subscription.state();
        subscription.mark_subscribed();
        if !state.is_heard(channel, gaps) {
            state.heard_since = None;
        }
        let old = state.channel.replace(channel.into());
        if let Some(old) = old.filter(|old| **old != *channel)
            && core.locals.ignore(&old, subscription)
        {
            // The waiter now asks under another holder id, whose channel is another.
            unsubscribe(core, route, &old);
        }
        core.locals.listen(channel, subscription);
    }
    let (transport, limit) = (&core.scripts.transport, core.timing.reply);
    let sent = transport.send(Lane::Push, route, &command, limit).await;
    if sent.is_ok() {
        subscription.state().heard_since = Some(gaps);
    }
    sent.is_ok()
}

/// Has the watchdog's task end the subscription, whose last listener has left, after `linger`, unless it has a listener
/// again. False if there is nothing to end. `local` is kept until then, so that waiters that come before the end find
/// the subscription.
pub(crate) fn end_later(
    core: &Arc<Core>,
    subscription: &Arc<Subscription>,
    route: &Arc<str>,
    local: Option<Arc<LocalLock>>,
    linger: Duration,
) -> bool {
    if !subscription.take_subscribed() {
        return false;
    }
    let (own, route) = (Arc::clone(core), Arc::clone(route));
    let subscription = Arc::clone(subscription);
    let work = async move {
        if !linger.is_zero() && !own.is_closed() {
            own.clock.sleep_until(own.clock.now().after(linger)).await;
        }
        unsubscribe_unused(&own, &subscription, &route);
        drop(local);
    };
    core.watchdog.drive(work.boxed());
    true
}

/// Ends the subscription if it has no listener.
fn unsubscribe_unused(core: &Arc<Core>, subscription: &Arc<Subscription>, route: &Arc<str>) {
    let mut state = subscription.state();
    let Some(channel) = state.channel.clone() else {
        return;
    };
    if !subscription.end_unused(|| true) {
        return;
    }
    state.heard_since = None;
    if core.locals.leads_to(&channel, subscription) {
        unsubscribe(core, route, &channel);
        // Removed from the list after the command: a listener that comes before the removal uses this subscription, and
        // subscribes behind the command.
        subscription.end_unused(|| core.locals.forget(&channel, subscription));
    }
}

/// Ends the subscription to this channel at the server. Without a connection the subscription has ended with the last
/// one. If the server has not noticed the end of a connection yet, the next connection has the old one killed.
fn unsubscribe(core: &Arc<Core>, route: &Arc<str>, channel: &str) {
    let command = push_command(core.channels().unsubscribe(), channel);
    let ending = Arc::new(Ending {
        core: Arc::downgrade(core),
        route: Arc::clone(route),
    });
    let (transport, limit) = (&core.scripts.transport, core.timing.reply);
    let to = Arc::clone(&ending) as _;
    if !transport.submit(Lane::Push, route, &[&command], limit, to) {
        ending.connect();
    }
}

/// The end of a subscription, on its way to the server.
#[derive(Debug)]
struct Ending {
    core: Weak<Core>,
    route: Arc<str>,
}

impl Ending {
    /// Has the client make the next connection for messages, which has the earlier one killed.
    fn connect(&self) {
        let core = self.core.upgrade().filter(|core| !core.is_closed());
        let Some(core) = core else {
            return;
        };
        let (own, route) = (Arc::clone(&core), Arc::clone(&self.route));
        let work = async move {
            let (ping, limit) = (redis::cmd("PING"), own.timing.reply);
            let sent = (own.scripts.transport).send(Lane::Push, &route, &ping, limit);
            let _whether_it_came = own.until_closed(sent).await;
        };
        core.watchdog.drive(work.boxed());
    }
}

impl Recipient for Ending {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        if let Err(Fault::Unknown(_) | Fault::Unsent(_)) = outcome {
            self.connect();
        }
    }
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
    channel: Arc<str>,
    subscription: Arc<Subscription>,
    /// The lock whose waiters share the subscription.
    local: Option<Arc<LocalLock>>,
}

impl Listener {
    pub(crate) fn new(core: &Arc<Core>, route: &Arc<str>, channel: &str) -> Self {
        Self {
            core: Arc::clone(core),
            route: Arc::clone(route),
            channel: channel.into(),
            subscription: core.locals.add_listener(channel),
            local: None,
        }
    }

    /// A listener that shares the subscription of the waiters of a lock.
    pub(crate) fn beside(core: &Arc<Core>, local: &Arc<LocalLock>, name: &LockName) -> Self {
        Self::of_waiter(core, local, &local.subscription, &name.lock_channel())
    }

    /// A listener that shares this subscription with waiters of a lock.
    pub(crate) fn of_waiter(
        core: &Arc<Core>,
        local: &Arc<LocalLock>,
        subscription: &Arc<Subscription>,
        channel: &str,
    ) -> Self {
        subscription.add_listener();
        Self {
            core: Arc::clone(core),
            route: Arc::clone(local.key()),
            channel: channel.into(),
            subscription: Arc::clone(subscription),
            local: Some(Arc::clone(local)),
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
        let core = &self.core;
        let woken = async {
            tokio::select! {
                biased;
                () = self.hint().changed_since(mark) => {}
                () = core.clock.sleep_until(at) => {}
            }
        };
        core.until_closed(woken).await;
    }

    /// Whether the server sends the messages of the channel.
    fn is_heard(&self) -> bool {
        let gaps = self.core.locals.gaps();
        self.subscription.is_heard(&self.channel, gaps)
    }

    /// Has the client subscribe, unless messages already reach it. Returns whether they do.
    pub(crate) fn subscribe(&self) -> bool {
        let is_heard = self.is_heard();
        if !is_heard {
            subscribe_later(self.clone());
        }
        is_heard
    }

    /// Has the client subscribe once more if nothing has come over the connection for messages for long. If that
    /// connection is dead, this ends it, and the gap gives a hint.
    pub(crate) fn check_connection(self) {
        let core = &self.core;
        let replied = core
            .scripts
            .transport
            .last_reply_at(Lane::Push, &self.route);
        if replied.after(core.timing.heartbeat) <= core.clock.now() {
            subscribe_later(self);
        }
    }
}

impl Clone for Listener {
    fn clone(&self) -> Self {
        let subscription = Arc::clone(&self.subscription);
        subscription.add_listener();
        Self {
            core: Arc::clone(&self.core),
            route: Arc::clone(&self.route),
            channel: Arc::clone(&self.channel),
            subscription,
            local: self.local.clone(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (core, route, subscription) = (&self.core, &self.route, &self.subscription);
        if !subscription.remove_listener() {
            return;
        }
        let is_ending = end_later(core, subscription, route, self.local.take(), LINGER);
        // If the state has a channel, the end of the subscription is under way, and removes it from the list.
        if !is_ending && subscription.state().channel.is_none() {
            core.locals.forget(&self.channel, subscription);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::conn::EventHandler;
    use crate::engine::hold::local::Locals;
    use crate::testing::{Answer, Scripted};

    /// With a subscription of its own, its command could come before the command that ends the other subscription.
    #[tokio::test(start_paused = true)]
    async fn who_comes_at_the_end_of_a_subscription_shares_it() {
        type Came = (Arc<Locals>, OnceLock<Arc<Subscription>>);
        let came: Arc<OnceLock<Came>> = Arc::default();
        let comes = Arc::clone(&came);
        let server = Scripted::new(move |sent| {
            if sent.is("UNSUBSCRIBE")
                && let Some((locals, came)) = comes.get()
            {
                came.get_or_init(|| locals.add_listener("x"));
            }
            Answer::Value(Value::Okay)
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let core = client.core();
        let came = came.get_or_init(|| (Arc::clone(&core.locals), OnceLock::new()));
        let listener = Listener::new(core, &"x".into(), "x");
        assert!(!listener.subscribe());
        assert!(
            listener.subscribe(),
            "it has begun, and the server has answered at once"
        );
        let first = Arc::clone(&listener.subscription);
        drop(listener);
        tokio::time::sleep(LINGER * 2).await;
        assert!(Arc::ptr_eq(came.1.get().expect("it came"), &first));
        // The subscription is not confirmed yet, and the last listener to leave ends it.
        assert_eq!(first.state().heard_since, None);
        assert!(first.remove_listener());
        assert!(end_later(core, &first, &"x".into(), None, LINGER));
        tokio::time::sleep(LINGER * 2).await;
        assert_eq!(core.locals.channels(), 0);
    }

    /// Two tasks that wait for one connection are polled in any order.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_subscription_does_not_come_behind_the_next_one() {
        let server = Scripted::new(|_| Answer::Value(Value::Okay));
        let client = Client::over(&server, Duration::from_secs(30));
        let core = client.core();
        let listener = Listener::new(core, &"x".into(), "x");
        listener.subscribe();
        drop(listener);
        server.connect(false);
        core.locals.gap();
        tokio::time::sleep(LINGER * 2).await;
        let next = Listener::new(core, &"x".into(), "x");
        assert!(!next.subscribe(), "it waits");
        server.connect(true);
        tokio::time::sleep(LINGER).await;
        let last = server.sent().pop().expect("it was sent");
        assert!(last.is("SUBSCRIBE") && next.is_heard(), "{last:?}");
    }

    /// With a hint, a caller that waits would try again at once, endlessly.
    #[test]
    fn without_the_task_of_its_client_nobody_is_told_to_try_again() {
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
        };
        let server = Scripted::new(|_| Answer::Value(Value::Okay));
        let theirs = runtime().unwrap();
        let client = theirs.block_on(async { Client::over(&server, Duration::from_secs(30)) });
        let listener = Listener::new(client.core(), &"x".into(), "x");
        drop(theirs);
        let mark = listener.mark();
        assert!(!listener.subscribe());
        assert_eq!(listener.mark(), mark);
    }

    /// Otherwise its late confirmation would count for the next subscription, which the server has yet to begin.
    #[tokio::test(start_paused = true)]
    async fn a_subscription_is_not_ended_while_it_is_being_made() {
        let server = Scripted::new(|sent| match sent.is("SUBSCRIBE") {
            true => Answer::Late(LINGER * 3, Value::Okay),
            false => Answer::Value(Value::Okay),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let core = client.core();
        let listener = || Listener::new(core, &"x".into(), "x");
        listener().subscribe();
        tokio::time::sleep(LINGER * 2).await;
        let next = listener();
        assert!(!next.subscribe() && server.sent().len() == 1, "it waits");
        tokio::time::sleep(LINGER * 2).await;
        assert!(next.is_heard());
        drop(next);
        tokio::time::sleep(LINGER * 2).await;
        assert_eq!((server.sent().len(), core.locals.channels()), (2, 0));
    }
}
