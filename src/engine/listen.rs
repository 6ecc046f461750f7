//! Subscribes to a channel and ends that, for waiters and for callers that wait for a condition at the server.
//!
//! All listeners of a client to one channel share one subscription, and one command makes it. Invariants: a command is
//! sent under the mutex under which the state of the subscription changes. So the server ends with the state that the
//! client has, and no caller waits for another: a future that is not polled delays no other. A message is a hint and
//! never a fact; the caller asks the server again after each subscription, because messages before it were missed. The
//! watchdog's task subscribes, and tries again for as long as somebody listens. When the last listener leaves, the
//! subscription ends in the background.

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
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::subscription::{Heard, Subscription, SubscriptionState};
use crate::engine::keys::LockName;
use crate::script::on_first_poll;

/// How long a shared subscription outlives its last listener. Without this, a caller that waits in a loop would subscribe
/// each time, and a lock that several processes fight over would be subscribed to for each grant.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// Has the watchdog's task subscribe, unless messages already reach this client; returns whether they do. Once they do,
/// that gives a hint, as a message does: the caller asks the server again, because earlier messages were missed.
pub(crate) fn begin_listening(
    core: &Arc<Core>,
    subscription: &Arc<Subscription>,
    route: &Arc<str>,
    channel: &str,
) -> bool {
    let is_heard = subscription.is_heard(channel, core.locals.gaps());
    if !is_heard {
        subscribe_later(core, subscription, route, channel);
    }
    is_heard
}

/// As [`begin_listening`], and subscribes once more if nothing has come over the connection for messages for long. If it
/// is dead, that ends it, and the gap gives a hint.
pub(crate) fn check_connection(
    core: &Arc<Core>,
    subscription: &Arc<Subscription>,
    route: &Arc<str>,
    channel: &str,
) -> bool {
    let replied = core.scripts.transport.last_reply_at(Lane::Push, route);
    let is_silent = replied.after(core.timing.poll_cap) <= core.clock.now();
    let is_heard = begin_listening(core, subscription, route, channel);
    if is_heard && is_silent {
        subscribe_later(core, subscription, route, channel);
    }
    is_heard
}

/// Has the watchdog's task subscribe to this channel, and try again until the server confirms it or nobody listens.
fn subscribe_later(
    core: &Arc<Core>,
    subscription: &Arc<Subscription>,
    route: &Arc<str>,
    channel: &str,
) {
    // Without its task nothing would come of it.
    if core.is_closed() || core.watchdog.is_gone() || !subscription.begin_subscribing(channel) {
        return;
    }
    let (own, subscription) = (Arc::clone(core), Arc::clone(subscription));
    let route = Arc::clone(route);
    let work = async move {
        let cap = own.timing.poll_cap;
        let mut pause = cap / 8;
        while let Some(channel) = subscription.to_subscribe() {
            let was_heard = subscription.is_heard(&channel, own.locals.gaps());
            let subscribing = subscribe(&own, &subscription, &route, &channel);
            if own.until_closed(subscribing).await != Some(false) {
                subscription.end_subscribing(&channel, !was_heard);
                continue;
            }
            if subscription.is_used() {
                // A refusal may pass quickly, as while a slot moves.
                let next = own.clock.now().after(pause);
                own.until_closed(own.clock.sleep_until(next)).await;
                pause = (pause * 2).min(cap);
            }
        }
    };
    core.watchdog.begin(work.boxed());
}

/// Subscribes to this channel. Returns whether the server has confirmed it. Nothing is sent if all listeners have left
/// before.
async fn subscribe(
    core: &Core,
    subscription: &Arc<Subscription>,
    route: &str,
    channel: &str,
) -> bool {
    let old = subscription.state().channel.clone();
    if let Some(old) = old.filter(|old| **old != *channel)
        && core.locals.ignore(&old, subscription)
    {
        // Of a waiter under another holder id.
        unsubscribe(core, route, &old).await;
    }
    let command = push_command(core.channels().subscribe(), channel);
    let gaps = core.locals.gaps();
    let begin = |state: &mut SubscriptionState| {
        // In this order: who leaves after the check finds the mark. Who left before has nothing to end.
        subscription.mark_subscribed();
        if !subscription.is_used() && subscription.take_subscribed() {
            return false;
        }
        core.locals.listen(channel, subscription);
        if !state.is_heard(channel, gaps) {
            (state.channel, state.heard) = (Some(channel.into()), Heard::Unconfirmed);
        }
        true
    };
    let transport = &core.scripts.transport;
    let send = transport.send(Lane::Push, route, &command, core.timing.reply);
    let is_confirmed = matches!(in_order(subscription, begin, send).await, Some(Ok(_)));
    if is_confirmed {
        let mut state = subscription.state();
        if state.heard != Heard::Ended {
            state.heard = Heard::Since(gaps);
        }
    }
    is_confirmed
}

/// Has the watchdog's task end the subscription after `linger`, if the caller was its last listener. False if there is
/// nothing to end. The lock stays for waiters that come before the end, so that they find the subscription.
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
        unsubscribe_unused(&own, &subscription, &route).await;
        drop(local);
    };
    core.watchdog.drive(work.boxed());
    true
}

/// Ends the subscription if it has no listener.
async fn unsubscribe_unused(core: &Core, subscription: &Arc<Subscription>, route: &str) {
    let Some(channel) = subscription.state().channel.clone() else {
        return;
    };
    let end = |state: &mut SubscriptionState| {
        let is_unused = subscription.end_unused(|| true);
        if is_unused {
            state.heard = Heard::Ended;
        }
        is_unused && core.locals.leads_to(&channel, subscription)
    };
    // Forgotten behind the command: who comes before that finds this subscription, and subscribes behind it as well.
    let sent = pin!(unsubscribe(core, route, &channel));
    let sent = on_first_poll(sent, || {
        subscription.end_unused(|| core.locals.forget(&channel, subscription));
    });
    in_order(subscription, end, sent).await;
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
            let mut state = subscription.state();
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

    /// A listener beside the waiters of a lock.
    pub(crate) fn beside(core: &Arc<Core>, local: &Arc<LocalLock>, name: &LockName) -> Self {
        local.subscription.add_listener();
        Self {
            core: Arc::clone(core),
            route: Arc::clone(name.key()),
            channel: name.lock_channel().into(),
            subscription: Arc::clone(&local.subscription),
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

    /// See [`begin_listening`].
    pub(crate) fn subscribe(&self) -> bool {
        begin_listening(&self.core, &self.subscription, &self.route, &self.channel)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (core, route, subscription) = (&self.core, &self.route, &self.subscription);
        if !subscription.remove_listener() {
            return;
        }
        let is_ending = end_later(core, subscription, route, self.local.take(), LINGER);
        // With a channel, its end is under way, and forgets it.
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
    use crate::engine::hold::local::Locals;
    use crate::testing::{Answer, Scripted};

    /// Under a subscription of its own, its command could come before the one that ends the other.
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
        // It does not hear anything yet, and who leaves last ends it.
        assert_eq!(first.state().heard, Heard::Ended);
        assert!(first.remove_listener());
        assert!(end_later(core, &first, &"x".into(), None, LINGER));
        tokio::time::sleep(LINGER * 2).await;
        assert_eq!(core.locals.channels(), 0);
    }

    /// A caller that waits for hints would try again at once, without an end.
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

    /// The server has ended that one, and has yet to begin the next.
    #[tokio::test(start_paused = true)]
    async fn a_late_confirmation_of_an_ended_subscription_is_none_of_the_next() {
        const MS: Duration = Duration::from_millis(1);
        let server = Scripted::new(|sent| match sent.is("SUBSCRIBE") {
            true => Answer::Late(MS * 300, Value::Okay),
            false => Answer::Value(Value::Okay),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let core = client.core();
        let subscription = core.locals.add_listener("x");
        let heard = || subscription.state().heard;
        let route = "x".into();
        let listen = || begin_listening(core, &subscription, &route, "x");
        assert!(!listen());
        tokio::time::sleep(MS * 10).await;
        assert!(subscription.remove_listener());
        assert!(end_later(core, &subscription, &route, None, Duration::ZERO));
        tokio::time::sleep(MS * 10).await;
        assert_eq!(heard(), Heard::Ended);
        subscription.add_listener();
        let mark = subscription.hint.mark();
        assert!(!listen(), "the confirmation of the first is on its way");
        subscription.hint.changed_since(mark).await;
        assert_eq!(heard(), Heard::Ended, "it was for the first");
        assert!(!listen());
        tokio::time::sleep(MS * 310).await;
        assert!(listen());
        let subscribed = server.sent().into_iter();
        let subscribed = subscribed.filter(|sent| sent.is("SUBSCRIBE"));
        assert_eq!(subscribed.count(), 2);
    }
}
